"""A trio loop on a thread of its own, for tests that are no coroutines: they say what runs and when time passes."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, TypeVar

import trio
import trio.testing

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

T = TypeVar("T")


class HandLoop:
    """The loop runs from construction until `close`. Its clock stands still except in `sleep`."""

    def __init__(self) -> None:
        self._clock = trio.testing.MockClock()
        self._ready = threading.Event()
        self._done = trio.Event()
        self._thread = threading.Thread(target=trio.run, args=(self._main,), kwargs={"clock": self._clock})
        self._thread.start()
        self._ready.wait()

    async def _main(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        async with trio.open_nursery() as self.nursery:
            self._ready.set()
            await self._done.wait()
            self.nursery.cancel_scope.cancel()

    def do(self, function: Callable[..., T], *args: object) -> T:
        """Call a function in the loop."""
        return trio.from_thread.run_sync(function, *args, trio_token=self._token)

    def start(self, task: Callable[..., Awaitable[object]], *args: object) -> None:
        """Start a task, and let it go as far as it can."""
        self.do(self.nursery.start_soon, task, *args)
        self.rest()

    def rest(self) -> None:
        """Let all tasks go as far as they can."""
        trio.from_thread.run(trio.testing.wait_all_tasks_blocked, trio_token=self._token)

    def sleep(self, seconds: float) -> None:
        """Let time pass, and whatever is due happen."""
        self.do(self._clock.jump, seconds)
        self.rest()

    def close(self) -> None:
        """Cancel what is left, and end."""
        self.do(self._done.set)
        self._thread.join()
