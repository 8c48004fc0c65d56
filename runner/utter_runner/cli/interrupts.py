"""Ctrl-C, and other signals that mean "end", for commands that have something to finish when they come.

Rules here: a signal does nothing but make a descriptor readable; what it means is the command's to say. It is the
interpreter's own handler that writes to the descriptor: a Python handler runs between two bytecodes, and for a signal
that comes just before poll(2) that is after the next event, whenever it may come.
"""

from __future__ import annotations

import os
import signal
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Ctrl-C, `kill`, and a terminal that was closed."""
_MANY = 4096
_wakes: list[int] = []


@contextmanager
def signals_wake() -> Iterator[int]:
    """A descriptor that each signal with a Python handler makes readable, for those who wait with poll(2).

    Only on the main thread, as all of `signal`.
    """
    with _wakening() as (reading, _):
        yield reading


@contextmanager
def _wakening() -> Iterator[tuple[int, int]]:
    """A pipe that does not block, into which the interpreter writes at each signal."""
    reading, writing = os.pipe()
    for fd in (reading, writing):
        os.set_blocking(fd, False)
    before = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    try:
        yield reading, writing
    finally:
        signal.set_wakeup_fd(before)
        os.close(reading)
        os.close(writing)


@contextmanager
def heeding_signals() -> Iterator[None]:
    """While it lasts, the clients of the command heed signals, as `Client.heed` says.

    It does nothing on another thread than the main one, to which no signal comes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    with signals_wake() as wake:
        _wakes.append(wake)
        try:
            yield
        finally:
            _wakes.pop()


def command_wake() -> int | None:
    """The descriptor that signals make readable while the command runs, if there is one."""
    return _wakes[-1] if _wakes else None


class Interrupts:
    """Signals while it is in force: the first one makes `fd` readable, every other one is a KeyboardInterrupt.

    Args:
        signals: which ones; by default Ctrl-C alone.
    """

    def __init__(self, signals: Sequence[signal.Signals] = (signal.SIGINT,)) -> None:
        self._signals = signals
        self._armed = True

    def __enter__(self) -> Self:
        self._wakening = _wakening()
        self.fd, self._wake = self._wakening.__enter__()
        self._before = {number: signal.signal(number, self._take) for number in self._signals}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._wakening.__exit__(None, None, None)

    @property
    def came(self) -> bool:
        """Whether there was a signal, or it was disarmed."""
        return not self._armed

    def disarm(self) -> None:
        """Make the next signal a KeyboardInterrupt, and `fd` readable by that alone."""
        self._armed = False
        with suppress(BlockingIOError):
            os.read(self.fd, _MANY)

    def _take(self, *_: object) -> None:
        if not self._armed:
            raise KeyboardInterrupt
        self._armed = False
        # Where `signals_wake` is in force meanwhile, the interpreter writes there alone.
        os.write(self._wake, b"\0")
