"""Another microphone, or another way to have it open, while everything listens."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import trio
import trio.testing

from utter_runner.voice.capture.capture import RATE, Capture, Mode
from utter_runner.voice.capture.fake import BLOCK, FakeSource
from utter_runner.voice.capture.source import AudioSource, NoSource, SourceError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from trio.testing import MockClock


@asynccontextmanager
async def capturing(source: AudioSource, mode: Mode = "on-demand") -> AsyncIterator[tuple[Capture, list[str]]]:
    events: list[str] = []

    def note(event: dict[str, Any]) -> None:
        events.append(event["state"])

    capture = Capture(source, mode=mode, on_event=note, ring_seconds=10)
    async with trio.open_nursery() as nursery:
        await nursery.start(lambda task_status: capture.run(task_status=task_status))
        yield capture, events
        nursery.cancel_scope.cancel()


def adopt(capture: Capture, source: AudioSource | None = None, mode: Mode = "on-demand", **more: float) -> None:
    capture.reconfigure(
        source, mode=mode, **{"open_seconds": 2.0, "stall_seconds": 0.5, "silence_seconds": 3.0, **more}
    )


async def test_whoever_holds_the_microphone_holds_the_other_one(autojump_clock: MockClock) -> None:
    first, second = FakeSource(), FakeSource()
    async with capturing(first) as (capture, events):
        await capture.acquire()
        await capture.wait_beyond(10 * BLOCK)
        adopt(capture, second)
        await capture.wait_beyond(capture.position + 5 * BLOCK)
        assert (first.is_open, second.is_open) == (False, True)
        # What lies before is another's, and a new generation tells so.
        assert capture.read(capture.oldest, 1) == b"\0\0\x80?"
        assert events == ["open", "closed", "open"]
        capture.release()
        await trio.sleep(1)
        assert (first.openings, second.openings, second.is_open) == (1, 1, False)


async def test_one_that_is_closed_is_replaced_without_a_sound(autojump_clock: MockClock) -> None:
    first, second = FakeSource(), FakeSource()
    async with capturing(first) as (capture, events):
        adopt(capture, second)
        await trio.sleep(5)
        assert (first.openings, second.openings, events) == (0, 0, [])
        await capture.acquire()
        assert second.is_open


async def test_the_last_of_several_counts(autojump_clock: MockClock) -> None:
    sources = [FakeSource() for _ in range(4)]
    async with capturing(sources[0], "always") as (capture, _):
        await trio.sleep(1)
        for source in sources[1:]:
            adopt(capture, source, "always")
        await trio.sleep(1)
        assert [source.openings for source in sources] == [1, 0, 0, 1]


async def test_one_that_cannot_ever_be_opened_gives_way_and_comes_back(autojump_clock: MockClock) -> None:
    async with capturing(NoSource("There is none."), "always") as (capture, _):
        await trio.sleep(1)
        assert (capture.hopeless, capture.status["open"]) == ("There is none.", False)
        adopt(capture, FakeSource(), "always")
        await trio.sleep(1)
        assert (capture.hopeless, capture.status["open"], capture.status["detail"]) == ("", True, "")
        adopt(capture, NoSource("Gone again."), "always")
        await trio.sleep(1)
        assert (capture.hopeless, capture.status["open"]) == ("Gone again.", False)


async def test_a_fault_of_one_is_not_the_others(autojump_clock: MockClock) -> None:
    broken = FakeSource()
    broken.refuse = SourceError("It is broken.")
    async with capturing(broken, "always") as (capture, events):
        await trio.sleep(20)
        assert capture.status["detail"] == "It is broken."
        began = trio.current_time()
        adopt(capture, FakeSource(), "always")
        await capture.until_delivering()
        # Not only after the pause before the broken one is tried again.
        assert trio.current_time() - began < 1
        assert (capture.status["detail"], events) == ("", ["fault", "open"])


async def test_the_mode_and_the_bounds_change_without_another_opening(autojump_clock: MockClock) -> None:
    source = FakeSource()
    async with capturing(source) as (capture, events):
        adopt(capture, mode="always", stall_seconds=5.0)
        await trio.sleep(1)
        assert (source.is_open, capture.status["capture"]) == (True, "always")
        source.stalled = True
        await trio.sleep(3)
        assert events == ["open"]
        source.stalled = False
        adopt(capture, stall_seconds=5.0)
        await trio.sleep(1)
        assert (source.is_open, source.openings) == (False, 1)
        assert capture.position > RATE // 2
