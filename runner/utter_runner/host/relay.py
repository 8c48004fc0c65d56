"""The sources' side of streams: subscribing at plugins, and holding plugins to what was agreed.

Rules here: one subscription at the plugin for each subscriber, so that a slow one slows its own stream and no other;
a plugin's items pass through unparsed. Nobody waits here: who subscribes is called back.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec import Meta, Raw

from utter_protocol.contracts import METHODS, STREAMS
from utter_protocol.errors import ErrorCode, RpcError
from utter_protocol.messages import StreamItem, decode_item, encode
from utter_runner.config.log_fields import about
from utter_runner.dataplane.streams import Mode  # noqa: TC001 - msgspec resolves the annotations at run time
from utter_runner.host.upstream import MAX_STREAM_ID, Fed, PluginEpoch, Subscription
from utter_runner.supervision.dialect import decode_answer

if TYPE_CHECKING:
    from collections.abc import Callable

    from utter_runner.host.upstream import Upstream
    from utter_runner.supervision.instance import Instance
    from utter_runner.supervision.supervisor import Supervisor

logger = logging.getLogger(__name__)

SUBSCRIBE = "stream.subscribe"
MAX_REASON = 300
"""Characters of a plugin's reason that subscribers get."""


class _OfStream(msgspec.Struct):
    stream_id: str


class _Opened(msgspec.Struct):
    """A plugin's answer to `stream.subscribe`; without a mode it is the one that was asked for."""

    stream_id: Annotated[str, Meta(min_length=1, max_length=MAX_STREAM_ID)]
    mode: Mode | None = None


class _Closed(msgspec.Struct):
    stream_id: str
    reason: str = ""


_decode_of_stream = msgspec.json.Decoder(_OfStream).decode


class Relay:
    """Subscribes at plugins.

    Args:
        supervisor: knows the plugins.
        window: `credit_window`.
        timeout: seconds for a plugin's answer to `stream.subscribe`.
    """

    def __init__(self, supervisor: Supervisor, *, window: int, timeout: float) -> None:
        self._supervisor = supervisor
        self._window = window
        self._timeout = timeout
        self._epochs: dict[Instance, PluginEpoch] = {}
        self._offered: dict[str, tuple[str, ...]] = {}

    def reconfigure(self, *, timeout: float) -> None:
        """Have another time-out, in seconds, for subscriptions from now on."""
        self._timeout = timeout

    # ---- the subscriber's side

    def find(self, method: str, plugin: str | None = None, *, besides: str = "") -> Instance:
        """Return the plugin that offers a stream.

        Args:
            method: the stream's name.
            plugin: an id, to choose one of several.
            besides: the id of a plugin that does not count.

        Raises:
            RpcError: -32601, nobody offers it; -32000, whoever does is down; -32005, there is no such plugin.
        """
        instances = self._supervisor.instances if plugin is None else [self._supervisor.get(plugin)]
        offering = [one for one in instances if one.id != besides and self._offers(one, method)]
        for instance in offering:
            if instance.running:
                return instance
        if offering:
            raise offering[0].unavailable()
        if plugin is not None and not instances[0].running:
            raise instances[0].unavailable()
        data = {"method": method} if plugin is None else {"method": method, "plugin": plugin}
        raise RpcError(ErrorCode.METHOD_NOT_FOUND, f"there is no stream {method!r}", data)

    def _offers(self, instance: Instance, method: str) -> bool:
        known = METHODS.get(method)
        if known is not None and known.form == "announcement":
            # `describe` names these beside the streams; they are the runner's to hear.
            return False
        handshake = instance.handshake
        return method in (self._offered.get(instance.id, ()) if handshake is None else handshake.streams)

    def open(
        self,
        instance: Instance,
        method: str,
        params: Raw,
        mode: Mode | None,
        on_open: Callable[[Upstream | None, RpcError | None], None],
    ) -> Callable[[], None]:
        """Subscribe at a plugin.

        Args:
            instance: the plugin, as from `find`.
            method: the stream's name.
            params: what the plugin is to know, a JSON object.
            mode: None leaves it to the protocol, and where it says nothing to the plugin.
            on_open: called once with the subscription, or with None and the error; possibly before this returns.

        Returns:
            What gives the subscription up while it is not open.
        """
        contract = STREAMS.get(method)
        wanted: Mode | None = mode or (contract.mode if contract is not None else None)
        epoch = self._epoch(instance)
        if instance.running and (instance.handshake is None or SUBSCRIBE not in instance.handshake.methods):
            fed = Fed(epoch, method, wanted or "lossy", self._window)
            epoch.fed.setdefault(method, {})[fed] = None
            on_open(fed, None)
            return _no_cancel

        def on_reply(result: Raw | None, error: RpcError | None) -> None:
            epoch.asking -= 1
            upstream: Upstream | None = None
            if error is None and self._epochs.get(instance) is not epoch:
                # Its streams have been ended: this is among the last words of a plugin that is down.
                error = instance.unavailable()
            if error is None and result is not None:
                try:
                    upstream = self._opened(epoch, method, wanted, result)
                except RpcError as refused:
                    error = refused
            on_open(upstream, error)

        asked: dict[str, object] = {"method": method, "params": params, "window": self._window}
        if wanted is not None:
            asked["mode"] = wanted
        epoch.asking += 1
        sent = instance.request(SUBSCRIBE, encode(asked), on_reply, timeout=self._timeout)
        number = instance.epoch

        def cancel() -> None:
            if sent is not None and instance.epoch == number:
                instance.cancel(sent)

        return cancel

    def _opened(self, epoch: PluginEpoch, method: str, wanted: Mode | None, result: Raw) -> Subscription:
        plugin = epoch.instance.id
        opened = decode_answer(result, _Opened, SUBSCRIBE, plugin)
        if opened.stream_id in epoch.streams:
            raise RpcError(
                ErrorCode.PLUGIN_FAILED,
                f"{plugin} answered {SUBSCRIBE} with a stream_id that it uses already",
                {"plugin": plugin, "method": SUBSCRIBE},
            )
        epoch.told.pop(opened.stream_id, None)
        mode = opened.mode or wanted or "lossy"
        subscription = Subscription(epoch, opened.stream_id, method, mode, self._window)
        epoch.streams[opened.stream_id] = subscription
        return subscription

    # ---- the plugin's side

    def on_notification(self, instance: Instance, method: str, params: Raw) -> None:
        """Pass an item of a stream on; a notification that is none is ignored."""
        item = decode_item(params)
        if item is None:
            self._on_no_item(instance, method, params)
        else:
            self.on_item(instance, method, item)

    def on_item(self, instance: Instance, method: str, item: StreamItem) -> None:
        """Pass an item of a stream on."""
        epoch = self._epochs.get(instance)
        if epoch is not None and epoch.number == instance.epoch:
            subscription = epoch.streams.get(item.stream_id)
            if subscription is not None:
                subscription.item(method, item.seq, item.data)
                return
        self._on_unknown(self._epoch(instance), item.stream_id)

    def _on_unknown(self, epoch: PluginEpoch, stream_id: str) -> None:
        """Nobody wants this: a caller went away while the plugin answered, or has just stopped it."""
        # While an answer is under way the id may be that of the stream which it will name.
        if not epoch.asking and len(stream_id) <= MAX_STREAM_ID:
            epoch.tell_stop(stream_id)

    def _on_no_item(self, instance: Instance, method: str, params: Raw) -> None:
        try:
            stream_id = _decode_of_stream(params).stream_id
        except (msgspec.MsgspecError, RecursionError):
            logger.debug("%s announced %s, which nobody listens to", instance.id, method, extra=about(instance))
            return
        subscription = self._epoch(instance).streams.get(stream_id)
        if subscription is not None:
            subscription.broken()

    def on_closed(self, instance: Instance, params: Raw) -> None:
        """`stream.closed` of a plugin."""
        closed = decode_answer(params, _Closed, "stream.closed", instance.id)
        subscription = self._epoch(instance).streams.get(closed.stream_id)
        if subscription is not None:
            subscription.end(closed.reason[:MAX_REASON] or "end")

    def emit(self, instance: Instance, method: str, data: Raw) -> int:
        """Offer an item of a plugin to everybody who has subscribed; return to how many.

        Raises:
            RpcError: -32602, the plugin does not list the stream.
        """
        if not self._offers(instance, method):
            raise RpcError(
                ErrorCode.INVALID_PARAMS,
                f"{instance.id} does not list a stream {method[:MAX_STREAM_ID]!r} in plugin.describe",
                {"field": "method"},
            )
        listeners = [*self._epoch(instance).fed.get(method, ())]
        for one in listeners:
            one.item(data)
        return len(listeners)

    def plugin_changed(self, instance: Instance) -> None:
        """A plugin's status is another: what it offers, and the end of its streams."""
        if instance.running:
            if instance.handshake is not None:
                self._offered[instance.id] = instance.handshake.streams
            return
        epoch = self._epochs.pop(instance, None)
        if epoch is None:
            return
        reason = f"{instance.id} went away: {instance.detail or instance.status}"
        for subscription in list(epoch.streams.values()):
            subscription.end(reason)
        for listeners in list(epoch.fed.values()):
            for one in list(listeners):
                one.sink.finish(reason)
        epoch.fed.clear()

    def _epoch(self, instance: Instance) -> PluginEpoch:
        epoch = self._epochs.get(instance)
        if epoch is None or epoch.number != instance.epoch:
            epoch = self._epochs[instance] = PluginEpoch(instance)
        return epoch


def _no_cancel() -> None:
    """There is nothing to give up."""
