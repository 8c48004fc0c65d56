"""The stream llm.delta: an answer in pieces, as the server writes it."""

from __future__ import annotations

import queue
import sys
from collections.abc import Callable
from typing import Any

import pytest

from support.llm_server import Exchange, LlmServer
from utter_plugins.llm.chat import MAX_EVENT
from utter_plugins.llm.server import MAX_ANSWER
from utter_sdk.testing import PluginProcess

ARGV = [sys.executable, "-P", "-m", "utter_plugins.llm"]


def plugin(server: LlmServer, **settings: Any) -> PluginProcess:
    return PluginProcess(ARGV, settings={"base_url": server.base_url, "model": "m", **settings})


def subscribe(process: PluginProcess, mode: str = "reliable", **more: Any) -> str:
    asked = {"method": "llm.delta", "params": {"prompt": "Tell"}, "mode": mode, **more}
    answer = process.call("stream.subscribe", asked)
    assert answer["mode"] == mode
    return str(answer["stream_id"])


def story(exchange: Exchange) -> None:
    exchange.start_stream()
    exchange.event({"choices": [{"delta": {"role": "assistant"}, "finish_reason": None}]})
    for text in ("Once", " upon", ""):
        exchange.piece(text)
    exchange.piece(" a time", finish="length")
    exchange.event({"choices": [], "usage": {"completion_tokens": 3}})
    exchange.event("[DONE]")
    exchange.end_stream()


def test_the_handshake_lists_it() -> None:
    with LlmServer(story) as server, plugin(server) as process:
        assert process.description.streams == ["llm.delta"]
        assert {"stream.subscribe", "stream.ack", "stream.stop"} <= set(process.description.methods)


@pytest.mark.parametrize("mode", ["lossy", "reliable"])
def test_the_pieces_come_in_order_and_the_last_one_says_why_it_ends(mode: str) -> None:
    with LlmServer(story) as server, plugin(server) as process:
        stream_id = subscribe(process, mode)
        items = [process.notification("llm.delta") for _ in range(4)]
        assert [item["data"] for item in items] == [
            {"text": "Once"},
            {"text": " upon"},
            {"text": " a time"},
            {"text": "", "finish": "length"},
        ]
        assert [(item["stream_id"], item["seq"]) for item in items] == [(stream_id, seq) for seq in range(4)]
        assert process.notification("stream.closed") == {"stream_id": stream_id, "reason": "end"}
        body = server.asked.get(timeout=5).body
    assert (body["stream"], body["messages"]) == (True, [{"role": "user", "content": "Tell"}])


def test_a_server_that_ends_without_done_but_with_a_reason() -> None:
    def answer(exchange: Exchange) -> None:
        exchange.start_stream()
        exchange.piece("Hi", finish="stop")
        exchange.end_stream()

    with LlmServer(answer) as server, plugin(server) as process:
        subscribe(process)
        assert [process.notification("llm.delta")["data"] for _ in range(2)] == [
            {"text": "Hi"},
            {"text": "", "finish": "stop"},
        ]
        assert process.notification("stream.closed")["reason"] == "end"


def stream_of(*chunks: bytes, end: bool = True) -> Callable[[Exchange], None]:
    def answer(exchange: Exchange) -> None:
        exchange.start_stream()
        exchange.piece("Hi")
        for chunk in chunks:
            exchange.chunk(chunk)
        if end:
            exchange.end_stream()
        exchange.hang_up()

    return answer


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (stream_of(), "broke off its answer (it ends in the middle)"),
        (stream_of(end=False), "broke off its answer ("),
        (stream_of(b"data: {broken\n\n"), "broke off its answer (it is not what the API has there"),
        (stream_of(b'data: {"error": {"message": "out of memory"}}\n\n'), "the server gave up: out of memory"),
        (stream_of(b"data: " + b"x" * (MAX_EVENT + 1)), f"is longer than {MAX_EVENT} bytes"),
        (stream_of(*[b": " + b"x" * 65536 + b"\n"] * (MAX_ANSWER // 65536 + 1)), f"is longer than {MAX_ANSWER} bytes"),
    ],
    ids=["ends", "hangs up", "broken", "error", "long event", "long answer"],
)
def test_what_goes_wrong_on_the_way_is_the_reason(answer: Callable[[Exchange], None], why: str) -> None:
    with LlmServer(answer) as server, plugin(server) as process:
        subscribe(process)
        assert process.notification("llm.delta")["data"] == {"text": "Hi"}
        assert why in process.notification("stream.closed")["reason"]
        server.chat = story
        subscribe(process)
        assert process.notification("llm.delta")["data"] == {"text": "Once"}


def test_a_refusal_is_the_reason_and_degrades_health() -> None:
    with LlmServer(lambda exchange: exchange.json({"error": "no"}, 401)) as server, plugin(server) as process:
        subscribe(process)
        assert "refuses the key (HTTP 401: no)" in process.notification("stream.closed")["reason"]
        assert process.call("plugin.health")["status"] == "degraded"


class Held:
    """A server that sends one piece and then waits for its client to go."""

    def __init__(self) -> None:
        self.gone: queue.SimpleQueue[bool] = queue.SimpleQueue()

    def __call__(self, exchange: Exchange) -> None:
        exchange.start_stream()
        exchange.piece("Hi")
        self.gone.put(exchange.wait_gone())


def test_stopping_closes_the_connection_and_nothing_more_comes() -> None:
    held = Held()
    with LlmServer(held) as server, plugin(server) as process:
        stream_id = subscribe(process)
        process.notification("llm.delta")
        assert process.call("stream.stop", {"stream_id": stream_id}) == {}
        assert held.gone.get(timeout=10) is True
        assert process.call("stream.stop", {"stream_id": stream_id}) == {}
        server.chat = story
        other = subscribe(process)
        assert process.notification("llm.delta")["stream_id"] == other


def test_a_piece_that_does_not_come_ends_the_stream() -> None:
    held = Held()
    with LlmServer(held) as server, plugin(server, timeout_s=1) as process:
        subscribe(process)
        assert "did not answer within 1 s" in process.notification("stream.closed")["reason"]
        assert held.gone.get(timeout=10) is True


def test_a_subscriber_that_is_behind_holds_up_its_own_stream_only() -> None:
    with LlmServer(story) as server, plugin(server) as process:
        slow = subscribe(process, window=1)
        assert process.notification("llm.delta")["data"] == {"text": "Once"}
        quick = subscribe(process)
        assert [process.notification("llm.delta")["stream_id"] for _ in range(4)] == [quick] * 4
        for seq, text in enumerate((" upon", " a time", "")):
            process.notify("stream.ack", {"stream_id": slow, "seq": seq})
            item = process.notification("llm.delta")
            assert (item["stream_id"], item["data"]["text"]) == (slow, text)
