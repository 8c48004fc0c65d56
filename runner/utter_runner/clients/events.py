"""`runner.events`: the state first, then every change, to whoever subscribed.

Rules here: an event is encoded once however many listen, and not at all when nobody does; streams belong to the
connection that opened them and end with it.
"""

from __future__ import annotations

import logging
import secrets
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec import Raw

from utter_protocol.errors import ErrorCode, RpcError
from utter_protocol.messages import encode
from utter_runner.dataplane.streams import Mode, Stream

if TYPE_CHECKING:
    from collections.abc import Callable

    from utter_runner.rpc.peer import Peer

logger = logging.getLogger(__name__)

EVENTS = "runner.events"
MAX_STREAMS_PER_PEER = 64
# What the kernel has not taken yet; beyond it a lossy stream drops instead of queueing more on the peer.
_PEER_BACKLOG = 64 * 1024


class EventBus:
    """Fans events out.

    Args:
        snapshot: returns the state that a new subscriber is sent first.
        queue: `lossy_queue`.
        window: `credit_window`.
    """

    def __init__(self, snapshot: Callable[[], dict[str, Any]], *, queue: int, window: int) -> None:
        self._snapshot = snapshot
        self._queue = queue
        self._window = window
        self._streams: dict[Peer, dict[str, Stream]] = {}

    def emit(self, event: dict[str, Any]) -> None:
        """Offer an event to every subscriber."""
        if not self._streams:
            return
        item = encode(event)
        for streams in list(self._streams.values()):
            for stream in list(streams.values()):
                stream.offer(item)

    def subscribe(self, peer: Peer, mode: Mode) -> Stream:
        """Open a stream for a peer; `begin` it after the answer was written.

        Raises:
            RpcError: the peer has too many streams.
        """
        streams = self._streams.setdefault(peer, {})
        if len(streams) >= MAX_STREAMS_PER_PEER:
            raise RpcError(
                ErrorCode.INVALID_REQUEST,
                f"a connection may have {MAX_STREAMS_PER_PEER} streams",
                {"bound": "max_streams", "limit": MAX_STREAMS_PER_PEER},
            )
        stream_id = secrets.token_urlsafe(16)
        stream = Stream(
            stream_id,
            mode,
            send=partial(_send, peer, stream_id),
            writable=partial(_writable, peer),
            on_overrun=partial(self._overrun, peer, stream_id),
            queue=self._queue,
            window=self._window,
        )
        streams[stream_id] = stream
        peer.channel.on_drained = partial(self._drained, peer)
        return stream

    def begin(self, stream: Stream) -> None:
        """Send the state; changes follow."""
        stream.offer(encode({"event": "state", "status": self._snapshot()}))

    def acknowledge(self, peer: Peer, stream_id: str, seq: int) -> None:
        """`stream.ack`. Unknown streams are ignored: one may have ended while the message was under way."""
        stream = self._streams.get(peer, {}).get(stream_id)
        if stream is not None:
            stream.acknowledge(seq)

    def stop(self, peer: Peer, stream_id: str) -> None:
        """`stream.stop`. Idempotent."""
        streams = self._streams.get(peer, {})
        stream = streams.pop(stream_id, None)
        if stream is not None:
            stream.close()
        if not streams:
            self._streams.pop(peer, None)

    def forget(self, peer: Peer) -> None:
        """End all streams of a connection that is gone."""
        for stream in self._streams.pop(peer, {}).values():
            stream.close()

    def _overrun(self, peer: Peer, stream_id: str, reason: str) -> None:
        self.stop(peer, stream_id)
        peer.notify("stream.closed", encode({"stream_id": stream_id, "reason": reason}))

    def _drained(self, peer: Peer) -> None:
        for stream in list(self._streams.get(peer, {}).values()):
            stream.pump()


def _send(peer: Peer, stream_id: str, seq: int, item: bytes) -> None:
    peer.notify(EVENTS, encode({"stream_id": stream_id, "seq": seq, "data": Raw(item)}))


def _writable(peer: Peer) -> bool:
    return peer.channel.queued < _PEER_BACKLOG
