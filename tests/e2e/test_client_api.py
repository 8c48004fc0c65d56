"""The client API of the real daemon, over its real socket."""

from __future__ import annotations

import itertools
import json
import os
import signal
import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from support.daemon import Daemon, hostile
from utter_protocol.errors import ErrorCode, RpcError
from utter_protocol.framing import FrameDecoder, encode_frame
from utter_sdk.client import Client


def plan(*steps: dict[str, Any]) -> str:
    return "plan=" + json.dumps(list(steps))


def router(*steps: dict[str, Any], hang: str = "none") -> str:
    return hostile("router", "kind=router", "provides=router.plan@1", plan(*steps), f"hang={hang}")


ACTOR = hostile("actor", "ops=open_url,terminal,wave")
WAVE = {"op": "wave", "args": {"n": 1}, "provenance": "user"}


def test_status_and_plugins(tmp_path: Path) -> None:
    with Daemon(tmp_path, ACTOR + router(WAVE)) as daemon, daemon.client() as client:
        status = client.call("runner.status", {}, timeout=5)
        assert status["state"] == "ready"
        assert status["socket_path"] == str(daemon.socket)
        assert status["protocol"] == "1.0"
        assert any("[socket]" in warning for warning in status["warnings"])
        plugins = client.call("runner.plugins", {}, timeout=5)["plugins"]
        assert [(one["id"], one["kind"], one["epoch"], one["status"]) for one in plugins] == [
            ("actor", "action", 1, "ready"),
            ("router", "router", 1, "ready"),
        ]
        assert plugins[0]["ops"] == ["open_url", "terminal", "wave"]
        assert daemon.socket.stat().st_mode & 0o777 == 0o600
        assert daemon.socket.parent.stat().st_mode & 0o777 == 0o700


def test_a_command_runs_its_steps(tmp_path: Path) -> None:
    step = {"op": "open_url", "args": {"url": "HTTP://Example.com:80/a/../b"}, "provenance": "user"}
    with Daemon(tmp_path, ACTOR + router(WAVE, step)) as daemon, daemon.client() as client:
        answer = client.call("runner.command", {"utterance": "wave"}, timeout=10)
        assert answer["understood"] is True
        assert [(one["op"], one["ok"]) for one in answer["results"]] == [("wave", True), ("open_url", True)]
        # The plugin received the canonical form only.
        assert answer["results"][1]["data"]["args"] == {"url": "http://example.com/b"}
        assert set(answer["latency_ms"]) >= {"router", "policy", "action"}


def test_what_is_not_understood_says_so(tmp_path: Path) -> None:
    with Daemon(tmp_path, ACTOR + router()) as daemon, daemon.client() as client:
        answer = client.call("runner.command", {"utterance": "gibberish"}, timeout=10)
        assert (answer["understood"], answer["results"]) == (False, [])
        assert answer["detail"]


def test_without_a_router_it_is_minus_32005(tmp_path: Path) -> None:
    with Daemon(tmp_path, ACTOR) as daemon, daemon.client() as client:
        with pytest.raises(RpcError) as error:
            client.call("runner.command", {"utterance": "wave"}, timeout=10)
        assert error.value.code == ErrorCode.CAPABILITY_MISSING


def test_the_first_failed_step_ends_a_plan(tmp_path: Path) -> None:
    bad = {"op": "open_url", "args": {"url": "javascript:alert(1)"}, "provenance": "user"}
    with Daemon(tmp_path, ACTOR + router(bad, WAVE)) as daemon, daemon.client() as client:
        first, second = client.call("runner.command", {"utterance": "x"}, timeout=10)["results"]
        assert (first["ok"], first["error"]["code"]) == (False, ErrorCode.NOT_PERMITTED)
        assert (second["ok"], "error" in second) == (False, False)


@pytest.mark.parametrize(
    ("step", "provenance", "code"),
    [
        ({"op": "terminal", "args": {"command": "ls"}, "provenance": "user"}, "user", ErrorCode.NOT_PERMITTED),
        ({"op": "terminal", "args": {"command": "ls"}, "provenance": "screen"}, "user", ErrorCode.UNTRUSTED_PROVENANCE),
        ({"op": "wave", "args": {"n": 1}, "provenance": "user"}, "screen", ErrorCode.UNTRUSTED_PROVENANCE),
        ({"op": "wave", "args": {"n": 1}}, "user", ErrorCode.UNTRUSTED_PROVENANCE),
        ({"op": "nobody.does.this", "args": {}, "provenance": "user"}, "user", ErrorCode.CAPABILITY_MISSING),
    ],
)
def test_policy_denies_on_the_way_of_a_command(tmp_path: Path, step: Any, provenance: str, code: int) -> None:
    with Daemon(tmp_path, ACTOR + router(step)) as daemon, daemon.client() as client:
        answer = client.call("runner.command", {"utterance": "x", "provenance": provenance}, timeout=10)
        assert answer["results"][0]["error"]["code"] == code


def test_invoke_forwards_and_guards(tmp_path: Path) -> None:
    with Daemon(tmp_path, ACTOR) as daemon, daemon.client() as client:

        def invoke(method: str, params: Any = None, plugin: str = "actor", **more: Any) -> Any:
            request = {"plugin": plugin, "method": method, "params": params or {}, **more}
            return client.call("runner.invoke", request, timeout=10)

        assert invoke("read.this", {"a": [1]}) == {"method": "read.this", "params": {"a": [1]}}
        done = invoke("action.invoke", {"op": "action.wave", "args": {"n": 2}, "provenance": "user"})
        assert done["data"]["args"] == {"n": 2}
        for method, params, plugin, code in (
            ("x", {}, "nobody", ErrorCode.CAPABILITY_MISSING),
            ("action.invoke", {"op": "wave", "args": {}}, "actor", ErrorCode.NOT_PERMITTED),
            ("action.invoke", {**WAVE, "provenance": "screen"}, "actor", ErrorCode.UNTRUSTED_PROVENANCE),
            ("protocol.hello", {}, "actor", ErrorCode.NOT_PERMITTED),
            ("input.type", {"text": "x", "provenance": "user"}, "actor", ErrorCode.NOT_PERMITTED),
        ):
            with pytest.raises(RpcError) as error:
                invoke(method, params, plugin)
            assert error.value.code == code, method
        for timeout_ms in (0, -1):
            with pytest.raises(RpcError) as error:
                invoke("x", timeout_ms=timeout_ms)
            assert error.value.code == ErrorCode.INVALID_PARAMS


def test_a_time_out_and_a_cancel_reach_the_plugin_and_the_caller(tmp_path: Path) -> None:
    with Daemon(tmp_path, hostile("slow", "hang=forever")) as daemon, daemon.client() as client:
        with pytest.raises(RpcError) as error:
            client.call("runner.invoke", {"plugin": "slow", "method": "forever", "timeout_ms": 50}, timeout=10)
        assert error.value.code == ErrorCode.TIMED_OUT
        assert error.value.data == {"timeout_ms": 50}


def test_validate_plugin(tmp_path: Path) -> None:
    entry = hostile("odd", "provides=made.up@3,experimental/fine@1", "permissions=network")
    with Daemon(tmp_path, entry) as daemon, daemon.client() as client:
        answer = client.call("runner.validate_plugin", {"plugin": "odd"}, timeout=5)
    assert answer["ok"] is True
    assert answer["negotiated"] == {"protocol": "1.0", "abi": 1}
    assert answer["unknown_capabilities"] == ["made.up@3"]
    assert answer["missing_requires"] == []
    assert answer["permissions"] == [{"name": "network", "enforced": False, "advisory": True}]


def test_events_are_state_first_then_changes(tmp_path: Path) -> None:
    with Daemon(tmp_path, ACTOR + router(WAVE)) as daemon, daemon.client() as client, daemon.client() as other:
        events = client.subscribe("runner.events")
        first = next(events)
        assert (first["event"], first["status"]["state"]) == ("state", "ready")
        other.call("runner.command", {"utterance": "wave"}, timeout=10)
        # When more is known of the machine, the state is told again, whatever else happens.
        changes = (event["event"] for event in events if event["event"] != "state")
        assert list(itertools.islice(changes, 3)) == ["plan", "decision", "result"]
        actor = daemon.client()
        pid = actor.call("runner.plugins", {}, timeout=5)["plugins"][0]["pid"]
        actor.close()
        os.kill(pid, signal.SIGKILL)
        statuses = []
        while "ready" not in statuses:
            event = next(events)
            if event["event"] == "plugin":
                statuses.append(event["plugin"]["status"])
        assert statuses == ["backoff", "starting", "ready"]


# ---- confirmations


def confirmed(timeout_ms: int = 30_000) -> str:
    """A configuration in which a command needs a yes within that time."""
    return f"""
[policy]
enabled_ops = ["terminal"]
self_confirm = true
[runner]
confirm_timeout_ms = {timeout_ms}
"""


TERMINAL = {"op": "terminal", "args": {"command": "ls -la"}, "provenance": "user"}


@pytest.mark.parametrize("approved", [True, False])
def test_a_confirmation_is_asked_with_its_arguments(tmp_path: Path, approved: bool) -> None:
    with Daemon(tmp_path, confirmed() + ACTOR + router(TERMINAL)) as daemon, daemon.client() as client:
        asked: list[dict[str, Any]] = []

        def confirm(params: dict[str, Any]) -> dict[str, Any]:
            asked.append(params)
            return {"approved": approved}

        client.on_request("host.confirm", confirm)
        result = client.call("runner.command", {"utterance": "list files"}, timeout=10)["results"][0]
    assert len(asked) == 1
    assert "ls -la" in asked[0]["text"]
    assert asked[0]["args"] == {"command": "ls -la"}
    assert result["ok"] is approved
    if not approved:
        assert result["error"]["code"] == ErrorCode.NOT_PERMITTED


def test_silence_is_no(tmp_path: Path) -> None:
    config = confirmed(700) + ACTOR + router(TERMINAL)
    with Daemon(tmp_path, config) as daemon, daemon.client() as client, daemon.client() as mute:
        client.on_request("host.confirm", _abstain)
        result = client.call("runner.command", {"utterance": "x"}, timeout=10)["results"][0]
        assert result["error"]["code"] == ErrorCode.NOT_PERMITTED
        assert "nobody" in result["detail"]
        mute.close()


def _abstain(_params: dict[str, Any]) -> dict[str, Any]:
    raise RpcError(ErrorCode.METHOD_NOT_FOUND, "I cannot ask a person")


def test_a_plugin_that_restarts_while_it_is_asked_about_is_a_denial(tmp_path: Path) -> None:
    config = confirmed() + ACTOR + router(TERMINAL)
    with Daemon(tmp_path, config) as daemon, daemon.client() as client, daemon.client() as side:
        pid = side.call("runner.plugins", {}, timeout=5)["plugins"][0]["pid"]

        def confirm(_params: dict[str, Any]) -> dict[str, Any]:
            os.kill(pid, signal.SIGKILL)
            events = side.subscribe("runner.events")
            while True:
                event = next(events)
                plugins = event["status"]["plugins"] if event["event"] == "state" else [event.get("plugin", {})]
                if any(one.get("id") == "actor" and one["epoch"] == 2 and one["status"] == "ready" for one in plugins):
                    return {"approved": True}

        client.on_request("host.confirm", confirm)
        result = client.call("runner.command", {"utterance": "x"}, timeout=10)["results"][0]
        assert result["ok"] is False


# ---- who may connect


def test_a_token_is_asked_for_and_nothing_is_learnt_without_it(tmp_path: Path) -> None:
    config = '[socket]\ntoken = "correct-horse-battery"\n' + ACTOR
    with Daemon(tmp_path, config) as daemon, Client.connect(str(daemon.socket)) as client:
        for method in ("runner.status", "no.such.method", "runner.invoke", "stream.subscribe"):
            with pytest.raises(RpcError) as error:
                client.call(method, {}, timeout=5)
            assert (error.value.code, error.value.message) == (ErrorCode.NOT_PERMITTED, "runner.auth comes first")
        with pytest.raises(RpcError):
            client.call("runner.auth", {"token": "wrong"}, timeout=5)
        assert client.call("runner.auth", {"token": "correct-horse-battery"}, timeout=5) == {"ok": True}
        assert client.call("runner.status", {}, timeout=5)["state"] == "ready"


def test_an_empty_socket_section_denies_all(tmp_path: Path) -> None:
    with Daemon(tmp_path, "[socket]\n" + ACTOR) as daemon, Client.connect(str(daemon.socket)) as client:
        with pytest.raises(RpcError) as error:
            client.call("runner.status", {}, timeout=5)
        assert error.value.code == ErrorCode.NOT_PERMITTED


def test_an_allowed_binary_needs_no_token(tmp_path: Path) -> None:
    ours = os.path.realpath("/proc/self/exe")
    with Daemon(tmp_path, f'[socket]\nallow_binaries = ["{ours}"]\n' + ACTOR) as daemon, daemon.client() as client:
        assert client.call("runner.status", {}, timeout=5)["state"] == "ready"


def test_another_binary_does(tmp_path: Path) -> None:
    config = '[socket]\nallow_binaries = ["/bin/sh"]\n' + ACTOR
    with Daemon(tmp_path, config) as daemon, Client.connect(str(daemon.socket)) as client, pytest.raises(RpcError):
        client.call("runner.status", {}, timeout=5)


# ---- rude clients


def raw(daemon: Daemon) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(10)
    connection.connect(str(daemon.socket))
    return connection


def answers(connection: socket.socket, count: int) -> list[dict[str, Any]]:
    decoder = FrameDecoder()
    found: list[dict[str, Any]] = []
    while len(found) < count:
        data = connection.recv(65536)
        if not data:
            break
        decoder.receive(data)
        while (body := decoder.next_frame()) is not None:
            found.append(json.loads(body))
    return found


def test_junk_half_frames_and_silence_harm_nobody(tmp_path: Path) -> None:
    request = encode_frame(b'{"jsonrpc":"2.0","id":0,"method":"runner.plugins"}')
    with Daemon(tmp_path, ACTOR) as daemon:
        raw(daemon).close()
        silent = raw(daemon)
        half = raw(daemon)
        half.sendall(request[:20])
        junk = raw(daemon)
        junk.sendall(b"GET / HTTP/1.1\r\n\r\n" + b"?" * 70_000)
        with junk:
            (said,) = answers(junk, 1)
            assert said["id"] is None
            assert "max_junk" in said["error"]["message"]
            assert junk.recv(10) == b""
        broken = raw(daemon)
        with broken:
            broken.sendall(encode_frame(b"{") + encode_frame(b"[]") + request)
            first, second, third = answers(broken, 3)
            assert first["error"]["code"] == ErrorCode.PARSE_ERROR
            assert second["error"]["code"] == ErrorCode.INVALID_REQUEST
            assert third["id"] == 0
            assert third["result"]["plugins"][0]["id"] == "actor"
        # A client that closed its sending half still gets its answers.
        closing = raw(daemon)
        with closing:
            closing.sendall(request * 3)
            closing.shutdown(socket.SHUT_WR)
            assert len(answers(closing, 4)) == 3
        half.close()
        silent.close()
        with daemon.client() as client:
            assert client.call("runner.status", {}, timeout=5)["clients"] >= 1


def test_more_than_max_clients_are_turned_away(tmp_path: Path) -> None:
    with Daemon(tmp_path, "[runner]\nmax_clients = 2\n" + ACTOR) as daemon, daemon.client(), daemon.client() as second:
        second.call("runner.status", {}, timeout=5)
        extra = raw(daemon)
        with extra:
            assert extra.recv(10) == b""
        assert second.call("runner.status", {}, timeout=5)["clients"] == 2


# ---- the router dies in the middle


def test_a_router_killed_in_the_middle_of_a_command(tmp_path: Path) -> None:
    with Daemon(tmp_path, ACTOR + router(WAVE, hang="router.plan")) as daemon, daemon.client() as client:
        killed: list[float] = []

        def kill_while_it_plans() -> None:
            ask = {"plugin": "router", "method": "pid", "params": {}}
            with daemon.client() as other:
                while not (router := other.call("runner.invoke", ask, timeout=10))["kept"]:
                    pass
            killed.append(time.monotonic())
            os.kill(router["pid"], signal.SIGKILL)

        killer = threading.Thread(target=kill_while_it_plans)
        killer.start()
        with pytest.raises(RpcError) as error:
            client.call("runner.command", {"utterance": "wave"}, timeout=60)
        assert error.value.code == ErrorCode.PLUGIN_FAILED
        # Its death has told it, not the end of the time that a command has.
        assert time.monotonic() - killed[0] < 20
        killer.join()


def test_the_next_command_after_a_killed_router_works_at_once(tmp_path: Path) -> None:
    with Daemon(tmp_path, ACTOR + router(WAVE)) as daemon, daemon.client() as client:
        pid = client.call("runner.plugins", {}, timeout=5)["plugins"][1]["pid"]
        os.kill(pid, signal.SIGKILL)
        codes = []
        results: list[dict[str, Any]] = []
        while not results and len(codes) < 2:
            try:
                results = client.call("runner.command", {"utterance": "wave"}, timeout=10)["results"]
            except RpcError as error:
                codes.append(error.code)
        # One may have been on its way when the process died; whoever asks again is served.
        assert codes in ([], [ErrorCode.PLUGIN_FAILED])
        assert results[0]["ok"] is True
