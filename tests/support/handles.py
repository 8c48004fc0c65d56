"""A handle store that runs in a loop of its own, in another thread, with a clock that a test moves."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any, TypeVar

import trio
import trio.testing

from utter_runner.dataplane.blobfiles import BlobFiles
from utter_runner.dataplane.handles import HandleStore
from utter_runner.rpc.deadlines import Deadlines

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from utter_runner.dataplane.books import Quotas

T = TypeVar("T")


class StoreInThread:
    """The store of a directory; `call` runs something beside it, `stop` ends it as the daemon does."""

    def __init__(self, root: Path, quotas: Quotas) -> None:
        self.clock = trio.testing.MockClock()
        self.files = BlobFiles(root)
        self.deadlines = Deadlines()
        self.broken: list[str] = []
        self._quotas = quotas
        self._up = threading.Event()
        self._thread = threading.Thread(target=trio.run, args=(self._run,), kwargs={"clock": self.clock})
        self._thread.start()
        self._up.wait()

    async def _run(self) -> None:
        self.store = HandleStore(
            self.files, quotas=self._quotas, deadlines=self.deadlines, on_broken=self.broken.append
        )
        self._token = trio.lowlevel.current_trio_token()
        self._stop = trio.Event()
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.deadlines.run)
                await nursery.start(self.store.run)
                await self.store.wait_ready()
                self._up.set()
                await self._stop.wait()
                nursery.cancel_scope.cancel()
        finally:
            self._up.set()

    def call(self, work: Callable[..., Awaitable[T]], *arguments: Any) -> T:
        """Run an async function, then let everything happen that can happen by itself."""

        async def settled() -> T:
            try:
                return await work(*arguments)
            finally:
                await trio.testing.wait_all_tasks_blocked()

        return trio.from_thread.run(settled, trio_token=self._token)

    def pass_time(self, seconds: float) -> None:
        """Move the clock."""

        async def jump() -> None:
            self.clock.jump(seconds)

        self.call(jump)

    def stop(self, *, killed: bool = False) -> None:
        """End the loop; a runner that is killed does not tidy up."""
        trio.from_thread.run_sync(self._stop.set, trio_token=self._token)
        self._thread.join()
        if killed:
            # The kernel lets go of the lock.
            os.close(self.files._lock_fd)
            self.files._lock_fd = -1
        else:
            self.store.close()
