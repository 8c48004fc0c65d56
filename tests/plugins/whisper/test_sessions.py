from __future__ import annotations

import base64

import pytest

from utter_plugins.whisper.bias import Hints
from utter_plugins.whisper.ear import LOST, invalid
from utter_plugins.whisper.sessions import ABANDONED_S, MAX_BYTES, MAX_SESSIONS, Sessions
from utter_protocol.errors import ErrorCode, RpcError
from utter_protocol.methods import AudioFormat, RingFrames, SttFeedParams, SttStartParams

HINTS = Hints(())
FRAME = b"\x00\x00\x80\x3f"


def no_ring(start: int, count: int) -> bytes:
    raise invalid("frames", f"frames {start} to {start + count} are nowhere")


def start(sessions: Sessions, name: str, **more: object) -> None:
    sessions.start(SttStartParams(session=name, **more), HINTS)  # type: ignore[arg-type] # the keywords vary by test


def feed(sessions: Sessions, name: str, seq: int, data: bytes | str) -> None:
    text = data if isinstance(data, str) else base64.b64encode(data).decode()
    sessions.feed(SttFeedParams(session=name, seq=seq, data_b64=text))


def refused(field: str) -> pytest.RaisesExc[RpcError]:
    return pytest.RaisesExc(
        RpcError, check=lambda error: error.code == ErrorCode.INVALID_PARAMS and error.data == {"field": field}
    )


def test_sessions_are_kept_apart() -> None:
    sessions = Sessions(no_ring, str)
    start(sessions, "a", language="en-US")
    start(sessions, "b", language="de")
    feed(sessions, "a", 0, FRAME)
    feed(sessions, "b", 0, FRAME * 16)
    feed(sessions, "a", 1, FRAME * 2)
    a, b = sessions.take("a"), sessions.take("b")
    assert (a.pcm, a.language, a.gaps) == (FRAME * 3, "en", 0)
    assert (b.milliseconds, b.language) == (1, "de")
    assert len(sessions) == 0


def test_unknown_sessions_are_refused() -> None:
    sessions = Sessions(no_ring, str)
    start(sessions, "a")
    sessions.drop("a")
    # To cancel is a wish that nobody is in the way of.
    sessions.drop("a")
    for call in (sessions.take, lambda name: feed(sessions, name, 0, FRAME)):
        with refused("session"):
            call("a")
    with refused("session"):
        start(sessions, "")
    start(sessions, "a")
    with refused("session"):
        start(sessions, "a")


def test_at_most_four_sessions_are_open_and_abandoned_ones_make_room() -> None:
    now = 0.0
    forgotten: list[str] = []
    sessions = Sessions(no_ring, forgotten.append, lambda: now)
    for number in range(MAX_SESSIONS):
        start(sessions, str(number))
    with refused("session"):
        start(sessions, "one too many")
    now = ABANDONED_S
    feed(sessions, "0", 0, FRAME)
    now = ABANDONED_S + 1
    start(sessions, "next")
    assert len(sessions) == 2
    assert forgotten == ["1", "2", "3"]
    assert sessions.take("0").pcm == FRAME


@pytest.mark.parametrize(
    ("data", "seq", "field"),
    [
        (FRAME[:3], 0, "data_b64"),
        ("a", 0, "data_b64"),
        ("!!!!", 0, "data_b64"),
        ("\N{SNOWMAN}", 0, "data_b64"),
        (FRAME, -1, "seq"),
    ],
)
def test_wrong_audio_is_told_at_once_and_again_when_the_session_is_finished(
    data: bytes | str, seq: int, field: str
) -> None:
    sessions = Sessions(no_ring, str)
    start(sessions, "a")
    with refused(field):
        feed(sessions, "a", seq, data)
    with refused(field):
        sessions.take("a")
    assert len(sessions) == 0


def test_gaps_are_counted_and_old_audio_is_refused() -> None:
    sessions = Sessions(no_ring, str)
    start(sessions, "a")
    feed(sessions, "a", 0, FRAME)
    feed(sessions, "a", 3, FRAME)
    with refused("seq"):
        feed(sessions, "a", 2, FRAME)
    assert sessions._open["a"].gaps == 2


def test_audio_beyond_a_minute_is_dropped() -> None:
    sessions = Sessions(no_ring, str)
    start(sessions, "a")
    feed(sessions, "a", 0, bytes(MAX_BYTES - 4))
    feed(sessions, "a", 1, FRAME * 100)
    feed(sessions, "a", 2, FRAME)
    session = sessions.take("a")
    assert session.truncated
    assert len(session.pcm) == MAX_BYTES
    assert session.milliseconds == 60_000


@pytest.mark.parametrize(
    ("audio", "field"),
    [(AudioFormat(rate=48_000), "format.rate"), (AudioFormat(channels=2), "format.channels")],
)
def test_other_formats_are_refused(audio: AudioFormat, field: str) -> None:
    with refused(field):
        start(Sessions(no_ring, str), "a", format=audio)


def feed_frames(sessions: Sessions, name: str, seq: int, start: int, count: int) -> None:
    sessions.feed(SttFeedParams(session=name, seq=seq, frames=RingFrames(start=start, count=count)))


def test_frames_of_the_ring_and_messages_are_one_sequence() -> None:
    sessions = Sessions(lambda start, count: bytes([start]) * 4 * count, str)
    start(sessions, "a")
    feed_frames(sessions, "a", 0, 1, 2)
    feed(sessions, "a", 1, FRAME)
    feed_frames(sessions, "a", 2, 9, 1)
    session = sessions.take("a")
    assert session.pcm == b"\1" * 8 + FRAME + b"\t" * 4
    assert session.gaps == 0


def test_a_hole_in_the_audio_is_told_when_the_session_is_finished() -> None:
    def late(_start: int, _count: int) -> bytes:
        raise RpcError(ErrorCode.PLUGIN_FAILED, LOST)

    sessions = Sessions(late, str)
    start(sessions, "a")
    with pytest.raises(RpcError, match="lost"):
        feed_frames(sessions, "a", 0, 0, 320)
    feed(sessions, "a", 1, FRAME)
    with pytest.raises(RpcError, match="say it again") as caught:
        sessions.take("a")
    assert caught.value.code == ErrorCode.PLUGIN_FAILED


def test_frames_without_a_ring_name_the_field() -> None:
    sessions = Sessions(no_ring, str)
    start(sessions, "a")
    with refused("frames"):
        feed_frames(sessions, "a", 0, 0, 320)
