"""Where handlers run that must not hold up the reading thread: worker threads in order, and one asyncio loop.

Rules here: a lane is one thread and runs its jobs one after the other, in the order they arrived; threads start with
their first job and are daemons, because the end of the connection ends the process whatever they are doing; a job
handles its own errors; whoever waits for the runner waits in `wait`, which the test harness replaces with its own time.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Coroutine


class Lanes:
    """The worker threads of one plugin by name, and its asyncio loop. Only the reading thread gives it work."""

    def __init__(self) -> None:
        self._puts: dict[str, Callable[[Callable[[], None]], None]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None

    def run(self, lane: str, job: Callable[[], None]) -> None:
        """Queue `job` on a lane."""
        put = self._puts.get(lane)
        if put is None:
            put = self._puts[lane] = _start_worker(lane)
        put(job)

    def thread(self, name: str, job: Callable[[], None]) -> None:
        """Run `job` on a thread of its own."""
        threading.Thread(target=job, name=f"utter-{name}", daemon=True).start()

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine on the loop's thread, started in the order of the calls."""
        if self._loop is None:
            self._loop = _start_loop()
        loop = self._loop
        loop.call_soon_threadsafe(_create_task, loop, coroutine)

    def wait(self, changed: threading.Condition, ready: Callable[[], bool], timeout: float | None) -> bool:
        """Wait, with `changed` held, until `ready` or for `timeout` seconds; return what `ready` says then."""
        return changed.wait_for(ready, timeout)


def _start_worker(lane: str) -> Callable[[Callable[[], None]], None]:
    from queue import SimpleQueue  # noqa: PLC0415 - a plugin without lanes does not pay for the import

    jobs: SimpleQueue[Callable[[], None]] = SimpleQueue()

    def work() -> None:
        while True:
            jobs.get()()

    threading.Thread(target=work, name=f"utter-{lane}", daemon=True).start()
    return jobs.put


_tasks: set[asyncio.Task[None]] = set()


def _create_task(loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, None]) -> None:
    # The loop itself keeps only weak references to tasks.
    task = loop.create_task(coroutine)
    _tasks.add(task)
    task.add_done_callback(_tasks.discard)


def _start_loop() -> asyncio.AbstractEventLoop:
    import asyncio  # noqa: PLC0415 - 30 ms that a plugin without `async def` handlers does not pay

    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="utter-asyncio", daemon=True).start()
    return loop
