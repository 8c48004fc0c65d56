"""Spoken sessions with voice activity detection, between fakes."""

from __future__ import annotations

import logging
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
import trio
import trio.testing

from support.voice import FRAMES, OK, Rig
from utter_runner.voice.fakes import FakeFeed, FakeVoiceActivity, numbered
from utter_runner.voice.vad.screen import PADDING_MS

if TYPE_CHECKING:
    from trio.testing import MockClock

RATE = 16_000
PRE, POST, PAD, WINDOW = 4_800, 3_200, PADDING_MS * 16, 512
SLACK = WINDOW + FRAMES
"""How late it is noticed that something began or ended."""


def speaking(*seconds: tuple[float, float], **how: Any) -> Rig:
    """A rig in which somebody speaks in these spans of the feed."""
    spans = [(round(first * RATE), round(last * RATE)) for first, last in seconds]
    return Rig(*["open youtube"] * 3, activity=FakeVoiceActivity(*spans), **how)


async def settle() -> None:
    await trio.sleep(0.3)
    await trio.testing.wait_all_tasks_blocked()


def check_kept(rig: Rig, session: str, first: float, last: float) -> None:
    """Everything from `first` to `last` seconds was recognised, with its padding, and no more."""
    frames = rig.frames(session)
    assert frames == list(range(frames[0], frames[-1] + 1))
    assert 0 <= first * RATE - PAD - frames[0] <= WINDOW
    assert 0 <= frames[-1] + 1 - (last * RATE + PAD) <= WINDOW


async def test_silence_after_speech_ends_a_session_that_nobody_holds(autojump_clock: MockClock) -> None:
    rig = speaking((2.0, 3.0))
    async with rig.running():
        await trio.sleep(1)
        rig.controller.toggle()
        await trio.sleep(2 + 1.2 - 0.1)
        assert rig.controller.status()["state"] == "listening"
        await trio.sleep(0.1 + 0.1 + 0.2)
        await trio.testing.wait_all_tasks_blocked()
        assert rig.outcome("s1") == "done"
        assert len(rig.frames("s1")) <= RATE + 2 * (PAD + WINDOW)
        check_kept(rig, "s1", 2.0, 3.0)
        # The key starts the next one.
        assert rig.controller.toggle()["session"] == "s2"
        rig.controller.cancel()
    assert rig.reports[0].latency_ms["capture"] == pytest.approx(200, abs=21)


async def test_a_session_in_which_nobody_speaks_ends_and_is_recognised_whole(autojump_clock: MockClock) -> None:
    rig = speaking()
    rig.recogniser.texts.clear()
    async with rig.running():
        await trio.sleep(1)
        rig.controller.toggle()
        began = rig.feed.position
        await trio.sleep(5.9)
        assert rig.controller.status()["state"] == "listening"
        await trio.sleep(0.5)
        await trio.testing.wait_all_tasks_blocked()
    assert rig.outcome("s1") == "nothing_heard"
    frames = rig.frames("s1")
    # Whoever speaks too softly for the model may still be understood.
    assert frames == list(range(began - PRE, frames[-1] + 1))
    assert 0 <= frames[-1] + 1 - began - 6 * RATE - POST <= SLACK


async def test_both_lengths_are_settings(autojump_clock: MockClock) -> None:
    rig = speaking((3.0, 3.5), silence_ms=300, no_speech_ms=1_000)
    async with rig.running():
        rig.controller.toggle()
        await trio.sleep(1.3)
        assert rig.opened == [report.session for report in rig.reports] == ["s1"]
        await trio.sleep(1.4)
        rig.controller.toggle()
        await trio.sleep(0.8 + 0.3 + 0.3)
        assert rig.outcome("s2") == "done"


async def test_silence_never_ends_a_held_key_but_is_not_recognised(autojump_clock: MockClock) -> None:
    rig = speaking((5.0, 6.0))
    async with rig.running():
        await trio.sleep(1)
        rig.controller.press()
        await trio.sleep(30)
        assert rig.controller.status() == {"session": "s1", "state": "listening"}
        rig.controller.release()
        await settle()
    assert rig.outcome("s1") == "done"
    check_kept(rig, "s1", 5.0, 6.0)


async def test_a_tap_that_latches_is_ended_by_silence(autojump_clock: MockClock) -> None:
    rig = speaking((1.5, 2.0), tap="toggle")
    async with rig.running():
        await trio.sleep(1)
        rig.controller.press()
        await trio.sleep(0.1)
        rig.controller.release()
        await trio.sleep(0.9 + 1.2 + 0.3)
        await trio.testing.wait_all_tasks_blocked()
        assert rig.outcome("s1") == "done"


async def test_silence_between_words_is_recognised(autojump_clock: MockClock) -> None:
    rig = speaking((2.0, 2.5), (3.5, 4.0), (9.0, 9.5))
    async with rig.running():
        await trio.sleep(1)
        rig.controller.press()
        await trio.sleep(3.4)
        stream = rig.recogniser.streams["s1"]
        await trio.testing.wait_all_tasks_blocked()
        # What comes after a pause is sent at once, and with it the pause.
        assert rig.frames("s1")[-1] >= 4.3 * RATE
        fed = len(stream.chunks)
        await trio.sleep(3)
        assert len(stream.chunks) <= fed + 20
        await trio.sleep(3)
        rig.controller.release()
        await settle()
    check_kept(rig, "s1", 2.0, 9.5)


async def test_speech_streams_while_the_key_is_held(autojump_clock: MockClock) -> None:
    rig = speaking((1.0, 60.0))
    async with rig.running():
        await trio.sleep(1)
        rig.controller.press()
        await trio.sleep(1)
        await trio.testing.wait_all_tasks_blocked()
        assert rig.feed.position - rig.frames("s1")[-1] <= SLACK
        assert len(rig.recogniser.streams["s1"].chunks) > 40
        rig.controller.cancel()


async def test_speech_from_before_the_key_is_recognised_and_not_waited_after(autojump_clock: MockClock) -> None:
    rig = speaking((1.8, 2.0), (4.0, 5.0))
    async with rig.running():
        await trio.sleep(2)
        rig.controller.toggle()
        await trio.sleep(1.9)
        assert rig.controller.status()["state"] == "listening"
        await trio.sleep(3)
    assert rig.outcome("s1") == "done"
    frames = rig.frames("s1")
    assert frames[0] <= 1.8 * RATE
    assert frames[-1] >= 5 * RATE


async def test_what_was_said_right_after_a_wake_word_is_waited_after(autojump_clock: MockClock) -> None:
    rig = speaking((1.8, 2.1))
    async with rig.running():
        await trio.sleep(2.4)
        # The word was over at 1.7 s, and is recognised only now.
        rig.controller.listen(round(1.7 * RATE))
        await trio.sleep(1.3)
        await trio.testing.wait_all_tasks_blocked()
        assert rig.outcome("s1") == "done"
    assert rig.frames("s1")[0] == round(1.7 * RATE)


async def test_speech_at_both_ends_is_whole(autojump_clock: MockClock) -> None:
    rig = speaking((0.0, 60.0))
    async with rig.running():
        await trio.sleep(1)
        down = rig.feed.position
        rig.controller.press()
        await trio.sleep(0.777)
        await trio.testing.wait_all_tasks_blocked()
        up = rig.feed.position
        rig.controller.release()
        await settle()
    assert rig.frames("s1") == list(range(down - PRE, up + POST))


async def test_what_is_cut_short_by_the_next_press_is_whole(autojump_clock: MockClock) -> None:
    rig = speaking((1.2, 1.3), (1.5, 60.0))
    async with rig.running():
        await trio.sleep(1)
        rig.controller.press()
        await trio.sleep(1)
        rig.controller.release()
        await trio.sleep(0.1)
        await trio.testing.wait_all_tasks_blocked()
        cut = rig.feed.position
        rig.controller.press()
        await trio.sleep(0.5)
        rig.controller.release()
        await settle()
    assert [rig.outcome(session) for session in ("s1", "s2")] == ["done", "done"]
    assert rig.frames("s1")[-1] == cut - 1
    assert rig.frames("s2")[0] == cut


async def test_a_session_that_waits_is_ended_by_silence_all_the_same(autojump_clock: MockClock) -> None:
    rig = speaking((0.2, 0.8), (3.0, 4.0), scripted=True)
    async with rig.running():
        rig.controller.toggle()
        await trio.sleep(2.4)
        await rig.say("acting")
        rig.controller.toggle()
        await trio.sleep(4)
        assert rig.controller.status() == {"session": "s1", "state": "acting"}
        await rig.say(OK)
        await rig.say(OK)
    assert [rig.outcome(session) for session in ("s1", "s2")] == ["done", "done"]
    check_kept(rig, "s2", 3.0, 4.0)


async def test_what_is_fed_lies_where_it_says_in_the_ring(autojump_clock: MockClock) -> None:
    rig = speaking((1.9, 2.2), (2.9, 3.1), cues={"start": 0.06}, cue_margin_ms=40)
    async with rig.running():
        await trio.sleep(1)
        rig.controller.press()
        await trio.sleep(4)
        rig.controller.release()
        await settle()
    chunks = rig.recogniser.streams["s1"].chunks
    assert all(chunk.data == numbered(chunk.start, chunk.frames) for chunk in chunks if chunk.start is not None)
    for before, after in pairwise(chunks):
        if before.start is not None and after.start is not None:
            assert after.start == before.start + before.frames
    assert chunks[0].start == min(chunk.start for chunk in chunks if chunk.start is not None)


async def test_a_model_that_fails_loses_nothing(autojump_clock: MockClock, caplog: pytest.LogCaptureFixture) -> None:
    rig = speaking((2.0, 2.5))
    assert rig.activity is not None
    async with rig.running():
        await trio.sleep(1)
        down = rig.feed.position
        rig.controller.press()
        await trio.sleep(0.5)
        rig.activity.error = ValueError("no such tensor")
        await trio.sleep(0.5)
        await trio.testing.wait_all_tasks_blocked()
        up = rig.feed.position
        rig.controller.release()
        await settle()
    assert rig.outcome("s1") == "done"
    assert rig.frames("s1") == list(range(down - PRE, up + POST))
    assert "no such tensor" in caplog.text


async def test_without_the_model_silence_ends_nothing_and_is_recognised(autojump_clock: MockClock) -> None:
    rig = speaking((2.0, 2.5))
    assert rig.activity is not None
    rig.activity.installed = False
    async with rig.running():
        await trio.sleep(1)
        down = rig.feed.position
        rig.controller.toggle()
        await trio.sleep(20)
        assert rig.controller.status()["state"] == "listening"
        await trio.testing.wait_all_tasks_blocked()
        up = rig.feed.position
        rig.controller.toggle()
        await settle()
    assert rig.frames("s1") == list(range(down - PRE, up + POST))


async def test_a_machine_that_is_too_slow_does_without(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    rig = speaking((0.5, 1.0), feed=FakeFeed())
    async with rig.running(clocked=False):
        rig.controller.toggle()
        await rig.tick()
        # The loop was away for five seconds.
        rig.feed.advance(5 * RATE)
        await rig.tick(100)
        assert rig.controller.status()["state"] == "listening"
        rig.controller.toggle()
        await rig.tick(20)
    assert rig.outcome("s1") == "done"
    frames = rig.frames("s1")
    assert frames == list(range(frames[-1] + 1))
    assert "does not keep up in session s1" in caplog.text


async def test_a_recording_that_is_handed_in_is_recognised_as_it_is(autojump_clock: MockClock) -> None:
    rig = speaking((0.5, 0.6))
    async with rig.running():
        await rig.controller.listen_wav(numbered(0, 3 * RATE), timeout=5)
    assert rig.frames("s1") == list(range(3 * RATE))


@pytest.mark.parametrize("moment", [0.0, 0.3, 1.5, 2.3])
async def test_cancel_leaves_nothing_open(moment: float, autojump_clock: MockClock) -> None:
    rig = speaking((0.5, 1.0))
    async with rig.running():
        rig.controller.toggle()
        await trio.sleep(moment)
        assert rig.controller.cancel()
        await trio.testing.wait_all_tasks_blocked()
        assert rig.activity is not None
        assert rig.activity.open_now == 0
    assert rig.outcome("s1") == "cancelled"
