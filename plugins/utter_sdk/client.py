"""A blocking client of the runner's socket (PROTOCOL.md, "The client API"); what the `utter` command uses.

Rules here: no threads, everything happens inside the caller's waits; while one waits, answers to others are kept,
stream data is queued, and what the runner asks (`host.confirm`) is answered; a wait that ends by time or by Ctrl-C
tells the runner with `$/cancel`; every failure to reach the runner is a `RunnerUnavailable` that names the path.
Descriptors are taken by the answers that bring them; what nothing asked for ends the connection.
"""

from __future__ import annotations

import os
import select
import time
from collections import deque
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Self

import msgspec

from utter_protocol.errors import ErrorCode, RpcError
from utter_protocol.framing import MAX_FRAME, FrameDecoder, FramingError, encode_frame
from utter_protocol.messages import (
    InvalidMessage,
    Message,
    decode_error,
    decode_message,
    encode,
    error_body,
    notification_body,
    request_body,
    result_body,
)
from utter_protocol.methods import StreamData, SubscribeResult
from utter_sdk.client_stream import MAX_QUEUED, Subscription
from utter_sdk.passing import LostDescriptors, PassingSocket, Received, close_all
from utter_sdk.runner_socket import RunnerUnavailable, connect, default_socket_path
from utter_sdk.streams import StreamClosed

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Sequence
    from types import TracebackType

    from utter_protocol.messages import RequestId
    from utter_sdk.handles import Handles

__all__ = [
    "MAX_QUEUED",
    "Client",
    "Received",
    "RunnerUnavailable",
    "StreamClosed",
    "Subscription",
    "default_socket_path",
]

_EARLY_STREAMS = 64
_READ_SIZE = 256 * 1024
_SEND_TIMEOUT = 30.0


class _CancelParams(msgspec.Struct):
    id: int | str


class _ClosedParams(msgspec.Struct):
    stream_id: str
    reason: str = ""


def _refuse(method: object, _params: dict[str, Any]) -> NoReturn:
    raise RpcError(ErrorCode.METHOD_NOT_FOUND, f"this client does not serve {method}")


class Client:
    """A connection to the runner, made by `Client.connect`; a context manager that closes it.

    Args:
        connection: a connected stream socket.
        path: where it leads, for messages.
    """

    def __init__(self, connection: socket.socket, path: str) -> None:
        self.path = path
        self._socket = PassingSocket(connection)
        self._poll = select.poll()
        self._poll.register(connection, select.POLLIN)
        self._heeded: int | None = None
        self._decoder = FrameDecoder()
        self._closed = ""
        self._next_id = 0
        self._waiting: set[int] = set()
        self._answers: dict[int, Message] = {}
        # By request: how many descriptors its answer brings, also of one that was given up; and those that came.
        self._wanted: dict[int, int] = {}
        self._passed: dict[int, list[int]] = {}
        self._handlers: dict[str, Callable[[dict[str, Any]], Any]] = {}
        self._listeners: dict[str, Callable[[dict[str, Any]], object]] = {}
        self._asked: deque[Message] = deque()
        self._serving: RequestId | None = None
        self._withdrawn: set[RequestId] = set()
        self._served = 0.0
        self._streams: dict[str, Subscription] = {}
        self._subscribing = 0
        self._early: dict[str, deque[StreamData]] = {}
        self._early_ends: dict[str, str] = {}

    @classmethod
    def connect(cls, path: str | None = None, token: str | None = None, *, timeout: float = 5.0) -> Self:
        """Connect, and authenticate if a token is given.

        Args:
            path: the socket; None: `default_socket_path`.
            token: for `runner.auth`.
            timeout: seconds for each of the two.

        Raises:
            RunnerUnavailable: it cannot be reached.
            RpcError: the token was refused.
            TimeoutError: `runner.auth` was not answered.
        """
        where = default_socket_path(os.environ) if path is None else path
        client = cls(connect(where, timeout, _SEND_TIMEOUT), where)
        if token is not None:
            try:
                client.call("runner.auth", {"token": token}, timeout)
            except BaseException:
                client.close()
                raise
        return client

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; the runner drops its streams and requests. Idempotent."""
        self._closed = self._closed or "this client has closed the connection."
        self._socket.close()
        for fds in self._passed.values():
            close_all(fds)
        self._passed.clear()

    def fileno(self) -> int:
        """The socket's descriptor, for a handler that also waits for something else."""
        return self._socket.fileno()

    def on_request(self, method: str, handler: Callable[[dict[str, Any]], Any]) -> None:
        """Serve the runner's request `method` with `handler(params) -> result`, during later waits of this client.

        One request is served at a time. What `handler` raises is answered: `RpcError` as it is, another exception as
        -32603. The time that it takes does not count against the wait's timeout.
        """
        self._handlers[method] = handler

    def on_notification(self, method: str, listener: Callable[[dict[str, Any]], object]) -> None:
        """Call `listener(params)` for each of the runner's notifications `method`, during later waits of this client.

        What is no JSON object is ignored, as a notification that nobody listens to is.
        """
        self._listeners[method] = listener

    def heed(self, fd: int) -> None:
        """Have every wait end for a moment, and look again, when a descriptor is readable; it is read empty then.

        With the one that `signal.set_wakeup_fd` writes to, a signal that comes just before a wait takes effect at once
        and not after the wait.

        Args:
            fd: does not block; it stays the caller's, and open for as long as this client waits.
        """
        self._heeded = fd
        self._poll.register(fd, select.POLLIN)

    def withdrawn(self) -> bool:
        """Inside an `on_request` handler: whether the runner has cancelled the request, so that its answer is moot.

        Takes in what has arrived, and does not wait: a handler that waits for a person polls `fileno()` beside the
        keyboard and asks when it is readable.

        Raises:
            RunnerUnavailable: the runner went away.
        """
        while self._take_in(0):
            self._take_frames()
        if self._closed:
            raise RunnerUnavailable(self.path, self._closed)
        return self._serving in self._withdrawn

    @property
    def handles(self) -> Handles:
        """Large data, by its content."""
        from utter_sdk.handles import Handles  # noqa: PLC0415 - most clients never need it

        return Handles(self)

    def fd_pass(self, kind: str, meta: dict[str, Any] | None = None, *, timeout: float | None = 30.0) -> Received:
        """Ask for a descriptor (PROTOCOL.md, "fd.pass"). Raises as `call`; RpcError -32603 if none came.

        Args:
            kind: "handle", "memfd" or "memfd.ring".
            meta: what of it.
            timeout: seconds; None waits for as long as it takes.
        """
        given = meta or {}
        count = 2 if kind == "memfd.ring" and given.get("wake") else 1
        request_id = self._send_request("fd.pass", {"kind": kind, "meta": given})
        self._wanted[request_id] = count
        result = self._result(request_id, "fd.pass", timeout)
        received = Received(result, self._passed.pop(request_id, []))
        if len(received.fds) != count:
            received.close()
            raise RpcError(ErrorCode.INTERNAL_ERROR, f"fd.pass: {count} descriptors were due and did not come")
        return received

    def call(self, method: str, params: Any = None, timeout: float | None = 30.0, *, fds: Sequence[int] = ()) -> Any:
        """Send a request and return its result.

        Args:
            method: its name.
            params: what msgspec encodes as a JSON object; None sends `{}`.
            timeout: seconds; None waits for as long as it takes.
            fds: descriptors that ride on the request; they stay the caller's.

        Raises:
            RpcError: what the runner answered.
            TimeoutError: names the method and the seconds.
            RunnerUnavailable: the runner went away.
            ValueError: the request exceeds max_frame.
        """
        return self._result(self._send_request(method, params, fds), method, timeout)

    def _result(self, request_id: int, method: str, timeout: float | None) -> Any:
        self._waiting.add(request_id)
        try:
            self._wait(lambda: request_id in self._answers, timeout, f"{method} was not answered")
        except BaseException:
            with suppress(RunnerUnavailable):
                self._send(notification_body("$/cancel", encode({"id": request_id})))
            raise
        finally:
            self._waiting.discard(request_id)
        answer = self._answers.pop(request_id)
        if isinstance(answer.error, msgspec.Raw):
            raise decode_error(answer.error)
        return msgspec.json.decode(answer.result) if isinstance(answer.result, msgspec.Raw) else None

    def subscribe(
        self,
        method: str,
        params: Any = None,
        *,
        mode: Literal["lossy", "reliable"] | None = None,
        timeout: float | None = 30.0,
    ) -> Subscription:
        """Open a stream; raises as `call`.

        Args:
            method: the stream's name, such as "runner.events".
            params: its parameters.
            mode: None leaves it to the runner.
            timeout: seconds until the runner has answered.
        """
        wanted = {"method": method, "params": {} if params is None else params}
        if mode is not None:
            wanted["mode"] = mode
        self._subscribing += 1
        try:
            answer = msgspec.convert(self.call("stream.subscribe", wanted, timeout), SubscribeResult)
            stream = self._streams[answer.stream_id] = Subscription(self, method, answer)
            for item in self._early.pop(answer.stream_id, ()):
                stream.put(item)
            if answer.stream_id in self._early_ends:
                stream.end(self._early_ends[answer.stream_id])
        except msgspec.ValidationError as error:
            raise RpcError(ErrorCode.INTERNAL_ERROR, f"stream.subscribe: a malformed answer: {error}") from None
        finally:
            self._subscribing -= 1
            if not self._subscribing:
                self._early.clear()
                self._early_ends.clear()
        return stream

    def wait_stream(self, stream: Subscription, timeout: float | None) -> None:
        """Wait until `stream` has data or is closed; for `Subscription`."""
        self._wait(lambda: stream.ready, timeout, f"{stream.method}: nothing came")

    def acknowledge(self, stream: Subscription, seq: int) -> None:
        """Send `stream.ack` without waiting for its answer; for `Subscription`."""
        self._send_request("stream.ack", {"stream_id": stream.stream_id, "seq": seq})

    def stop(self, stream: Subscription) -> None:
        """Send `stream.stop` without waiting for its answer; for `Subscription`."""
        self._streams.pop(stream.stream_id, None)
        if not self._closed:
            with suppress(RunnerUnavailable):
                self._send_request("stream.stop", {"stream_id": stream.stream_id})

    def _wait(self, done: Callable[[], bool], timeout: float | None, what: str) -> None:
        started, served = time.monotonic(), self._served
        while True:
            self._take_frames()
            self._serve_asked()
            if done():
                return
            if self._closed:
                raise RunnerUnavailable(self.path, self._closed)
            left = None
            if timeout is not None:
                left = timeout + (self._served - served) - (time.monotonic() - started)
            if (left is not None and left <= 0) or not self._take_in(left):
                raise TimeoutError(f"{what} within {timeout:g} s")

    def _take_in(self, seconds: float | None) -> bool:
        """Wait for something to receive or to heed, no longer than so many seconds, and take it; whether it came."""
        ready = {fd for fd, _ in self._poll.poll(None if seconds is None else seconds * 1000)}
        if self._heeded in ready:
            with suppress(BlockingIOError):
                os.read(self._heeded, _READ_SIZE)
        if ready - {self._heeded}:
            self._receive()
        return bool(ready)

    def _receive(self) -> None:
        try:
            data = self._socket.receive(_READ_SIZE)
        except BlockingIOError:
            return
        except LostDescriptors as error:
            self._lose(f"{error}.")
            return
        except OSError as error:
            self._lose(f"the connection broke: {error.strerror}.")
            return
        if not data:
            self._lose("the runner closed the connection. `utter status` shows whether it is running.")
        self._decoder.receive(data)

    def _lose(self, why: str) -> None:
        self._closed = self._closed or why
        # A closed socket stays readable: whoever polls it would never wait again.
        with suppress(KeyError, ValueError):
            self._poll.unregister(self._socket)

    def _take_frames(self) -> None:
        try:
            while (body := self._decoder.next_frame()) is not None:
                self._sort(decode_message(body))
                self._close_surplus()
            if not self._decoder.inside_body:
                self._close_surplus()
        except (FramingError, InvalidMessage) as error:
            self._lose(f"what listens there is no utter-runner, or a broken one: {error}")
            self._decoder = FrameDecoder()

    def _close_surplus(self) -> None:
        if self._socket.close_surplus(self._decoder.buffered):
            self._lose("what listens there sent a descriptor that nothing asked for.")

    def _sort(self, message: Message) -> None:
        if not isinstance(message.method, str):
            if isinstance(message.id, int):
                self._sort_answer(message.id, message)
        elif isinstance(message.id, int | str):
            self._asked.append(message)
        elif isinstance(message.params, msgspec.Raw):
            self._sort_notification(message.method, message.params)

    def _sort_answer(self, request_id: int, message: Message) -> None:
        count = self._wanted.pop(request_id, 0)
        fds = self._socket.take(count) if isinstance(message.result, msgspec.Raw) else []
        if request_id not in self._waiting:
            close_all(fds)
            return
        self._answers[request_id] = message
        if fds:
            self._passed[request_id] = fds

    def _sort_notification(self, method: str, params: msgspec.Raw) -> None:
        try:
            if method == "$/cancel":
                self._withdraw(msgspec.json.decode(params, type=_CancelParams).id)
                return
            if method == "stream.closed":
                self._end_stream(msgspec.json.decode(params, type=_ClosedParams))
                return
            listener = self._listeners.get(method)
            if listener is not None:
                listener(msgspec.json.decode(params, type=dict[str, Any]))
                return
            item = msgspec.json.decode(params, type=StreamData)
        except msgspec.ValidationError:
            return
        stream = self._streams.get(item.stream_id)
        if stream is not None:
            stream.put(item)
        elif self._subscribing and (item.stream_id in self._early or len(self._early) < _EARLY_STREAMS):
            # Data may overtake the answer that tells its stream's id.
            self._early.setdefault(item.stream_id, deque(maxlen=MAX_QUEUED)).append(item)

    def _end_stream(self, closed: _ClosedParams) -> None:
        stream = self._streams.pop(closed.stream_id, None)
        if stream is not None:
            stream.end(closed.reason)
        elif self._subscribing and len(self._early_ends) < _EARLY_STREAMS:
            self._early_ends[closed.stream_id] = closed.reason

    def _withdraw(self, request_id: RequestId) -> None:
        for message in self._asked:
            if message.id == request_id:
                self._asked.remove(message)
                self._send(error_body(request_id, RpcError(ErrorCode.CANCELLED, "the request was cancelled")))
                return
        if request_id == self._serving:
            self._withdrawn.add(request_id)

    def _serve_asked(self) -> None:
        while self._asked and self._serving is None:
            message = self._asked.popleft()
            if isinstance(message.id, int | str):
                self._serve(message.id, message)

    def _serve(self, request_id: RequestId, message: Message) -> None:
        started, served = time.monotonic(), self._served
        self._serving = request_id
        try:
            params = msgspec.json.decode(message.params) if isinstance(message.params, msgspec.Raw) else {}
            handler = self._handlers.get(str(message.method), partial(_refuse, message.method))
            body = result_body(request_id, encode(handler(params)))
        except RpcError as error:
            body = error_body(request_id, error)
        except RunnerUnavailable:
            raise
        except Exception as error:  # noqa: BLE001 - a handler is the caller's code and may raise anything
            body = error_body(request_id, RpcError(ErrorCode.INTERNAL_ERROR, f"{type(error).__name__}: {error}"))
        finally:
            self._serving = None
            self._withdrawn.discard(request_id)
            self._served = served + (time.monotonic() - started)
        self._send(body)

    def _send_request(self, method: str, params: Any, fds: Sequence[int] = ()) -> int:
        self._next_id += 1
        self._send(request_body(self._next_id, method, encode({} if params is None else params)), fds)
        return self._next_id

    def _send(self, body: bytes, fds: Sequence[int] = ()) -> None:
        if self._closed:
            raise RunnerUnavailable(self.path, self._closed)
        if len(body) > MAX_FRAME:
            raise ValueError(f"a request of {len(body)} bytes exceeds max_frame ({MAX_FRAME} bytes)")
        try:
            self._socket.send(encode_frame(body), fds)
        except TimeoutError:
            self._lose(f"the runner has not read for {_SEND_TIMEOUT:g} s.")
        except OSError as error:
            self._lose(f"the connection broke: {error.strerror}.")
        if self._closed:
            raise RunnerUnavailable(self.path, self._closed)
