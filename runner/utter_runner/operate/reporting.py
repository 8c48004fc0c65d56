"""What the daemon tells the service manager while it runs: its status as plugins change, and that its loop turns.

Rules here: a beat goes through everything that the rest of the daemon depends on, and is sent by a task of the loop, so
that whatever is stuck keeps it from being sent and the manager starts the runner anew. Without a manager nothing wakes.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from utter_runner.operate.notify import ServiceManager

STATUS_SECONDS = 1.0
"""Between two status texts: plugins that come and go together are told of together."""


class Reporter:
    """Keeps the service manager informed. `run` must be running.

    Args:
        manager: who is told.
        text: says how the runner is.
        pulse: returns when everything has had its turn that the runner cannot do without.
    """

    def __init__(self, manager: ServiceManager, text: Callable[[], str], pulse: Callable[[], Awaitable[None]]) -> None:
        self._manager = manager
        self._text = text
        self._pulse = pulse
        self._changed = trio.Event()
        self._said = ""
        self._ready = False
        self._ready_untold = False

    def changed(self) -> None:
        """Something that the status text tells may have changed."""
        self._changed.set()

    def ready(self) -> None:
        """The runner serves, and every plugin is admitted or has failed."""
        self._ready = True
        self._tell_ready()

    @contextmanager
    def reloading(self) -> Iterator[None]:
        """Tell that the configuration is read again, for as long as the body takes."""
        self._manager.reloading()
        try:
            yield
        finally:
            if self._ready:
                self._tell_ready()

    async def run(self) -> None:
        """Report until cancelled."""
        if not self._manager.present:
            return
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._report)
            if self._manager.watchdog is not None:
                nursery.start_soon(self._beat, self._manager.watchdog / 2)

    def _tell_ready(self) -> None:
        text = self._text()
        self._ready_untold = not self._manager.ready(text)
        if self._ready_untold:
            # Its queue is full. The task tries again: a manager that is never told ends the runner.
            self._changed.set()
        else:
            self._said = text

    async def _report(self) -> None:
        while True:
            self._changed = trio.Event()
            text = self._text()
            if self._ready_untold:
                self._tell_ready()
            elif text != self._said:
                if self._manager.status(text):
                    self._said = text
                else:
                    self._changed.set()
            await trio.sleep(STATUS_SECONDS)
            await self._changed.wait()

    async def _beat(self, interval: float) -> None:
        while True:
            await self._pulse()
            self._manager.alive()
            await trio.sleep(interval)
