"""Tests of the streams that a plugin offers: credit, order, the end, and who ends them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from utter_protocol.errors import ErrorCode, RpcError
from utter_protocol.framing import MAX_FRAME
from utter_sdk import Plugin, Stream
from utter_sdk.streams import MAX_STREAMS

if TYPE_CHECKING:
    from collections.abc import Callable

    from utter_sdk.testing import PluginProcess

    RunPlugin = Callable[..., PluginProcess]

COUNTER = """
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
BOTH = pytest.mark.parametrize("method", ["count", "count_async"])


def refusal(process: PluginProcess, method: str, params: Any = None) -> RpcError:
    with pytest.raises(RpcError) as caught:
        process.call(method, params)
    return caught.value


@BOTH
def test_items_come_in_order_and_the_end_is_told(run_plugin: RunPlugin, method: str) -> None:
    process = run_plugin(COUNTER)
    assert {"stream.subscribe", "stream.ack", "stream.stop"} < set(process.description.methods)
    assert process.description.streams == ["count", "count_async"]
    answer = process.call("stream.subscribe", {"method": method, "params": {"to": 3}, "mode": "lossy"})
    assert answer["mode"] == "lossy"
    for n in range(3):
        assert process.notification(method) == {"stream_id": answer["stream_id"], "seq": n, "data": {"n": n}}
    assert process.notification("stream.closed") == {"stream_id": answer["stream_id"], "reason": "end"}


def test_the_mode_is_the_streams_unless_the_subscriber_says(run_plugin: RunPlugin) -> None:
    process = run_plugin(COUNTER)
    assert process.subscribe("count", {"to": 0}).mode == "lossy"
    assert process.subscribe("count", {"to": 0}, mode="reliable").mode == "reliable"
    assert process.subscribe("count_async", {"to": 0}).mode == "reliable"


@BOTH
def test_a_reliable_stream_waits_for_credit(run_plugin: RunPlugin, method: str) -> None:
    process = run_plugin(COUNTER)
    stream = process.subscribe(method, {"to": 6}, mode="reliable", window=2, acks=False)

    assert [stream.next_item().seq for _ in range(2)] == [0, 1]
    # What was never sent acknowledges nothing.
    stream.acknowledge(99)
    with pytest.raises(TimeoutError):
        stream.get(0.05)
    assert process.call("stream.ack", {"stream_id": stream.stream_id, "seq": 0}) == {}
    assert stream.next_item().seq == 2
    with pytest.raises(TimeoutError):
        stream.get(0.05)
    stream.acknowledge(2)
    stream.acknowledge(1)
    assert [stream.next_item().seq for _ in range(2)] == [3, 4]
    stream.acknowledge(4)
    assert list(stream) == [{"n": 5}]
    assert stream.reason == "end"


@BOTH
def test_a_lossy_stream_waits_for_nothing(run_plugin: RunPlugin, method: str) -> None:
    stream = run_plugin(COUNTER).subscribe(method, {"to": 500}, mode="lossy", window=2)
    assert [item["n"] for item in stream] == list(range(500))
    assert stream.reason == "end"


@BOTH
def test_every_item_arrives_however_small_the_window(run_plugin: RunPlugin, method: str) -> None:
    process = run_plugin(COUNTER)
    streams = [process.subscribe(method, {"to": 200}, mode="reliable", window=window) for window in (1, 2, 7, 64)]
    for stream in streams:
        assert [item["n"] for item in stream] == list(range(200))


def test_what_cannot_be_opened_is_refused(run_plugin: RunPlugin) -> None:
    process = run_plugin(COUNTER, handshake=False)
    assert refusal(process, "stream.subscribe", {"method": "count"}).code == ErrorCode.INVALID_REQUEST
    process.shake_hands()
    for params, code, data in (
        ({"method": "nothing"}, ErrorCode.METHOD_NOT_FOUND, {"method": "nothing"}),
        ({"method": "count", "params": {"to": "x"}}, ErrorCode.INVALID_PARAMS, {"field": "params.to"}),
        ({"method": "count"}, ErrorCode.INVALID_PARAMS, {"field": "params.to"}),
        ({"method": "count", "params": {"to": 1}, "window": 0}, ErrorCode.INVALID_PARAMS, {"field": "window"}),
        ({"method": "count", "params": {"to": 1}, "mode": "safe"}, ErrorCode.INVALID_PARAMS, {"field": "mode"}),
        ({}, ErrorCode.INVALID_PARAMS, {"field": "method"}),
    ):
        error = refusal(process, "stream.subscribe", params)
        assert (error.code, error.data) == (code, data)
    assert process.call("plugin.health")["status"] == "ok"


def test_a_plugin_without_streams_has_no_such_methods(run_plugin: RunPlugin) -> None:
    process = run_plugin()
    assert not any(method.startswith("stream.") for method in process.description.methods)
    for method in ("stream.subscribe", "stream.ack", "stream.stop"):
        assert refusal(process, method, {"method": "x"}).code == ErrorCode.METHOD_NOT_FOUND
    process.notify("stream.ack", {"stream_id": "x", "seq": 1})
    assert process.call("plugin.health")["status"] == "ok"


def test_stopping_what_is_not_there_is_nothing(run_plugin: RunPlugin) -> None:
    process = run_plugin(COUNTER)
    assert process.call("stream.stop", {"stream_id": "x"}) == {}
    assert process.call("stream.ack", {"stream_id": "x", "seq": 3}) == {}
    assert process.call("plugin.health")["status"] == "ok"


STOPPED = """
@plugin.stream("blocked", mode="reliable")
def blocked(params: dict, stream: Stream) -> None:
    plugin.on_cancel(lambda: plugin.notify("callback"))
    try:
        while True:
            stream.send({})
    except StreamClosed as closed:
        plugin.notify("ended", {"why": closed.reason, "closed": stream.closed, "cancelled": plugin.cancelled()})
        raise

@plugin.stream("blocked_async", mode="reliable")
async def blocked_async(params: dict, stream: AsyncStream) -> None:
    plugin.on_cancel(lambda: plugin.notify("callback"))
    try:
        while True:
            await stream.send({})
    except StreamClosed as closed:
        plugin.notify("ended", {"why": closed.reason, "closed": stream.closed, "cancelled": plugin.cancelled()})
        raise

@plugin.stream("sleeping")
async def sleeping(params: dict, stream: AsyncStream) -> None:
    import asyncio
    await stream.send({})
    plugin.notify("waiting")
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        plugin.notify("ended", {"why": "cancelled", "closed": stream.closed, "cancelled": plugin.cancelled()})
        raise
"""


@pytest.mark.parametrize("method", ["blocked", "blocked_async"])
def test_stopping_ends_a_send_that_waits(run_plugin: RunPlugin, method: str) -> None:
    process = run_plugin(STOPPED)
    stream = process.subscribe(method, window=2, acks=False)
    stream.get()
    stream.get()
    stream.stop()
    stream.stop()
    process.notification("callback")
    why = "the subscriber has stopped the stream"
    assert process.notification("ended") == {"why": why, "closed": True, "cancelled": True}
    with pytest.raises(TimeoutError):
        process.notification("stream.closed", 0.05)
    assert stream.reason is None
    assert process.stderr == ""


def test_stopping_cancels_an_async_handler_that_waits_for_something_else(run_plugin: RunPlugin) -> None:
    process = run_plugin(STOPPED)
    stream = process.subscribe("sleeping")
    stream.get()
    # An item may arrive before its `send` has returned.
    process.notification("waiting")
    stream.stop()
    assert process.notification("ended") == {"why": "cancelled", "closed": True, "cancelled": True}
    assert process.stderr == ""


def test_an_async_handler_that_only_sends_can_be_stopped(run_plugin: RunPlugin) -> None:
    process = run_plugin(
        """
        @plugin.stream("flood")
        async def flood(params: dict, stream: AsyncStream) -> None:
            while True:
                await stream.send({})

        @plugin.method("other")
        async def other() -> None: ...
        """
    )
    stream = process.subscribe("flood")
    stream.get()
    assert process.call("other") == {}
    stream.stop()
    assert process.call("other") == {}


def test_stop_may_be_a_notification(run_plugin: RunPlugin) -> None:
    process = run_plugin(STOPPED)
    stream = process.subscribe("blocked", window=1, acks=False)
    process.notify("stream.stop", {"stream_id": stream.stream_id})
    assert process.notification("ended")["closed"] is True


@pytest.mark.parametrize("how", ["def", "async def"])
def test_what_a_handler_raises_is_the_reason(run_plugin: RunPlugin, how: str) -> None:
    process = run_plugin(
        f"""
        RAISED = {{
            "value": ValueError("no such lamp"),
            "rpc": RpcError(ErrorCode.NOT_PERMITTED, "Not this lamp."),
            "other": StreamClosed("the other one"),
            "long": RpcError(ErrorCode.PLUGIN_FAILED, "x" * 1000),
        }}

        @plugin.stream("fail")
        {how} fail(params: dict, stream: {"AsyncStream" if "async" in how else "Stream"}) -> None:
            raise RAISED[params["how"]]
        """
    )
    for raised, reason in (
        ("value", "ValueError: no such lamp"),
        ("rpc", "Not this lamp."),
        ("other", "StreamClosed: the other one"),
        ("long", "x" * 300),
    ):
        assert process.subscribe("fail", {"how": raised}).wait_closed() == reason
    assert process.stderr.count("Traceback") == 1


@pytest.mark.parametrize("how", ["def", "async def"])
def test_a_stream_ends_with_its_handler(run_plugin: RunPlugin, how: str) -> None:
    send = "await kept[0].send(1)" if "async" in how else "kept[0].send(1)"
    process = run_plugin(
        f"""
        kept = []

        @plugin.stream("forgotten")
        {how} forgotten(params: dict, stream: {"AsyncStream" if "async" in how else "Stream"}) -> None:
            kept.append(stream)

        @plugin.method("use")
        {how} use() -> dict:
            try:
                {send}
            except StreamClosed as closed:
                return {{"why": closed.reason, "closed": kept[0].closed}}
        """
    )
    stream = process.subscribe("forgotten")
    assert list(stream) == []
    assert stream.reason == "end"
    why = "the stream has ended: its handler has returned"
    assert process.call("use") == {"why": why, "closed": True}


def test_a_sender_knows_its_stream(run_plugin: RunPlugin) -> None:
    process = run_plugin(
        """
        @plugin.stream("about")
        def about(params: dict, stream: Stream) -> None:
            stream.send([stream.method, stream.mode, stream.window, stream.stream_id, stream.closed])
        """
    )
    stream = process.subscribe("about", mode="reliable", window=9)
    assert stream.get() == ["about", "reliable", 9, stream.stream_id, False]


def test_ids_cannot_be_guessed(run_plugin: RunPlugin) -> None:
    process = run_plugin(COUNTER)
    ids = {process.subscribe("count", {"to": 0}).stream_id for _ in range(10)}
    assert len(ids) == 10
    assert {len(stream_id) for stream_id in ids} == {32}


def test_the_number_of_handlers_is_bounded_also_of_those_that_do_not_heed_the_stop(run_plugin: RunPlugin) -> None:
    process = run_plugin(
        """
        go = threading.Event()

        @plugin.stream("deaf")
        def deaf(params: dict, stream: Stream) -> None:
            go.wait()

        @plugin.method("go")
        def let_go() -> None:
            go.set()

        @plugin.method("threads")
        def threads() -> dict:
            return {"count": sum(thread.name == "utter-stream-deaf" for thread in threading.enumerate())}
        """
    )
    streams = [process.subscribe("deaf") for _ in range(MAX_STREAMS)]
    assert process.call("threads") == {"count": MAX_STREAMS}
    for stream in streams:
        stream.stop()
    error = refusal(process, "stream.subscribe", {"method": "deaf"})
    assert (error.code, error.data) == (ErrorCode.INVALID_REQUEST, {"bound": "max_streams", "limit": MAX_STREAMS})
    assert process.call("plugin.health")["status"] == "ok"
    process.call("go")
    # The last ones may still be returning.
    while process.call("threads")["count"] > 1:
        pass
    assert process.subscribe("deaf").wait_closed() == "end"


def test_many_threads_may_send_and_no_seq_is_missing(run_plugin: RunPlugin) -> None:
    process = run_plugin(
        """
        @plugin.stream("threads", mode="reliable")
        def from_threads(params: dict, stream: Stream) -> None:
            def send(thread: int) -> None:
                for n in range(50):
                    stream.send([thread, n])

            threads = [threading.Thread(target=send, args=(thread,)) for thread in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        """
    )
    stream = process.subscribe("threads", window=5)
    seen: dict[int, list[int]] = {}
    for expected in range(400):
        item = stream.next_item()
        assert item is not None
        assert item.seq == expected
        seen.setdefault(item.data[0], []).append(item.data[1])
    assert seen == {thread: list(range(50)) for thread in range(8)}
    assert stream.wait_closed() == "end"


def test_concurrent_async_sends_keep_their_order(run_plugin: RunPlugin) -> None:
    process = run_plugin(
        """
        @plugin.stream("tasks", mode="reliable")
        async def from_tasks(params: dict, stream: AsyncStream) -> None:
            import asyncio
            await asyncio.gather(*(stream.send(n) for n in range(100)))
        """
    )
    assert list(process.subscribe("tasks", window=3)) == list(range(100))


def test_an_item_that_is_too_large_is_refused_and_leaves_no_gap(run_plugin: RunPlugin) -> None:
    process = run_plugin(
        """
        @plugin.stream("sizes", mode="reliable")
        def sizes(params: dict, stream: Stream) -> None:
            stream.send(0)
            for size in params["sizes"]:
                try:
                    stream.send("x" * size)
                except ValueError as error:
                    stream.send(type(error).__name__)
        """
    )
    stream = process.subscribe("sizes", {"sizes": [MAX_FRAME, MAX_FRAME - 1000]})
    assert stream.get() == 0
    assert stream.get() == "FrameTooLargeError"
    item = stream.next_item(30)
    assert item is not None
    assert (item.seq, len(item.data)) == (2, MAX_FRAME - 1000)


def test_the_end_of_input_ends_a_plugin_with_open_streams(run_plugin: RunPlugin) -> None:
    process = run_plugin(STOPPED)
    for method in ("blocked", "blocked_async", "sleeping"):
        process.subscribe(method, acks=False).get()
    assert process.close() == 0


def test_the_callbacks_of_open_streams_are_called_at_the_end(run_plugin: RunPlugin) -> None:
    process = run_plugin(
        """
        @plugin.stream("program")
        def program(params: dict, stream: Stream) -> None:
            plugin.on_cancel(lambda: plugin.log("program killed"))
            stream.send({})
            threading.Event().wait()
        """
    )
    process.subscribe("program").get()
    assert process.close() == 0
    assert process.stderr == "program killed\n"


@pytest.mark.parametrize("how", ["def", "async def"])
def test_a_stream_handler_may_end_the_process(run_plugin: RunPlugin, how: str) -> None:
    process = run_plugin(
        f"""
        @plugin.stream("leave")
        {how} leave(params: dict, stream: {"AsyncStream" if "async" in how else "Stream"}) -> None:
            sys.exit(125)
        """
    )
    process.send("stream.subscribe", {"method": "leave"})
    assert process.wait() == 125


def test_sending_on_the_wrong_thread_is_a_mistake_that_says_so(run_plugin: RunPlugin) -> None:
    process = run_plugin(
        """
        kept = []
        there = threading.Event()

        @plugin.stream("kept", mode="reliable")
        def keep(params: dict, stream: Stream) -> None:
            kept.append(stream)
            stream.send(0)
            threading.Event().wait()

        @plugin.method("inline")
        def inline() -> None:
            kept[0].send(1)

        @plugin.method("on_loop")
        async def on_loop() -> None:
            kept[0].send(1)
        """
    )
    process.subscribe("kept", window=1, acks=False).get()
    assert "declare the handler with blocking=True" in refusal(process, "inline").message
    assert "in an `async def` handler use await" in refusal(process, "on_loop").message


def test_declaring() -> None:
    plugin = Plugin("tiny", version="1", kind="bundle", streams=["told", "count"])

    @plugin.stream("count", mode="reliable")
    def count(params: dict[str, Any], stream: Stream) -> int:
        stream.send(params)
        return 3

    assert plugin.describe().streams == ["count", "told"]
    with pytest.raises(ValueError, match="the stream count is declared already"):
        plugin.stream("count")(count)
    with pytest.raises(ValueError, match="a stream's mode is lossy or reliable, not 'safe'"):
        plugin.stream("x", mode="safe")  # type: ignore[arg-type]  # the mistake under test
    with pytest.raises(TypeError, match=r"x: a handler takes two arguments \(the params and the stream\), not 1"):
        plugin.stream("x")(lambda params: params)
    with pytest.raises(ValueError, match=r"stream\.subscribe is served already"):
        plugin.method("stream.subscribe")(lambda: None)
    with pytest.raises(ValueError, match=r"stream\.ack is taken already"):
        plugin.notification("stream.ack")(lambda: None)
    other = Plugin("tiny", version="1", kind="bundle")
    other.method("stream.subscribe")(lambda: None)
    with pytest.raises(ValueError, match=r"declare either streams or the methods stream\.\*"):
        other.stream("count")(count)
