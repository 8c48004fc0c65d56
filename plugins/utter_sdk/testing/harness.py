"""`PluginHarness`: serves a plugin inside the test, in virtual time.

Rules here: the test's thread is the plugin's reading thread and runs its asyncio loop, so that nothing happens between
two lines of the test but what a worker thread does; nothing sleeps; what a plugin's `run()` would do to the process
(descriptors, signals, its end) is not done.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NoReturn, Self, TypeVar

from utter_protocol.framing import MAX_FRAME
from utter_protocol.messages import decode_message
from utter_protocol.methods import HealthResult
from utter_sdk.connection import Connection, exit_code
from utter_sdk.received import close_all
from utter_sdk.service import Service
from utter_sdk.stdio import FrameTooLargeError
from utter_sdk.testing.parts import PluginDiedError
from utter_sdk.testing.runner_end import RunnerEnd
from utter_sdk.testing.virtual import StuckError, VirtualLanes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from utter_sdk.plugin import Plugin

T = TypeVar("T")


class PluginHarness(RunnerEnd):
    """A plugin that runs inside the test; use it as a context manager.

    Time is virtual: when every handler waits, it jumps to the next timer, so that `await asyncio.sleep(3600)` is over
    at once. It does not jump while a handler runs on a worker thread: what that waits for by itself (`time.sleep`,
    `Event.wait`, a program, a microphone's frames) takes as long as it takes. Nor does it while an `async def` waits
    for a socket or a program; then it passes as it really does. Threads that the plugin starts by itself are not seen
    at all.

    The test itself is a plain function: no asyncio loop may run on its thread.

    Args:
        plugin: what the plugin's module declares. One harness at a time may run it.
        settings: its settings, sent with `protocol.hello`.
        host: functions that answer the plugin's requests by method, as `on_host`.
        handshake: whether entering sends protocol.hello, plugin.describe and plugin.health.
        timeout: seconds that any wait may really take. A `timeout` of a single wait is in virtual seconds.

    Attributes:
        hello, description, health: the answers of the handshake.
        exit_code: what a handler has ended the process with; None while it has not.
    """

    def __init__(
        self,
        plugin: Plugin,
        *,
        settings: Mapping[str, Any] | None = None,
        host: Mapping[str, Callable[[Any], Any]] | None = None,
        handshake: bool = True,
        timeout: float = 10.0,
    ) -> None:
        super().__init__(settings)
        self.exit_code: int | None = None
        self._plugin = plugin
        self._handshake = handshake
        self._timeout = timeout
        self._inbox: deque[tuple[bytes, list[int]]] = deque()
        self._goal: Callable[[], bool] | None = None
        self._lanes: VirtualLanes | None = None
        self._service: _Service | None = None
        self._connection: Connection | None = None
        self._wire = _Wire(self)
        for method, handler in (host or {}).items():
            self.on_host(method, handler)

    def __enter__(self) -> Self:
        if self._plugin.served_by is not None:
            raise RuntimeError(f"{self._name()} is being served already")
        self._lanes = VirtualLanes()
        try:
            self._plugin.current_health = HealthResult()
            self._service = _Service(self._plugin, self._lanes, self)
            self._plugin.served_by = self._service
            self._service.prepare()
            self._connect()
            if self._handshake:
                self.shake_hands()
                self._lanes.settle(self._timeout, threads=False)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def time(self) -> float:
        """Virtual seconds since the start."""
        return self._running().now

    def advance(self, seconds: float) -> None:
        """Let this much virtual time pass, and what happens in it happen.

        Raises:
            TimeoutError: that really took longer than `timeout`.
        """
        lanes = self._running()
        over = _Timer(lanes, seconds)
        while not over.expired and self.exit_code is None:
            self._run(lanes, f"the end of {seconds:g} s")
        lanes.now = max(lanes.now, over.end)
        if self.exit_code is None:
            self.settle()

    def settle(self) -> None:
        """Let everything run that can without that time passes: until every handler has ended or waits.

        Raises:
            TimeoutError: that really took longer than `timeout`, because a thread waits for something of its own.
        """
        lanes = self._running()
        try:
            lanes.settle(self._timeout, threads=True)
        except StuckError as stuck:
            raise TimeoutError(f"{self._name()} does not come to rest: {stuck}") from None
        self._drain()
        self._raise_mistake()

    def reconnect(self, settings: Mapping[str, Any] | None = None) -> None:
        """Be the next runner, as a plugin sees it that was started by somebody else; `settings` are new ones."""
        self._running()
        if self._connection is not None:
            self._connection.end("the runner has gone")
        self._connect()
        self.shake_hands(settings)

    def send_body(self, body: bytes, fds: Sequence[int] = ()) -> None:
        """Hand a message's body to the plugin, on this thread, and copies of descriptors."""
        self._running()
        if self._connection is None or self.exit_code is not None:
            raise self._died("nothing can be sent")
        self._wire.bring(fds)
        try:
            self._connection.take(body)
        except SystemExit as stop:
            # A handler on this thread ends the process.
            if self.exit_code is None:
                self.ended(exit_code(stop))
        self._connection.close_surplus(0)

    def wait_for(self, find: Callable[[], T | None], timeout: float | None, what: str) -> T:
        """Run the plugin until `find` returns something.

        Raises:
            TimeoutError: it did not: `timeout` virtual seconds passed, or everything waits, or it really took too long.
            PluginDiedError: the plugin has ended.
        """
        lanes = self._running()
        found: list[T] = []

        def look() -> bool:
            value = None if found else find()
            if value is not None:
                found.append(value)
            return bool(found or self._mistake or self.exit_code is not None)

        self._drain()
        over = None if timeout is None else _Timer(lanes, timeout)
        self._goal = look
        try:
            while not look() and not (over is not None and over.expired):
                self._run(lanes, what)
        finally:
            self._goal = None
            if over is not None:
                over.cancel()
        self._raise_mistake()
        if found:
            return found[0]
        if self.exit_code is not None:
            raise self._died(f"{what} cannot come any more")
        raise TimeoutError(f"{self._name()}: {what} did not come in {timeout:g} s of virtual time")

    def close(self) -> None:
        """End the plugin: cancel what runs, end its threads. Idempotent.

        Raises:
            RuntimeError: a thread does not end; names its lane. A handler on a worker thread must heed
                `plugin.cancelled()` or `plugin.on_cancel`.
        """
        lanes, self._lanes = self._lanes, None
        if lanes is None:
            return
        if self._connection is not None:
            self._connection.end("the runner has gone")
        if self._service is not None:
            self._service.over = True
        left = lanes.close(self._timeout)
        self._plugin.served_by = None
        self.close_descriptors()
        if left:
            raise RuntimeError(f"{self._name()}: still running after it was cancelled: {', '.join(left)}")

    def arrived(self, body: bytes, fds: Sequence[int]) -> None:
        """Take what the plugin sends, from any thread. For the wire."""
        self._inbox.append((body, [os.dup(fd) for fd in fds]))
        lanes = self._lanes
        if lanes is not None:
            # A closed loop takes nothing any more.
            with suppress(RuntimeError):
                lanes.loop.call_soon_threadsafe(self._drain)

    def ended(self, code: int) -> None:
        """Hear that a handler has ended the process. For the service."""
        self.exit_code = code
        if self._lanes is not None:
            with suppress(RuntimeError):
                self._lanes.loop.call_soon_threadsafe(self._lanes.loop.stop)

    def _connect(self) -> None:
        if self._service is not None:
            self._connection = self._service.connection = Connection(self._service, self._wire)
            self._connection.calls.reader = threading.get_ident()

    def _run(self, lanes: VirtualLanes, what: str) -> None:
        try:
            lanes.run_loop(self._timeout)
        except StuckError as stuck:
            raise TimeoutError(f"{self._name()}: {what} did not come: {stuck}") from None
        except SystemExit:
            # `_Service.end` has noted it.
            return

    def _drain(self) -> None:
        while self._inbox:
            body, fds = self._inbox.popleft()
            self.descriptors += fds
            with self._changed:
                self._sort(decode_message(body))
        if self._goal is not None and self._lanes is not None and self._goal():
            self._lanes.loop.stop()

    def _reply(self, body: bytes, fds: Sequence[int] = ()) -> None:
        self.send_body(body, fds)

    def _died(self, why: str) -> PluginDiedError:
        return PluginDiedError(f"{self._name()}: {why}: it has ended with {self.exit_code}", self.exit_code)

    def _running(self) -> VirtualLanes:
        if self._lanes is None:
            raise RuntimeError("PluginHarness is a context manager: `with PluginHarness(plugin) as harness:`")
        return self._lanes

    def _name(self) -> str:
        return self._plugin.hello.plugin.name


class _Service(Service):
    """A plugin that is served in a test."""

    def __init__(self, plugin: Plugin, lanes: VirtualLanes, harness: PluginHarness) -> None:
        super().__init__(plugin, lanes)
        self.over = False
        self._harness = harness

    def end(self, code: int) -> NoReturn:
        """Note that the plugin would have ended; whoever called it goes no further."""
        self._harness.ended(code)
        raise SystemExit(code)

    def fail_start(self, error: BaseException) -> None:
        """Take note as usual, but not that the end of the test has cancelled a hook."""
        if not self.over:
            super().fail_start(error)

    def broken(self, connection: Connection) -> None:
        """Never happens: there is no wire that could break."""


class _Timer:
    """Stops the loop after some virtual time."""

    def __init__(self, lanes: VirtualLanes, seconds: float) -> None:
        self.end = lanes.now + seconds
        self.expired = False
        self._loop = lanes.loop
        self._handle = self._loop.call_at(self.end, self._expire)

    def cancel(self) -> None:
        """Let it not happen."""
        self._handle.cancel()

    def _expire(self) -> None:
        self.expired = True
        self._loop.stop()


class _Wire:
    """The plugin's end of a connection that is none."""

    def __init__(self, harness: PluginHarness) -> None:
        self._fds: list[int] = []
        self._harness = harness

    def bring(self, fds: Sequence[int]) -> None:
        """Have copies of descriptors come with the next message."""
        self._fds += [os.dup(fd) for fd in fds]

    def read(self) -> bytes:
        """Nobody reads; the harness hands messages in."""
        raise NotImplementedError

    def send(self, body: bytes, fds: Sequence[int] = ()) -> None:
        """Hand a message to the test."""
        if len(body) > MAX_FRAME:
            raise FrameTooLargeError(len(body))
        self._harness.arrived(body, fds)

    def take(self, count: int) -> list[int]:
        """Give the descriptors that came with the message."""
        taken, self._fds = self._fds[:count], self._fds[count:]
        return taken

    def close_surplus(self, _unhandled: int) -> bool:
        """Close what the message did not announce."""
        surplus = self.take(len(self._fds))
        close_all(surplus)
        return bool(surplus)
