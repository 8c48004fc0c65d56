"""Virtual time: an asyncio loop and worker threads whose clock jumps when everything waits.

Rules here: time stands still while anything runs, and jumps to the next timer once every handler waits, for a timer or
for the runner; what waits in another way (a thread in `time.sleep`, a socket) is waited for as long as it really takes;
only the test's thread runs the loop.
"""

from __future__ import annotations

import asyncio
import selectors
import threading
import time
from contextlib import suppress
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Literal, TypeVar, TypeVarTuple, Unpack

from utter_sdk.lanes import Lanes

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from concurrent.futures import Executor

R = TypeVar("R")
Ts = TypeVarTuple("Ts")

# The loop's own pipe, which wakes it.
_OWN_DESCRIPTORS = 1
_STUCK = "every handler waits, and no timer is set"


class StuckError(Exception):
    """Nothing runs, and nothing is set to happen; or it took too long in real time."""


class _Worker:
    """One thread and its jobs.

    Attributes:
        outstanding: how many jobs are queued or running.
        waits: what its job waits for, if it waits for the runner: the condition, the predicate and the deadline.
    """

    def __init__(self, name: str, lanes: VirtualLanes) -> None:
        self.name = name
        self.outstanding = 0
        self.waits: tuple[threading.Condition, Callable[[], bool], float | None] | None = None
        self._lanes = lanes
        self._lock = threading.Lock()
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self.thread = threading.Thread(target=self._work, name=f"utter-{name}", daemon=True)
        self.thread.start()

    def put(self, job: Callable[[], None] | None) -> None:
        """Queue a job; None ends the thread."""
        if job is not None:
            with self._lock:
                self.outstanding += 1
        self._jobs.put(job)

    def is_busy(self, now: float) -> bool:
        """Whether it does anything else than wait for the runner."""
        waits = self.waits
        if waits is None:
            return self.outstanding > 0
        changed, ready, deadline = waits
        with changed:
            return ready() or (deadline is not None and deadline <= now)

    def _work(self) -> None:
        self._lanes.enter(self)
        while (job := self._jobs.get()) is not None:
            # The harness has noted who ended the plugin.
            with suppress(SystemExit):
                job()
            with self._lock:
                self.outstanding -= 1
            self._lanes.poke()


class VirtualLanes(Lanes):
    """`Lanes` for a plugin that is served in a test.

    Attributes:
        now: seconds of virtual time since the start.
        loop: the asyncio loop; the test's thread runs it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.loop = VirtualLoop(self)
        self._by_lane: dict[str, _Worker] = {}
        self._workers: list[_Worker] = []
        self._by_thread: dict[int, _Worker] = {}
        # The loop itself keeps only weak references to tasks.
        self._tasks: set[asyncio.Task[None]] = set()
        self._rest: Literal["", "loop", "all"] = ""
        self._others = set(threading.enumerate())
        self._give_up_at = 0.0

    def run(self, lane: str, job: Callable[[], None]) -> None:
        """Queue `job` on a lane."""
        worker = self._by_lane.get(lane)
        if worker is None:
            worker = self._by_lane[lane] = self._start(lane)
        worker.put(job)

    def thread(self, name: str, job: Callable[[], None]) -> None:
        """Run `job` on a thread of its own."""
        worker = self._start(name)
        worker.put(job)
        worker.put(None)

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine on the loop."""
        task = self.loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._task_ended)

    def wait(self, changed: threading.Condition, ready: Callable[[], bool], timeout: float | None) -> bool:
        """Wait as `Lanes.wait`, in virtual time if the SDK made the thread."""
        worker = self._by_thread.get(threading.get_ident())
        if worker is None:
            return super().wait(changed, ready, timeout)
        deadline = None if timeout is None else self.now + timeout
        while not ready():
            if deadline is not None and deadline <= self.now:
                return False
            worker.waits = changed, ready, deadline
            self.poke()
            changed.wait()
            worker.waits = None
        return True

    def enter(self, worker: _Worker) -> None:
        """Know the calling thread as a worker's."""
        self._by_thread[threading.get_ident()] = worker

    def poke(self) -> None:
        """Have the loop look again whether everything waits; from any thread."""
        # A closed loop looks at nothing any more.
        with suppress(RuntimeError):
            self.loop.call_soon_threadsafe(_nothing)

    def run_loop(self, seconds: float) -> None:
        """Run the loop until something stops it.

        Args:
            seconds: how long that may take in real time.

        Raises:
            StuckError: it took longer, or nothing is left that could happen.
        """
        self._give_up_at = time.monotonic() + seconds
        self.loop.run_forever()

    def settle(self, seconds: float, *, threads: bool) -> None:
        """Run what can run without that time passes; with `threads` also what worker threads do.

        Raises:
            StuckError: it really took longer than `seconds`.
        """
        self._rest = "all" if threads else "loop"
        try:
            self.run_loop(seconds)
        finally:
            self._rest = ""

    def idle(self, timeout: float | None, select: Callable[[float | None], list[Any]], open_fds: int) -> list[Any]:
        """Do what the loop does when nothing is ready: wait for what is real, else let the time jump. For the loop."""
        left = self._give_up_at - time.monotonic()
        if self._rest == "loop":
            return self._stop()
        busy = [worker.name for worker in self._workers if worker.is_busy(self.now)]
        if busy or self.loop.in_executors:
            return self._wait(select, left, f"still runs: {', '.join(busy) or 'a function in an executor'}")
        real = open_fds > _OWN_DESCRIPTORS or _waits_for_a_program()
        strangers = {thread.name for thread in set(threading.enumerate()) - self._others if not self._knows(thread)}
        # What ended just now has told the loop before it ended.
        ready = select(0)
        if ready or self._rest == "all":
            return ready or self._stop()
        next_timer = self._next_timer(timeout)
        if real:
            return self._wait_for_real(select, left, next_timer)
        if next_timer is None:
            why = f"nothing came from the plugin's own threads: {', '.join(strangers)}"
            return self._wait(select, left if strangers else 0, why if strangers else _STUCK)
        if left <= 0:
            raise StuckError("timers went on and on")
        self._jump(next_timer)
        return []

    def _stop(self) -> list[Any]:
        self.loop.stop()
        return []

    def _next_timer(self, timeout: float | None) -> float | None:
        deadlines = [worker.waits[2] for worker in self._workers if worker.waits and worker.waits[2] is not None]
        if timeout is not None:
            deadlines.append(self.now + timeout)
        return min((deadline for deadline in deadlines if deadline is not None), default=None)

    def close(self, seconds: float) -> list[str]:
        """End tasks and threads; return the names of what did not end in `seconds`."""
        loop = self.loop
        try:
            tasks = asyncio.all_tasks(loop)
            for task in tasks:
                task.cancel()
            if tasks:
                self._run_to_end(asyncio.wait(tasks), seconds)
            self._run_to_end(loop.shutdown_asyncgens(), seconds)
            self._run_to_end(loop.shutdown_default_executor(), seconds)
        except StuckError:
            left = [repr(task.get_coro()) for task in asyncio.all_tasks(loop)]
        else:
            left = []
        loop.close()
        for worker in self._by_lane.values():
            worker.put(None)
        end = time.monotonic() + seconds
        for worker in self._workers:
            worker.thread.join(max(0.0, end - time.monotonic()))
        return left + [worker.name for worker in self._workers if worker.thread.is_alive()]

    def _run_to_end(self, last: Coroutine[Any, Any, Any], seconds: float) -> None:
        task = self.loop.create_task(last)
        task.add_done_callback(lambda _: self.loop.stop())
        while not task.done():
            # A handler that ends the process has nothing left to end.
            with suppress(SystemExit):
                self.run_loop(seconds)

    def _wait_for_real(
        self, select: Callable[[float | None], list[Any]], left: float, next_timer: float | None
    ) -> list[Any]:
        """Wait for what a socket's other end does; that takes real time, which therefore passes."""
        timeout = left if next_timer is None else min(left, next_timer - self.now)
        started = time.monotonic()
        ready = select(max(0.0, timeout))
        passed = self.now + time.monotonic() - started
        self._jump(passed if next_timer is None else min(passed, next_timer))
        if not ready and left <= 0:
            raise StuckError("a handler waits for a socket, a pipe or a program")
        return ready

    def _knows(self, thread: threading.Thread) -> bool:
        # asyncio's executors keep their threads; while one of them works, `in_executors` says so.
        return thread.name.startswith("asyncio_") or any(thread is worker.thread for worker in self._workers)

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            # What it raised is the end of the plugin, which the harness has noted.
            task.exception()

    def _start(self, name: str) -> _Worker:
        self._workers = [worker for worker in self._workers if worker.thread.is_alive()]
        worker = _Worker(name, self)
        self._workers.append(worker)
        return worker

    def _wait(self, select: Callable[[float | None], list[Any]], left: float, why: str) -> list[Any]:
        ready = select(max(0.0, left))
        if not ready and left <= 0:
            raise StuckError(why)
        return ready

    def _jump(self, now: float) -> None:
        self.now = now
        for worker in self._workers:
            waits = worker.waits
            if waits is not None and waits[2] is not None and waits[2] <= now:
                with waits[0]:
                    waits[0].notify_all()


class VirtualLoop(asyncio.SelectorEventLoop):
    """An asyncio loop on the clock of `VirtualLanes`."""

    def __init__(self, lanes: VirtualLanes) -> None:
        self.in_executors = 0
        self._lanes = lanes
        super().__init__(_Selector(lanes))

    def time(self) -> float:
        """Virtual seconds."""
        return self._lanes.now

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[Unpack[Ts]], R], *args: *Ts
    ) -> asyncio.Future[R]:
        """As asyncio's; the time stands still meanwhile."""
        future = super().run_in_executor(executor, func, *args)
        self.in_executors += 1
        future.add_done_callback(self._left_executor)
        return future

    def _left_executor(self, _: object) -> None:
        self.in_executors -= 1


class _Selector(selectors.DefaultSelector):
    def __init__(self, lanes: VirtualLanes) -> None:
        super().__init__()
        self._lanes = lanes

    def select(self, timeout: float | None = None) -> list[Any]:
        ready = super().select(0)
        if ready or (timeout is not None and timeout <= 0):
            return ready
        return self._lanes.idle(timeout, super().select, len(self.get_map()))


def _waits_for_a_program() -> bool:
    # Before Python 3.12 asyncio has a thread wait for each program; later there is a descriptor.
    return any("waitpid-" in thread.name for thread in threading.enumerate())


def _nothing() -> None:
    """Wake the loop, which then looks around."""
