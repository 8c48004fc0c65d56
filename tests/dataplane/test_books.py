"""The books by themselves: expiring many handles leaves the others their turn."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import trio

from utter_runner.dataplane.books import SWEEP_AT_ONCE, Books, Hold, Quotas, Scope

if TYPE_CHECKING:
    from trio.testing import MockClock


class Timer:
    """Deadlines that the test fires."""

    def __init__(self) -> None:
        self.armed: list[tuple[float, Callable[[], None]]] = []

    def add(self, at: float, callback: Callable[[], None]) -> Timer:
        self.armed.append((at, callback))
        return self

    def cancel(self) -> None:
        self.armed.clear()

    def fire(self) -> None:
        ((at, callback),) = self.armed
        assert at <= trio.current_time()
        self.armed.clear()
        callback()


async def test_so_many_expire_at_once_and_then_others_have_their_turn(autojump_clock: MockClock) -> None:
    timer, gone = Timer(), list[Hold]()

    def discard(hold: Hold) -> None:
        assert books.strike(hold)
        gone.append(hold)

    books = Books(Quotas(ttl=10.0), timer, discard)
    scope = Scope(Path("nowhere"))
    holds = []
    for number in range(2 * SWEEP_AT_ONCE + 1):
        name = hashlib.sha256(b"%d" % number).hexdigest()
        holds.append(Hold(scope, name, 1, mark="user", granted=False, verified=True))
        books.enter(holds[-1])
        books.touch(holds[-1])
    await trio.sleep(10)
    for count in (SWEEP_AT_ONCE, 2 * SWEEP_AT_ONCE):
        timer.fire()
        assert gone == holds[:count]
        # Whoever fires what is due, and then what has become due, must not come back here at once.
        ((at, _),) = timer.armed
        assert trio.current_time() < at <= trio.current_time() + 0.01
        await trio.sleep(at - trio.current_time())
    timer.fire()
    assert gone == holds
    assert (books.total, timer.armed) == (0, [])


async def test_another_life_counts_from_the_last_use(autojump_clock: MockClock) -> None:
    timer, gone = Timer(), list[Hold]()

    def discard(hold: Hold) -> None:
        assert books.strike(hold)
        gone.append(hold)

    books = Books(Quotas(ttl=100.0), timer, discard)
    holds = []
    for number in range(2):
        name = hashlib.sha256(b"%d" % number).hexdigest()
        holds.append(Hold(Scope(Path("nowhere")), name, 1, mark="user", granted=False, verified=True))
        books.enter(holds[-1])
        books.touch(holds[-1])
        await trio.sleep(10)
    began = trio.current_time() - 20
    books.reconfigure(Quotas(ttl=50.0))
    ((at, _),) = timer.armed
    assert at == began + 50
    await trio.sleep(at - trio.current_time())
    timer.fire()
    assert gone == holds[:1]
    # A longer one as well.
    books.reconfigure(Quotas(ttl=70.0))
    ((at, _),) = timer.armed
    assert at == began + 10 + 70
