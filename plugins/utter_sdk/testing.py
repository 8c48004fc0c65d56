"""`PluginProcess`: runs a plugin as the runner would, in a plugin author's tests.

Rules here: every wait has an end, and an error that a wait raises carries the end of the plugin's stderr; one thread
reads stdout and stderr, so that neither fills up; whatever the plugin started in its process group is gone after
`close`.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import threading
import time
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self, TypeVar

import msgspec

from utter_protocol import ABI, PROTOCOL
from utter_protocol.errors import ErrorCode, RpcError
from utter_protocol.framing import FrameDecoder, FramingError, encode_frame
from utter_protocol.messages import (
    InvalidMessage,
    Message,
    decode_error,
    decode_message,
    encode,
    error_body,
    notification_body,
    request_body,
)
from utter_protocol.methods import DescribeResult, HealthResult, HelloParams, HelloResult

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path
    from types import TracebackType

_STDERR_SHOWN = 2000
_STDERR_KEPT = 1024 * 1024
_GRACE = 2.0
_DYING = 0.5

T = TypeVar("T")


class PluginDiedError(RuntimeError):
    """The plugin ended, closed its stdout, or wrote what is no frame there. `code` is its exit code if it ended."""

    def __init__(self, message: str, code: int | None) -> None:
        super().__init__(message)
        self.code = code


class Pending:
    """A request that was sent.

    Attributes:
        id: its JSON-RPC id.
        method: its method.
    """

    def __init__(self, process: PluginProcess, request_id: int, method: str) -> None:
        self.id = request_id
        self.method = method
        self._process = process

    def result(self, timeout: float | None = None) -> Any:
        """Wait for the answer and return its result.

        Raises:
            RpcError: what the plugin answered.
            TimeoutError: no answer within `timeout` seconds.
            PluginDiedError: there will be none.
        """
        return self._process.wait_answer(self, timeout)

    def cancel(self) -> None:
        """Send `$/cancel`."""
        self._process.notify("$/cancel", {"id": self.id})


class PluginProcess:
    """A plugin's process; use it as a context manager, which spawns it, shakes hands and ends it.

    Args:
        argv: the command.
        env: variables on top of this process's environment.
        settings: the plugin's settings, sent with `protocol.hello`.
        cwd: working directory.
        handshake: whether entering sends protocol.hello, plugin.describe and plugin.health.
        timeout: seconds that any wait may take unless it says otherwise.

    Attributes:
        hello: answer to `protocol.hello`, after the handshake.
        description: answer to `plugin.describe`, after the handshake.
        health: answer to `plugin.health` during the handshake.
        junk: bytes on stdout that belong to no frame.
        pid: process and process group id.
    """

    hello: HelloResult
    description: DescribeResult
    health: HealthResult

    def __init__(
        self,
        argv: Sequence[str | os.PathLike[str]],
        *,
        env: Mapping[str, str] | None = None,
        settings: Mapping[str, Any] | None = None,
        cwd: str | Path | None = None,
        handshake: bool = True,
        timeout: float = 10.0,
    ) -> None:
        self.junk = b""
        self.pid = 0
        self._argv = [os.fspath(part) for part in argv]
        self._env = dict(env or {})
        self._settings = dict(settings or {})
        self._cwd = cwd
        self._handshake = handshake
        self._timeout = timeout
        self._changed = threading.Condition()
        self._write_lock = threading.Lock()
        self._open: set[int] = set()
        self._answers: dict[int, Message] = {}
        self._notifications: deque[Message] = deque()
        self._unmatched: deque[Message] = deque()
        self._stderr = bytearray()
        self._stdout_ended = ""
        self._next_id = 0
        self._popen: subprocess.Popen[bytes] | None = None
        self._closed = False

    def __enter__(self) -> Self:
        self._spawn()
        try:
            if self._handshake:
                self.shake_hands()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def stderr(self) -> str:
        """What the plugin has written to stderr so far (the last MiB)."""
        with self._changed:
            return self._stderr.decode("utf-8", "replace")

    def shake_hands(self) -> None:
        """Send protocol.hello, plugin.describe and plugin.health, as the runner does."""
        greeting = HelloParams(protocol=PROTOCOL, abi=ABI, runner="utter_sdk.testing", epoch=1, settings=self._settings)
        self.hello = self._typed("protocol.hello", greeting, HelloResult)
        self.description = self._typed("plugin.describe", {}, DescribeResult)
        self.health = self._typed("plugin.health", {}, HealthResult)

    def call(self, method: str, params: Any = None, timeout: float | None = None) -> Any:
        """Send a request and return its result; raises as `Pending.result`."""
        return self.send(method, params).result(timeout)

    def send(self, method: str, params: Any = None) -> Pending:
        """Send a request without waiting for the answer."""
        with self._changed:
            self._next_id += 1
            self._open.add(self._next_id)
            pending = Pending(self, self._next_id, method)
        body = request_body(pending.id, method, encode({} if params is None else params))
        self.write(encode_frame(body))
        return pending

    def notify(self, method: str, params: Any = None) -> None:
        """Send a notification."""
        self.write(encode_frame(notification_body(method, encode({} if params is None else params))))

    def notification(self, method: str, timeout: float | None = None) -> Any:
        """Wait for the plugin's next notification `method` and return its params; others stay queued."""

        def find() -> Message | None:
            for message in self._notifications:
                if message.method == method:
                    self._notifications.remove(message)
                    return message
            return None

        message = self._wait_for(find, timeout, f"a notification {method}")
        return msgspec.json.decode(message.params) if isinstance(message.params, msgspec.Raw) else None

    def unmatched(self, timeout: float | None = None) -> Message:
        """Wait for an answer that no request of `send` waits for: one with `id: null`, or a second one to a request."""

        def find() -> Message | None:
            return self._unmatched.popleft() if self._unmatched else None

        return self._wait_for(find, timeout, "an answer to no request")

    def wait_stderr(self, text: str, timeout: float | None = None) -> None:
        """Wait until stderr contains `text`."""
        wanted = text.encode()
        self._wait_for(lambda: True if wanted in self._stderr else None, timeout, f"{text!r} on stderr")

    def wait_answer(self, pending: Pending, timeout: float | None) -> Any:
        """Raises and returns as `Pending.result`."""
        message = self._wait_for(
            lambda: self._answers.pop(pending.id, None), timeout, f"the answer to {pending.method}"
        )
        if isinstance(message.error, msgspec.Raw):
            raise decode_error(message.error)
        return msgspec.json.decode(message.result) if isinstance(message.result, msgspec.Raw) else None

    def write(self, data: bytes, timeout: float | None = None) -> None:
        """Write raw bytes to the plugin's stdin.

        Raises:
            TimeoutError: the plugin does not read.
            PluginDiedError: it closed stdin.
        """
        end = time.monotonic() + self._seconds(timeout)
        with self._write_lock:
            self._write(memoryview(data), end, self._seconds(timeout))

    def close_stdin(self) -> None:
        """Send EOF."""
        stdin = self._running().stdin
        if stdin is not None:
            stdin.close()

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the process to end and return its exit code (minus the signal's number if it was killed).

        Raises:
            TimeoutError: it does not end.
        """
        if not self._wait_exit(self._seconds(timeout)):
            raise TimeoutError(f"{self._name()} did not end in {self._seconds(timeout):g} s{self._tail()}")
        return self._reap()

    def close(self, timeout: float | None = None) -> int:
        """Send EOF, wait, then terminate, then kill; return the exit code (minus a signal's number).

        Args:
            timeout: seconds to wait after EOF.
        """
        popen = self._running()
        if self._closed:
            return popen.wait(0)
        self._closed = True
        self.close_stdin()
        if not self._wait_exit(self._seconds(timeout)):
            os.killpg(self.pid, signal.SIGTERM)
            if not self._wait_exit(_GRACE):
                os.killpg(self.pid, signal.SIGKILL)
                self._wait_exit(_GRACE)
        code = self._reap()
        os.close(self._wake)
        self._reader.join(_GRACE)
        for stream in (popen.stdout, popen.stderr):
            if stream is not None:
                stream.close()
        return code

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Send a signal to the plugin's process, not to its group."""
        os.kill(self.pid, number)

    def _spawn(self) -> None:
        self._popen = subprocess.Popen(
            self._argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            cwd=self._cwd,
            env={**os.environ, **self._env},
            start_new_session=True,
        )
        self.pid = self._popen.pid
        if self._popen.stdin is not None:
            os.set_blocking(self._popen.stdin.fileno(), False)
        wake_read, self._wake = os.pipe()
        self._reader = threading.Thread(target=self._read, args=(self._popen, wake_read), daemon=True)
        self._reader.start()

    def _write(self, rest: memoryview, end: float, seconds: float) -> None:
        stdin = self._running().stdin
        if stdin is None or stdin.closed:
            raise self._died("its stdin was closed by the test")
        poll = select.poll()
        poll.register(stdin, select.POLLOUT)
        while rest:
            if not poll.poll(max(0.0, end - time.monotonic()) * 1000):
                raise TimeoutError(f"{self._name()} did not read its stdin in {seconds:g} s{self._tail()}")
            try:
                rest = rest[os.write(stdin.fileno(), rest) :]
            except BlockingIOError:
                continue
            except BrokenPipeError:
                raise self._died("it closed stdin") from None

    def _read(self, popen: subprocess.Popen[bytes], wake: int) -> None:
        """Drain stdout and stderr until both end or the process is closed."""
        if popen.stdout is None or popen.stderr is None:
            return
        out, err = popen.stdout.fileno(), popen.stderr.fileno()
        decoder = FrameDecoder()
        poll = select.poll()
        for fd in (out, err, wake):
            poll.register(fd, select.POLLIN)
        open_fds = {out, err}
        while open_fds:
            ready = {fd for fd, _ in poll.poll()}
            for fd in ready & open_fds:
                data = os.read(fd, 65536)
                if not data:
                    open_fds.discard(fd)
                    poll.unregister(fd)
                with self._changed:
                    if fd == out:
                        self._take(decoder, data)
                    else:
                        self._stderr += data
                        del self._stderr[:-_STDERR_KEPT]
                    self._changed.notify_all()
            if wake in ready and not ready & open_fds:
                break
        os.close(wake)

    def _take(self, decoder: FrameDecoder, data: bytes) -> None:
        try:
            if not data:
                decoder.end()
                self._stdout_ended = self._stdout_ended or "its stdout ended"
            if self._stdout_ended:
                return
            decoder.receive(data)
            while (body := decoder.next_frame()) is not None:
                self._sort(decode_message(body))
            self.junk += decoder.take_junk()
        except (FramingError, InvalidMessage) as error:
            self._stdout_ended = f"its stdout is no frames: {error}"

    def _sort(self, message: Message) -> None:
        if not isinstance(message.method, str):
            if message.id in self._open and isinstance(message.id, int):
                self._open.discard(message.id)
                self._answers[message.id] = message
            else:
                self._unmatched.append(message)
        elif isinstance(message.id, int | str):
            refusal = RpcError(ErrorCode.METHOD_NOT_FOUND, f"{message.method}: the test harness serves no requests")
            with suppress(TimeoutError, PluginDiedError, ValueError):
                self.write(encode_frame(error_body(message.id, refusal)))
        else:
            self._notifications.append(message)

    def _wait_for(self, find: Callable[[], T | None], timeout: float | None, what: str) -> T:
        found: list[T] = []

        def look() -> bool:
            value = find()
            if value is not None:
                found.append(value)
            return bool(found or self._stdout_ended)

        with self._changed:
            self._changed.wait_for(look, self._seconds(timeout))
        if found:
            return found[0]
        if self._stdout_ended:
            raise self._died(f"{what} cannot come any more: {self._stdout_ended}")
        raise TimeoutError(f"{self._name()}: {what} did not come in {self._seconds(timeout):g} s{self._tail()}")

    def _typed(self, method: str, params: Any, wanted: type[T]) -> T:
        return msgspec.convert(self.call(method, params), wanted)

    def _died(self, why: str) -> PluginDiedError:
        self._wait_exit(_DYING)
        code = None if self._popen is None else self._popen.poll()
        ended = "" if code is None else f" (exit code {code})"
        return PluginDiedError(f"{self._name()}: {why}{ended}{self._tail()}", code)

    def _wait_exit(self, seconds: float) -> bool:
        """Wait for the process without reaping it, so that its group id stays its own."""
        if self._running().returncode is not None:
            return True
        with suppress(ProcessLookupError):
            pidfd = os.pidfd_open(self.pid)
            try:
                poll = select.poll()
                poll.register(pidfd, select.POLLIN)
                return bool(poll.poll(seconds * 1000))
            finally:
                os.close(pidfd)
        return True

    def _reap(self) -> int:
        popen = self._running()
        if popen.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
        return popen.wait(_GRACE)

    def _running(self) -> subprocess.Popen[bytes]:
        if self._popen is None:
            raise RuntimeError("PluginProcess is a context manager: `with PluginProcess([...]) as process:`")
        return self._popen

    def _seconds(self, timeout: float | None) -> float:
        return self._timeout if timeout is None else timeout

    def _name(self) -> str:
        return " ".join(self._argv)

    def _tail(self) -> str:
        text = self.stderr[-_STDERR_SHOWN:].strip()
        return f"\nstderr:\n{text}" if text else " (stderr is empty)"
