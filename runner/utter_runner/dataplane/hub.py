"""The subscribers' side of all streams: whose they are, how many, what is acknowledged, and writing their items.

Rules here: a stream belongs to the connection that opened it and ends with it, and the id of another connection's
stream is like one that does not exist. A connection whose kernel buffer is full waits by itself: its streams take turns
when it drains, and nobody else notices.
"""

from __future__ import annotations

import secrets
from collections import deque
from typing import TYPE_CHECKING

from utter_protocol.errors import ErrorCode, RpcError
from utter_protocol.messages import encode
from utter_protocol.methods import StreamClosedParams
from utter_runner.dataplane.streams import Mode, Stream

if TYPE_CHECKING:
    from collections.abc import Callable

    from msgspec import Raw

    from utter_runner.dataplane.streams import Sent
    from utter_runner.rpc.peer import Peer

MAX_STREAMS_PER_PEER = 64
# What the kernel has not taken yet; beyond it items wait in their streams instead of in the peer's queue.
_PEER_BACKLOG = 64 * 1024


class Hub:
    """Every stream of every connection.

    Args:
        queue: `lossy_queue`, the items that a lossy stream holds.
        window: `credit_window`, the items that a reliable stream sends ahead of the acknowledgement.
    """

    def __init__(self, *, queue: int, window: int) -> None:
        self.window = window
        self._queue = queue
        self._subscribers: dict[Peer, _Subscriber] = {}

    def reconfigure(self, *, queue: int) -> None:
        """Have another `lossy_queue` for streams that are opened from now on."""
        self._queue = queue

    def __len__(self) -> int:
        return sum(len(one.streams) for one in self._subscribers.values())

    def check_room(self, peer: Peer) -> None:
        """Say whether a connection may have one more stream.

        Raises:
            RpcError: -32600, it has as many as it may.
        """
        subscriber = self._subscribers.get(peer)
        if subscriber is not None and len(subscriber.streams) >= MAX_STREAMS_PER_PEER:
            raise RpcError(
                ErrorCode.INVALID_REQUEST,
                f"a connection may have {MAX_STREAMS_PER_PEER} streams",
                {"bound": "max_streams", "limit": MAX_STREAMS_PER_PEER},
            )

    def open(self, peer: Peer, method: str, mode: Mode) -> Stream:
        """Open a stream for a connection; nothing may be put into it before the connection knows its id.

        Raises:
            RpcError: -32600, it has as many as it may; -32000, it is gone.
        """
        if peer.closed:
            raise RpcError(ErrorCode.PLUGIN_FAILED, f"{peer.name} is gone")
        self.check_room(peer)
        subscriber = self._subscribers.get(peer)
        if subscriber is None:
            subscriber = self._subscribers[peer] = _Subscriber(peer, self._left)
        stream_id = secrets.token_urlsafe(16)
        stream = Stream(stream_id, method, mode, subscriber, queue=self._queue, window=self.window)
        subscriber.add(stream)
        return stream

    def acknowledge(self, peer: Peer, stream_id: str, seq: int) -> None:
        """`stream.ack`. Unknown streams are ignored: one may have ended while the message was under way."""
        subscriber = self._subscribers.get(peer)
        stream = None if subscriber is None else subscriber.streams.get(stream_id)
        if subscriber is not None and stream is not None:
            stream.acknowledge(seq)
            subscriber.pump()

    def stop(self, peer: Peer, stream_id: str) -> None:
        """`stream.stop`. Idempotent."""
        subscriber = self._subscribers.get(peer)
        stream = None if subscriber is None else subscriber.streams.get(stream_id)
        if stream is not None:
            stream.stop()

    def forget(self, peer: Peer) -> None:
        """End all streams of a connection that is gone."""
        subscriber = self._subscribers.get(peer)
        if subscriber is not None:
            for stream in list(subscriber.streams.values()):
                stream.stop()

    def _left(self, subscriber: _Subscriber) -> None:
        # Telling one stream's end may find the connection broken, which ends the others and comes here first.
        self._subscribers.pop(subscriber.peer, None)


class _Subscriber:
    """One connection that has streams (dataplane.streams.Wire)."""

    def __init__(self, peer: Peer, on_last: Callable[[_Subscriber], None]) -> None:
        self.peer = peer
        self.streams: dict[str, Stream] = {}
        self.held = 0
        self.max_held = peer.limits.max_queued_bytes
        self._on_last = on_last
        self._channel = peer.channel
        self._write = peer.channel.write
        self._max_frame = peer.limits.max_frame
        self._waiting: deque[Stream] = deque()
        self._in_line: set[Stream] = set()
        self._pumping = False
        peer.channel.on_drained = self.pump

    def add(self, stream: Stream) -> None:
        self.streams[stream.id] = stream
        stream.head = b'{"jsonrpc":"2.0","method":%b,"params":{"stream_id":%b,"seq":' % (
            encode(stream.method),
            encode(stream.id),
        )

    def send(self, stream: Stream, seq: int, item: bytes | Raw) -> Sent:
        if self._channel.queued >= _PEER_BACKLOG:
            return "later"
        head = b'%b%d,"data":' % (stream.head, seq)
        size = len(head) + len(item) + 2
        if size > self._max_frame:
            return "too large"
        self._write(b"Content-Length: %d\r\n\r\n%b%b}}" % (size, head, item))
        return "sent"

    def wait(self, stream: Stream) -> None:
        if stream not in self._in_line:
            self._in_line.add(stream)
            self._waiting.append(stream)

    def pump(self) -> None:
        """Send what waits, one item of each stream in turn, as far as the connection takes it."""
        if self._pumping:
            return
        self._pumping = True
        waiting = self._waiting
        try:
            while waiting and self._channel.queued < _PEER_BACKLOG:
                stream = waiting.popleft()
                self._in_line.discard(stream)
                if stream.send_next():
                    self.wait(stream)
        finally:
            self._pumping = False

    def over(self, stream: Stream, reason: str | None) -> None:
        del self.streams[stream.id]
        if stream in self._in_line:
            self._in_line.discard(stream)
            self._waiting.remove(stream)
        if reason is not None:
            self.peer.notify("stream.closed", encode(StreamClosedParams(stream_id=stream.id, reason=reason)))
        if not self.streams:
            self._on_last(self)


class Topic:
    """A stream of the runner's own: what is sent reaches everybody who has subscribed.

    Args:
        hub: knows the subscribers.
        method: the stream's name.
        mode: if a subscriber asks for none.
        refusal: returns why nobody can subscribe now, if so.
        on_active: told with True when somebody subscribes and nobody had, with False when the last one is gone.
    """

    def __init__(
        self,
        hub: Hub,
        method: str,
        mode: Mode,
        *,
        refusal: Callable[[], RpcError | None] = lambda: None,
        on_active: Callable[[bool], object] = bool,
    ) -> None:
        self.method = method
        self.mode: Mode = mode
        self._hub = hub
        self._refusal = refusal
        self._on_active = on_active
        self._streams: dict[Stream, None] = {}

    def __len__(self) -> int:
        return len(self._streams)

    def open(self, peer: Peer, mode: Mode | None) -> Stream:
        """Open a stream; `begin` it when its id has been sent to the subscriber.

        Raises:
            RpcError: the stream is not to be had now, or the connection has too many.
        """
        refused = self._refusal()
        if refused is not None:
            raise refused
        return self._hub.open(peer, self.method, mode or self.mode)

    def begin(self, stream: Stream) -> None:
        """From here on the stream gets what is sent."""
        if stream.state == "closed":
            return
        self._streams[stream] = None
        stream.on_over = lambda: self._leave(stream)
        if len(self._streams) == 1:
            self._on_active(bool(self._streams))

    def send(self, item: object) -> int:
        """Offer what msgspec encodes to every subscriber; return how many there are.

        It is encoded once however many they are, and not at all when there are none.
        """
        if not self._streams:
            return 0
        encoded = encode(item)
        streams = list(self._streams)
        for stream in streams:
            stream.offer(encoded)
        return len(streams)

    def _leave(self, stream: Stream) -> None:
        del self._streams[stream]
        if not self._streams:
            self._on_active(bool(self._streams))
