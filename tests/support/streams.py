"""A relay over fake plugins, and sinks that remember what came."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Raw

from utter_protocol.errors import RpcError
from utter_runner.host.relay import Relay
from utter_runner.host.upstream import Upstream
from utter_runner.supervision.fake import FakeInstance, FakeRequest, FakeSupervisor

ASKED = ("stream.subscribe", "stream.ack", "stream.stop")


def source(
    plugin: str = "source", *streams: str, asked: bool = True, kind: str = "bundle", **options: Any
) -> FakeInstance:
    """A plugin with streams; one that is asked for them, or else one that feeds them by `host.emit`."""
    instance = FakeInstance(plugin, **options)
    instance.describe(methods=ASKED if asked else (), streams=streams or ("tick",), kind=kind)
    return instance


class Sink:
    """What one subscriber got."""

    def __init__(self) -> None:
        self.upstream: Upstream | None = None
        self.error: RpcError | None = None
        self.items: list[tuple[int, Any]] = []
        self.ends: list[str] = []

    def on_open(self, upstream: Upstream | None, error: RpcError | None) -> None:
        assert self.upstream is None
        assert self.error is None
        assert (upstream is None) == (error is not None)
        self.upstream, self.error = upstream, error
        if upstream is not None:
            upstream.sink = self

    def put(self, seq: int, item: Any) -> None:
        self.items.append((seq, msgspec.json.decode(item)))

    def finish(self, reason: str) -> None:
        self.ends.append(reason)

    @property
    def seqs(self) -> list[int]:
        return [seq for seq, _ in self.items]

    def ack(self, seq: int) -> None:
        assert self.upstream is not None
        self.upstream.acknowledge(seq)

    def stop(self) -> None:
        assert self.upstream is not None
        self.upstream.stop()


class Bed:
    """A relay over plugins.

    Args:
        plugins: the first of them is the one that methods without `plugin` mean.
    """

    def __init__(self, *plugins: FakeInstance, window: int = 8) -> None:
        self.plugins = plugins or (source(),)
        self.plugin = self.plugins[0]
        self.supervisor = FakeSupervisor(*self.plugins)
        self.relay = Relay(self.supervisor, window=window, timeout=30.0)
        for plugin in self.plugins:
            self.relay.plugin_changed(plugin)
        self._ids = 0

    def asked(self, method: str, plugin: FakeInstance | None = None) -> list[FakeRequest]:
        """The requests of a method that have reached a plugin."""
        return [one for one in (plugin or self.plugin).received if one.method == method]

    def stopped(self, plugin: FakeInstance | None = None) -> list[str]:
        return [one.params["stream_id"] for one in self.asked("stream.stop", plugin)]

    def acks(self) -> list[int]:
        """What the plugin was told has arrived."""
        assert all(method == "stream.ack" for method, _ in self.plugin.notified)
        return [params["seq"] for _, params in self.plugin.notified]

    def ask(self, method: str = "tick", mode: Any = None, params: bytes = b"{}") -> Sink:
        """Subscribe, and leave it unanswered."""
        sink = Sink()
        sink.cancel = self.relay.open(self.plugin, method, Raw(params), mode, sink.on_open)
        return sink

    def open(self, method: str = "tick", mode: Any = "lossy", stream_id: str = "") -> Sink:
        """Subscribe, and let the plugin answer."""
        self._ids += 1
        sink = self.ask(method, mode)
        request = self.asked("stream.subscribe")[-1]
        self.plugin.answer(request, {"stream_id": stream_id or f"s{self._ids}", "mode": mode})
        return sink

    def send(self, stream_id: str, *seqs: int, method: str = "tick", plugin: FakeInstance | None = None) -> None:
        """The plugin sends items, each with its number as data."""
        for seq in seqs:
            self.raw({"stream_id": stream_id, "seq": seq, "data": seq}, method=method, plugin=plugin)

    def raw(self, params: Any, *, method: str = "tick", plugin: FakeInstance | None = None) -> None:
        self.relay.on_notification(plugin or self.plugin, method, Raw(msgspec.json.encode(params)))

    def close(self, stream_id: str, reason: str = "end") -> None:
        self.relay.on_closed(self.plugin, Raw(msgspec.json.encode({"stream_id": stream_id, "reason": reason})))

    def die(self, detail: str = "killed") -> None:
        self.plugin.die("backoff", detail)
        self.relay.plugin_changed(self.plugin)

    def start(self) -> None:
        self.plugin.start()
        self.relay.plugin_changed(self.plugin)
