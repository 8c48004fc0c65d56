"""Streams of others, as a plugin that subscribed to them sees them.

Rules here: items are put on the reading thread and taken by whoever iterates; a reliable item is acknowledged when it
is taken; a subscription that nobody holds any more is stopped when its next item comes, so that a forgotten one costs
nothing for long.
"""

from __future__ import annotations

import weakref
from collections import deque
from typing import TYPE_CHECKING, Any, Literal, Self

import msgspec

from utter_protocol.errors import ErrorCode, RpcError
from utter_protocol.messages import encode, notification_body
from utter_protocol.methods import StreamClosedParams, SubscribeResult
from utter_sdk.calls import decode_nothing, waker
from utter_sdk.handlers import Cancelled
from utter_sdk.requests import current
from utter_sdk.streams import StreamClosed

if TYPE_CHECKING:
    from collections.abc import Callable

    from utter_sdk.connection import Connection

MAX_QUEUED = 4096
"""How many items wait for the plugin; of more, the oldest are dropped (a reliable stream never sends as many)."""
_COMPLETE = "end"
_CLOSED = "this plugin has closed the subscription"


class _Item(msgspec.Struct):
    stream_id: str
    seq: int
    data: msgspec.Raw


_decode_item = msgspec.json.Decoder(_Item).decode
_decode_closed = msgspec.json.Decoder(StreamClosedParams).decode
_decode_opened = msgspec.json.Decoder(SubscribeResult).decode
_decode_data = msgspec.json.Decoder().decode


class Subscription:
    """Items of a stream, in order: iterate (`for`, or `async for`), or `get` one; a context manager that closes it.

    The iteration ends when the stream is complete or closed by this end; when it is given up for another reason, it
    raises `StreamClosed`.

    Attributes:
        method: the stream's name.
        missed: how many items were dropped on the way, counted by gaps in `seq` (lossy streams only).
    """

    def __init__(self, connection: Connection, method: str) -> None:
        self.method = method
        self.missed = 0
        self._connection = connection
        self._changed = connection.calls.changed
        self._stream_id = ""
        self._mode: Literal["lossy", "reliable", ""] = ""
        self._items: deque[_Item] = deque(maxlen=MAX_QUEUED)
        self._last_seq: int | None = None
        self._error: Exception | None = None
        self._wakers: list[Callable[[], None]] = []

    @property
    def mode(self) -> Literal["lossy", "reliable", ""]:
        """What the runner made of the stream; empty until it has answered."""
        return self._mode

    @property
    def closed(self) -> bool:
        """Whether no more items will arrive; those that are here can still be taken."""
        return self._error is not None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        try:
            return self.get()
        except StreamClosed as closed:
            if closed.reason not in (_COMPLETE, _CLOSED):
                raise
        raise StopIteration

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        try:
            return await self.get_async()
        except StreamClosed as closed:
            if closed.reason not in (_COMPLETE, _CLOSED):
                raise
        raise StopAsyncIteration

    def get(self, timeout: float | None = None) -> Any:
        """Wait for the next item on a worker thread and return its data.

        Args:
            timeout: seconds; None waits for as long as it takes.

        Raises:
            StreamClosed: there will be none; `reason` is "end" when the stream is complete.
            RpcError: the runner refused the subscription.
            Cancelled: the handler that waits was cancelled.
            TimeoutError: nothing came within `timeout` seconds.
            RuntimeError: it was called where it would wait for itself.
        """
        connection = self._connection
        connection.calls.refuse_loop(f"{self.method}: get()")
        request = current.get()
        waiting = object()
        with self._changed:
            if not self._ready():
                connection.calls.refuse_to_wait(f"{self.method}: get()")
                if request is not None and not connection.requests.attach(request, waiting, self._wake):
                    raise Cancelled
                try:
                    came = connection.lanes.wait(
                        self._changed, lambda: self._ready() or (request is not None and request.cancelled), timeout
                    )
                finally:
                    if request is not None:
                        connection.requests.detach(request, waiting)
                if not came:
                    raise TimeoutError(f"{self.method}: nothing came within {timeout:g} s")
                if not self._ready():
                    raise Cancelled
            item = self._pop()
        return self._take(item)

    async def get_async(self) -> Any:
        """Wait for the next item on the asyncio loop; as `get`."""
        import asyncio  # noqa: PLC0415 - loaded already by whoever runs this

        while True:
            with self._changed:
                if self._ready():
                    item = self._pop()
                    break
                loop = asyncio.get_running_loop()
                waiter: asyncio.Future[None] = loop.create_future()
                wake = waker(loop, waiter)
                self._wakers.append(wake)
            try:
                await waiter
            finally:
                with self._changed:
                    if wake in self._wakers:
                        self._wakers.remove(wake)
        return self._take(item)

    def close(self) -> None:
        """Stop the stream. Idempotent; what has arrived is forgotten."""
        with self._changed:
            was_open = self._error is None
            self._items.clear()
            self._fail(StreamClosed(_CLOSED))
        if was_open and self._stream_id:
            self._connection.subscriptions.stop(self._stream_id)

    def opened(self, raw: msgspec.Raw | None, error: RpcError | None) -> str:
        """Take the runner's answer; return the stream's id if it is to be kept. For `Subscriptions`."""
        with self._changed:
            if raw is None:
                self._fail(error or RpcError(ErrorCode.INTERNAL_ERROR, f"{self.method}: no answer"))
                return ""
            try:
                answer = _decode_opened(raw)
            except msgspec.ValidationError as why:
                self._fail(RpcError(ErrorCode.PLUGIN_FAILED, f"{self.method}: stream.subscribe: {why}"))
                return ""
            self._stream_id, self._mode = answer.stream_id, answer.mode
            return answer.stream_id

    def put(self, item: _Item) -> None:
        """Queue an item. For `Subscriptions`."""
        with self._changed:
            if self._error is None:
                self._items.append(item)
                self._wake()

    def end(self, error: Exception) -> None:
        """Let nothing more come. For `Subscriptions`."""
        with self._changed:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        if self._error is None:
            self._error = error
            self._wake()

    def _wake(self) -> None:
        with self._changed:
            wakers, self._wakers = self._wakers, []
            self._changed.notify_all()
        for wake in wakers:
            wake()

    def _ready(self) -> bool:
        return bool(self._items) or self._error is not None

    def _pop(self) -> _Item:
        if not self._items:
            assert self._error is not None  # noqa: S101 - `_ready` said so
            raise self._error
        item = self._items.popleft()
        if self._last_seq is not None:
            self.missed += max(0, item.seq - self._last_seq - 1)
        self._last_seq = item.seq
        return item

    def _take(self, item: _Item) -> Any:
        if self._mode == "reliable" and not self.closed:
            self._connection.subscriptions.acknowledge(self._stream_id, item.seq)
        return _decode_data(item.data)


class Subscriptions:
    """The subscriptions of one connection."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._open: dict[str, weakref.ref[Subscription]] = {}

    def subscribe(self, method: str, params: Any, mode: str | None, plugin: str | None) -> Subscription:
        """Ask for a stream; the subscription knows later whether it was refused."""
        wanted = {"method": method, "params": {} if params is None else params, "mode": mode, "plugin": plugin}
        subscription = Subscription(self._connection, method)

        def on_answer(raw: msgspec.Raw | None, error: RpcError | None) -> None:
            stream_id = subscription.opened(raw, error)
            if stream_id and subscription.closed:
                self._ask("stream.stop", stream_id)
            elif stream_id:
                self._open[stream_id] = weakref.ref(subscription)

        given = {name: value for name, value in wanted.items() if value is not None}
        self._connection.calls.start("stream.subscribe", given, decode_nothing, quiet=True, on_answer=on_answer)
        return subscription

    def take(self, raw: msgspec.Raw) -> bool:
        """Take a notification's params; return whether it was an item of an open stream."""
        if not self._open:
            return False
        try:
            item = _decode_item(raw)
        except msgspec.ValidationError:
            return False
        found = self._open.get(item.stream_id)
        if found is None:
            return False
        subscription = found()
        if subscription is None:
            self.stop(item.stream_id)
        else:
            subscription.put(item)
        return True

    def take_closed(self, raw: msgspec.Raw) -> None:
        """Take `stream.closed`; unknown streams are nothing."""
        try:
            closed = _decode_closed(raw)
        except msgspec.ValidationError:
            return
        found = self._open.pop(closed.stream_id, None)
        subscription = None if found is None else found()
        if subscription is not None:
            subscription.end(StreamClosed(closed.reason))

    def stop(self, stream_id: str) -> None:
        """Send `stream.stop`, unless the stream has ended."""
        if self._open.pop(stream_id, None) is not None:
            self._ask("stream.stop", stream_id)

    def acknowledge(self, stream_id: str, seq: int) -> None:
        """Send `stream.ack`."""
        self._connection.send(notification_body("stream.ack", encode({"stream_id": stream_id, "seq": seq})))

    def end(self, reason: str) -> None:
        """End all, because the connection has ended."""
        for stream_id in list(self._open):
            found = self._open.pop(stream_id, None)
            subscription = None if found is None else found()
            if subscription is not None:
                subscription.end(StreamClosed(reason))

    def _ask(self, method: str, stream_id: str) -> None:
        self._connection.calls.start(method, {"stream_id": stream_id}, decode_nothing, quiet=True)
