"""`stream.*` of clients and of plugins: who may have which stream, and from whom it comes (PROTOCOL.md, "Streams").

Rules here: the runner's own streams come first, then those of plugins. A client may have everything but `input.*`;
a plugin what its `requires` name, and a plugin that draws what the user sees anyway. Items belong to no request: what a
plugin learns from the screen's, it knows for the rest of its epoch, and from those of another plugin, what that knows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from utter_protocol.contracts import FOR_THE_RUNNER, STREAMS
from utter_protocol.errors import ErrorCode, RpcError
from utter_protocol.methods import StreamAckParams, StreamStopParams, SubscribeParams, SubscribeResult
from utter_runner.rpc.params import decode_params
from utter_runner.supervision.memory import is_model
from utter_runner.supervision.work import LLM, MODEL, SCREEN

if TYPE_CHECKING:
    from msgspec import Raw

    from utter_protocol.capabilities import Registry
    from utter_protocol.messages import RequestId
    from utter_runner.dataplane.hub import Hub
    from utter_runner.dataplane.streams import Mode, Stream
    from utter_runner.host.callbacks import HostCallbacks
    from utter_runner.host.relay import Relay
    from utter_runner.host.upstream import Sink, Upstream
    from utter_runner.rpc.peer import Peer
    from utter_runner.supervision.instance import Instance


# Streams of the runner's own that tell of what others have read.
TELLING = frozenset({"runner.events", "runner.log"})


class OwnStream(Protocol):
    """A stream of the runner's own (dataplane.hub.Topic)."""

    def open(self, peer: Peer, mode: Mode | None) -> Stream:
        """Open it for a connection. Raises RpcError."""

    def begin(self, stream: Stream) -> None:
        """The subscriber knows its id."""


class _Heard:
    """The sink of a plugin that subscribed to another one: what that one has learned, this one learns with an item."""

    def __init__(self, sink: Sink, source: Instance, asker: Instance, method: str) -> None:
        self._sink = sink
        self._asker = asker
        self._method = method
        self._memory, self._version = source.memory, 0

    def put(self, seq: int, item: bytes | Raw) -> None:
        """Pass an item on; whoever gets it is tainted before."""
        if self._version != self._memory.version:
            self._version = self._memory.version
            self._asker.memory.hears(self._memory, self._method)
        self._sink.put(seq, item)

    def finish(self, reason: str) -> None:
        """Pass the end on."""
        self._sink.finish(reason)


class Subscriptions:
    """Answers `stream.*`.

    Args:
        hub: the subscribers' side.
        relay: the plugins' side.
        registry: says which capability serves which requirement.
    """

    def __init__(self, hub: Hub, relay: Relay, registry: Registry) -> None:
        self._hub = hub
        self._relay = relay
        self._registry = registry
        self._own: dict[str, OwnStream] = {}

    def offer(self, method: str, stream: OwnStream) -> None:
        """From here on `method` is a stream of the runner's own."""
        self._own[method] = stream

    def attach(self, host: HostCallbacks) -> None:
        """Serve plugins that subscribe, and take their items."""
        host.serve("stream.subscribe", self._of_plugin)
        host.serve("stream.ack", lambda _, peer, request_id, raw: self.acknowledge(peer, raw, request_id))
        host.serve("stream.stop", lambda _, peer, request_id, raw: self.stop(peer, request_id, raw))
        host.listen("stream.ack", self._ack_of_plugin)
        host.listen("stream.closed", self._relay.on_closed)
        host.listen_else(self._relay.on_notification)
        host.on_item = self._relay.on_item

    def subscribe(self, peer: Peer, request_id: RequestId, raw: Raw) -> None:
        """`stream.subscribe` of a client. Raises RpcError."""
        params = decode_params(raw, SubscribeParams)
        if params.method.startswith(FOR_THE_RUNNER):
            raise RpcError(
                ErrorCode.NOT_PERMITTED, f"{params.method} is for the runner alone", {"method": params.method}
            )
        self._subscribe(peer, request_id, params)

    def _of_plugin(self, instance: Instance, peer: Peer, request_id: RequestId, raw: Raw) -> None:
        params = decode_params(raw, SubscribeParams)
        if not self._permits(instance, params.method):
            raise RpcError(
                ErrorCode.NOT_PERMITTED,
                f"{instance.id} may not have the stream {params.method!r}: its requires do not name the capability",
                {"method": params.method, "requires": list(instance.requires)},
            )
        if params.method.startswith(SCREEN) or params.method in TELLING:
            # From now on it knows what is on the screen, or what others planned who did, whatever it works on.
            instance.reads(params.method)
        elif params.method.startswith(MODEL):
            instance.reads(LLM)
        self._subscribe(peer, request_id, params, asker=instance)

    def _permits(self, instance: Instance, method: str) -> bool:
        if method in self._own:
            return instance.handshake is not None and instance.handshake.kind == "ui"
        contract = STREAMS.get(method)
        return (
            contract is not None
            and contract.kind != "input"
            and any(self._registry.satisfies(contract.capability, required) for required in instance.requires)
        )

    def _subscribe(
        self, peer: Peer, request_id: RequestId, params: SubscribeParams, *, asker: Instance | None = None
    ) -> None:
        if bytes(memoryview(params.params)[:1]) != b"{":
            raise RpcError(ErrorCode.INVALID_PARAMS, "the params of a stream are an object", {"field": "params"})
        own = self._own.get(params.method)
        if own is not None and params.plugin is None:
            stream = own.open(peer, params.mode)
            peer.reply_object(request_id, SubscribeResult(stream_id=stream.id, mode=stream.mode))
            own.begin(stream)
            return
        instance = self._relay.find(params.method, params.plugin, besides="" if asker is None else asker.id)
        self._hub.check_room(peer)
        if asker is not None and is_model(instance.handshake.kind if instance.handshake else "", instance.provides):
            asker.reads(LLM)

        def on_open(upstream: Upstream | None, error: RpcError | None) -> None:
            if upstream is None:
                peer.reply_error(request_id, error or instance.unavailable())
                return
            try:
                if asker is not None and not asker.running:
                    # Its streams have been ended, and its wire may still live for a while.
                    raise asker.unavailable()
                stream = self._hub.open(peer, params.method, upstream.mode)
            except RpcError as refused:
                upstream.stop()
                peer.reply_error(request_id, refused)
                return
            upstream.sink = stream if asker is None else _Heard(stream, instance, asker, params.method)
            stream.on_ack, stream.on_over = upstream.acknowledge, upstream.stop
            peer.reply_object(request_id, SubscribeResult(stream_id=stream.id, mode=stream.mode))

        cancel = self._relay.open(instance, params.method, params.params, params.mode, on_open)
        peer.on_cancel(request_id, cancel)

    def acknowledge(self, peer: Peer, raw: Raw, request_id: RequestId | None = None) -> None:
        """`stream.ack`, as a request or as a notification. Raises RpcError."""
        params = decode_params(raw, StreamAckParams)
        self._hub.acknowledge(peer, params.stream_id, params.seq)
        if request_id is not None:
            peer.reply_object(request_id, {})

    def stop(self, peer: Peer, request_id: RequestId, raw: Raw) -> None:
        """`stream.stop`. Raises RpcError."""
        self._hub.stop(peer, decode_params(raw, StreamStopParams).stream_id)
        peer.reply_object(request_id, {})

    def forget(self, peer: Peer) -> None:
        """A connection is gone."""
        self._hub.forget(peer)

    def plugin_changed(self, instance: Instance) -> None:
        """A plugin's status is another; when it does not run, its streams end, both those it sends and those it has."""
        self._relay.plugin_changed(instance)
        if instance.peer is not None and not instance.running:
            self._hub.forget(instance.peer)

    def _ack_of_plugin(self, instance: Instance, raw: Raw) -> None:
        if instance.peer is not None:
            self.acknowledge(instance.peer, raw)
