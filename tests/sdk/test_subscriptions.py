"""Tests of subscribing to streams of others: order, acknowledgements, gaps, and every way in which one ends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from utter_protocol.errors import ErrorCode, RpcError
from utter_sdk.subscriptions import MAX_QUEUED

if TYPE_CHECKING:
    from collections.abc import Callable

    from utter_sdk.testing import PluginProcess

    RunPlugin = Callable[..., PluginProcess]

WATCH = """
import asyncio

@plugin.method("watch", blocking=True)
def watch(params: dict) -> dict:
    seen = []
    with plugin.subscribe("runner.events", params.get("params"), mode=params.get("mode")) as events:
        for event in events:
            plugin.notify("saw", {"event": event})
            seen.append(event)
            if event == "enough":
                break
    return {"seen": seen, "mode": events.mode, "missed": events.missed, "closed": events.closed}

@plugin.method("watch_async")
async def watch_async(params: dict) -> dict:
    seen = []
    async with plugin.subscribe("runner.events", params.get("params"), mode=params.get("mode")) as events:
        async for event in events:
            plugin.notify("saw", {"event": event})
            seen.append(event)
            if event == "enough":
                break
    return {"seen": seen, "mode": events.mode, "missed": events.missed, "closed": events.closed}
"""
BOTH = pytest.mark.parametrize("method", ["watch", "watch_async"])


@BOTH
def test_items_come_in_order_and_the_end_ends_the_loop(run_plugin: RunPlugin, method: str) -> None:
    process = run_plugin(WATCH)
    events = process.offer("runner.events")
    pending = process.send(method, {"params": {"from": 3}})
    events.wait_subscribed()
    assert events.params == [{"from": 3}]
    for n in range(100):
        events.send(n)
    events.close()
    assert pending.result() == {"seen": list(range(100)), "mode": "lossy", "missed": 0, "closed": True}
    assert events.acknowledged == {}
    assert events.stopped == []
    assert process.stderr == ""


@BOTH
def test_reliable_items_are_acknowledged_when_they_are_taken(run_plugin: RunPlugin, method: str) -> None:
    process = run_plugin(WATCH)
    events = process.offer("runner.events")
    pending = process.send(method, {"mode": "reliable"})
    events.wait_subscribed()
    for n in range(5):
        events.send(n)
        events.wait_acknowledged(n)
    events.close()
    assert pending.result()["mode"] == "reliable"


@BOTH
def test_gaps_are_counted(run_plugin: RunPlugin, method: str) -> None:
    process = run_plugin(WATCH)
    events = process.offer("runner.events")
    pending = process.send(method, {})
    events.wait_subscribed()
    # What was dropped before the first item cannot be told from a stream that does not begin at 0.
    events.send("a", skip=7)
    events.send("b", skip=2)
    events.send("c")
    events.send("d", skip=1)
    events.close()
    assert pending.result() == {"seen": ["a", "b", "c", "d"], "mode": "lossy", "missed": 3, "closed": True}


@BOTH
def test_leaving_the_block_stops_the_stream(run_plugin: RunPlugin, method: str) -> None:
    process = run_plugin(WATCH)
    events = process.offer("runner.events")
    for _ in range(2):
        pending = process.send(method, {})
        events.wait_subscribed()
        events.send("enough")
        assert pending.result()["seen"] == ["enough"]
        events.wait_stopped()
    assert len(events.stopped) == 2


@BOTH
def test_a_stream_that_is_given_up_raises_the_reason(run_plugin: RunPlugin, method: str) -> None:
    process = run_plugin(WATCH)
    events = process.offer("runner.events")
    pending = process.send(method, {})
    events.wait_subscribed()
    events.send(1)
    events.close("the lamp went away")
    with pytest.raises(RpcError, match="StreamClosed: the lamp went away"):
        pending.result()
    assert process.notification("saw") == {"event": 1}


@BOTH
def test_a_refusal_is_raised(run_plugin: RunPlugin, method: str) -> None:
    process = run_plugin(WATCH)

    def refuse(params: Any) -> None:
        raise RpcError(ErrorCode.NOT_PERMITTED, "Not this stream.", {"method": params["method"]})

    process.on_host("stream.subscribe", refuse)
    with pytest.raises(RpcError) as caught:
        process.call(method, {})
    assert (caught.value.code, caught.value.data) == (ErrorCode.NOT_PERMITTED, {"method": "runner.events"})
    process.on_host("stream.subscribe", lambda _: {"stream": 3})
    with pytest.raises(RpcError, match=r"runner\.events: stream\.subscribe: Object missing required field"):
        process.call(method, {})


@BOTH
def test_cancelling_a_handler_that_waits_stops_its_subscription(run_plugin: RunPlugin, method: str) -> None:
    process = run_plugin(WATCH)
    events = process.offer("runner.events")
    pending = process.send(method, {})
    events.wait_subscribed()
    events.send(1)
    process.notification("saw")
    pending.cancel()
    with pytest.raises(RpcError) as caught:
        pending.result()
    assert caught.value.code == ErrorCode.CANCELLED
    events.wait_stopped()
    # What was on its way is nothing to complain about.
    process.notify("runner.events", {"stream_id": events.stopped[0], "seq": 1, "data": 2})
    assert process.call("plugin.health")["status"] == "ok"
    assert process.stderr == ""


@BOTH
def test_cancelling_before_the_subscription_is_answered_stops_it_afterwards(run_plugin: RunPlugin, method: str) -> None:
    process = run_plugin(WATCH)
    process.hold_host("stream.subscribe")
    process.hold_host("stream.stop")
    pending = process.send(method, {})
    asked = process.asked("stream.subscribe")
    pending.cancel()
    with pytest.raises(RpcError, match="cancelled"):
        pending.result()
    asked.answer({"stream_id": "s", "mode": "lossy"})
    stop = process.asked("stream.stop")
    assert stop.params == {"stream_id": "s"}
    stop.answer({})
    assert process.call("plugin.health")["status"] == "ok"


def test_items_that_follow_the_answer_at_once_are_not_lost(run_plugin: RunPlugin) -> None:
    process = run_plugin(WATCH)
    process.hold_host("stream.subscribe")
    pending = process.send("watch", {})
    process.asked("stream.subscribe").answer({"stream_id": "s", "mode": "lossy"})
    for n in range(3):
        process.notify("runner.events", {"stream_id": "s", "seq": n, "data": n})
    process.notify("stream.closed", {"stream_id": "s", "reason": "end"})
    assert pending.result()["seen"] == [0, 1, 2]


def test_getting_with_a_timeout(run_plugin: RunPlugin) -> None:
    process = run_plugin(
        """
        @plugin.method("get", blocking=True)
        def get() -> Any:
            events = plugin.subscribe("runner.events")
            try:
                events.get(0.001)
            except TimeoutError as error:
                plugin.notify("nothing", {"text": str(error)})
            first = events.get()
            events.close()
            events.close()
            try:
                events.get()
            except StreamClosed as closed:
                return [first, closed.reason]
        """
    )
    events = process.offer("runner.events")
    pending = process.send("get")
    assert process.notification("nothing") == {"text": "runner.events: nothing came within 0.001 s"}
    events.wait_subscribed()
    events.send({"n": 1})
    assert pending.result() == [{"n": 1}, "this plugin has closed the subscription"]
    events.wait_stopped()


def test_waiting_where_it_would_wait_for_itself_is_a_mistake_that_says_so(run_plugin: RunPlugin) -> None:
    process = run_plugin(
        """
        @plugin.method("inline")
        def inline() -> None:
            next(plugin.subscribe("runner.events"))
        """
    )
    process.offer("runner.events")
    with pytest.raises(RpcError, match=r"runner\.events: get\(\): the answer arrives on this thread"):
        process.call("inline")


def test_a_forgotten_subscription_is_stopped_at_its_next_item(run_plugin: RunPlugin) -> None:
    process = run_plugin(
        """
        import gc

        @plugin.method("forget", blocking=True)
        def forget() -> None:
            events = plugin.subscribe("runner.events")
            events.get()
            del events
            gc.collect()
        """
    )
    events = process.offer("runner.events")
    pending = process.send("forget")
    events.wait_subscribed()
    events.send(1)
    pending.result()
    assert events.stopped == []
    events.send(2)
    events.wait_stopped()


def test_a_plugin_that_does_not_take_its_items_keeps_the_newest(run_plugin: RunPlugin) -> None:
    process = run_plugin(
        """
        kept = []

        @plugin.method("subscribe")
        def subscribe() -> None:
            kept.append(plugin.subscribe("runner.events"))

        @plugin.method("first", blocking=True)
        def first() -> Any:
            return [kept[0].get(), kept[0].get(), kept[0].missed]
        """
    )
    events = process.offer("runner.events")
    process.call("subscribe")
    events.wait_subscribed()
    for n in range(MAX_QUEUED + 5):
        events.send(n)
    assert process.call("first") == [5, 6, 0]


def test_two_subscriptions_do_not_mix(run_plugin: RunPlugin) -> None:
    process = run_plugin(
        """
        @plugin.method("both", blocking=True)
        def both() -> Any:
            with plugin.subscribe("a.stream", plugin="one") as a, plugin.subscribe("b.stream") as b:
                return [[b.get(), b.get()], [a.get(), a.get()]]
        """
    )
    a, b = process.offer("a.stream"), process.offer("b.stream", "reliable")
    pending = process.send("both")
    a.wait_subscribed()
    b.wait_subscribed()
    for n in range(2):
        a.send(f"a{n}")
        b.send(f"b{n}")
    assert pending.result() == [["b0", "b1"], ["a0", "a1"]]


def test_a_notification_of_the_same_name_still_arrives(run_plugin: RunPlugin) -> None:
    process = run_plugin(
        """
        kept = []

        @plugin.notification("lamp.changed")
        def changed(params: dict) -> None:
            plugin.notify("told", params)

        @plugin.method("subscribe")
        def subscribe() -> None:
            kept.append(plugin.subscribe("lamp.changed"))

        @plugin.method("get", blocking=True)
        def get() -> Any:
            return kept[0].get()
        """
    )
    lamp = process.offer("lamp.changed")
    process.call("subscribe")
    lamp.wait_subscribed()
    lamp.send("item")
    process.notify("lamp.changed", {"n": 1})
    process.notify("lamp.changed", {"stream_id": "another", "seq": 0, "data": 2})
    assert process.notification("told") == {"n": 1}
    assert process.notification("told") == {"stream_id": "another", "seq": 0, "data": 2}
    assert process.call("get") == "item"
