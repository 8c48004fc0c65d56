"""Watching something of the desktop for as long as it is there.

Rules here: each watch is a thread that sleeps until there is news; a source that was never there is looked for when
somebody asks, one that went away by itself, ever more rarely. A source that hangs is waited for at most `KNOWN_S`.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Generic, TypeVar

from .failure import Failure

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

S = TypeVar("S")

KNOWN_S = 1.0
"""How long whoever asks waits for the first news of a source."""
FIRST_PAUSE_S = 1.0
"""How long after it went away a source is looked for again; then twice as long, and so on."""
LONGEST_PAUSE_S = 60.0


class Watch(ABC, Generic[S]):
    """One source.

    Args:
        what: what is watched, for the log: "The media players".
        log: takes a line that says why it is not.
    """

    def __init__(self, what: str, log: Callable[[str], None]) -> None:
        self._what = what
        self._log = log
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None
        self._known = threading.Event()

    @abstractmethod
    def connect(self) -> AbstractContextManager[S]:
        """Return the source. Raises Failure: it is not there."""

    @abstractmethod
    def watch(self, source: S) -> None:
        """Tell what there is and what changes; call `known` when the first is told. Raises Failure: it went away."""

    @abstractmethod
    def lost(self) -> None:
        """Tell that nothing is known any more."""

    def start(self) -> None:
        """Watch, also again where there was no source; returns at once."""
        with self._starting:
            if self._thread is None or not self._thread.is_alive():
                self._known.clear()
                self._thread = threading.Thread(target=self._run, name=type(self).__name__, daemon=True)
                self._thread.start()

    def wait(self) -> None:
        """Wait until it is known what there is, or that nobody knows."""
        self._known.wait()

    def known(self) -> None:
        """Let go on who waits."""
        self._known.set()

    def _run(self) -> None:
        was_there, pause = False, FIRST_PAUSE_S
        while True:
            if self._watch_once(again=was_there):
                was_there, pause = True, FIRST_PAUSE_S
            elif not was_there:
                return
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_S)

    def _watch_once(self, *, again: bool) -> bool:
        """Watch until the source is gone; return whether it was there."""
        connected = False
        try:
            with self.connect() as source:
                connected = True
                self.watch(source)
        except Failure as failure:
            if connected or not again:
                self._log(f"{self._what} are not watched: {failure}")
            self.lost()
        finally:
            self._known.set()
        return connected
