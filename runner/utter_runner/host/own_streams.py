"""Streams of plugins that the runner itself takes: speech to play, and keys of `input` plugins.

Rules here: each is one subscription at one epoch of a plugin; whoever listens is told its end once, unless they ended
it themselves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Raw

if TYPE_CHECKING:
    from collections.abc import Callable

    from utter_protocol.errors import RpcError
    from utter_runner.host.relay import Relay
    from utter_runner.host.upstream import Upstream
    from utter_runner.supervision.instance import Instance


class OwnStream:
    """A subscription of the runner's own (the sink of an `Upstream`)."""

    def __init__(self, on_item: Callable[[int, Raw], None], on_closed: Callable[[str], None]) -> None:
        self._on_item = on_item
        self._on_closed = on_closed
        self._upstream: Upstream | None = None
        self._cancel: Callable[[], None] | None = None
        self._over = False

    def opening(self, cancel: Callable[[], None]) -> None:
        """The request is on its way; `cancel` withdraws it."""
        self._cancel = cancel

    def opened(self, upstream: Upstream | None, error: RpcError | None) -> None:
        """The plugin has answered."""
        self._cancel = None
        if upstream is None:
            self.finish(error.message if error is not None else "it could not be opened")
        elif self._over:
            upstream.stop()
        else:
            self._upstream = upstream
            upstream.sink = self

    def put(self, seq: int, item: bytes | Raw) -> None:
        """Take an item."""
        if not self._over:
            self._on_item(seq, Raw(item))

    def finish(self, reason: str) -> None:
        """The plugin sends no more."""
        if not self._over:
            self._over = True
            self._upstream = None
            self._on_closed(reason)

    def acknowledge(self, seq: int) -> None:
        """Everything up to `seq` was taken."""
        if self._upstream is not None:
            self._upstream.acknowledge(seq)

    def stop(self) -> None:
        """End it. Idempotent."""
        self._over = True
        upstream, self._upstream = self._upstream, None
        cancel, self._cancel = self._cancel, None
        if upstream is not None:
            upstream.stop()
        elif cancel is not None:
            cancel()


class OwnStreams:
    """Opens them."""

    def __init__(self, relay: Relay) -> None:
        self._relay = relay

    def open(
        self,
        instance: Instance,
        method: str,
        params: bytes,
        *,
        on_item: Callable[[int, Raw], None],
        on_closed: Callable[[str], None],
    ) -> OwnStream:
        """Subscribe at a plugin, reliably.

        Args:
            instance: the plugin.
            method: the stream's name.
            params: what the plugin is to know, a JSON object.
            on_item: told seq and data of each item.
            on_closed: told once why there are no more, unless `stop` was called first.
        """
        stream = OwnStream(on_item, on_closed)
        cancel = self._relay.open(instance, method, Raw(params), "reliable", stream.opened)
        stream.opening(cancel)
        return stream
