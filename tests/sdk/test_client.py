"""Tests of the blocking client against scripted runners."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from utter_protocol.errors import ErrorCode, RpcError
from utter_protocol.framing import MAX_FRAME
from utter_sdk.client import MAX_QUEUED, Client, RunnerUnavailable, StreamClosed

# A FakeRunner of conftest.py, which importlib mode keeps from being imported here.
Runner = Any


def pong(runner: Runner) -> None:
    runner.send(id=runner.expect("ping")["id"], result={"pong": True})


def test_a_call_returns_its_result(runner: Runner) -> None:
    def script(runner: Runner) -> None:
        assert runner.receive() == {"jsonrpc": "2.0", "id": 1, "method": "runner.status", "params": {}}
        runner.send(id=1, result={"state": "ready"})
        assert runner.expect("runner.command")["params"] == {"utterance": "ü"}
        runner.send(id=2, result=None)

    runner.serve(script)
    with Client.connect(runner.path) as client:
        assert client.call("runner.status", timeout=5) == {"state": "ready"}
        assert client.call("runner.command", {"utterance": "ü"}) is None


def test_the_token_is_sent_first(runner: Runner) -> None:
    def script(runner: Runner) -> None:
        assert runner.expect("runner.auth")["params"] == {"token": "secret"}
        runner.send(id=1, result={"ok": True})
        pong(runner)

    runner.serve(script)
    with Client.connect(runner.path, "secret") as client:
        assert client.call("ping") == {"pong": True}


def test_a_refused_token_closes_the_connection(runner: Runner) -> None:
    def script(runner: Runner) -> None:
        runner.send(id=runner.expect("runner.auth")["id"], error={"code": -32003, "message": "wrong token"})
        with pytest.raises(EOFError):
            runner.receive()

    runner.serve(script)
    with pytest.raises(RpcError, match="wrong token"):
        Client.connect(runner.path, "wrong")


def test_answered_errors_are_raised(runner: Runner) -> None:
    def script(runner: Runner) -> None:
        runner.send(id=runner.expect("x")["id"], error={"code": -32006, "message": "no", "data": {"op": "input"}})

    runner.serve(script)
    with Client.connect(runner.path) as client, pytest.raises(RpcError) as caught:
        client.call("x")
    assert (caught.value.code, caught.value.message, caught.value.data) == (-32006, "no", {"op": "input"})


def test_a_call_without_an_answer_times_out_and_is_cancelled(runner: Runner) -> None:
    def script(runner: Runner) -> None:
        slow = runner.expect("runner.command")
        assert runner.expect("$/cancel")["params"] == {"id": slow["id"]}
        runner.send(id=slow["id"], error={"code": -32002, "message": "cancelled"})
        pong(runner)

    runner.serve(script)
    with Client.connect(runner.path) as client:
        with pytest.raises(TimeoutError, match=r"^runner\.command was not answered within 0\.01 s$"):
            client.call("runner.command", {}, timeout=0.01)
        assert client.call("ping") == {"pong": True}
        assert client._answers == {}


def test_answers_may_come_in_any_order(runner: Runner) -> None:
    def script(runner: Runner) -> None:
        outer = runner.expect("outer")
        runner.send(id="ask", method="host.confirm", params={})
        inner = runner.expect("inner")
        runner.send(id=outer["id"], result="outer")
        runner.send(id=inner["id"], result="inner")
        assert runner.receive()["result"] == {"inner": "inner"}

    runner.serve(script)
    with Client.connect(runner.path) as client:
        client.on_request("host.confirm", lambda _params: {"inner": client.call("inner")})
        assert client.call("outer") == "outer"


def test_the_runners_requests_are_served_while_waiting(runner: Runner) -> None:
    def script(runner: Runner) -> None:
        command = runner.expect("runner.command")
        for n, method in enumerate(("host.confirm", "host.refuse", "host.crash", "host.other")):
            runner.send(id=n, method=method, params={"text": "Open?"})
        answers = [runner.receive() for _ in range(4)]
        assert [answer["id"] for answer in answers] == [0, 1, 2, 3]
        assert answers[0]["result"] == {"approved": True, "text": "Open?"}
        assert answers[1]["error"] == {"code": -32003, "message": "not now"}
        assert answers[2]["error"] == {"code": -32603, "message": "ZeroDivisionError: division by zero"}
        assert answers[3]["error"] == {"code": -32601, "message": "this client does not serve host.other"}
        runner.send(id=command["id"], result={"results": []})

    def refuse(params: dict[str, Any]) -> dict[str, Any]:
        raise RpcError(ErrorCode.NOT_PERMITTED, "not now")

    runner.serve(script)
    with Client.connect(runner.path) as client:
        client.on_request("host.confirm", lambda params: {"approved": True, **params})
        client.on_request("host.refuse", refuse)
        client.on_request("host.crash", lambda _params: 1 / 0)
        assert client.call("runner.command", {}) == {"results": []}


def test_the_time_of_a_handler_does_not_count(runner: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = 0.0
    monkeypatch.setattr("utter_sdk.client.time.monotonic", lambda: clock)

    def think(params: dict[str, Any]) -> dict[str, Any]:
        nonlocal clock
        clock += 3600
        return {"approved": True}

    def script(runner: Runner) -> None:
        command = runner.expect("runner.command")
        runner.send(id=0, method="host.confirm", params={})
        assert runner.receive()["result"] == {"approved": True}
        runner.send(id=command["id"], result={})

    runner.serve(script)
    with Client.connect(runner.path) as client:
        client.on_request("host.confirm", think)
        assert client.call("runner.command", {}, timeout=30) == {}


def test_a_handler_sees_that_its_request_was_withdrawn(runner: Runner) -> None:
    def script(runner: Runner) -> None:
        command = runner.expect("runner.command")
        runner.send(id="first", method="host.confirm", params={})
        runner.send(id="second", method="host.confirm", params={})
        assert runner.expect("handler.waits")["params"] == {}
        runner.send(method="$/cancel", params={"id": "second"})
        runner.send(method="$/cancel", params={"id": "first"})
        assert runner.receive()["error"]["code"] == ErrorCode.CANCELLED
        assert runner.receive()["result"] == {"approved": False}
        runner.send(id=command["id"], result={"served": 1})

    served = []

    def confirm(params: dict[str, Any]) -> dict[str, Any]:
        served.append(params)
        assert not client.withdrawn()
        client._send_request("handler.waits", {})
        while not client.withdrawn():
            client._poll.poll()
        return {"approved": False}

    runner.serve(script)
    with Client.connect(runner.path) as client:
        client.on_request("host.confirm", confirm)
        assert client.call("runner.command", {}) == {"served": 1}
    assert served == [{}]


def subscribed(runner: Runner, mode: str = "lossy") -> None:
    assert runner.expect("stream.subscribe")["params"] == {"method": "runner.events", "params": {}}
    runner.send(id=1, result={"stream_id": "s1", "mode": mode})


def event(runner: Runner, seq: int, data: Any, stream: str = "s1") -> None:
    runner.send(method="runner.events", params={"stream_id": stream, "seq": seq, "data": data})


def test_a_stream_is_iterated_until_it_is_closed(runner: Runner) -> None:
    def script(runner: Runner) -> None:
        subscribed(runner)
        for seq in range(3):
            event(runner, seq, {"event": "state", "n": seq})
        assert runner.expect("stream.stop")["params"] == {"stream_id": "s1"}
        event(runner, 3, "late")
        pong(runner)

    runner.serve(script)
    with Client.connect(runner.path) as client:
        with client.subscribe("runner.events") as events:
            seen = []
            for item in events:
                seen.append(item["n"])
                if len(seen) == 3:
                    events.close()
        assert seen == [0, 1, 2]
        assert (events.mode, events.missed) == ("lossy", 0)
        assert client.call("ping") == {"pong": True}
        assert client._early == {}


def test_data_that_overtakes_the_answer_or_comes_during_a_call_is_kept(runner: Runner) -> None:
    def script(runner: Runner) -> None:
        request = runner.expect("stream.subscribe")
        assert request["params"] == {"method": "tts.audio", "params": {"a": 1}, "mode": "lossy"}
        event(runner, 0, "early")
        event(runner, 0, "of another", stream="s2")
        runner.send(id=request["id"], result={"stream_id": "s1", "mode": "lossy"})
        ping = runner.expect("ping")
        event(runner, 1, "meanwhile")
        runner.send(method="runner.odd", params=[1])
        runner.send(id=ping["id"], result={})

    runner.serve(script)
    with Client.connect(runner.path) as client:
        stream = client.subscribe("tts.audio", {"a": 1}, mode="lossy")
        client.call("ping")
        assert stream.ready
        assert [stream.get(5), stream.get(5)] == ["early", "meanwhile"]
        assert not stream.ready


@pytest.mark.parametrize("early", [False, True])
def test_a_stream_that_is_complete_ends_after_its_last_item(runner: Runner, *, early: bool) -> None:
    def script(runner: Runner) -> None:
        request = runner.expect("stream.subscribe")
        if not early:
            runner.send(id=request["id"], result={"stream_id": "s1", "mode": "lossy"})
        event(runner, 0, "only")
        runner.send(method="stream.closed", params={"stream_id": "s1", "reason": "end"})
        runner.send(method="stream.closed", params={"stream_id": "unknown", "reason": "end"})
        if early:
            runner.send(id=request["id"], result={"stream_id": "s1", "mode": "lossy"})
        pong(runner)

    runner.serve(script)
    with Client.connect(runner.path) as client:
        with client.subscribe("tts.audio") as stream:
            assert list(stream) == ["only"]
            assert list(stream) == []
            with pytest.raises(StreamClosed, match=r"^end$"):
                stream.get(5)
            assert (stream.reason, stream.ready) == ("end", True)
        # Nothing is stopped that has ended.
        assert client.call("ping") == {"pong": True}
        assert client._early_ends == {}


def test_a_stream_that_was_given_up_says_why(runner: Runner) -> None:
    def script(runner: Runner) -> None:
        subscribed(runner)
        event(runner, 0, "first")
        runner.send(method="stream.closed", params={"stream_id": "s1", "reason": "the plugin went away"})

    runner.serve(script)
    with Client.connect(runner.path) as client:
        stream = client.subscribe("runner.events")
        assert next(stream) == "first"
        with pytest.raises(StreamClosed, match=r"^the plugin went away$"):
            next(stream)


def test_gaps_are_counted_and_the_queue_is_bounded(runner: Runner) -> None:
    def script(runner: Runner) -> None:
        subscribed(runner)
        event(runner, 0, 0)
        event(runner, 5, 5)
        ping = runner.expect("ping")
        for seq in range(6, 6 + MAX_QUEUED + 10):
            event(runner, seq, seq)
        runner.send(id=ping["id"], result={})

    runner.serve(script)
    with Client.connect(runner.path) as client:
        stream = client.subscribe("runner.events")
        assert [stream.get(5), stream.get(5)] == [0, 5]
        assert stream.missed == 4
        client.call("ping")
        assert stream.get(5) == 16
        assert stream.missed == 14


def test_reliable_data_is_acknowledged_when_it_is_taken(runner: Runner) -> None:
    def script(runner: Runner) -> None:
        subscribed(runner, "reliable")
        for seq in range(2):
            event(runner, seq, seq)
        for seq in range(2):
            ack = runner.expect("stream.ack")
            assert ack["params"] == {"stream_id": "s1", "seq": seq}
            runner.send(id=ack["id"], result={})
        pong(runner)

    runner.serve(script)
    with Client.connect(runner.path) as client:
        stream = client.subscribe("runner.events")
        assert [stream.get(5), stream.get(5)] == [0, 1]
        assert client.call("ping") == {"pong": True}


def test_a_silent_stream_times_out_only_when_asked_to(runner: Runner) -> None:
    def script(runner: Runner) -> None:
        subscribed(runner)
        runner.expect("ping")

    runner.serve(script)
    with Client.connect(runner.path) as client:
        stream = client.subscribe("runner.events")
        with pytest.raises(TimeoutError, match=r"runner\.events: nothing came within 0\.01 s"):
            stream.get(0.01)
        client._send_request("ping", {})
        with pytest.raises(RunnerUnavailable, match="the runner closed the connection"):
            next(stream)


def test_a_malformed_subscribe_answer_is_an_error(runner: Runner) -> None:
    runner.serve(lambda runner: runner.send(id=runner.expect("stream.subscribe")["id"], result={"stream_id": 1}))
    with Client.connect(runner.path) as client, pytest.raises(RpcError, match="a malformed answer"):
        client.subscribe("runner.events")


@pytest.mark.parametrize("data", [b"Content-Length: x\r\n\r\n", b"Content-Length: 2\r\n\r\n{]"])
def test_what_is_no_runner_is_named(runner: Runner, data: bytes) -> None:
    def script(runner: Runner) -> None:
        runner.expect("x")
        runner.connection.sendall(data)
        with pytest.raises(EOFError):
            runner.expect("$/cancel")

    runner.serve(script)
    with Client.connect(runner.path) as client:
        with pytest.raises(RunnerUnavailable, match="what listens there is no utter-runner") as caught:
            client.call("x")
        assert caught.value.path == runner.path
        with pytest.raises(RunnerUnavailable, match="what listens there is no utter-runner"):
            client.call("y")


def test_a_runner_that_goes_away_is_told(runner: Runner) -> None:
    runner.serve(lambda runner: runner.expect("x"))
    with Client.connect(runner.path) as client:
        with pytest.raises(RunnerUnavailable, match="the runner closed the connection"):
            client.call("x", timeout=None)
        with pytest.raises(RunnerUnavailable):
            client.call("x")
    with pytest.raises(RunnerUnavailable):
        client.withdrawn()


def test_what_was_answered_before_the_runner_went_away_counts(runner: Runner) -> None:
    def script(runner: Runner) -> None:
        subscribed(runner)
        event(runner, 0, "last")

    runner.serve(script)
    with Client.connect(runner.path) as client:
        stream = client.subscribe("runner.events")
        assert stream.get(5) == "last"
        with pytest.raises(RunnerUnavailable):
            stream.get(5)


def test_an_interrupt_cancels_the_call(runner: Runner) -> None:
    def script(runner: Runner) -> None:
        command = runner.expect("runner.command")
        runner.send(id=0, method="host.confirm", params={})
        assert runner.expect("$/cancel")["params"] == {"id": command["id"]}

    def interrupt(params: dict[str, Any]) -> dict[str, Any]:
        raise KeyboardInterrupt

    runner.serve(script)
    with Client.connect(runner.path) as client:
        client.on_request("host.confirm", interrupt)
        with pytest.raises(KeyboardInterrupt):
            client.call("runner.command")


def test_large_answers_and_too_large_requests(runner: Runner) -> None:
    def script(runner: Runner) -> None:
        ping = runner.expect("ping")
        runner.send(id=ping["id"], result=ping["params"])

    runner.serve(script)
    with Client.connect(runner.path) as client:
        with pytest.raises(ValueError, match=f"exceeds max_frame \\({MAX_FRAME} bytes\\)"):
            client.call("ping", {"data": "x" * MAX_FRAME})
        assert client.call("ping", {"data": "ü" * 1_000_000}) == {"data": "ü" * 1_000_000}


def test_a_runner_that_does_not_read_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("utter_sdk.client._SEND_TIMEOUT", 0.05)
    ours, theirs = socket.socketpair()
    ours.settimeout(0.05)
    expected = pytest.raises(RunnerUnavailable, match=r"/there: the runner has not read for 0\.05 s")
    with theirs, Client(ours, "/there") as client, expected:
        client.call("x", {"data": "x" * 10_000_000})


def test_closed_is_closed(runner: Runner) -> None:
    runner.serve(lambda _runner: None)
    client = Client.connect(runner.path)
    assert client.fileno() > 0
    client.close()
    client.close()
    with pytest.raises(RunnerUnavailable, match="this client has closed the connection"):
        client.call("x")
