"""`stream.*` of plugins: what they may have, and that they are subscribers like others."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from msgspec import Raw

from support.rpc_tools import Rig, codes
from support.streams import source
from utter_protocol.capabilities import load_registry
from utter_protocol.errors import ErrorCode
from utter_protocol.messages import StreamItem
from utter_runner.dataplane.hub import Hub, Topic
from utter_runner.host.callbacks import HostCallbacks
from utter_runner.host.relay import Relay
from utter_runner.host.subscriptions import Subscriptions
from utter_runner.rpc.peer import Peer
from utter_runner.supervision.fake import FakeInstance, FakeSupervisor
from utter_runner.supervision.work import Work


class Door:
    """A plugin's wire: what arrives is handed to the callbacks, as an instance does."""

    def __init__(self, host: HostCallbacks, instance: FakeInstance) -> None:
        self._host = host
        self._instance = instance

    def on_request(self, peer: Peer, request_id: Any, method: str, params: Raw) -> None:
        self._host.on_request(self._instance, peer, request_id, method, params)

    def on_notification(self, _peer: Peer, method: str, params: Raw) -> None:
        self._host.on_notification(self._instance, method, params)

    def on_junk(self, *_: object) -> None: ...

    def on_closed(self, *_: object) -> None: ...


class House:
    """A plugin with a real wire that subscribes, and another one that has streams."""

    def __init__(self, rig: Rig, *, kind: str = "bundle", requires: tuple[str, ...] = ()) -> None:
        self.rig = rig
        self.source = source("source", "context.live", "tick", "input.keys", provides=("context.live@1",))
        self.asker = source("asker", "context.live", kind=kind, requires=requires)
        self.supervisor = FakeSupervisor(self.asker, self.source)
        self.hub = Hub(queue=8, window=4)
        self.relay = Relay(self.supervisor, window=4, timeout=30.0)
        self.streams = Subscriptions(self.hub, self.relay, load_registry())
        self.events = Topic(self.hub, "runner.events", "lossy")
        self.streams.offer("runner.events", self.events)
        self.host = HostCallbacks()
        self.streams.attach(self.host)
        peer, _, self.remote = rig.peer("pipes", Door(self.host, self.asker))
        self.asker.peer = peer
        self._ids = 0

    def ask(self, what: str, **params: Any) -> int:
        self._ids += 1
        self.remote.send({"id": self._ids, "method": what, "params": params})
        self.rig.settle()
        return self._ids

    def answers(self) -> list[dict[str, Any]]:
        self.rig.settle()
        return self.remote.receive()


@pytest.fixture
def rig() -> Iterator[Rig]:
    made = Rig()
    yield made
    made.close()


def open_at_source(house: House, stream_id: str, mode: str) -> None:
    request = [one for one in house.source.received if one.method == "stream.subscribe"][-1]
    house.source.answer(request, {"stream_id": stream_id, "mode": mode})


def test_a_plugin_gets_the_streams_of_what_it_requires(rig: Rig) -> None:
    house = House(rig, requires=("context.live@1",))
    house.ask("stream.subscribe", method="context.live", mode="reliable", params={"sources": ["window"]})
    # Not its own stream, although that comes first.
    assert house.asker.received == []
    assert house.source.received[0].params["params"] == {"sources": ["window"]}
    open_at_source(house, "c1", "reliable")
    for seq in range(4):
        house.relay.on_item(house.source, "context.live", StreamItem("c1", seq, Raw(b"{}")))
    answer, *items = house.answers()
    stream_id = answer["result"]["stream_id"]
    assert [one["params"] for one in items] == [{"stream_id": stream_id, "seq": seq, "data": {}} for seq in range(4)]
    house.remote.send({"method": "stream.ack", "params": {"stream_id": stream_id, "seq": 0}})
    house.rig.settle()
    assert house.source.notified == [("stream.ack", {"stream_id": "c1", "seq": 0})]
    house.ask("stream.ack", stream_id=stream_id, seq=1)
    house.ask("stream.stop", stream_id=stream_id)
    house.ask("stream.stop", stream_id=stream_id)
    assert [one["result"] for one in house.answers()] == [{}, {}, {}]
    assert [one.params for one in house.source.received if one.method == "stream.stop"] == [{"stream_id": "c1"}]


@pytest.mark.parametrize("method", ["context.live", "tick", "input.keys", "runner.events", "no.such"])
def test_a_plugin_gets_nothing_that_it_does_not_require(rig: Rig, method: str) -> None:
    house = House(rig, requires=("context.snapshot@1",))
    house.ask("stream.subscribe", method=method)
    assert codes(house.answers()) == [(1, ErrorCode.NOT_PERMITTED)]
    assert house.source.received == []


def test_a_plugin_that_reads_the_screen_all_the_time_is_tainted_in_all_that_it_does(rig: Rig) -> None:
    house = House(rig, requires=("context.live@1", "input.keys@1"))
    before, after, later = Work("user"), Work("user"), Work("user")
    house.asker.request("router.plan", b"{}", lambda *_: None, timeout=5, work=before.below("asker", "a"))
    house.ask("stream.subscribe", method="context.live")
    house.asker.request("router.plan", b"{}", lambda *_: None, timeout=5, work=after.below("asker", "b"))
    assert [(work.provenance, work.sources) for work in (before, after)] == [("screen", ("context.live",))] * 2
    house.asker.die()
    house.asker.start()
    house.asker.request("router.plan", b"{}", lambda *_: None, timeout=5, work=later.below("asker", "c"))
    assert later.provenance == "user"
    # Keys are the runner's own to hear, whatever a plugin requires.
    house.ask("stream.subscribe", method="input.keys")
    assert codes(house.answers())[-1][1] == ErrorCode.NOT_PERMITTED


def test_a_plugin_that_hears_a_language_model_has_its_help_in_all_that_it_does(rig: Rig) -> None:
    house = House(rig, requires=("llm.complete@1",))
    work = Work("user")
    house.ask("stream.subscribe", method="llm.delta")
    house.asker.request("router.plan", b"{}", lambda *_: None, timeout=5, work=work.below("asker", "a"))
    assert (work.provenance, work.llm) == ("user", True)


def test_whatever_stream_a_language_model_sends_is_its_word(rig: Rig) -> None:
    house = House(rig, requires=("ui.render@1",))
    house.source = source("drawer", "ui.event", provides=("ui.render@1", "llm.choose@1"))
    house.supervisor._instances["drawer"] = house.source
    house.ask("stream.subscribe", method="ui.event")
    work = Work("user")
    house.asker.request("router.plan", b"{}", lambda *_: None, timeout=5, work=work.below("asker", "a"))
    assert (work.provenance, work.llm) == ("user", True)


@pytest.mark.parametrize("fed", [False, True])
@pytest.mark.parametrize("session", ["s", "another"])
def test_what_the_source_of_a_stream_knows_its_subscriber_knows(rig: Rig, session: str, *, fed: bool) -> None:
    house = House(rig, requires=("ui.render@1",))
    house.source = source("drawer", "ui.event", provides=("ui.render@1",))
    house.supervisor._instances["drawer"] = house.source
    if fed:
        house.source.describe(streams=["ui.event"])
    house.ask("stream.subscribe", method="ui.event", mode="lossy")
    if not fed:
        open_at_source(house, "u1", "lossy")

    def send(seq: int) -> None:
        if fed:
            house.relay.emit(house.source, "ui.event", Raw(b"{}"))
        else:
            house.relay.on_item(house.source, "ui.event", StreamItem("u1", seq, Raw(b"{}")))

    work = Work("user", "s").below("asker", "a")
    house.asker.request("router.plan", b"{}", lambda *_: None, timeout=5, work=work)
    send(0)
    shown = Work("user", session).below("drawer", "ui.render")
    house.source.request("ui.render", b"{}", lambda *_: None, timeout=5, work=shown)
    shown.taint("perception.tree")
    assert work.provenance == "user"
    send(1)
    assert (work.provenance, work.sources) == (("screen", ("ui.event",)) if session == "s" else ("user", ()))
    assert len(house.answers()) == 3


def test_a_plugin_that_draws_what_others_planned_knows_what_they_know(rig: Rig) -> None:
    house = House(rig, kind="ui")
    work = Work("user")
    house.ask("stream.subscribe", method="runner.events")
    house.asker.request("ui.render", b"{}", lambda *_: None, timeout=5, work=work.below("asker", "a"))
    assert work.sources == ("runner.events",)


def test_a_plugin_that_draws_gets_what_the_user_sees(rig: Rig) -> None:
    house = House(rig, kind="ui")
    house.ask("stream.subscribe", method="runner.events")
    house.events.send({"event": "warning", "text": "x"})
    answer, item = house.answers()
    assert item["params"] == {
        "stream_id": answer["result"]["stream_id"],
        "seq": 0,
        "data": {"event": "warning", "text": "x"},
    }
    house.ask("stream.subscribe", method="tick")
    assert codes(house.answers()) == [(2, ErrorCode.NOT_PERMITTED)]


@pytest.mark.parametrize("method", ["stream.subscribe", "stream.ack", "stream.stop"])
def test_params_that_are_wrong_are_named(rig: Rig, method: str) -> None:
    house = House(rig, kind="ui")
    house.ask(method)
    (answer,) = house.answers()
    assert answer["error"]["code"] == ErrorCode.INVALID_PARAMS
    assert answer["error"]["data"]["field"] in {"method", "stream_id"}


def test_what_a_plugin_has_open_ends_with_its_epoch(rig: Rig) -> None:
    house = House(rig, kind="ui", requires=("context.live@1",))
    house.ask("stream.subscribe", method="runner.events")
    house.ask("stream.subscribe", method="context.live")
    open_at_source(house, "c1", "lossy")
    assert len(house.hub) == 2
    house.streams.plugin_changed(house.asker)
    assert len(house.hub) == 2
    house.asker.die()
    house.streams.plugin_changed(house.asker)
    assert len(house.hub) == len(house.events) == 0
    assert [one.params for one in house.source.received if one.method == "stream.stop"] == [{"stream_id": "c1"}]


def test_a_stream_that_opens_when_its_plugin_is_down_is_given_back(rig: Rig) -> None:
    """Its wire may live for a while, but nobody would end the stream any more."""
    house = House(rig, requires=("context.live@1",))
    house.ask("stream.subscribe", method="context.live")
    house.asker.status = "backoff"
    house.streams.plugin_changed(house.asker)
    open_at_source(house, "c1", "lossy")
    assert codes(house.answers()) == [(1, ErrorCode.PLUGIN_FAILED)]
    assert len(house.hub) == 0
    assert [one.params for one in house.source.received if one.method == "stream.stop"] == [{"stream_id": "c1"}]


def test_items_and_ends_of_streams_come_through_the_door(rig: Rig) -> None:
    """The asker's wire is that of a source here: what it sends in any spelling reaches whoever subscribed."""
    house = House(rig)
    got: list[Any] = []

    class Sink:
        def put(self, seq: int, item: Any) -> None:
            got.append((seq, json.loads(bytes(item))))

        def finish(self, reason: str) -> None:
            got.append(reason)

    def on_open(upstream: Any, _error: Any) -> None:
        upstream.sink = Sink()

    house.relay.open(house.asker, "context.live", Raw(b"{}"), "lossy", on_open)
    house.asker.answer(house.asker.received[-1], {"stream_id": "s", "mode": "lossy"})
    assert house.asker.peer is not None
    for number, fast in enumerate((True, False)):
        house.asker.peer.on_item = (
            (lambda method, item: house.host.on_item(house.asker, method, item)) if fast else None
        )
        house.remote.send(
            {"method": "context.live", "params": {"stream_id": "s", "seq": number, "data": {"n": number}}},
            {"method": "some.announcement", "params": {"x": 1}},
        )
        house.rig.settle()
    house.remote.send({"method": "stream.closed", "params": {"stream_id": "s", "reason": "end"}})
    house.rig.settle()
    assert got == [(0, {"n": 0}), (1, {"n": 1}), "end"]
