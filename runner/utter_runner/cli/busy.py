"""A spinner on stderr for what takes longer than a moment.

Rules here: only on a terminal; it never shows for a wait that ends at once; it is out of the way while a person is
asked.
"""

from __future__ import annotations

import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.status import Status

DELAY_S = 0.5


class Busy:
    """A context manager that shows `text` with a spinner once it has lasted `DELAY_S`."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._lock = threading.Lock()
        self._status: Status | None = None
        self._timer: threading.Timer | None = None

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            self._arm()
        return self

    def __exit__(self, *_: object) -> None:
        self._disarm()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Take the spinner away for as long as the block lasts."""
        armed = self._timer is not None
        self._disarm()
        yield
        if armed:
            self._arm()

    def _arm(self) -> None:
        self._timer = threading.Timer(DELAY_S, self._show)
        self._timer.daemon = True
        self._timer.start()

    def _show(self) -> None:
        from utter_runner.cli.render import console  # noqa: PLC0415 - rich is not wanted before there is a wait

        status = console(stderr=True).status(self._text)
        with self._lock:
            if self._timer is threading.current_thread():
                self._status = status
                status.start()

    def _disarm(self) -> None:
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = None
            if self._status is not None:
                self._status.stop()
            self._status = None
