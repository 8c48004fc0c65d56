"""One subscription at a plugin, and what is known of the epoch that it belongs to.

Rules here: what a plugin says about a stream counts for the epoch that it said it in. A plugin that breaks a stream's
rules (seq, credit) loses that stream and nothing else. Credit is passed on together, but never later than the plugin
needs it.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Protocol

from utter_protocol.errors import ErrorCode, RpcError
from utter_protocol.messages import encode
from utter_protocol.methods import StreamAckParams, StreamStopParams
from utter_runner.config.log_fields import about
from utter_runner.dataplane.streams import RELIABLE_HOLD

if TYPE_CHECKING:
    from msgspec import Raw

    from utter_runner.dataplane.streams import Mode
    from utter_runner.supervision.instance import Instance

logger = logging.getLogger(__name__)

MAX_STREAM_ID = 256
"""Characters of a stream id that a plugin makes."""
_TOLD = 256
_STOP_SECONDS = 5.0
# The plugin never heard of a stop that ended so.
_UNHEARD = frozenset({ErrorCode.TIMED_OUT, ErrorCode.INVALID_REQUEST})


class Sink(Protocol):
    """Where a subscription's items go (dataplane.streams.Stream)."""

    def put(self, seq: int, item: bytes | Raw) -> None:
        """Take an item, JSON already. Must not block."""

    def finish(self, reason: str) -> None:
        """No more items come."""


class Upstream(Protocol):
    """A subscription as its subscriber sees it."""

    mode: Mode
    sink: Sink
    """To be set by whoever is told that the subscription is open, before the next item."""

    def acknowledge(self, seq: int) -> None:
        """Everything up to `seq` has arrived at the subscriber."""

    def stop(self) -> None:
        """Nothing more is wanted. Idempotent."""


class _Nowhere:
    """A sink for what nobody wants."""

    def put(self, seq: int, item: bytes | Raw) -> None:
        """Drop it."""

    def finish(self, reason: str) -> None:
        """Drop it."""


_nowhere = _Nowhere()


class PluginEpoch:
    """What the relay knows of one epoch of a plugin."""

    __slots__ = ("asking", "fed", "instance", "number", "streams", "told")

    def __init__(self, instance: Instance) -> None:
        self.instance = instance
        self.number = instance.epoch
        self.streams: dict[str, Subscription] = {}
        self.fed: dict[str, dict[Fed, None]] = {}
        self.asking = 0
        # Ids that the plugin was told to stop, oldest first.
        self.told: dict[str, None] = {}

    def tell_stop(self, stream_id: str) -> None:
        """Send `stream.stop` once for an id."""
        if stream_id in self.told or self.instance.epoch != self.number:
            return
        if len(self.told) >= _TOLD:
            del self.told[next(iter(self.told))]
        self.told[stream_id] = None

        def on_reply(_result: Raw | None, error: RpcError | None) -> None:
            if error is not None and error.code in _UNHEARD:
                self.told.pop(stream_id, None)

        params = encode(StreamStopParams(stream_id=stream_id))
        self.instance.request("stream.stop", params, on_reply, timeout=_STOP_SECONDS)


class Subscription:
    """One subscription at a plugin that answers `stream.subscribe`."""

    __slots__ = (
        "_acked",
        "_epoch",
        "_forwarded",
        "_last",
        "_method",
        "_over",
        "_step",
        "_window",
        "id",
        "mode",
        "sink",
    )

    def __init__(self, epoch: PluginEpoch, stream_id: str, method: str, mode: Mode, window: int) -> None:
        self.id = stream_id
        self.mode: Mode = mode
        self.sink: Sink = _nowhere
        self._epoch = epoch
        self._method = method
        self._window = window
        self._step = max(1, window // 4)
        self._over = False
        self._last = self._acked = self._forwarded = -1

    def item(self, method: str, seq: int, data: Raw) -> None:
        """The plugin sent an item."""
        if method != self._method:
            self._broken(f"it sent an item of {method[:MAX_STREAM_ID]!r} on a stream of {self._method!r}")
        elif self.mode == "lossy":
            if seq > self._last:
                self._last = seq
                self.sink.put(seq, data)
            else:
                self._broken(f"item {seq} came after item {self._last}")
        elif seq != self._last + 1:
            self._broken(f"item {seq} came where item {self._last + 1} was due")
        elif seq - self._forwarded > self._window:
            self._broken(f"it sent item {seq} with credit up to item {self._forwarded + self._window}")
        else:
            self._last = seq
            self.sink.put(seq, data)
            if seq - self._forwarded == self._window:
                self._forward()

    def acknowledge(self, seq: int) -> None:
        """Pass credit on: together as far as the plugin does not wait for it."""
        if self.mode == "lossy" or self._over or seq <= self._acked:
            return
        self._acked = seq
        if seq - self._forwarded >= self._step or self._last - self._forwarded >= self._window:
            self._forward()

    def _forward(self) -> None:
        if self._acked <= self._forwarded:
            return
        params = encode(StreamAckParams(stream_id=self.id, seq=self._acked))
        # What cannot be sent now goes with the next one.
        if self._epoch.instance.notify("stream.ack", params):
            self._forwarded = self._acked

    def stop(self) -> None:
        """Tell the plugin that nobody wants it any more."""
        if self._leave():
            self._epoch.tell_stop(self.id)

    def end(self, reason: str) -> None:
        """The plugin sends no more."""
        if self._leave():
            self.sink.finish(reason)

    def broken(self) -> None:
        """An item came that is none."""
        self._broken("it sent an item without a valid seq, or without data")

    def _broken(self, why: str) -> None:
        instance = self._epoch.instance
        plugin = instance.id
        logger.warning(
            "%s broke the rules of its stream %s, which is closed: %s",
            plugin,
            self._method,
            why,
            extra=about(instance),
        )
        self.stop()
        self.sink.finish(f"{plugin} broke the stream's rules: {why}")

    def _leave(self) -> bool:
        """Drop out of the plugin's streams; False if that was so already."""
        if self._over:
            return False
        self._over = True
        self._epoch.streams.pop(self.id, None)
        return True


class Fed:
    """A subscription to a stream that a plugin feeds by `host.emit`: the runner counts, and nobody is asked."""

    __slots__ = ("_acked", "_epoch", "_method", "_most", "_seq", "mode", "sink")

    def __init__(self, epoch: PluginEpoch, method: str, mode: Mode, window: int) -> None:
        self.mode: Mode = mode
        self.sink: Sink = _nowhere
        self._epoch = epoch
        self._method = method
        self._most = window + RELIABLE_HOLD
        self._seq = self._acked = -1

    def item(self, data: Raw) -> None:
        """The plugin sent an item."""
        # A subscriber's own queue ends before; what the runner takes for itself has none.
        if self.mode == "reliable" and self._seq - self._acked > self._most:
            self.stop()
            self.sink.finish(f"{self._epoch.instance.id} sent {self._most} items more than were taken")
            return
        self._seq += 1
        self.sink.put(self._seq, data)

    def acknowledge(self, seq: int) -> None:
        """Take note: the plugin knows no credit."""
        self._acked = max(self._acked, seq)

    def stop(self) -> None:
        """Get no more."""
        listeners = self._epoch.fed.get(self._method, {})
        listeners.pop(self, None)
        if not listeners:
            self._epoch.fed.pop(self._method, None)
