from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import trio
import trio.testing

from support.voice import FRAMES, OK, Rig
from utter_protocol.errors import ErrorCode, RpcError
from utter_protocol.methods import CommandResult, StepResult, Transcript
from utter_runner.rpc.requesters import Requester
from utter_runner.voice.fakes import FakeFeed, FakeStream, numbered
from utter_runner.voice.session import VoiceController

if TYPE_CHECKING:
    from trio.testing import MockClock

PRE, POST = 4_800, 3_200
HELD = 0.5


async def speak(rig: Rig, held: float = HELD) -> tuple[int, int]:
    """Hold the key; returns the positions at which it went down and up."""
    await trio.testing.wait_all_tasks_blocked()
    down = rig.feed.position
    rig.controller.press()
    await trio.sleep(held)
    await trio.testing.wait_all_tasks_blocked()
    up = rig.feed.position
    rig.controller.release()
    return down, up


async def settle(rig: Rig) -> None:
    """Let the post-roll pass and everything after it happen."""
    await trio.sleep(0.3)
    await trio.testing.wait_all_tasks_blocked()


async def test_a_spoken_command_is_done_and_told_step_by_step(autojump_clock: MockClock) -> None:
    rig = Rig("open youtube")
    async with rig.running():
        await trio.sleep(1)
        assert rig.controller.press() == {"session": "s1", "state": "listening"}
        assert rig.controller.status() == {"session": "s1", "state": "listening"}
        await trio.sleep(HELD)
        assert rig.controller.release() == {"session": "s1", "state": "listening"}
        await settle(rig)
    assert [event if event["event"] != "report" else "report" for event in rig.events] == [
        {"event": "session", "session": "s1", "state": "listening", "at": 1_000.0},
        {"event": "session", "session": "s1", "state": "recognising", "at": 1_000.0},
        {"event": "heard", "session": "s1", "text": "open youtube"},
        {"event": "session", "session": "s1", "state": "planning", "at": 1_000.0},
        {"event": "session", "session": "s1", "state": "acting", "at": 1_000.0},
        {"event": "session", "session": "s1", "state": "idle", "at": 1_000.0, "outcome": "done"},
        "report",
    ]
    (report,) = rig.reports
    assert (report.session, report.outcome, report.heard) == ("s1", "done", "open youtube")
    assert [step.op for step in report.results] == ["say"]
    assert rig.commander.commands == [("s1", "open youtube", "user")]
    assert rig.cues.played == ["start", "stop", "done"]


async def test_every_transcript_is_told_also_an_empty_one(autojump_clock: MockClock) -> None:
    rig = Rig("open youtube", "  ")
    async with rig.running():
        for _ in range(2):
            await speak(rig)
            await settle(rig)
        rig.controller.press()
        await trio.sleep(HELD)
        rig.controller.cancel()
    assert rig.transcripts == [("s1", "open youtube"), ("s2", "  ")]
    assert [report.outcome for report in rig.reports] == ["done", "nothing_heard", "cancelled"]


async def test_the_latency_says_where_the_time_went(autojump_clock: MockClock) -> None:
    rig = Rig("open youtube", scripted=True)
    rig.recogniser.may_finish = trio.Event()
    async with rig.running():
        await speak(rig)
        await trio.sleep(0.7)
        rig.recogniser.may_finish.set()
        await trio.sleep(1)
        await rig.say(OK)
    latency = rig.reports[0].latency_ms
    assert latency == {
        "capture": pytest.approx(200, abs=21),
        "stt": pytest.approx(500, abs=21),
        "router": 3.0,
        "policy": 0.5,
        "action": 20.0,
        "total": pytest.approx(1_700),
    }
    assert latency["capture"] + latency["stt"] == pytest.approx(700)


async def test_exactly_the_frames_from_pre_roll_to_post_roll_are_recognised(autojump_clock: MockClock) -> None:
    rig = Rig()
    async with rig.running():
        await trio.sleep(1)
        down, up = await speak(rig)
        await settle(rig)
    assert rig.frames("s1") == list(range(down - PRE, up + POST))


async def test_frames_stream_while_the_key_is_held(autojump_clock: MockClock) -> None:
    rig = Rig()
    async with rig.running():
        await trio.sleep(1)
        rig.controller.press()
        await trio.sleep(1)
        await trio.testing.wait_all_tasks_blocked()
        assert rig.frames("s1")[-1] == rig.feed.position - 1
        assert len(rig.recogniser.streams["s1"].chunks) > 40
        rig.controller.cancel()


async def test_no_chunk_is_longer_than_what_travels_inline(autojump_clock: MockClock) -> None:
    rig = Rig(max_ms=10_000)
    async with rig.running():
        await rig.controller.listen_wav(numbered(0, 100_000), timeout=5)
        chunks = rig.recogniser.streams["s1"].chunks
        assert max(len(chunk.data) for chunk in chunks) * 4 / 3 < 64 * 1024
        assert rig.frames("s1") == list(range(100_000))


async def test_the_pre_roll_reaches_back_only_to_the_opening_of_the_microphone(autojump_clock: MockClock) -> None:
    feed = FakeFeed(opening_s=0.1)
    rig = Rig("one", "two", always_open=False, feed=feed)
    async with rig.running():
        await speak(rig)
        await settle(rig)
        first_end = feed.position
        assert feed.holders == 0
        await trio.sleep(5)
        assert feed.position == first_end
        await speak(rig)
        await settle(rig)
    assert rig.frames("s1")[0] == 0
    assert rig.frames("s2")[0] == first_end


async def test_the_pre_roll_does_not_reach_into_the_session_before(autojump_clock: MockClock) -> None:
    rig = Rig("one", "two")
    async with rig.running():
        await trio.sleep(1)
        _, up = await speak(rig)
        await trio.sleep(0.22)
        await speak(rig)
        await settle(rig)
    assert rig.frames("s1")[-1] == up + POST - 1
    assert rig.frames("s2")[0] == up + POST


@pytest.mark.parametrize("how", ["cancel", "tap"])
async def test_no_audio_of_a_dropped_session_is_recognised(how: str, autojump_clock: MockClock) -> None:
    rig = Rig("one")
    async with rig.running():
        await trio.sleep(1)
        rig.controller.press()
        await trio.sleep(0.1)
        dropped_at = rig.feed.position
        _ = rig.controller.cancel() if how == "cancel" else rig.controller.release()
        await speak(rig)
        await settle(rig)
    assert rig.frames("s2")[0] == dropped_at
    stream = rig.recogniser.streams["s1"]
    assert (stream.cancelled, stream.finished) == (True, False)
    assert rig.outcome("s1") == ("cancelled" if how == "cancel" else "tap")


async def test_the_start_cue_is_heard_as_silence_and_the_pre_roll_before_it_stays(autojump_clock: MockClock) -> None:
    rig = Rig(cues={"start": 0.06}, cue_margin_ms=40)
    async with rig.running():
        await trio.sleep(1)
        down, up = await speak(rig)
        await settle(rig)
    cue = round(0.1 * 16_000)
    assert rig.frames("s1") == [*range(down - PRE, down), *[-1] * cue, *range(down + cue, up + POST)]
    # What was silenced lies nowhere in the ring; all the rest does, and says where.
    chunks = rig.recogniser.streams["s1"].chunks
    unchanged = {chunk.start is not None: 0 for chunk in chunks}
    for chunk in chunks:
        unchanged[chunk.start is not None] += chunk.frames
        assert chunk.data == (bytes(len(chunk.data)) if chunk.start is None else numbered(chunk.start, chunk.frames))
    assert unchanged == {False: cue, True: up + POST - (down - PRE) - cue}


async def test_a_cue_of_which_nothing_is_heard_changes_nothing(autojump_clock: MockClock) -> None:
    rig = Rig(cues={"start": 0.06}, cue_margin_ms=40)
    rig.cues.inaudible = True
    async with rig.running():
        await trio.sleep(1)
        down, up = await speak(rig)
        await settle(rig)
    assert rig.frames("s1") == [*range(down - PRE, up + POST)]
    assert None not in {chunk.start for chunk in rig.recogniser.streams["s1"].chunks}


async def test_a_recording_that_is_handed_in_lies_nowhere_in_the_ring(autojump_clock: MockClock) -> None:
    rig = Rig()
    async with rig.running():
        await rig.controller.listen_wav(numbered(0, 20_000), 5.0)
    chunks = rig.recogniser.streams["s1"].chunks
    assert [(chunk.start, chunk.frames) for chunk in chunks] == [(None, 8_000), (None, 8_000), (None, 4_000)]


async def test_the_pre_roll_does_not_reach_into_a_cue(autojump_clock: MockClock) -> None:
    positions: list[int] = []

    def note(event: dict[str, Any]) -> None:
        if event["event"] == "report":
            positions.append(rig.feed.position)

    rig = Rig("one", "two", cues={"done": 0.1}, cue_margin_ms=40, on_event=note)
    async with rig.running():
        await trio.sleep(1)
        await speak(rig)
        await trio.sleep(0.4)
        await speak(rig)
        await settle(rig)
    assert rig.cues.played[2] == "done"
    # The moment is known to one delivery of the microphone; the margin is there for that.
    assert rig.frames("s2")[0] == pytest.approx(positions[0] + 0.14 * 16_000, abs=FRAMES)


async def test_a_cue_that_still_sounds_when_the_key_goes_down_is_silence(autojump_clock: MockClock) -> None:
    rig = Rig("one", "two", cues={"cancel": 0.1}, cue_margin_ms=0)
    async with rig.running():
        await trio.sleep(1)
        rig.controller.press()
        await trio.sleep(0.3)
        rig.controller.cancel()
        down, up = await speak(rig)
        await settle(rig)
    assert rig.frames("s2") == [*[-1] * 1_600, *range(down + 1_600, up + POST)]


@pytest.mark.parametrize(("ago", "lost"), [(-0.1, PRE), (0.0, PRE), (0.1, 3_200), (0.4, 0)])
async def test_the_pre_roll_does_not_reach_into_the_runners_own_speech(
    autojump_clock: MockClock, ago: float, lost: int
) -> None:
    rig = Rig()
    async with rig.running():
        await trio.sleep(1)
        rig.heard_until = trio.current_time() - ago
        down, up = await speak(rig)
        await settle(rig)
    assert rig.frames("s1") == list(range(down - PRE + lost, up + POST))


async def test_a_tap_is_ignored_and_reported(autojump_clock: MockClock) -> None:
    rig = Rig()
    async with rig.running():
        rig.controller.press()
        await trio.sleep(0.149)
        assert rig.controller.release() == {"session": "s1", "state": "idle"}
        await settle(rig)
    assert rig.outcome("s1") == "tap"
    assert "hold it while you speak" in rig.reports[0].detail
    assert rig.commander.commands == []


async def test_a_tap_in_toggle_mode_listens_until_the_next_press(autojump_clock: MockClock) -> None:
    rig = Rig(tap="toggle")
    async with rig.running():
        await trio.sleep(1)
        down = rig.feed.position
        rig.controller.press()
        await trio.sleep(0.1)
        assert rig.controller.release() == {"session": "s1", "state": "listening"}
        await trio.sleep(2)
        await trio.testing.wait_all_tasks_blocked()
        up = rig.feed.position
        assert rig.controller.press() == {"session": "s1", "state": "listening"}
        await trio.sleep(0.1)
        rig.controller.release()
        await settle(rig)
    assert rig.frames("s1") == list(range(down - PRE, up + POST))
    assert rig.opened == ["s1"]


async def test_toggle_listens_without_a_key_and_ends_by_toggle(autojump_clock: MockClock) -> None:
    rig = Rig()
    async with rig.running():
        rig.controller.toggle()
        await trio.sleep(0.05)
        assert rig.controller.release()["state"] == "listening"
        await trio.sleep(2)
        rig.controller.toggle()
        await settle(rig)
    assert rig.outcome("s1") == "done"


@pytest.mark.parametrize("start", ["press", "toggle"])
async def test_the_maximum_length_ends_like_a_release(start: str, autojump_clock: MockClock) -> None:
    rig = Rig(max_ms=2_000)
    async with rig.running():
        await trio.sleep(1)
        down = rig.feed.position
        getattr(rig.controller, start)()
        await trio.sleep(3)
        assert rig.controller.release() == {"session": "", "state": "idle"}
    assert rig.outcome("s1") == "done"
    length = len(rig.frames("s1")) - PRE - POST
    assert length == pytest.approx(2 * 16_000, abs=FRAMES)
    assert rig.frames("s1") == list(range(down - PRE, down + length + POST))


async def test_silence_does_not_end_a_held_key_and_is_reported_as_nothing_heard(autojump_clock: MockClock) -> None:
    rig = Rig("   ")
    async with rig.running():
        rig.controller.press()
        await trio.sleep(30)
        assert rig.controller.status()["state"] == "listening"
        rig.controller.release()
        await settle(rig)
    assert (rig.outcome("s1"), rig.reports[0].heard) == ("nothing_heard", "")
    assert rig.commander.commands == []
    assert rig.cues.played == ["start", "stop", "cancel"]


@pytest.mark.parametrize("phase", ["planning", "confirming", "acting"])
async def test_cancel_reaches_the_commander(phase: Any, autojump_clock: MockClock) -> None:
    rig = Rig(scripted=True)
    async with rig.running():
        await speak(rig)
        await settle(rig)
        await rig.say(phase)
        assert rig.controller.status()["state"] == phase
        assert rig.controller.cancel()
        assert rig.outcome("s1") == "cancelled"
        await trio.testing.wait_all_tasks_blocked()
        assert rig.commander.cancelled == ["s1"]
        assert not rig.controller.cancel()
    assert rig.cues.played[-1] == "cancel"


async def test_cancel_reaches_a_recogniser_that_is_at_work(autojump_clock: MockClock) -> None:
    rig = Rig()
    rig.recogniser.may_finish = trio.Event()
    async with rig.running():
        await speak(rig)
        await settle(rig)
        rig.controller.cancel()
        await trio.testing.wait_all_tasks_blocked()
        assert rig.recogniser.streams["s1"].cancelled
    assert rig.commander.commands == []


async def test_a_text_that_arrives_together_with_cancel_is_not_acted_upon(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrived = trio.Event()

    async def finish(stream: FakeStream, _: float) -> Transcript:
        await arrived.wait()
        stream.finished = True
        return Transcript(text="delete everything")

    monkeypatch.setattr(FakeStream, "finish", finish)
    rig = Rig()
    async with rig.running():
        await speak(rig)
        await settle(rig)
        arrived.set()
        rig.controller.cancel()
        await trio.testing.wait_all_tasks_blocked()
        assert rig.recogniser.streams["s1"].finished
    assert rig.commander.commands == []
    assert not [event for event in rig.events if event["event"] == "heard"]


async def test_a_turn_that_comes_together_with_cancel_starts_nothing(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig("one", "two", scripted=True)
    async with rig.running():
        await speak(rig)
        await settle(rig)
        rig.controller.press()
        await trio.sleep(HELD)
        started: list[str] = []

        async def start(session: str) -> FakeStream:
            started.append(session)
            await trio.sleep_forever()
            raise AssertionError

        monkeypatch.setattr(rig.recogniser, "start", start)
        (turn,) = rig.controller._sessions[1].behind
        turn.set()
        rig.controller.cancel()
        await trio.testing.wait_all_tasks_blocked()
        assert started == []


async def test_a_press_while_acting_records_at_once_and_is_recognised_afterwards(autojump_clock: MockClock) -> None:
    rig = Rig("one", "two", scripted=True)
    async with rig.running():
        await trio.sleep(1)
        await speak(rig)
        await settle(rig)
        await rig.say("acting")
        await trio.sleep(1)
        down, up = await speak(rig)
        assert rig.opened == ["s1", "s2"]
        await settle(rig)
        await trio.sleep(10)
        assert "s2" not in rig.recogniser.streams
        assert rig.controller.status() == {"session": "s1", "state": "acting"}
        await rig.say(OK)
        assert rig.frames("s2") == list(range(down - PRE, up + POST))
        await rig.say(OK)
    assert [(report.session, report.heard) for report in rig.reports] == [("s1", "one"), ("s2", "two")]


async def test_what_waits_does_not_depend_on_the_length_of_the_ring(autojump_clock: MockClock) -> None:
    rig = Rig("one", "two", scripted=True, feed=FakeFeed(capacity=16_000))
    async with rig.running():
        await speak(rig)
        await settle(rig)
        await speak(rig, held=5)
        await trio.sleep(60)
        await rig.say(OK)
        assert len(rig.frames("s2")) > 5 * 16_000
        await rig.say(OK)
    assert rig.outcome("s2") == "done"


async def test_only_one_session_waits(autojump_clock: MockClock) -> None:
    rig = Rig("one", "two", scripted=True)
    async with rig.running():
        for _ in range(2):
            await speak(rig)
            await settle(rig)
        assert rig.controller.press() == {"session": "", "state": "planning"}
        assert rig.controller.release() == {"session": "", "state": "idle"}
        assert rig.controller.toggle() == {"session": "", "state": "planning"}
        assert len(rig.warnings) == 2
        assert "another one waits" in rig.warnings[0]
        assert rig.opened == ["s1", "s2"]
        await rig.say(OK)
        await rig.say(OK)


async def test_a_waiting_session_that_ends_early_gives_its_place_but_not_the_turn(autojump_clock: MockClock) -> None:
    rig = Rig("one", "three", scripted=True)
    async with rig.running():
        await speak(rig)
        await settle(rig)
        await speak(rig, held=0.1)
        assert rig.outcome("s2") == "tap"
        await speak(rig)
        await settle(rig)
        assert list(rig.recogniser.streams) == ["s1"]
        await rig.say(OK)
        await rig.say(OK)
    assert [(report.session, report.heard) for report in rig.reports] == [("s2", ""), ("s1", "one"), ("s3", "three")]


async def test_cancel_ends_the_running_and_the_waiting_session_with_one_sound(autojump_clock: MockClock) -> None:
    rig = Rig("one", "two", scripted=True)
    async with rig.running():
        await speak(rig)
        await settle(rig)
        rig.controller.press()
        await trio.sleep(1)
        assert rig.controller.cancel()
        await settle(rig)
    assert [report.outcome for report in rig.reports] == ["cancelled", "cancelled"]
    assert "s2" not in rig.recogniser.streams
    assert rig.cues.played == ["start", "stop", "start", "cancel"]


async def test_a_press_while_confirming_denies_and_starts_anew(autojump_clock: MockClock) -> None:
    rig = Rig("delete it", "stop", scripted=True)
    async with rig.running():
        await speak(rig)
        await settle(rig)
        await rig.say("confirming")
        assert rig.cues.played[-1] == "confirm"
        assert rig.controller.press() == {"session": "s2", "state": "listening"}
        await trio.sleep(HELD)
        assert rig.commander.cancelled == ["s1"]
        assert "nothing was confirmed" in rig.reports[0].detail
        rig.controller.release()
        await settle(rig)
        await rig.say(OK)
    assert [report.outcome for report in rig.reports] == ["cancelled", "done"]
    assert rig.cues.played == ["start", "stop", "confirm", "start", "stop", "done"]


async def test_a_confirmation_that_comes_up_while_the_next_command_is_spoken_is_denied(
    autojump_clock: MockClock,
) -> None:
    rig = Rig("delete it", "open youtube", scripted=True)
    async with rig.running():
        await speak(rig)
        await settle(rig)
        rig.controller.press()
        await trio.sleep(HELD)
        await rig.say("confirming")
        assert rig.commander.cancelled == ["s1"]
        rig.controller.release()
        await settle(rig)
        await rig.say(OK)
    assert [(report.session, report.outcome) for report in rig.reports] == [("s1", "cancelled"), ("s2", "done")]


async def test_a_press_within_the_post_roll_ends_it_and_begins_there_without_closing_the_microphone(
    autojump_clock: MockClock,
) -> None:
    feed = FakeFeed(opening_s=0.1)
    rig = Rig("one", "two", always_open=False, feed=feed)
    async with rig.running():
        _, up = await speak(rig, held=1)
        await trio.sleep(0.1)
        await trio.testing.wait_all_tasks_blocked()
        cut = feed.position
        assert rig.controller.press() == {"session": "s2", "state": "listening"}
        await trio.testing.wait_all_tasks_blocked()
        assert feed.holders == 1
        assert feed.oldest == 0
        await trio.sleep(HELD)
        rig.controller.release()
        await settle(rig)
    assert up < cut < up + POST
    assert rig.frames("s1")[-1] == cut - 1
    assert rig.frames("s2")[0] == cut
    assert rig.cues.played == ["start", "start", "stop", "done"]


async def test_a_press_after_the_last_frame_of_the_post_roll_begins_after_it(autojump_clock: MockClock) -> None:
    rig = Rig("one", "two")
    async with rig.running(clocked=False):
        rig.controller.press()
        await rig.tick(50)
        up = rig.feed.position
        rig.controller.release()
        # All at once: the recording has not noticed yet that it is complete.
        rig.feed.advance(POST + 2_000)
        rig.controller.press()
        await rig.tick(20)
        rig.controller.release()
        await rig.tick(12)
    assert rig.frames("s1")[-1] == up + POST - 1
    assert rig.frames("s2")[0] == up + POST


async def test_audio_that_arrives_together_with_cancel_is_left_alone(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    rig = Rig()
    async with rig.running(clocked=False):
        rig.controller.press()
        await rig.tick(10)
        rig.feed.advance(FRAMES)
        rig.controller.cancel()
        await trio.testing.wait_all_tasks_blocked()
    assert rig.outcome("s1") == "cancelled"
    assert caplog.text == ""


async def test_a_microphone_that_opens_together_with_cancel_is_closed_without_a_sound(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig(always_open=False)
    opened = trio.Event()

    async def acquire() -> None:
        await opened.wait()
        rig.feed.holders += 1

    monkeypatch.setattr(rig.feed, "acquire", acquire)
    async with rig.running(clocked=False):
        rig.controller.press()
        await trio.testing.wait_all_tasks_blocked()
        opened.set()
        rig.controller.cancel()
        await trio.testing.wait_all_tasks_blocked()
        assert rig.feed.holders == 0
    assert rig.cues.played == ["cancel"]


async def test_presses_while_listening_change_nothing(autojump_clock: MockClock) -> None:
    rig = Rig()
    async with rig.running():
        rig.controller.press()
        await trio.sleep(HELD)
        assert rig.controller.press() == {"session": "s1", "state": "listening"}
        await trio.sleep(HELD)
        rig.controller.release()
        assert rig.controller.release() == {"session": "s1", "state": "listening"}
        await settle(rig)
    assert [report.outcome for report in rig.reports] == ["done"]


async def test_a_microphone_that_fails_while_listening_ends_the_session_with_its_reason(
    autojump_clock: MockClock,
) -> None:
    rig = Rig()
    async with rig.running():
        rig.controller.press()
        await trio.sleep(HELD)
        rig.feed.fail("The microphone was unplugged.")
        await trio.testing.wait_all_tasks_blocked()
        assert rig.controller.release() == {"session": "", "state": "idle"}
    (report,) = rig.reports
    assert (report.outcome, report.detail) == ("unavailable", "The microphone was unplugged.")
    assert rig.recogniser.streams["s1"].cancelled
    assert rig.cues.played == ["start", "error"]


async def test_a_microphone_that_cannot_be_opened_is_reported_without_a_start_cue(autojump_clock: MockClock) -> None:
    rig = Rig(always_open=False)
    rig.feed.fail("No microphone is there.")
    async with rig.running():
        await speak(rig)
    assert (rig.outcome("s1"), rig.reports[0].detail) == ("unavailable", "No microphone is there.")
    assert rig.cues.played == ["error"]


@pytest.mark.parametrize(("stall_ms", "seconds"), [(500, 2.2), (5_000, 5.2)])
async def test_a_microphone_that_goes_dead_after_the_key_is_not_waited_for_forever(
    autojump_clock: MockClock, stall_ms: int, seconds: float
) -> None:
    reported = trio.Event()
    rig = Rig(on_event=lambda event: reported.set() if event["event"] == "report" else None, stall_ms=stall_ms)
    async with rig.running(clocked=False):
        rig.controller.press()
        await rig.tick(20)
        rig.controller.release()
        started = trio.current_time()
        await reported.wait()
        assert trio.current_time() - started == pytest.approx(seconds)
    assert rig.outcome("s1") == "unavailable"
    assert "nothing more after the key was released" in rig.reports[0].detail


async def test_a_key_that_is_up_before_the_microphone_is_open_ends_soon(autojump_clock: MockClock) -> None:
    rig = Rig(" ", always_open=False, feed=FakeFeed(opening_s=1.0))
    async with rig.running():
        await speak(rig)
        await trio.sleep(2)
    assert rig.outcome("s1") == "nothing_heard"
    assert len(rig.frames("s1")) == POST
    assert rig.cues.played == ["stop", "cancel"]


async def test_a_press_before_the_microphone_opened_for_the_session_before(autojump_clock: MockClock) -> None:
    rig = Rig(" ", "two", always_open=False, feed=FakeFeed(opening_s=1.0))
    async with rig.running():
        await speak(rig)
        rig.controller.press()
        await trio.sleep(2)
        rig.controller.release()
        await settle(rig)
    assert rig.frames("s1") == []
    assert [report.outcome for report in rig.reports] == ["nothing_heard", "done"]


async def test_audio_that_was_overwritten_before_it_was_read_is_reported(autojump_clock: MockClock) -> None:
    rig = Rig(feed=FakeFeed(capacity=8_000))
    async with rig.running(clocked=False):
        rig.controller.press()
        await rig.tick(10)
        rig.feed.advance(16_000)
        await trio.testing.wait_all_tasks_blocked()
    assert rig.outcome("s1") == "unavailable"
    assert "too busy" in rig.reports[0].detail


async def test_audio_that_was_overwritten_before_a_cut_is_reported_and_the_next_session_goes_on(
    autojump_clock: MockClock,
) -> None:
    rig = Rig("one", feed=FakeFeed(capacity=8_000))
    async with rig.running(clocked=False):
        rig.controller.press()
        await rig.tick(10)
        rig.controller.release()
        rig.feed.advance(16_000)
        rig.controller.press()
        await rig.tick(10)
        rig.controller.release()
        await rig.tick(12)
    assert [(report.session, report.outcome) for report in rig.reports] == [("s1", "unavailable"), ("s2", "done")]


async def test_a_recogniser_that_is_not_there_is_told_while_the_key_is_still_held(autojump_clock: MockClock) -> None:
    rig = Rig()
    rig.recogniser.start_error = RpcError(ErrorCode.CAPABILITY_MISSING, "No plugin provides stt.transcribe@1.")
    async with rig.running():
        rig.controller.press()
        await trio.sleep(HELD)
        assert rig.outcome("s1") == "unavailable"
        assert rig.reports[0].detail == "No plugin provides stt.transcribe@1."
        assert rig.feed.holders == 1


async def test_a_recogniser_that_fails_is_unavailable(autojump_clock: MockClock) -> None:
    rig = Rig()
    rig.recogniser.finish_error = RpcError(ErrorCode.PLUGIN_FAILED, "whisper crashed.")
    async with rig.running():
        await speak(rig)
        await settle(rig)
    assert (rig.outcome("s1"), rig.reports[0].detail) == ("unavailable", "whisper crashed.")
    assert rig.recogniser.streams["s1"].cancelled


async def test_a_recogniser_that_hangs_is_given_up_at_its_timeout(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    rig = Rig(stt_timeout_ms=5_000)
    rig.recogniser.may_finish = trio.Event()
    async with rig.running():
        caplog.set_level("INFO")
        await speak(rig)
        await trio.sleep(6)
    assert rig.outcome("s1") == "unavailable"
    assert rig.reports[0].latency_ms["total"] == pytest.approx(5_200, abs=21)
    assert "voice session s1: unavailable (timed out)" in caplog.messages


async def test_the_log_says_why_nothing_was_done_and_not_what_was_said(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    rig = Rig("one", scripted=True)
    async with rig.running():
        caplog.set_level("DEBUG")
        await speak(rig)
        await settle(rig)
        await rig.say(RpcError(ErrorCode.PLUGIN_FAILED, "I do not know the word one."))
        rig.feed.fail("The microphone was unplugged.")
        rig.controller.press()
        await settle(rig)
    logged = [text for text in caplog.messages if text.startswith("voice session")]
    assert logged == [
        "voice session s1: unavailable (plugin failed)",
        "voice session s2: unavailable (The microphone was unplugged.)",
    ]
    assert "I do not know" not in caplog.text


async def test_a_router_that_fails_is_unavailable_and_the_next_command_works(autojump_clock: MockClock) -> None:
    rig = Rig("one", "two", scripted=True)
    async with rig.running():
        await speak(rig)
        await settle(rig)
        await rig.say(RpcError(ErrorCode.PLUGIN_FAILED, "commands crashed."))
        await speak(rig)
        await settle(rig)
        await rig.say(OK)
    assert [(report.outcome, report.heard) for report in rig.reports] == [("unavailable", "one"), ("done", "two")]


async def test_an_accident_of_one_session_does_not_end_the_next(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    rig = Rig("one", "two")

    async def explode(*_: object, **__: object) -> CommandResult:
        raise ZeroDivisionError

    async with rig.running():
        with monkeypatch.context() as patch:
            patch.setattr(rig.commander, "command", explode)
            await speak(rig)
            await settle(rig)
        await speak(rig)
        await settle(rig)
    assert [report.outcome for report in rig.reports] == ["failed", "done"]
    assert "ZeroDivisionError" in caplog.text


async def test_stopping_reports_what_is_open_and_refuses_what_comes_later(autojump_clock: MockClock) -> None:
    rig = Rig("one", "two", scripted=True)
    async with rig.running():
        await speak(rig)
        await settle(rig)
        rig.controller.press()
        await trio.sleep(HELD)
    assert [(report.outcome, report.detail) for report in rig.reports] == [("cancelled", "The runner is stopping.")] * 2
    assert rig.controller.press() == {"session": "", "state": "idle"}
    assert rig.warnings == ["Voice is not running, so the key was ignored."]
    with pytest.raises(RpcError, match="not running"):
        await rig.controller.listen_wav(b"", timeout=1)


async def test_a_recording_is_of_whoever_brought_it_and_what_is_spoken_is_of_nobody(autojump_clock: MockClock) -> None:
    rig = Rig("open youtube", "stop")
    mine = frozenset({Requester(1, 100, 5)})
    async with rig.running():
        await rig.controller.listen_wav(numbered(0, 16_000), 10, mine)
        await speak(rig)
        await settle(rig)
    assert rig.commander.requesters == [mine, frozenset()]


async def test_a_recording_runs_as_if_it_had_been_spoken(autojump_clock: MockClock) -> None:
    rig = Rig("open youtube", always_open=False)
    async with rig.running():
        report = await rig.controller.listen_wav(numbered(0, 16_000), timeout=10)
    assert (report.outcome, report.heard) == ("done", "open youtube")
    assert rig.reports == [report]
    assert rig.frames("s1") == list(range(16_000))
    assert rig.states == [("s1", state) for state in ("listening", "recognising", "planning", "acting", "idle")]
    assert rig.feed.position == 0, "the microphone was opened"
    assert rig.cues.played == ["done"]
    assert set(report.latency_ms) == {"capture", "stt", "router", "policy", "action", "total"}


async def test_a_recording_can_be_heard_and_not_acted_upon(autojump_clock: MockClock) -> None:
    rig = Rig("open youtube", always_open=False)
    async with rig.running():
        report = await rig.controller.listen_wav(numbered(0, 16_000), 10, act=False)
    assert (report.outcome, report.heard, report.results) == ("done", "open youtube", [])
    assert rig.states == [("s1", state) for state in ("listening", "recognising", "planning", "idle")]
    assert rig.cues.played == []
    assert "router" not in report.latency_ms
    assert "stt" in report.latency_ms


async def test_recordings_take_their_turn(autojump_clock: MockClock) -> None:
    rig = Rig("spoken", "first", "second", scripted=True)
    got: list[str] = []

    async def listen() -> None:
        got.append((await rig.controller.listen_wav(numbered(0, 160), timeout=100)).heard)

    async with rig.running() as nursery:
        await speak(rig)
        nursery.start_soon(listen)
        nursery.start_soon(listen)
        await settle(rig)
        assert rig.opened == ["s1"]
        for _ in range(3):
            await rig.say(OK)
        assert got == ["first", "second"]


async def test_a_press_queues_behind_a_recording(autojump_clock: MockClock) -> None:
    rig = Rig("recorded", "spoken", scripted=True)
    async with rig.running() as nursery:
        nursery.start_soon(rig.controller.listen_wav, numbered(0, 160), 100)
        await trio.testing.wait_all_tasks_blocked()
        await speak(rig)
        await settle(rig)
        await rig.say(OK)
        await rig.say(OK)
    assert [report.heard for report in rig.reports] == ["recorded", "spoken"]


async def test_a_recording_is_given_up_at_its_timeout(autojump_clock: MockClock) -> None:
    rig = Rig(scripted=True)
    async with rig.running():
        with pytest.raises(RpcError, match="not over within 3 s") as caught:
            await rig.controller.listen_wav(numbered(0, 160), timeout=3)
        assert caught.value.code == ErrorCode.TIMED_OUT
        await trio.testing.wait_all_tasks_blocked()
        assert rig.commander.cancelled == ["s1"]
    assert rig.outcome("s1") == "cancelled"


async def test_a_client_that_withdraws_cancels_its_recording(autojump_clock: MockClock) -> None:
    rig = Rig(scripted=True)
    async with rig.running():
        with trio.move_on_after(1):
            await rig.controller.listen_wav(numbered(0, 160), timeout=60)
        assert rig.outcome("s1") == "cancelled"


async def test_a_recording_that_the_user_cancels_is_answered(autojump_clock: MockClock) -> None:
    rig = Rig(scripted=True)
    async with rig.running() as nursery:
        outcomes: list[str] = []

        async def listen() -> None:
            outcomes.append((await rig.controller.listen_wav(numbered(0, 160), timeout=60)).outcome)

        nursery.start_soon(listen)
        await trio.testing.wait_all_tasks_blocked()
        rig.controller.cancel()
        await trio.testing.wait_all_tasks_blocked()
        assert outcomes == ["cancelled"]


@pytest.mark.parametrize(
    ("pcm", "message"),
    [
        (b"123", "3 bytes, which are not whole float32 frames"),
        (bytes(4 * 32_016), r"2\.0 s long; one session is at most 2 s"),
    ],
)
async def test_a_recording_that_is_no_session_is_refused(pcm: bytes, message: str) -> None:
    rig = Rig(max_ms=2_000)
    async with rig.running(clocked=False):
        with pytest.raises(RpcError, match=message) as caught:
            await rig.controller.listen_wav(pcm, timeout=1)
        assert caught.value.code == ErrorCode.INVALID_PARAMS
        assert caught.value.data is not None
        assert caught.value.data["field"] == "wav_b64"
    assert rig.events == []


async def test_a_session_that_is_not_understood_says_so(autojump_clock: MockClock) -> None:
    rig = Rig("mumble", scripted=True)
    async with rig.running():
        await speak(rig)
        await settle(rig)
        await rig.say(CommandResult(results=[], understood=False, detail="No command sounds like that."))
    assert (rig.outcome("s1"), rig.reports[0].detail) == ("not_understood", "No command sounds like that.")
    assert rig.cues.played[-1] == "error"


async def test_a_step_that_fails_is_reported_with_its_results(autojump_clock: MockClock) -> None:
    rig = Rig(scripted=True)
    failed = StepResult(op="launch_app", ok=False, detail="There is no such application.")
    async with rig.running():
        await speak(rig)
        await settle(rig)
        await rig.say(CommandResult(results=[failed]))
    (report,) = rig.reports
    assert (report.outcome, report.results, report.detail) == ("failed", [failed], "There is no such application.")


async def test_session_ids_are_fresh_and_settings_have_defaults() -> None:
    rig = Rig()
    controller = VoiceController(
        feed=rig.feed, recogniser=rig.recogniser, commander=rig.commander, cues=rig.cues, emit=rig.events.append
    )
    async with trio.open_nursery() as nursery:
        await nursery.start(rig._run)
        ids = set()
        nursery.start_soon(controller.run)
        await trio.testing.wait_all_tasks_blocked()
        for _ in range(3):
            ids.add(controller.press()["session"])
            controller.cancel()
        assert len(ids) == 3
        nursery.cancel_scope.cancel()
    assert all(abs(event["at"] - 1_000.0) > 1 for event in rig.events if "at" in event)


async def listen(rig: Rig, at: int, held: float = HELD) -> None:
    """Something begins to listen, and the key ends it."""
    await trio.testing.wait_all_tasks_blocked()
    rig.controller.listen(at)
    await trio.sleep(held)
    rig.controller.press()
    await settle(rig)


@pytest.mark.parametrize("back", [0, 2_000, PRE + 4_000, 32_000])
async def test_a_session_begins_where_it_was_told(back: int, autojump_clock: MockClock) -> None:
    rig = Rig()
    async with rig.running():
        await trio.sleep(3)
        position = rig.feed.position
        await listen(rig, position - back)
    assert rig.frames("s1")[0] == position - back
    assert rig.outcome("s1") == "done"


@pytest.mark.parametrize("at", [0, 1, 3 * 16_000 - 1])
async def test_it_reaches_back_two_seconds_at_most(at: int, autojump_clock: MockClock) -> None:
    rig = Rig()
    async with rig.running():
        await trio.sleep(5)
        position = rig.feed.position
        await listen(rig, at)
    assert rig.frames("s1")[0] == position - 32_000


@pytest.mark.parametrize("ahead", [1, 16_000, 2**70])
async def test_a_beginning_that_is_still_to_come_is_now(
    ahead: int, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    rig = Rig()
    async with rig.running():
        await trio.sleep(1)
        position = rig.feed.position
        await listen(rig, position + ahead)
    assert rig.frames("s1")[0] == position
    assert f"is to begin at frame {position + ahead}; only {position} are there" in caplog.text


async def test_it_does_not_reach_into_a_cue_or_over_an_opening_of_the_microphone(autojump_clock: MockClock) -> None:
    rig = Rig("one", "two", cues={"cancel": 0.1}, cue_margin_ms=0)
    async with rig.running():
        await trio.sleep(1)
        rig.controller.press()
        rig.controller.cancel()
        await trio.sleep(0.3)
        position = rig.feed.position
        await listen(rig, position - 4_000)
        assert rig.frames("s2")[0] == pytest.approx(position - 3_200, abs=FRAMES)
        rig.feed.repair()
        reopened = rig.feed.position
        await trio.sleep(0.1)
        await listen(rig, reopened - 1)
    assert rig.frames("s3")[0] == reopened


async def test_what_was_heard_within_a_session_opens_no_other(autojump_clock: MockClock) -> None:
    rig = Rig("one", "two")
    async with rig.running():
        await trio.sleep(1)
        rig.controller.press()
        await trio.sleep(HELD)
        within = rig.feed.position - 100
        # While it listens, and while its last words are still on the way through a slow recogniser.
        assert rig.controller.listen(within) == {"session": "s1", "state": "listening"}
        rig.controller.release()
        await trio.sleep(0.21)
        await trio.testing.wait_all_tasks_blocked()
        assert rig.controller.listen(within) == {"session": "", "state": "idle"}
        await settle(rig)
        end = rig.frames("s1")[-1] + 1
        assert rig.opened == ["s1"]
        await listen(rig, end)
    assert rig.frames("s2")[0] == end


@pytest.mark.parametrize("how", ["press", "toggle"])
async def test_a_key_may_say_where_its_session_begins(how: str, autojump_clock: MockClock) -> None:
    rig = Rig()
    async with rig.running():
        await trio.sleep(2)
        position = rig.feed.position
        getattr(rig.controller, how)(position - 12_345)
        await trio.sleep(HELD)
        rig.controller.release()
        await settle(rig)
    assert rig.frames("s1")[0] == position - 12_345


async def test_what_begins_to_listen_ends_nothing(autojump_clock: MockClock) -> None:
    rig = Rig("one", "two", scripted=True)
    async with rig.running():
        await trio.sleep(1)
        rig.controller.listen()
        await trio.sleep(HELD)
        assert rig.controller.listen() == {"session": "s1", "state": "listening"}
        rig.controller.toggle()
        await settle(rig)
        await rig.say("confirming")
        assert rig.controller.listen() == {"session": "s1", "state": "confirming"}
        await rig.say("acting")
        # The next command may be said while this one is carried out.
        assert rig.controller.listen() == {"session": "s2", "state": "listening"}
        await rig.say(OK)
        assert rig.outcome("s1") == "done"
        rig.controller.cancel()
    assert rig.outcome("s2") == "cancelled"


async def test_what_was_heard_by_one_who_reads_the_screen_is_not_the_users(autojump_clock: MockClock) -> None:
    rig = Rig("open youtube")
    rig.recogniser.provenance = "screen"
    async with rig.running():
        await speak(rig)
        await settle(rig)
    assert rig.commander.commands == [("s1", "open youtube", "screen")]
