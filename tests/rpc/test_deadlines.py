from __future__ import annotations

import heapq
from functools import partial
from typing import TYPE_CHECKING

import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from utter_runner.rpc import deadlines as module
from utter_runner.rpc.deadlines import Deadlines

if TYPE_CHECKING:
    from trio.testing import MockClock

EXAMPLES = settings(derandomize=True, database=None, deadline=None, max_examples=100)


@pytest.fixture
async def deadlines(nursery: trio.Nursery) -> Deadlines:
    """A heap whose timer runs, asleep for want of anything to do."""
    running = Deadlines()
    nursery.start_soon(running.run)
    await trio.testing.wait_all_tasks_blocked()
    return running


async def test_each_fires_once_when_its_time_has_come(deadlines: Deadlines, autojump_clock: MockClock) -> None:
    start = trio.current_time()
    fired: list[float] = []
    for delay in (3.0, 1.0, 2.0, 1.5):
        deadlines.add(start + delay, lambda: fired.append(trio.current_time() - start))
    await trio.sleep(1.75)
    assert fired == pytest.approx([1.0, 1.5])
    assert len(deadlines) == 2
    await trio.sleep(10)
    assert fired == pytest.approx([1.0, 1.5, 2.0, 3.0])
    assert len(deadlines) == 0


async def test_equal_times_fire_in_the_order_of_adding(deadlines: Deadlines, autojump_clock: MockClock) -> None:
    fired: list[int] = []
    at = trio.current_time() + 1
    for number in range(50):
        deadlines.add(at, partial(fired.append, number))
    await trio.sleep(2)
    assert fired == list(range(50))


async def test_an_earlier_one_wakes_the_timer_that_sleeps_for_a_later_one(
    deadlines: Deadlines, autojump_clock: MockClock
) -> None:
    start = trio.current_time()
    fired: list[float] = []
    deadlines.add(start + 100, lambda: fired.append(100))
    await trio.sleep(1)
    deadlines.add(start + 2, lambda: fired.append(trio.current_time() - start))
    await trio.sleep(2)
    assert fired == pytest.approx([2.0])


async def test_one_that_is_due_already_fires_without_delay(deadlines: Deadlines, autojump_clock: MockClock) -> None:
    start = trio.current_time()
    fired = trio.Event()
    deadlines.add(start - 5, fired.set)
    await fired.wait()
    assert trio.current_time() == start


async def test_entries_that_were_added_before_the_timer_runs_fire_too(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    deadlines = Deadlines()
    fired = trio.Event()
    deadlines.add(trio.current_time() + 1, fired.set)
    nursery.start_soon(deadlines.run)
    await fired.wait()


async def test_a_cancelled_one_does_not_fire(deadlines: Deadlines, autojump_clock: MockClock) -> None:
    fired: list[str] = []
    at = trio.current_time() + 1
    keep = deadlines.add(at, lambda: fired.append("kept"))
    drop = deadlines.add(at, lambda: fired.append("dropped"))
    drop.cancel()
    drop.cancel()
    assert len(deadlines) == 1
    await trio.sleep(2)
    assert fired == ["kept"]
    keep.cancel()
    assert len(deadlines) == 0


async def test_a_callback_may_cancel_itself_others_and_add_more(
    deadlines: Deadlines, autojump_clock: MockClock
) -> None:
    start = trio.current_time()
    fired: list[str] = []

    def first() -> None:
        fired.append("first")
        itself.cancel()
        second.cancel()
        deadlines.add(start, lambda: fired.append("at once"))
        deadlines.add(start + 2, lambda: fired.append("later"))

    itself = deadlines.add(start + 1, first)
    second = deadlines.add(start + 1, lambda: fired.append("second"))
    await trio.sleep(1.5)
    assert fired == ["first", "at once"]
    assert len(deadlines) == 1
    await trio.sleep(1)
    assert fired == ["first", "at once", "later"]
    assert len(deadlines) == 0


async def test_a_callback_that_raises_reaches_no_other(
    deadlines: Deadlines, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    fired = trio.Event()
    at = trio.current_time() + 1
    deadlines.add(at, lambda: 1 / 0)
    deadlines.add(at, fired.set)
    await fired.wait()
    assert [record.getMessage() for record in caplog.records] == ["a deadline's callback failed"]


async def test_cancelled_ones_do_not_pile_up(deadlines: Deadlines, autojump_clock: MockClock) -> None:
    at = trio.current_time() + 60
    alive = [deadlines.add(at, lambda: None) for _ in range(100)]
    for _ in range(20_000):
        deadlines.add(at, lambda: None).cancel()
        assert len(deadlines._heap) <= 2 * len(alive) + module._COMPACT_ABOVE + 2
    assert len(deadlines) == 100
    assert {entry for entry in deadlines._heap if entry.callback} == set(alive)


async def test_compacting_costs_little_per_cancellation(
    deadlines: Deadlines, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved = 0
    heapify = heapq.heapify

    def counting(heap: list[module.Deadline]) -> None:
        nonlocal moved
        moved += len(heap)
        heapify(heap)

    monkeypatch.setattr(module.heapq, "heapify", counting)
    at = trio.current_time() + 60
    entries = [deadlines.add(at, lambda: None) for _ in range(10_000)]
    for entry in entries:
        entry.cancel()
    assert moved <= 2 * len(entries)


async def test_the_order_survives_compaction(deadlines: Deadlines, autojump_clock: MockClock) -> None:
    start = trio.current_time()
    fired: list[int] = []
    entries = [deadlines.add(start + 1000 - number, partial(fired.append, number)) for number in range(1000)]
    for number, entry in enumerate(entries):
        if number % 10:
            entry.cancel()
    await trio.sleep(2000)
    assert fired == list(range(990, -1, -10))


async def test_the_timer_sleeps_while_there_is_nothing_to_do(deadlines: Deadlines, autojump_clock: MockClock) -> None:
    steps = 0

    class Count(trio.abc.Instrument):
        def before_task_step(self, task: trio.lowlevel.Task) -> None:
            nonlocal steps
            steps += "Deadlines.run" in task.name

    count = Count()
    trio.lowlevel.add_instrument(count)
    for _ in range(10):
        deadlines.add(trio.current_time() + 1000, lambda: None).cancel()
        await trio.sleep(10)
    trio.lowlevel.remove_instrument(count)
    # At most the first one shortens the sleep.
    assert steps <= 1


@EXAMPLES
@given(
    st.lists(st.tuples(st.integers(0, 50), st.sampled_from(["keep", "cancel", "cancel later"]), st.integers(0, 5))),
)
def test_what_fires_is_what_a_sorted_list_would_fire(steps: list[tuple[int, str, int]]) -> None:
    async def scenario() -> None:
        deadlines = Deadlines()
        expected: list[tuple[float, int]] = []
        fired: list[tuple[float, int]] = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(deadlines.run)
            for number, (delay, fate, pause) in enumerate(steps):
                now = trio.current_time()
                at = now + delay

                def fire(number: int = number, at: float = at) -> None:
                    assert trio.current_time() >= at
                    fired.append((at, number))

                entry = deadlines.add(at, fire)
                if fate == "cancel":
                    entry.cancel()
                if pause:
                    await trio.sleep(pause)
                if fate == "cancel later":
                    entry.cancel()
                if fate == "keep" or (fate == "cancel later" and (delay < pause or (at, number) in fired)):
                    expected.append((at, number))
            await trio.sleep(100)
            assert fired == sorted(expected)
            assert len(deadlines) == 0
            nursery.cancel_scope.cancel()

    trio.run(scenario, clock=trio.testing.MockClock(autojump_threshold=0))
