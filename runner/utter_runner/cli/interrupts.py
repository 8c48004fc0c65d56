"""Ctrl-C, and other signals that mean "end", for commands that have something to finish when they come.

Rules here: a signal does nothing but make a descriptor readable; what it means is the command's to say.
"""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Sequence

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Ctrl-C, `kill`, and a terminal that was closed."""


class Interrupts:
    """Signals while it is in force: the first one makes `fd` readable, every other one is a KeyboardInterrupt.

    Args:
        signals: which ones; by default Ctrl-C alone.
    """

    def __init__(self, signals: Sequence[signal.Signals] = (signal.SIGINT,)) -> None:
        self._signals = signals
        self._armed = True

    def __enter__(self) -> Self:
        self.fd, self._wake = os.pipe()
        self._before = {number: signal.signal(number, self._take) for number in self._signals}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        os.close(self.fd)
        os.close(self._wake)

    @property
    def came(self) -> bool:
        """Whether there was a signal, or it was disarmed."""
        return not self._armed

    def disarm(self) -> None:
        """Make the next signal a KeyboardInterrupt."""
        self._armed = False

    def _take(self, *_: object) -> None:
        if not self._armed:
            raise KeyboardInterrupt
        self._armed = False
        os.write(self._wake, b"\0")
