"""Tests of the streams that a plugin offers: credit, order, the end, and who ends them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from utter_protocol.errors import ErrorCode, RpcError

if TYPE_CHECKING:
    from collections.abc import Callable

    from utter_sdk.testing import PluginProcess

    RunPlugin = Callable[..., PluginProcess]

COUNTER = """
from utter_sdk import AsyncStream, Stream, StreamClosed

class Count(msgspec.Struct):
    to: int

@plugin.stream("count")
def count(params: Count, stream: Stream) -> None:
    for n in range(params.to):
        stream.send({"n": n})

@plugin.stream("count_async", mode="reliable")
async def count_async(params: Count, stream: AsyncStream) -> None:
    for n in range(params.to):
        await stream.send({"n": n})
"""


def opened(process: PluginProcess, method: str, **more: Any) -> Any:
    return process.call("stream.subscribe", {"method": method, **more})


@pytest.mark.parametrize("method", ["count", "count_async"])
def test_items_come_in_order_and_the_end_is_told(run_plugin: RunPlugin, method: str) -> None:
    process = run_plugin(COUNTER)
    assert {"stream.subscribe", "stream.ack", "stream.stop"} < set(process.description.methods)
    assert process.description.streams == ["count", "count_async"]
    answer = opened(process, method, params={"to": 3}, mode="lossy")
    assert answer["mode"] == "lossy"
    for n in range(3):
        assert process.notification(method) == {"stream_id": answer["stream_id"], "seq": n, "data": {"n": n}}
    assert process.notification("stream.closed") == {"stream_id": answer["stream_id"], "reason": "end"}


@pytest.mark.parametrize("method", ["count", "count_async"])
def test_a_reliable_stream_waits_for_credit(run_plugin: RunPlugin, method: str) -> None:
    process = run_plugin(COUNTER)
    stream_id = opened(process, method, params={"to": 6}, mode="reliable", window=2)["stream_id"]
    assert [process.notification(method)["seq"] for _ in range(2)] == [0, 1]
    with pytest.raises(TimeoutError):
        process.notification(method, 0.05)
    process.notify("stream.ack", {"stream_id": stream_id, "seq": 99})
    assert process.call("stream.ack", {"stream_id": stream_id, "seq": 0}) == {}
    assert process.notification(method)["seq"] == 2
    with pytest.raises(TimeoutError):
        process.notification(method, 0.05)
    process.notify("stream.ack", {"stream_id": stream_id, "seq": 2})
    assert [process.notification(method)["seq"] for _ in range(2)] == [3, 4]
    process.notify("stream.ack", {"stream_id": stream_id, "seq": 4})
    assert process.notification(method)["seq"] == 5
    assert process.notification("stream.closed")["reason"] == "end"


def test_an_unknown_stream_and_wrong_params_are_refused(run_plugin: RunPlugin) -> None:
    process = run_plugin(COUNTER)
    for params, code, data in (
        ({"method": "nothing"}, ErrorCode.METHOD_NOT_FOUND, {"method": "nothing"}),
        ({"method": "count", "params": {"to": "x"}}, ErrorCode.INVALID_PARAMS, {"field": "params.to"}),
        ({"method": "count", "params": {"to": 1}, "window": 0}, ErrorCode.INVALID_PARAMS, {"field": "window"}),
        ({"method": "count", "params": {"to": 1}, "mode": "safe"}, ErrorCode.INVALID_PARAMS, {"field": "mode"}),
    ):
        with pytest.raises(RpcError) as caught:
            process.call("stream.subscribe", params)
        assert (caught.value.code, caught.value.data) == (code, data)
