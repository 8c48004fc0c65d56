"""`stream.*` of clients: from the request over the socket to the plugin, and the items back."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
from msgspec import Raw

from support.clients import Client, House, house, settle
from support.streams import source
from utter_protocol.errors import ErrorCode, RpcError
from utter_runner.dataplane.hub import MAX_STREAMS_PER_PEER
from utter_runner.supervision.fake import FakeInstance


def ticker(plugin: str = "clock", *streams: str, **options: Any) -> FakeInstance:
    """A plugin that opens whatever it is asked for: s1, s2 and so on."""
    ids = count(1)
    answers = {
        "stream.subscribe": lambda params: {"stream_id": f"s{next(ids)}", "mode": params.get("mode", "lossy")},
        "stream.stop": {},
    }
    return source(plugin, *streams, answers=answers, **options)


def send(made: House, plugin: FakeInstance, stream_id: str, *seqs: int, method: str = "tick") -> None:
    for seq in seqs:
        params = Raw(msgspec.json.encode({"stream_id": stream_id, "seq": seq, "data": {"n": seq}}))
        made.relay.on_notification(plugin, method, params)


async def opened(client: Client, method: str = "tick", **more: Any) -> str:
    stream_id: str = (await client.call("stream.subscribe", {"method": method, **more}))["stream_id"]
    return stream_id


def got(client: Client, stream_id: str) -> list[tuple[int, Any]]:
    return [
        (one["params"]["seq"], one["params"]["data"])
        for one in client.notifications
        if one["method"] == "tick" and one["params"]["stream_id"] == stream_id
    ]


def ends(client: Client) -> list[dict[str, Any]]:
    return [one["params"] for one in client.notifications if one["method"] == "stream.closed"]


def stops(plugin: FakeInstance) -> list[str]:
    return [one.params["stream_id"] for one in plugin.received if one.method == "stream.stop"]


async def test_a_client_gets_a_plugins_items_under_an_id_of_its_own(tmp_path: Path) -> None:
    plugin = ticker()
    async with house(tmp_path, others=(plugin,)) as made:
        client = await made.client()
        answer = await client.call(
            "stream.subscribe", {"method": "tick", "params": {"every_ms": 5}, "mode": "reliable"}
        )
        assert answer["mode"] == "reliable"
        assert answer["stream_id"] != "s1"
        asked = plugin.received[0].params
        assert asked == {"method": "tick", "params": {"every_ms": 5}, "mode": "reliable", "window": 64}
        send(made, plugin, "s1", 0, 1)
        await settle()
        assert got(client, answer["stream_id"]) == [(0, {"n": 0}), (1, {"n": 1})]
        for seq in range(16):
            send(made, plugin, "s1", seq + 2)
        await settle()
        await client.notify("stream.ack", {"stream_id": answer["stream_id"], "seq": 17})
        await settle()
        assert plugin.notified == [("stream.ack", {"stream_id": "s1", "seq": 17})]
        assert await client.call("stream.ack", {"stream_id": answer["stream_id"], "seq": 17}) == {}


async def test_the_answer_comes_before_items_that_come_with_it(tmp_path: Path) -> None:
    plugin = source("clock")
    async with house(tmp_path, others=(plugin,)) as made:
        client = await made.client()
        seen: list[str] = []
        take = client._take

        def note(message: dict[str, Any]) -> None:
            seen.append(message.get("method", "answer"))
            take(message)

        client._take = note
        request = await client.send("stream.subscribe", {"method": "tick"})
        await settle()
        # The plugin writes its answer and two items in one go.
        plugin.answer(plugin.received[-1], {"stream_id": "x", "mode": "lossy"})
        send(made, plugin, "x", 0, 1)
        await client.result(request)
        await settle()
    assert seen == ["answer", "tick", "tick"]


async def test_stopping_is_idempotent_and_reaches_the_plugin_once(tmp_path: Path) -> None:
    plugin = ticker()
    async with house(tmp_path, others=(plugin,)) as made:
        client = await made.client()
        stream_id = await opened(client)
        for _ in range(3):
            assert await client.call("stream.stop", {"stream_id": stream_id}) == {}
        send(made, plugin, "s1", 0)
        await settle()
        assert (stops(plugin), got(client, stream_id), ends(client)) == (["s1"], [], [])


async def test_a_client_that_vanishes_stops_its_streams_at_the_plugin(tmp_path: Path) -> None:
    plugin = ticker()
    async with house(tmp_path, others=(plugin,)) as made:
        client, other = await made.client(), await made.client()
        await opened(client)
        await opened(client, mode="reliable")
        stays = await opened(other)
        await client.stream.aclose()
        await settle()
        assert sorted(stops(plugin)) == ["s1", "s2"]
        send(made, plugin, "s3", 0)
        await settle()
        assert got(other, stays) == [(0, {"n": 0})]


@pytest.mark.parametrize("how", ["cancel", "vanish"])
async def test_a_subscribe_that_is_given_up_is_cancelled_at_the_plugin(tmp_path: Path, how: str) -> None:
    plugin = source("clock")
    async with house(tmp_path, others=(plugin,)) as made:
        client = await made.client()
        request = await client.send("stream.subscribe", {"method": "tick"})
        await settle()
        if how == "cancel":
            await client.notify("$/cancel", {"id": request})
            with pytest.raises(RpcError) as error:
                await client.result(request)
            assert error.value.code == ErrorCode.CANCELLED
        else:
            await client.stream.aclose()
        await settle()
        assert plugin.received[0].cancelled
        # It was opened all the same.
        send(made, plugin, "left open", 0, 1)
        assert stops(plugin) == ["left open"]
        assert len(made.hub) == 0


async def test_a_plugin_that_refuses_is_passed_on(tmp_path: Path) -> None:
    refusal = RpcError(ErrorCode.INVALID_PARAMS, "there is no voice 'x'", {"field": "voice"})
    async with house(tmp_path, others=(source("clock", answers={"stream.subscribe": refusal}),)) as made:
        client = await made.client()
        error = await client.error("stream.subscribe", {"method": "tick", "params": {"voice": "x"}})
        assert (error.code, error.data) == (ErrorCode.INVALID_PARAMS, {"field": "voice"})
        assert len(made.hub) == 0


async def test_what_cannot_be_subscribed_to_says_why(tmp_path: Path) -> None:
    plugin = ticker("clock", "tick", "input.keys")
    async with house(tmp_path, others=(plugin,)) as made:
        client = await made.client()
        for params, code in (
            ({"method": "no.such"}, ErrorCode.METHOD_NOT_FOUND),
            ({"method": "tick", "plugin": "desktop"}, ErrorCode.METHOD_NOT_FOUND),
            ({"method": "tick", "plugin": "nobody"}, ErrorCode.CAPABILITY_MISSING),
            ({"method": "input.keys"}, ErrorCode.NOT_PERMITTED),
            ({"method": "tick", "params": [1]}, ErrorCode.INVALID_PARAMS),
            ({"method": "tick", "mode": "best"}, ErrorCode.INVALID_PARAMS),
            ({}, ErrorCode.INVALID_PARAMS),
        ):
            assert (await client.error("stream.subscribe", params)).code == code, params
        plugin.die("failed", "no such program")
        made.relay.plugin_changed(plugin)
        error = await client.error("stream.subscribe", {"method": "tick"})
        assert (error.code, error.data["plugin"]) == (ErrorCode.PLUGIN_FAILED, "clock")
        assert plugin.received == []
    for method in ("stream.subscribe", "stream.stop", "stream.ack"):
        async with house(tmp_path / method, others=(ticker(),)) as made:
            client = await made.client()
            error = await client.error("runner.invoke", {"plugin": "clock", "method": method, "params": {}})
            assert error.code == ErrorCode.NOT_PERMITTED


async def test_plugin_chooses_among_several(tmp_path: Path) -> None:
    first, second = ticker("first"), ticker("second")
    async with house(tmp_path, others=(first, second)) as made:
        client = await made.client()
        await opened(client)
        await opened(client, plugin="second")
        assert [len(one.received) for one in (first, second)] == [1, 1]


async def test_all_streams_of_a_connection_count(tmp_path: Path) -> None:
    plugin = source("clock")
    async with house(tmp_path, others=(plugin,)) as made:
        client = await made.client()
        for _ in range(MAX_STREAMS_PER_PEER - 1):
            await client.subscribe()
        # Two are asked for while there is room for one.
        requests = [await client.send("stream.subscribe", {"method": "tick"}) for _ in range(2)]
        await settle()
        for number, asked in enumerate([*plugin.received]):
            plugin.answer(asked, {"stream_id": f"s{number}", "mode": "lossy"})
        await client.result(requests[0])
        with pytest.raises(RpcError) as error:
            await client.result(requests[1])
        assert error.value.data == {"bound": "max_streams", "limit": MAX_STREAMS_PER_PEER}
        # What the plugin opened for nothing is stopped.
        assert stops(plugin) == ["s1"]
        asked_before = len(plugin.received)
        assert (await client.error("stream.subscribe", {"method": "tick"})).data == error.value.data
        assert len(plugin.received) == asked_before


async def test_the_end_of_a_plugin_is_the_end_of_its_streams(tmp_path: Path) -> None:
    plugin = ticker()
    async with house(tmp_path, others=(plugin,)) as made:
        client = await made.client()
        stream_id, events = await opened(client), await client.subscribe()
        send(made, plugin, "s1", 0)
        plugin.die("backoff", "killed by SIGKILL")
        made.relay.plugin_changed(plugin)
        await settle()
        assert ends(client) == [{"stream_id": stream_id, "reason": "clock went away: killed by SIGKILL"}]
        assert got(client, stream_id) == [(0, {"n": 0})]
        plugin.start()
        made.relay.plugin_changed(plugin)
        again = await opened(client)
        send(made, plugin, "s2", 0)
        made.emit({"event": "warning", "text": "x"})
        await settle()
        assert got(client, again) == [(0, {"n": 0})]
        assert len(client.items(events)) == 2


async def test_what_a_plugin_emits_reaches_all_who_subscribed(tmp_path: Path) -> None:
    plugin = source("clock", asked=False)
    async with house(tmp_path, others=(plugin,)) as made:
        client, other = await made.client(), await made.client()
        one = await opened(client)
        assert made.relay.emit(plugin, "tick", Raw(b"1")) == 1
        two, three = await opened(other), await opened(other, mode="reliable")
        assert made.relay.emit(plugin, "tick", Raw(b"2")) == 3
        await settle()
        assert got(client, one) == [(0, 1), (1, 2)]
        assert got(other, two) == got(other, three) == [(0, 2)]
        await client.stream.aclose()
        await settle()
        assert made.relay.emit(plugin, "tick", Raw(b"3")) == 2


async def test_a_deaf_client_costs_a_plugins_stream_its_own_items_only(tmp_path: Path) -> None:
    plugin = ticker()
    async with house(tmp_path, others=(plugin,), queue=8) as made:
        deaf, quick = await made.client(deaf=True), await made.client()
        await deaf.send("stream.subscribe", {"method": "tick"})
        await settle()
        stream_id = await opened(quick)
        padding = "x" * 4000
        for seq in range(400):
            for upstream in ("s1", "s2"):
                params = {"stream_id": upstream, "seq": seq, "data": {"n": seq, "padding": padding}}
                made.relay.on_notification(plugin, "tick", Raw(msgspec.json.encode(params)))
            await settle()
        assert [seq for seq, _ in got(quick, stream_id)] == list(range(400))
        (waiting,) = [
            stream for one in made.hub._subscribers.values() for stream in one.streams.values() if stream.held
        ]
        assert waiting.held == 8
        assert stops(plugin) == []
        await deaf.stream.aclose()
        with trio.fail_after(5):
            while not stops(plugin):
                await settle()
        assert stops(plugin) == ["s1"]
