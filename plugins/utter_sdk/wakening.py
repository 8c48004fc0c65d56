"""A pipe that says when the audio ring has more, for any number of threads that wait.

Rules here: of the threads that wait one reads the pipe, for all, and another one does when it leaves; what can be read
from the pipe says nothing but "look again"; nobody waits with the lock held.
"""

from __future__ import annotations

import math
import os
import select
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_READ_SIZE = 64 * 1024


class Wakening:
    """A wake pipe.

    Args:
        fd: its reading end, this object's from now on.

    Attributes:
        ended: whether nobody writes to it any more.

    Raises:
        OSError: no descriptors; `fd` stays the caller's.
    """

    def __init__(self, fd: int) -> None:
        # Raised by whoever has a waiting thread look again.
        self._look = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        os.set_blocking(fd, False)
        self.ended = False
        self._fd = fd
        self._changed = threading.Condition()
        self._is_read = False
        self._waiting = 0

    def wait(self, ready: Callable[[], bool], timeout: float | None) -> bool:
        """Wait until `ready()`, which may raise, or for `timeout` seconds; return which."""
        end = None if timeout is None else time.monotonic() + timeout
        with self._changed:
            self._waiting += 1
            try:
                while not ready():
                    left = None if end is None else end - time.monotonic()
                    if left is not None and left <= 0:
                        return False
                    if self._is_read:
                        self._changed.wait(left)
                    else:
                        self._read(left)
            finally:
                self._waiting -= 1
                self._changed.notify_all()
        return True

    def look_again(self) -> None:
        """Have all that wait ask `ready` again, and let none that asked before go on; from any thread, however late."""
        with self._changed:
            if self._look >= 0:
                os.eventfd_write(self._look, 1)
            self._changed.notify_all()

    def close(self) -> None:
        """Close the pipe when nobody waits any more; `ready` must see to it that nobody goes on waiting."""
        with self._changed:
            self._changed.wait_for(lambda: not self._waiting)
            os.close(self._fd)
            os.close(self._look)
            self._fd = self._look = -1

    def _read(self, left: float | None) -> None:
        """Read until there was something, for all that wait; the lock is held before and after."""
        self._is_read = True
        self._changed.release()
        try:
            poll = select.poll()
            poll.register(self._look, select.POLLIN)
            if not self.ended:
                poll.register(self._fd, select.POLLIN)
            came = {fd for fd, _ in poll.poll(None if left is None else math.ceil(left * 1000))}
            if self._look in came:
                with suppress(BlockingIOError):
                    os.eventfd_read(self._look)
            if self._fd in came:
                with suppress(BlockingIOError):
                    self.ended = not os.read(self._fd, _READ_SIZE)
        finally:
            self._changed.acquire()
            self._is_read = False
            self._changed.notify_all()
