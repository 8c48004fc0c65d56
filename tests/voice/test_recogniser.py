"""Speech to text through a plugin: what goes over the wire, and that nothing stays open there."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
import trio
from msgspec import Raw

from utter_protocol.errors import ErrorCode, RpcError
from utter_runner.dataplane.ring import RingWriter
from utter_runner.supervision.fake import FakeInstance, FakeSupervisor
from utter_runner.voice.collaborators import Chunk
from utter_runner.voice.recogniser import FINAL, STT, PluginRecogniser

FRAMES = b"\x00\x00\x80\x3f" * 100
PluginMaker = Callable[..., tuple[FakeInstance, PluginRecogniser]]


class Wire:
    """Stands for the peer of a running plugin: keeps the notifications."""

    def __init__(self) -> None:
        self.fed: list[dict[str, Any]] = []
        self.accepts = True

    def notify(self, method: str, params: bytes) -> bool:
        assert method == "stt.feed"
        self.fed.append(msgspec.json.decode(params))
        return self.accepts


@pytest.fixture
def ring() -> Iterator[RingWriter]:
    ring = RingWriter.create(seconds=1.0)
    yield ring
    ring.close()


@pytest.fixture
def plugin(ring: RingWriter) -> PluginMaker:
    """Makes a plugin that answers as it is told, and the recogniser that asks it."""

    def make(
        answers: dict[str, Any] | None = None, provides: tuple[str, ...] = (STT,), permissions: tuple[str, ...] = ()
    ) -> tuple[FakeInstance, PluginRecogniser]:
        instance = FakeInstance("ear", answers, provides=provides, permissions=permissions)
        instance.peer = Wire()
        supervisor = FakeSupervisor(instance)
        return instance, PluginRecogniser(
            supervisor, hints=lambda: ["lights on"], language="en", start_timeout=5.0, ring=ring
        )

    return make


def methods(instance: FakeInstance) -> list[str]:
    return [request.method for request in instance.received]


async def test_an_utterance_is_started_fed_and_finished(plugin: PluginMaker) -> None:
    instance, recogniser = plugin({"stt.start": {}, "stt.finish": {"text": "lights on", "confidence": 0.9}})
    stream = await recogniser.start("s1")
    stream.feed(Chunk(FRAMES))
    stream.feed(Chunk(FRAMES))
    transcript = await stream.finish(5.0)
    stream.cancel()
    assert transcript.text == "lights on"
    assert methods(instance) == ["stt.start", "stt.finish"]
    assert instance.received[0].params["hints"] == ["lights on"]
    assert [(one["session"], one["seq"]) for one in instance.peer.fed] == [("s1", 0), ("s1", 1)]
    assert base64.b64decode(instance.peer.fed[0]["data_b64"]) == FRAMES


async def test_long_audio_goes_in_pieces_that_fit_every_frame(plugin: PluginMaker) -> None:
    instance, recogniser = plugin({"stt.start": {}})
    stream = await recogniser.start("s1")
    data = bytes(range(256)) * 4096
    stream.feed(Chunk(data))
    assert b"".join(base64.b64decode(one["data_b64"]) for one in instance.peer.fed) == data
    assert max(len(one["data_b64"]) for one in instance.peer.fed) < 512 * 1024


async def test_a_finish_that_is_given_up_is_cancelled_in_the_plugin(
    plugin: PluginMaker, autojump_clock: trio.testing.MockClock
) -> None:
    instance, recogniser = plugin({"stt.start": {}, "stt.cancel": {}})
    stream = await recogniser.start("s1")
    with trio.move_on_after(1.0):
        await stream.finish(60.0)
    assert methods(instance) == ["stt.start", "stt.finish", "stt.cancel"]
    stream.cancel()
    assert methods(instance) == ["stt.start", "stt.finish", "stt.cancel"]


async def test_a_start_that_is_refused_leaves_nothing_open(plugin: PluginMaker) -> None:
    refusal = RpcError(ErrorCode.PLUGIN_FAILED, "no model")
    instance, recogniser = plugin({"stt.start": refusal, "stt.cancel": {}})
    with pytest.raises(RpcError, match="no model"):
        await recogniser.start("s1")
    assert methods(instance) == ["stt.start", "stt.cancel"]


async def test_an_utterance_ends_with_its_epoch(plugin: PluginMaker) -> None:
    instance, recogniser = plugin({"stt.start": {}, "stt.cancel": {}, "stt.finish": {"text": "of another epoch"}})
    stream = await recogniser.start("s1")
    instance.die("backoff", "killed")
    instance.start()
    instance.peer = Wire()
    with pytest.raises(RpcError):
        stream.feed(Chunk(FRAMES))
    with pytest.raises(RpcError):
        await stream.finish(5.0)
    stream.cancel()
    assert instance.peer.fed == []
    assert "stt.finish" not in methods(instance)


async def test_a_full_queue_is_an_error_and_not_a_gap(plugin: PluginMaker) -> None:
    instance, recogniser = plugin({"stt.start": {}})
    stream = await recogniser.start("s1")
    instance.peer.accepts = False
    with pytest.raises(RpcError):
        stream.feed(Chunk(FRAMES))


async def test_without_a_recogniser_it_says_so(ring: RingWriter) -> None:
    recogniser = PluginRecogniser(FakeSupervisor(), hints=list, language="en", start_timeout=1.0, ring=ring)
    with pytest.raises(RpcError) as error:
        await recogniser.start("s1")
    assert error.value.code == ErrorCode.CAPABILITY_MISSING


# ---- plugins that decide by themselves when an utterance is over


def final(recogniser: PluginRecogniser, instance: FakeInstance, session: str = "s1", text: str = "lights on") -> None:
    recogniser.on_final(instance, Raw(msgspec.json.encode({"session": session, "text": text, "confidence": 0.7})))


async def test_a_final_text_takes_the_place_of_the_answer_that_is_under_way(
    plugin: PluginMaker, nursery: trio.Nursery
) -> None:
    instance, recogniser = plugin({"stt.start": {}}, (STT, FINAL))
    stream = await recogniser.start("s1")
    got: list[Any] = []

    async def finish() -> None:
        got.append(await stream.finish(60.0))

    nursery.start_soon(finish)
    request = await instance.wait_received(2)
    final(recogniser, instance)
    await trio.testing.wait_all_tasks_blocked()
    assert [(one.text, one.confidence) for one in got] == [("lights on", 0.7)]
    # The answer that comes later is heard by nobody, and is none too many.
    instance.answer(request, {"text": "lights off"})
    final(recogniser, instance, text="lights off")
    assert (methods(instance), request.cancelled) == (["stt.start", "stt.finish"], False)
    assert recogniser._open == {}


async def test_a_final_text_may_come_before_it_is_asked_for(plugin: PluginMaker) -> None:
    instance, recogniser = plugin({"stt.start": {}, "stt.cancel": {}}, (STT, FINAL))
    stream = await recogniser.start("s1")
    stream.feed(Chunk(FRAMES))
    final(recogniser, instance)
    final(recogniser, instance, text="a second one")
    # The key is still held: audio goes on, and is for nobody.
    stream.feed(Chunk(FRAMES))
    assert (await stream.finish(5.0)).text == "lights on"
    assert methods(instance) == ["stt.start", "stt.cancel"]
    stream.cancel()
    assert methods(instance) == ["stt.start", "stt.cancel"]


async def test_the_answer_counts_when_it_comes_first(plugin: PluginMaker) -> None:
    instance, recogniser = plugin({"stt.start": {}, "stt.finish": {"text": "lights on"}}, (STT, FINAL))
    stream = await recogniser.start("s1")
    assert (await stream.finish(5.0)).text == "lights on"
    final(recogniser, instance, text="too late")
    assert methods(instance) == ["stt.start", "stt.finish"]


async def test_an_error_that_comes_first_counts(plugin: PluginMaker) -> None:
    refusal = RpcError(ErrorCode.PLUGIN_FAILED, "the model crashed")
    instance, recogniser = plugin({"stt.start": {}, "stt.finish": refusal, "stt.cancel": {}}, (STT, FINAL))
    stream = await recogniser.start("s1")
    with pytest.raises(RpcError, match="the model crashed"):
        await stream.finish(5.0)
    assert methods(instance) == ["stt.start", "stt.finish", "stt.cancel"]
    assert recogniser._open == {}


async def test_an_answer_that_is_none_is_the_plugins_failure(plugin: PluginMaker) -> None:
    instance, recogniser = plugin({"stt.start": {}, "stt.finish": {"text": 7}, "stt.cancel": {}})
    stream = await recogniser.start("s1")
    with pytest.raises(RpcError, match="ear answered"):
        await stream.finish(5.0)
    assert methods(instance) == ["stt.start", "stt.finish", "stt.cancel"]


async def test_nobody_else_says_what_was_heard(plugin: PluginMaker, autojump_clock: trio.testing.MockClock) -> None:
    instance, recogniser = plugin({"stt.start": {}, "stt.cancel": {}}, (STT, FINAL))
    stream = await recogniser.start("s1")
    # Another plugin, another session, and a plugin that does not say that it does this.
    final(recogniser, FakeInstance("liar", provides=(STT, FINAL)))
    final(recogniser, instance, session="s2")
    silent, other = plugin({"stt.start": {}, "stt.cancel": {}})
    quiet = await other.start("s1")
    final(other, silent)
    for one in (stream, quiet):
        with trio.move_on_after(1.0) as scope:
            await one.finish(60.0)
        assert scope.cancelled_caught
    with pytest.raises(RpcError, match=r"ear answered stt\.final"):
        recogniser.on_final(instance, Raw(b"{}"))


async def test_a_final_text_of_an_earlier_epoch_is_not_that_of_the_next(plugin: PluginMaker) -> None:
    instance, recogniser = plugin({"stt.start": {}, "stt.cancel": {}}, (STT, FINAL))
    stream = await recogniser.start("s1")
    instance.die("backoff", "killed")
    instance.start()
    final(recogniser, instance)
    with pytest.raises(RpcError):
        await stream.finish(5.0)
    assert recogniser._open == {}


async def test_a_plugin_is_heard_about_its_own_utterances_only(plugin: PluginMaker) -> None:
    instance, recogniser = plugin({"stt.start": {}, "stt.cancel": {}})

    def heard(who: FakeInstance, session: str = "s1") -> str | None:
        partial = recogniser.on_partial(who, Raw(msgspec.json.encode({"session": session, "text": "lights"})))
        return None if partial is None else partial.text

    assert heard(instance) is None
    stream = await recogniser.start("s1")
    assert heard(instance) == "lights"
    assert heard(instance, "s2") is None
    assert heard(FakeInstance("liar", provides=("stt.partial@1",))) is None
    instance.die("backoff", "killed")
    instance.start()
    assert heard(instance) is None
    stream.cancel()
    with pytest.raises(RpcError, match=r"ear answered stt\.partial"):
        recogniser.on_partial(instance, Raw(b"{}"))


# ---- plugins that read the ring


def ways(instance: FakeInstance) -> list[Any]:
    """How each piece went: its place in the ring, or how many frames were in the message."""
    assert [one["seq"] for one in instance.peer.fed] == list(range(len(instance.peer.fed)))
    return [
        (one["frames"]["start"], one["frames"]["count"])
        if "frames" in one
        else len(base64.b64decode(one["data_b64"])) // 4
        for one in instance.peer.fed
    ]


async def test_what_lies_in_the_ring_goes_by_its_place_and_the_rest_in_the_message(
    plugin: PluginMaker, ring: RingWriter
) -> None:
    instance, recogniser = plugin({"stt.start": {"ring": True}}, permissions=("microphone",))
    ring.write(FRAMES * 4)
    stream = await recogniser.start("s1")
    for chunk in (Chunk(FRAMES, 0), Chunk(FRAMES * 2), Chunk(FRAMES, 300)):
        stream.feed(chunk)
    assert ways(instance) == [(0, 100), 200, (300, 100)]
    assert set(instance.peer.fed[0]) == {"session", "seq", "frames"}
    assert set(instance.peer.fed[1]) == {"session", "seq", "data_b64"}


async def test_what_has_waited_until_it_may_be_overwritten_goes_in_the_message(
    plugin: PluginMaker, ring: RingWriter
) -> None:
    instance, recogniser = plugin({"stt.start": {"ring": True}}, permissions=("microphone",))
    stream = await recogniser.start("s1")
    ring.write(bytes(4 * 8_100))
    for start in (99, 100):
        stream.feed(Chunk(FRAMES, start))
    assert ways(instance) == [100, (100, 100)]


@pytest.mark.parametrize("answer", [{}, {"ring": False}])
async def test_a_plugin_that_does_not_say_that_it_has_the_ring_is_fed_by_messages(
    plugin: PluginMaker, answer: dict[str, Any]
) -> None:
    instance, recogniser = plugin({"stt.start": answer}, permissions=("microphone",))
    stream = await recogniser.start("s1")
    stream.feed(Chunk(FRAMES, 0))
    assert ways(instance) == [100]


async def test_a_plugin_that_may_not_hear_is_fed_by_messages_and_warned_of_once(
    plugin: PluginMaker, caplog: pytest.LogCaptureFixture
) -> None:
    instance, recogniser = plugin({"stt.start": {"ring": True}}, permissions=("files.read",))
    for session in ("s1", "s2"):
        stream = await recogniser.start(session)
        stream.feed(Chunk(FRAMES, 0))
    assert [one["seq"] for one in instance.peer.fed] == [0, 0]
    assert all("data_b64" in one for one in instance.peer.fed)
    (warning,) = caplog.messages
    assert warning.startswith('ear says that it reads the audio ring, for which it lacks the permission "microphone"')


async def test_an_answer_to_the_start_that_is_none_leaves_nothing_open(plugin: PluginMaker) -> None:
    instance, recogniser = plugin({"stt.start": {"ring": "yes"}, "stt.cancel": {}})
    with pytest.raises(RpcError, match=r"ear answered stt\.start"):
        await recogniser.start("s1")
    assert methods(instance) == ["stt.start", "stt.cancel"]


async def test_a_plugin_that_reads_the_screen_may_hear_what_stands_there(plugin: PluginMaker) -> None:
    instance, recogniser = plugin({"stt.start": {}, "stt.finish": {"text": "rm"}})
    stream = await recogniser.start("s1")
    assert stream.provenance == "user"
    # On nobody's behalf: what the runner asks of it, it asks for the voice alone.
    instance.work_of(None).taint("context.snapshot")
    assert stream.provenance == "screen"
    instance.die()
    instance.start()
    assert (stream.provenance, (await recogniser.start("s2")).provenance) == ("screen", "user")
    stream.cancel()
