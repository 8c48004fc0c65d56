"""One epoll instance for all peers, waited on through trio once per batch of events.

Rules here: callbacks run on the trio thread and never block; whoever has more work than its share of one turn asks for
another turn with `again`; what was written during a turn leaves at its end, one system call per descriptor. An
exception of one callback is logged and reaches no other.
"""

from __future__ import annotations

import logging
import os
import select
from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from collections.abc import Callable

logger = logging.getLogger(__name__)

READABLE = select.EPOLLIN
WRITABLE = select.EPOLLOUT
HANGUP = select.EPOLLHUP | select.EPOLLERR


class Reactor:
    """Dispatches readiness of registered descriptors to callbacks. `run` must be running."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._callbacks: dict[int, Callable[[int], object]] = {}
        self._again: dict[Callable[[], None], None] = {}
        self._flush: dict[Callable[[], None], None] = {}
        self.in_turn = False
        # Descriptors that were registered while events already polled are being handed out.
        self._fresh: set[int] = set()
        # An eventfd inside the epoll set: asking for a turn from outside of one ends the wait.
        self._wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self.register(self._wake_fd, READABLE, lambda _events: os.eventfd_read(self._wake_fd))

    def close(self) -> None:
        """Close the epoll descriptor. Registered descriptors stay open; they are their owners'."""
        self.unregister(self._wake_fd)
        os.close(self._wake_fd)
        self._epoll.close()

    def register(self, fd: int, events: int, callback: Callable[[int], object]) -> None:
        """Call `callback(events)` while `fd` is ready (level-triggered). Hang-up and error are always reported."""
        self._epoll.register(fd, events)
        self._callbacks[fd] = callback
        if self.in_turn:
            self._fresh.add(fd)

    def modify(self, fd: int, events: int) -> None:
        """Change which events of a registered descriptor count."""
        self._epoll.modify(fd, events)

    def unregister(self, fd: int) -> None:
        """Forget a descriptor; must happen before it is closed."""
        if self._callbacks.pop(fd, None) is not None:
            self._epoll.unregister(fd)

    def again(self, callback: Callable[[], None]) -> None:
        """Run `callback` in the next turn, after others have had theirs."""
        self._again[callback] = None
        if not self.in_turn:
            os.eventfd_write(self._wake_fd, 1)

    def at_turn_end(self, callback: Callable[[], None]) -> None:
        """Run `callback` once at the end of this turn, or now when no turn is under way."""
        if self.in_turn:
            self._flush[callback] = None
        else:
            callback()

    async def run(self) -> None:
        """Serve for ever."""
        fd = self._epoll.fileno()
        while True:
            if self._again:
                await trio.lowlevel.checkpoint()
            else:
                await trio.lowlevel.wait_readable(fd)
            self.turn()

    def turn(self) -> None:
        """Handle what is ready, without waiting."""
        self.in_turn = True
        again, self._again = self._again, {}
        for callback in again:
            self._call(callback)
        callbacks, fresh = self._callbacks, self._fresh
        fresh.clear()
        for fd, events in self._epoll.poll(0):
            callback_for_fd = callbacks.get(fd)
            if callback_for_fd is None or fd in fresh:
                # Closed in this turn; the number may stand for another file already.
                continue
            try:
                callback_for_fd(events)
            except Exception:
                logger.exception("a readiness callback failed")
        self.in_turn = False
        while self._flush:
            flush, self._flush = self._flush, {}
            for callback in flush:
                self._call(callback)

    @staticmethod
    def _call(callback: Callable[[], None]) -> None:
        try:
            callback()
        except Exception:
            logger.exception("a turn's callback failed")
