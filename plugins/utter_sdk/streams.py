"""Streams that the plugin offers: opening them, their credit, and their end.

Rules here: a handler runs for each open stream, on a thread of its own or as an asyncio task; the stream ends with its
handler, and `stream.closed` says so exactly once, except to a runner that asked for the end; `seq` counts what was sent
and never skips; the SDK drops nothing, dropping is the runner's.
"""

from __future__ import annotations

import os
import threading
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from msgspec import Meta

from utter_protocol.errors import ErrorCode, RpcError
from utter_protocol.framing import MAX_FRAME
from utter_protocol.messages import EMPTY_OBJECT, encode, notification_body
from utter_protocol.methods import StreamAckParams, StreamStopParams, SubscribeResult
from utter_sdk.calls import waker
from utter_sdk.handlers import Cancelled, Handler, describe, log_traceback
from utter_sdk.requests import current
from utter_sdk.stdio import FrameTooLargeError

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from utter_sdk.connection import Connection
    from utter_sdk.requests import Request

Mode = Literal["lossy", "reliable"]

METHODS = ("stream.subscribe", "stream.ack", "stream.stop")
MAX_STREAMS = 64
"""How many streams' handlers run at once; each sync one has a thread."""
DEFAULT_WINDOW = 64
MAX_WINDOW = 1_000_000
_ENVELOPE = 512
# PROTOCOL.md, "What a plugin with streams answers".
_LONGEST_REASON = 300
_ENDED = "the stream has ended: its handler has returned"
_STOPPED = "the subscriber has stopped the stream"


class StreamClosed(Exception):
    """There is nobody to send to, or nothing more to come. `reason` says why, "end" that the stream is complete."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class SubscribeRequest(msgspec.Struct, kw_only=True):
    """`stream.subscribe`, as a plugin receives it. `window` is the credit of a reliable stream, in items."""

    method: str
    params: msgspec.Raw = EMPTY_OBJECT
    mode: Mode | None = None
    window: Annotated[int, Meta(ge=1, le=MAX_WINDOW)] = DEFAULT_WINDOW


class StreamHandler(Handler):
    """The function behind `@plugin.stream`; `mode` is the stream's own."""

    __slots__ = ("mode",)

    def __init__(self, name: str, function: Callable[..., Any], mode: Mode) -> None:
        super().__init__(name, function, None, takes=2)
        self.mode = mode


class BaseStream:
    """What both kinds of streams know. Plugins get a `Stream` or an `AsyncStream`.

    Attributes:
        method: the stream's name.
        mode: "lossy" or "reliable", as the subscriber wants it.
        window: how many items of a reliable stream may be sent ahead of the acknowledgement.
        stream_id: this subscription's id on the wire.
    """

    def __init__(self, connection: Connection, method: str, mode: Mode, window: int) -> None:
        self.method = method
        self.mode: Mode = mode
        self.window = window
        self.stream_id = os.urandom(16).hex()
        self._connection = connection
        self._changed = threading.Condition()
        self._next_seq = 0
        self._acknowledged = -1
        self._reason = ""
        # One item may be longer than all others; what surrounds it is not.
        self._longest = MAX_FRAME - _ENVELOPE - len(method)

    @property
    def closed(self) -> bool:
        """Whether `send` would raise `StreamClosed`: the subscriber stopped it, or its handler has returned."""
        return bool(self._reason)

    def acknowledge(self, seq: int) -> None:
        """Take the subscriber's acknowledgement; numbers that were never sent count for nothing."""
        with self._changed:
            if self._acknowledged < seq < self._next_seq:
                self._acknowledged = seq
                self._wake()

    def end(self, reason: str) -> bool:
        """Let nothing more be sent; return whether it was open."""
        with self._changed:
            if self._reason:
                return False
            self._reason = reason
            self._wake()
            return True

    def _wake(self) -> None:
        self._changed.notify_all()

    def _encode(self, data: Any) -> bytes:
        encoded = encode(data)
        if len(encoded) > self._longest:
            raise FrameTooLargeError(len(encoded) + _ENVELOPE)
        return encoded

    def _may_send(self) -> bool:
        return self.closed or self.mode == "lossy" or self._next_seq - self._acknowledged <= self.window

    def _claim(self) -> int:
        if self._reason:
            raise StreamClosed(self._reason)
        seq = self._next_seq
        self._next_seq += 1
        return seq

    def _put(self, seq: int, encoded: bytes) -> None:
        item = b'{"stream_id":"%b","seq":%d,"data":%b}' % (self.stream_id.encode(), seq, encoded)
        self._connection.send(notification_body(self.method, item))


class Stream(BaseStream):
    """An open stream, for a handler that is a plain function. Any thread may send; the order is that of the sends."""

    def __init__(self, connection: Connection, method: str, mode: Mode, window: int) -> None:
        super().__init__(connection, method, mode, window)
        self._sending = threading.Lock()

    def send(self, data: Any) -> None:
        """Send an item; of a reliable stream without credit, once the subscriber has acknowledged earlier ones.

        Args:
            data: what msgspec encodes.

        Raises:
            StreamClosed: the subscriber has stopped the stream, or its handler has returned.
            ValueError: the item exceeds max_frame.
        """
        self._connection.calls.refuse_loop(f"{self.method}: send()")
        encoded = self._encode(data)
        with self._sending:
            with self._changed:
                if not self._may_send():
                    self._connection.calls.refuse_to_wait(f"{self.method}: send()")
                    self._connection.lanes.wait(self._changed, self._may_send, None)
                seq = self._claim()
            self._put(seq, encoded)


class AsyncStream(BaseStream):
    """An open stream, for an `async def` handler. Use it on the loop's thread."""

    def __init__(self, connection: Connection, method: str, mode: Mode, window: int) -> None:
        super().__init__(connection, method, mode, window)
        self.sending = 0
        """How many calls of `send` have not returned: after the stop each of them raises `StreamClosed`."""
        self._waiting: dict[asyncio.Future[None], Callable[[], None]] = {}
        self._lock: asyncio.Lock | None = None

    async def send(self, data: Any) -> None:
        """Send an item; as `Stream.send`."""
        import asyncio  # noqa: PLC0415 - loaded already by whoever runs this

        encoded = self._encode(data)
        self.sending += 1
        try:
            if self._lock is None:
                self._lock = asyncio.Lock()
            async with self._lock:
                self._put(await self._credit(), encoded)
            # A handler that only sends would otherwise let nothing else run, not even what stops it.
            await asyncio.sleep(0)
            if self._reason:
                raise StreamClosed(self._reason)
        finally:
            self.sending -= 1

    async def _credit(self) -> int:
        import asyncio  # noqa: PLC0415 - as above

        loop = asyncio.get_running_loop()
        while True:
            with self._changed:
                if self._may_send():
                    return self._claim()
                waiter = loop.create_future()
                self._waiting[waiter] = waker(loop, waiter)
            try:
                await waiter
            finally:
                with self._changed:
                    self._waiting.pop(waiter, None)

    def _wake(self) -> None:
        for wake in self._waiting.values():
            wake()


class OpenStreams:
    """The open streams of one connection.

    Args:
        connection: where they send.
        declared: the plugin's streams by name.
    """

    def __init__(self, connection: Connection, declared: dict[str, StreamHandler]) -> None:
        self._connection = connection
        self._declared = declared
        self._lock = threading.Lock()
        self._open: dict[str, tuple[BaseStream, Request]] = {}
        self._running = 0

    def subscribe(self, params: SubscribeRequest) -> SubscribeResult:
        """Open a stream; its handler starts when this has been answered.

        Raises:
            RpcError: -32601 for an unknown stream, -32602 for wrong params, -32600 when too many are open.
        """
        handler = self._declared.get(params.method)
        if handler is None:
            name = self._connection.plugin.hello.plugin.name
            raise RpcError(
                ErrorCode.METHOD_NOT_FOUND, f"{name} has no stream {params.method}", {"method": params.method}
            )
        arguments = handler.decode(params.params, "params")
        with self._lock:
            if self._running >= MAX_STREAMS:
                raise RpcError(
                    ErrorCode.INVALID_REQUEST,
                    f"{MAX_STREAMS} streams are open, or their handlers have not returned yet",
                    {"bound": "max_streams", "limit": MAX_STREAMS},
                )
            self._running += 1
        kind = AsyncStream if handler.is_async else Stream
        stream = kind(self._connection, params.method, params.mode or handler.mode, params.window)
        scope = self._connection.requests.open_scope()
        with self._lock:
            self._open[stream.stream_id] = stream, scope
        self._connection.after_answer = partial(self._start, stream, scope, handler, arguments)
        return SubscribeResult(stream_id=stream.stream_id, mode=stream.mode)

    def acknowledge(self, params: StreamAckParams) -> None:
        """Take `stream.ack`; unknown streams are nothing."""
        found = self._open.get(params.stream_id)
        if found is not None:
            found[0].acknowledge(params.seq)

    def stop(self, params: StreamStopParams) -> None:
        """Take `stream.stop`; unknown streams are nothing."""
        self._end(params.stream_id, _STOPPED)

    def end(self, reason: str) -> None:
        """End all streams, because the connection has ended."""
        for stream_id in list(self._open):
            self._end(stream_id, reason)

    def _end(self, stream_id: str, reason: str) -> None:
        with self._lock:
            found = self._open.pop(stream_id, None)
        if found is None:
            return
        stream, scope = found
        stream.end(reason)
        self._connection.call_back(self._connection.requests.cancel_scope(scope))

    def _start(
        self, stream: Stream | AsyncStream, scope: Request, handler: StreamHandler, arguments: tuple[Any, ...]
    ) -> None:
        if isinstance(stream, AsyncStream):
            self._connection.lanes.spawn(self._work_async(stream, scope, handler, arguments))
        else:
            job = partial(self._work, stream, scope, handler, arguments)
            self._connection.lanes.thread(f"stream-{stream.method}", job)

    def _work(self, stream: Stream, scope: Request, handler: StreamHandler, arguments: tuple[Any, ...]) -> None:
        current.set(scope)
        try:
            handler.function(*arguments, stream)
            reason = "end"
        except SystemExit as stop:
            self._connection.leave(stop)
        except BaseException as error:  # noqa: BLE001 - a plugin's code may raise anything
            reason = self._why(stream, error)
        self._finish(stream, scope, reason)

    async def _work_async(
        self, stream: AsyncStream, scope: Request, handler: StreamHandler, arguments: tuple[Any, ...]
    ) -> None:
        import asyncio  # noqa: PLC0415 - loaded already by whoever runs this

        current.set(scope)
        task = asyncio.current_task()
        if task is not None:
            self._connection.requests.on_cancel(scope, partial(_interrupt, stream, task))
        try:
            await handler.function(*arguments, stream)
            reason = "end"
        except SystemExit as stop:
            self._connection.leave(stop)
        except BaseException as error:  # noqa: BLE001 - a plugin's code may raise anything
            reason = self._why(stream, error)
        self._finish(stream, scope, reason)

    def _why(self, stream: BaseStream, error: BaseException) -> str:
        if stream.closed:
            return ""
        if isinstance(error, RpcError):
            return error.message
        if isinstance(error, StreamClosed | Cancelled):
            return describe(error)
        log_traceback(error)
        return describe(error)

    def _finish(self, stream: BaseStream, scope: Request, reason: str) -> None:
        self._connection.requests.finish(scope)
        with self._lock:
            self._running -= 1
            self._open.pop(stream.stream_id, None)
        if stream.end(_ENDED):
            closed = {"stream_id": stream.stream_id, "reason": reason[:_LONGEST_REASON]}
            self._connection.send(notification_body("stream.closed", encode(closed)))


def _interrupt(stream: AsyncStream, task: asyncio.Task[None]) -> None:
    """Cancel the handler of a stopped stream, unless it is in `send`, which raises `StreamClosed` then."""

    def on_loop() -> None:
        if not stream.sending:
            task.cancel()

    try:
        task.get_loop().call_soon_threadsafe(on_loop)
    except RuntimeError:
        # The loop has been closed; the task is over.
        return
