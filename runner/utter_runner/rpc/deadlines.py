"""Deadlines of everything in flight: one heap, one timer task.

Rules here: adding and cancelling are cheap and happen on every request; a cancelled entry stays in the heap until its
time comes or until the dead outnumber the living; the timer task sleeps while the heap is empty.
"""

from __future__ import annotations

import heapq
import logging
import math
from itertools import count
from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from collections.abc import Callable

logger = logging.getLogger(__name__)

_COMPACT_ABOVE = 256


class Deadline:
    """One entry; `cancel` it when what it guards has ended."""

    __slots__ = ("_owner", "_seq", "at", "callback")

    def __init__(self, owner: Deadlines, seq: int, at: float, callback: Callable[[], None]) -> None:
        self._owner = owner
        self._seq = seq
        self.at = at
        self.callback: Callable[[], None] | None = callback

    def __lt__(self, other: Deadline) -> bool:
        return (self.at, self._seq) < (other.at, other._seq)

    def cancel(self) -> None:
        """Forget it. Harmless when it has fired or was cancelled before."""
        if self.callback is not None:
            self.callback = None
            self._owner._died()  # noqa: SLF001 - the heap counts its own dead


class Deadlines:
    """The heap. `run` must be running for entries to fire."""

    def __init__(self) -> None:
        self._heap: list[Deadline] = []
        self._dead = 0
        self._next_seq = count().__next__
        self._wake_at = -math.inf
        self._scope: trio.CancelScope | None = None

    def __len__(self) -> int:
        return len(self._heap) - self._dead

    def add(self, at: float, callback: Callable[[], None]) -> Deadline:
        """Call `callback` once at the time `at` (trio's clock, seconds), unless cancelled before."""
        entry = Deadline(self, self._next_seq(), at, callback)
        heapq.heappush(self._heap, entry)
        if at < self._wake_at and self._scope is not None:
            self._wake_at = at
            self._scope.deadline = at
        return entry

    def _died(self) -> None:
        self._dead += 1
        if self._dead > _COMPACT_ABOVE and self._dead * 2 > len(self._heap):
            self._heap = [entry for entry in self._heap if entry.callback is not None]
            heapq.heapify(self._heap)
            self._dead = 0

    async def run(self) -> None:
        """Fire what is due, for ever."""
        while True:
            self._fire_due()
            self._wake_at = self._heap[0].at if self._heap else math.inf
            with trio.CancelScope(deadline=self._wake_at) as self._scope:
                await trio.sleep_forever()
            self._scope = None

    def _fire_due(self) -> None:
        now = trio.current_time()
        while self._heap and (self._heap[0].at <= now or self._heap[0].callback is None):
            entry = heapq.heappop(self._heap)
            callback, entry.callback = entry.callback, None
            if callback is None:
                self._dead -= 1
                continue
            try:
                callback()
            except Exception:
                logger.exception("a deadline's callback failed")
