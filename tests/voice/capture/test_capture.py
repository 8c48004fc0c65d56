from __future__ import annotations

import array
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import trio
import trio.testing

from utter_protocol.ring import Overrun
from utter_runner.voice.capture.capture import ON_DEMAND_NOTE, RATE, Capture, Mode
from utter_runner.voice.capture.fake import BLOCK, FakeSource
from utter_runner.voice.capture.source import NoSource, SourceError
from utter_runner.voice.collaborators import AudioUnavailable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from utter_runner.voice.collaborators import AudioFeed

STEP = BLOCK / RATE


class Events:
    """What the capture reported, in order, with the time of each."""

    def __init__(self) -> None:
        self.all: list[tuple[str, str]] = []
        self.times: dict[str, float] = {}
        self._grown = trio.Event()

    def __call__(self, event: dict[str, Any]) -> None:
        assert event.keys() == {"event", "state", "detail"}
        assert event["event"] == "audio"
        self.all.append((event["state"], event["detail"]))
        self.times[event["state"]] = trio.current_time()
        self._grown.set()
        self._grown = trio.Event()

    @property
    def states(self) -> list[str]:
        return [state for state, _ in self.all]

    async def wait(self, *states: str) -> None:
        """Waits until exactly these have been reported since the start."""
        while len(self.all) < len(states):
            await self._grown.wait()
        assert self.states == list(states)


@asynccontextmanager
async def capturing(
    source: Any, mode: Mode = "on-demand", seconds: float = 10
) -> AsyncIterator[tuple[Capture, Events]]:
    events = Events()
    capture = Capture(source, mode=mode, on_event=events, ring_seconds=seconds)
    async with trio.open_nursery() as nursery:
        await nursery.start(lambda task_status: capture.run(task_status=task_status))
        yield capture, events
        nursery.cancel_scope.cancel()


def samples(data: bytes) -> list[float]:
    return array.array("f", data).tolist()


async def test_it_is_an_audio_feed(autojump_clock: trio.testing.MockClock) -> None:
    async with capturing(FakeSource()) as (capture, _):
        feed: AudioFeed = capture
        assert feed.rate == RATE


async def test_on_demand_the_microphone_is_open_between_acquire_and_release(
    autojump_clock: trio.testing.MockClock,
) -> None:
    source = FakeSource()
    async with capturing(source) as (capture, events):
        await trio.sleep(5)
        assert (source.openings, capture.position) == (0, 0)
        assert capture.status == {
            "capture": "on-demand",
            "open": False,
            "device": "the fake microphone",
            "faults": 0,
            "detail": ON_DEMAND_NOTE,
        }
        await capture.acquire()
        assert (source.is_open, capture.status["open"]) == (True, True)
        await capture.wait_beyond(4 * BLOCK - 1)
        assert samples(capture.read(0, 4 * BLOCK)) == [float(n) for n in range(1, 4 * BLOCK + 1)]
        capture.release()
        await events.wait("open", "closed")
        assert (source.is_open, capture.status["open"]) == (False, False)
        assert source.openings == 1


async def test_audio_of_an_earlier_opening_is_older_than_oldest(autojump_clock: trio.testing.MockClock) -> None:
    async with capturing(FakeSource()) as (capture, events):
        await capture.acquire()
        assert capture.oldest == 0
        await capture.wait_beyond(RATE)
        capture.release()
        await events.wait("open", "closed")
        before = capture.position
        await capture.acquire()
        assert capture.oldest == before
        assert samples(capture.read(before, 2)) == [1.0, 2.0]
        assert capture.ring.generation == 2


async def test_acquire_nests(autojump_clock: trio.testing.MockClock) -> None:
    source = FakeSource()
    async with capturing(source) as (capture, events):
        await capture.acquire()
        await capture.acquire()
        capture.release()
        await trio.sleep(1)
        assert source.is_open
        capture.release()
        await events.wait("open", "closed")


async def test_always_the_microphone_is_open_and_there_is_audio_from_before_acquire(
    autojump_clock: trio.testing.MockClock,
) -> None:
    source = FakeSource()
    async with capturing(source, "always") as (capture, events):
        await events.wait("open")
        await trio.sleep(1)
        assert capture.status == {
            "capture": "always",
            "open": True,
            "device": "the fake microphone",
            "faults": 0,
            "detail": "",
        }
        before = trio.current_time()
        await capture.acquire()
        assert trio.current_time() == before
        assert capture.position >= RATE * 0.9
        assert capture.oldest == 0
        capture.release()
        await trio.sleep(1)
        assert source.is_open
        assert source.openings == 1


async def test_the_ring_keeps_the_last_seconds(autojump_clock: trio.testing.MockClock) -> None:
    async with capturing(FakeSource(), "always", seconds=1) as (capture, _):
        await capture.wait_beyond(3 * RATE)
        assert capture.oldest == capture.position - RATE
        with pytest.raises(Overrun):
            capture.read(capture.oldest - 1, 1)
        with pytest.raises(ValueError, match="are written"):
            capture.read(capture.position, 1)


async def test_frames_that_are_there_need_no_waiting_and_no_open_microphone(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with capturing(FakeSource()) as (capture, events):
        await capture.acquire()
        await capture.wait_beyond(RATE)
        capture.release()
        await events.wait("open", "closed")
        await capture.wait_beyond(RATE)
        with pytest.raises(AudioUnavailable, match="closed"):
            await capture.wait_beyond(capture.position)


async def test_acquire_gives_up_after_two_seconds_and_holds_nothing(autojump_clock: trio.testing.MockClock) -> None:
    source = FakeSource()
    source.open_delay = 30
    async with capturing(source) as (capture, _):
        before = trio.current_time()
        with pytest.raises(AudioUnavailable, match=r"from the fake microphone within 2 s\. .* `\[voice\] open_ms`"):
            await capture.acquire()
        assert trio.current_time() - before == pytest.approx(2.0)
        await trio.testing.wait_all_tasks_blocked()
        openings = source.openings
        await trio.sleep(60)
        assert source.openings == openings


async def test_a_device_that_is_slow_to_open_gets_more_time_each_time(
    autojump_clock: trio.testing.MockClock,
) -> None:
    source = FakeSource()
    source.open_delay = 3
    async with capturing(source, "always") as (capture, events):
        await events.wait("fault")
        assert events.times["fault"] == pytest.approx(2.0)
        assert "within 2 s after it was opened" in events.all[-1][1]
        await events.wait("fault", "recovered")
        assert events.times["recovered"] == pytest.approx(5.1, abs=2 * STEP)
        assert source.openings == 2
        # Once it was there it begins anew.
        source.open_delay = 30
        source.end("It is gone.")
        await trio.sleep(60)
        gaps = [after - before for before, after in pairwise(source.opened_at[2:])]
        # 2, 4, 8, and then 10 s, and the pauses between them, which are short where the attempt was long.
        assert gaps[:5] == pytest.approx([2.4, 4.8, 8.1, 10.1, 10.1], abs=0.01)
        assert "within 10 s" in capture.status["detail"]


async def test_how_long_it_may_take_is_configured(autojump_clock: trio.testing.MockClock) -> None:
    source = FakeSource()
    source.open_delay = 4
    async with capturing(source) as (capture, _):
        capture.reconfigure(None, mode="on-demand", open_seconds=5, stall_seconds=0.5, silence_seconds=3)
        before = trio.current_time()
        await capture.acquire()
        assert trio.current_time() - before == pytest.approx(4, abs=2 * STEP)
        capture.release()
        await trio.sleep(1)
        source.open_delay = 6
        with pytest.raises(AudioUnavailable, match="within 5 s"):
            await capture.acquire()


async def test_acquire_succeeds_when_the_device_comes_back_in_time(autojump_clock: trio.testing.MockClock) -> None:
    source = FakeSource()
    source.refuse = SourceError("The sound server is down.")
    async with capturing(source) as (capture, events), trio.open_nursery() as nursery:
        nursery.start_soon(capture.acquire)
        await events.wait("fault")
        await trio.sleep(0.5)
        source.refuse = None
        await events.wait("fault", "recovered")
        assert capture.status["open"]
        assert capture.status["detail"] == ON_DEMAND_NOTE


async def test_acquire_that_is_cancelled_holds_nothing(autojump_clock: trio.testing.MockClock) -> None:
    source = FakeSource()
    source.open_delay = 30
    async with capturing(source) as (capture, _):
        with trio.move_on_after(1):
            await capture.acquire()
        await trio.sleep(60)
        assert source.openings == 1
        assert not capture.status["open"]


async def test_the_reason_of_a_refusal_reaches_who_acquires(autojump_clock: trio.testing.MockClock) -> None:
    source = FakeSource()
    source.refuse = SourceError("The microphone is in use.")
    async with capturing(source) as (capture, events):
        for _ in range(2):
            with pytest.raises(AudioUnavailable) as caught:
                await capture.acquire()
            assert caught.value.reason == "The microphone is in use."
        assert events.states == ["fault", "fault"]
        assert capture.status["detail"] == "The microphone is in use."
        assert capture.status["faults"] == 2


async def test_what_can_never_work_is_refused_at_once_and_not_tried_again(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with capturing(NoSource("There is no microphone."), "always") as (capture, events):
        await events.wait("fault")
        before = trio.current_time()
        with pytest.raises(AudioUnavailable, match=r"There is no microphone\."):
            await capture.acquire()
        assert trio.current_time() == before
        await trio.sleep(60)
        assert events.states == ["fault"]


async def test_a_stall_is_a_fault_within_the_bound_and_the_source_is_opened_again(
    autojump_clock: trio.testing.MockClock,
) -> None:
    source = FakeSource()
    async with capturing(source, "always") as (capture, events):
        await events.wait("open")
        await trio.sleep(1)
        source.stalled = True
        stalled = trio.current_time()
        await events.wait("open", "fault")
        assert 0.4 <= events.times["fault"] - stalled <= 0.65
        assert "for 0.5 s" in events.all[-1][1]
        assert not capture.status["open"]
        source.stalled = False
        at = capture.position
        await events.wait("open", "fault", "recovered")
        assert source.openings == 2
        assert capture.oldest == at
        assert capture.status["faults"] == 1


async def test_a_waiter_learns_of_a_stall_and_a_later_one_of_the_lasting_fault(
    autojump_clock: trio.testing.MockClock,
) -> None:
    source = FakeSource()
    async with capturing(source) as (capture, _):
        await capture.acquire()
        source.stalled = True
        before = trio.current_time()
        with pytest.raises(AudioUnavailable, match=r"for 0\.5 s"):
            await capture.wait_beyond(capture.position)
        assert trio.current_time() - before < 0.7
        with pytest.raises(AudioUnavailable, match=r"for 0\.5 s"):
            await capture.wait_beyond(capture.position)


async def test_a_source_that_ends_is_opened_again_with_growing_pauses_and_told_once(
    autojump_clock: trio.testing.MockClock,
) -> None:
    source = FakeSource()
    async with capturing(source, "always") as (capture, events):
        await events.wait("open")
        await trio.sleep(10)
        source.refuse = SourceError("The sound server is down.")
        ended = trio.current_time()
        source.end("The audio server closed the stream.")
        await events.wait("open", "fault")
        assert events.times["fault"] == ended
        await trio.sleep(22)
        attempts = [ended, *source.opened_at[1:]]
        pauses = [round(later - earlier, 1) for earlier, later in pairwise(attempts)]
        assert pauses == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 5.0]
        source.refuse = None
        await events.wait("open", "fault", "recovered")
        assert capture.status["faults"] == 1
        assert events.all[1][1] == "The audio server closed the stream."


async def test_a_source_that_fails_again_and_again_is_not_opened_ten_times_a_second(
    autojump_clock: trio.testing.MockClock,
) -> None:
    class Feeble(FakeSource):
        async def run(self, on_frames: Any) -> None:
            def deliver(frames: Any) -> None:
                on_frames(frames)
                self.end("It fell over.")

            await super().run(deliver)

    source = Feeble()
    async with capturing(source, "always"):
        await trio.sleep(30)
    assert 8 <= source.openings <= 12


async def test_release_ends_the_attempts_to_open(autojump_clock: trio.testing.MockClock) -> None:
    source = FakeSource()
    async with capturing(source) as (capture, events):
        await capture.acquire()
        source.refuse = SourceError("gone")
        source.end("gone")
        await events.wait("open", "fault")
        await trio.sleep(1)
        capture.release()
        openings = source.openings
        await trio.sleep(60)
        assert source.openings == openings


async def test_nothing_but_zeros_while_listening_is_a_fault_that_does_not_end_the_session(
    autojump_clock: trio.testing.MockClock,
) -> None:
    source = FakeSource()
    source.muted = True
    async with capturing(source) as (capture, events):
        await capture.acquire()
        acquired = trio.current_time()
        await events.wait("open", "fault")
        assert 2.9 <= events.times["fault"] - acquired <= 3.2
        assert "nothing but silence" in events.all[-1][1]
        assert "nothing but silence" in capture.status["detail"]
        await capture.wait_beyond(capture.position + RATE)
        assert source.openings == 2
        await trio.sleep(30)
        assert events.states == ["open", "fault"]
        source.muted = False
        await events.wait("open", "fault", "recovered")
        assert capture.status["detail"] == ON_DEMAND_NOTE


async def test_silence_is_told_in_each_session_again(autojump_clock: trio.testing.MockClock) -> None:
    source = FakeSource()
    source.muted = True
    async with capturing(source, "always") as (capture, events):
        await events.wait("open")
        await trio.sleep(10)
        assert events.states == ["open"]
        for session in range(1, 3):
            await capture.acquire()
            await trio.sleep(10)
            capture.release()
            assert events.states == ["open", *["fault"] * session]
        assert capture.status["faults"] == 2


async def test_a_word_among_zeros_is_no_silence_and_a_files_zeros_are_none_either(
    autojump_clock: trio.testing.MockClock,
) -> None:
    for source in (FakeSource(), FakeSource(live=False)):
        source.muted = True
        async with capturing(source) as (capture, events):
            await capture.acquire()
            for _ in range(5):
                await trio.sleep(2.5)
                source.muted = not source.live
                await trio.sleep(0.1)
                source.muted = True
            assert events.states == ["open"]


async def test_a_source_given_up_cannot_write_into_the_ring(autojump_clock: trio.testing.MockClock) -> None:
    class Lingering(FakeSource):
        async def run(self, on_frames: Any) -> None:
            self.late = on_frames
            await super().run(on_frames)

    source = Lingering()
    async with capturing(source) as (capture, events):
        await capture.acquire()
        capture.release()
        await events.wait("open", "closed")
        at = capture.position
        source.late(bytes(4 * BLOCK))
        assert capture.position == at


async def test_a_closed_or_open_but_unwatched_microphone_wakes_nobody(autojump_clock: trio.testing.MockClock) -> None:
    class Wakes(trio.abc.Instrument):
        count = 0

        def before_task_step(self, task: trio.lowlevel.Task) -> None:
            if "capture" in task.name.lower():
                self.count += 1

    wakes = Wakes()
    async with capturing(FakeSource()) as (capture, events):
        await trio.testing.wait_all_tasks_blocked()
        trio.lowlevel.add_instrument(wakes)
        await trio.sleep(3600)
        assert wakes.count == 0
        await capture.acquire()
        capture.release()
        await events.wait("open", "closed")
        wakes.count = 0
        await trio.sleep(3600)
        assert wakes.count == 0
        trio.lowlevel.remove_instrument(wakes)


async def test_nothing_stays_open(autojump_clock: trio.testing.MockClock) -> None:
    def descriptors() -> set[str]:
        return {entry.name for entry in Path("/proc/self/fd").iterdir()}

    before = descriptors()
    source = FakeSource()
    async with capturing(source) as (capture, _):
        await capture.acquire()
        with trio.move_on_after(1):
            await capture.wait_beyond(10 * RATE)
        capture.release()
    assert descriptors() == before
    assert not source.is_open
    unused = Capture(source, on_event=Events())
    unused.close()
    assert descriptors() == before
