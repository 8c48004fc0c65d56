"""The whole client API of the real daemon, through a client and a plugin that were written from the published page."""

from __future__ import annotations

import hashlib
import os
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from spec_client.client import RemoteError, SpecClient
from support.daemon import Daemon, hostile

PLUGIN = Path(__file__).with_name("plugin.py")
RECORDING = Path(__file__).parents[1] / "data" / "audio" / "en" / "recorded_next.wav"
WORDS = "correct-horse-battery-staple"


def entry(transport: str = "stdio") -> str:
    words = ", ".join(f"'{word}'" for word in (sys.executable, "-S", "-E", PLUGIN, "bundle", transport))
    return f'[[plugin]]\nid = "bundle"\ntransport = "{transport}"\nentrypoint = [{words}]\n'


TRANSPORTS = pytest.mark.parametrize("transport", ["stdio", "connect", "listen"])


def connect(daemon: Daemon) -> SpecClient:
    return SpecClient(str(daemon.socket))


def code(client: SpecClient, method: str, params: dict[str, Any] | None = None) -> int:
    """The code of the error that a request is answered with."""
    with pytest.raises(RemoteError) as error:
        client.call(method, params)
    return error.value.code


def invoke(method: str, params: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    return {"plugin": "bundle", "method": method, "params": params or {}, **more}


def test_nothing_is_answered_before_authentication(tmp_path: Path) -> None:
    with Daemon(tmp_path, f'[socket]\ntoken = "{WORDS}"\n' + entry()) as daemon, connect(daemon) as client:
        for method in ("runner.status", "runner.plugins", "runner.command", "stream.subscribe", "there.is.none"):
            assert code(client, method) == -32003
        assert code(client, "runner.auth", {"token": "wrong"}) == -32003
        assert client.call("runner.auth", {"token": WORDS}) == {"ok": True}
        assert client.call("runner.status")["state"] == "ready"


def test_status_plugins_and_validation(tmp_path: Path) -> None:
    with Daemon(tmp_path, entry()) as daemon, connect(daemon) as client:
        assert client.call("runner.status")["protocol"] == "1.0"
        (plugin,) = client.call("runner.plugins")["plugins"]
        assert (plugin["id"], plugin["kind"], plugin["epoch"], plugin["status"]) == ("bundle", "bundle", 1, "ready")
        assert {"router.plan@1", "context.snapshot@1"} <= set(plugin["provides"])
        verdict = client.call("runner.validate_plugin", {"plugin": "bundle"})
        assert (verdict["ok"], verdict["negotiated"]) == (True, {"protocol": "1.0", "abi": 1})
        assert (verdict["unknown_capabilities"], verdict["missing_requires"]) == ([], [])
        (permission,) = verdict["permissions"]
        assert permission["name"] == "network"
        assert permission["enforced"] is not permission["advisory"]
        assert code(client, "runner.validate_plugin", {"plugin": "nobody"}) == -32005


@TRANSPORTS
def test_commands(tmp_path: Path, transport: str) -> None:
    with Daemon(tmp_path, entry(transport)) as daemon, connect(daemon) as client:
        (result,) = client.call("runner.command", {"utterance": "note café", "context": {}})["results"]
        assert (result["op"], result["ok"]) == ("note", True)
        (result,) = client.call("runner.command", {"utterance": "open HTTPS://Example.org"})["results"]
        assert (result["ok"], result["args"]) == (True, {"url": "https://example.org/"})
        assert client.call("runner.command", {"utterance": "gibberish"})["results"] == []
        for utterance, provenance, expected in (
            ("open javascript:alert(1)", "user", -32003),
            ("run ls", "user", -32003),
            ("run ls", "screen", -32006),
            ("note read from the screen", "screen", -32006),
        ):
            (result,) = client.call("runner.command", {"utterance": utterance, "provenance": provenance})["results"]
            assert (result["ok"], result["error"]["code"]) == (False, expected)
        assert code(client, "runner.command", {"utterance": 1}) == -32602


@TRANSPORTS
def test_invoke(tmp_path: Path, transport: str) -> None:
    with Daemon(tmp_path, entry(transport)) as daemon, connect(daemon) as client:
        assert client.call("runner.invoke", invoke("plugin.health")) == {"status": "ok", "detail": ""}
        done = client.call(
            "runner.invoke", invoke("action.invoke", {"op": "note", "args": {"text": "x"}, "provenance": "user"})
        )
        assert done["ok"] is True
        assert done["data"]["args"] == {"text": "x"}
        for params, expected in (
            (invoke("action.invoke", {"op": "note", "args": {"text": "x"}}), -32003),
            (invoke("action.invoke", {"op": "note", "args": {"text": "x"}, "provenance": "screen"}), -32006),
            (invoke("action.invoke", {"op": "terminal", "args": {"command": "ls"}, "provenance": "screen"}), -32006),
            (invoke("action.invoke", {"op": "terminal", "args": {"command": "ls"}, "provenance": "user"}), -32003),
            (invoke("action.invoke", {"op": "nobodys", "args": {}, "provenance": "user"}), -32005),
            (invoke("plugin.health") | {"plugin": "nobody"}, -32005),
            (invoke("protocol.hello"), -32003),
            (invoke("no.such.method"), -32601),
            (invoke("experimental.wait", timeout_ms=50), -32001),
            (invoke("plugin.health", timeout_ms=0), -32602),
            ({"method": "plugin.health"}, -32602),
        ):
            assert code(client, "runner.invoke", params) == expected, params
        # More than the hard maximum counts as the maximum.
        assert client.call("runner.invoke", invoke("plugin.health", timeout_ms=10**9))["status"] == "ok"
        assert code(client, "there.is.none") == -32601


@TRANSPORTS
def test_cancel_is_answered_once_and_is_idempotent(tmp_path: Path, transport: str) -> None:
    with Daemon(tmp_path, entry(transport)) as daemon, connect(daemon) as client:
        waiting = client.request("runner.invoke", invoke("experimental.wait"))
        for request_id in (waiting, waiting, 4711, "none"):
            client.notify("$/cancel", {"id": request_id})
        with pytest.raises(RemoteError) as error:
            client.wait(waiting)
        assert error.value.code == -32002
        client.notify("$/cancel", {"id": waiting})
        assert client.call("runner.status")["state"] == "ready"


@pytest.mark.parametrize("approved", [True, False])
def test_a_confirmation_is_asked_of_the_client(tmp_path: Path, approved: bool) -> None:
    asked: list[dict[str, Any]] = []

    def confirm(params: dict[str, Any]) -> bool:
        asked.append(params)
        return approved

    config = '[policy]\nenabled_ops = ["terminal"]\nself_confirm = true\n' + entry()
    with Daemon(tmp_path, config) as daemon, connect(daemon) as client:
        client.confirm = confirm
        (result,) = client.call("runner.command", {"utterance": "run ls -la"})["results"]
        assert result["ok"] is approved
        if not approved:
            assert result["error"]["code"] == -32003
        params = {"op": "terminal", "args": {"command": "ls -la"}, "provenance": "user"}
        request = client.request("runner.invoke", invoke("action.invoke", params))
        if approved:
            assert client.wait(request)["ok"] is True
        else:
            with pytest.raises(RemoteError) as error:
                client.wait(request)
            assert error.value.code == -32003
    assert len(asked) == 2
    assert all("ls -la" in question["text"] for question in asked)


def test_a_client_that_cannot_ask_means_no(tmp_path: Path) -> None:
    with Daemon(tmp_path, '[policy]\nenabled_ops = ["terminal"]\n' + entry()) as daemon, connect(daemon) as client:
        (result,) = client.call("runner.command", {"utterance": "run ls"})["results"]
        assert (result["ok"], result["error"]["code"]) == (False, -32003)


@pytest.mark.parametrize("mode", [None, "lossy", "reliable"])
def test_a_stream(tmp_path: Path, mode: str | None) -> None:
    with Daemon(tmp_path, "[runner]\ncredit_window = 4\n" + entry()) as daemon, connect(daemon) as client:
        params = {"method": "runner.events", "params": {}} | ({"mode": mode} if mode else {})
        opened = client.call("stream.subscribe", params)
        assert opened["mode"] == (mode or "lossy")
        stream = opened["stream_id"]
        first = client.item(stream)
        assert (first["seq"], first["data"]["event"]) == (0, "state")
        for _ in range(4):
            client.call("runner.command", {"utterance": "note x"})
        client.call("runner.status")
        if mode == "reliable":
            # The window is full: nothing follows until an acknowledgement comes, and one lets the rest follow.
            seqs = [note["params"]["seq"] for note in client.notifications]
            assert seqs == [1, 2, 3]
            assert client.call("stream.ack", {"stream_id": stream, "seq": 1}) == {}
            client.notify("stream.ack", {"stream_id": stream, "seq": 3})
        seqs = [client.item(stream)["seq"] for _ in range(7)]
        assert seqs == list(range(1, 8))
        for _ in range(2):
            assert client.call("stream.stop", {"stream_id": stream}) == {}
        client.notifications.clear()
        client.call("runner.command", {"utterance": "note x"})
        client.call("runner.status")
        assert not client.notifications
        assert code(client, "stream.subscribe", {"method": "there.is.none"}) == -32601


@TRANSPORTS
@pytest.mark.parametrize("mode", ["lossy", "reliable"])
def test_a_stream_of_a_plugin(tmp_path: Path, transport: str, mode: str) -> None:
    with Daemon(tmp_path, entry(transport)) as daemon, connect(daemon) as client:
        params = {"method": "experimental.count", "params": {"to": 20}, "mode": mode}
        for _ in range(2):
            opened = client.call("stream.subscribe", params)
            assert opened["mode"] == mode
            items = [client.item(opened["stream_id"]) for _ in range(20)]
            assert [(item["seq"], item["data"]) for item in items] == [(n, {"number": n}) for n in range(20)]
            client.notify("stream.ack", {"stream_id": opened["stream_id"], "seq": 19})
            assert client.call("stream.stop", {"stream_id": opened["stream_id"]}) == {}


@TRANSPORTS
def test_a_restart_is_a_new_epoch(tmp_path: Path, transport: str) -> None:
    with Daemon(tmp_path, entry(transport)) as daemon, connect(daemon) as client:
        stream = client.call("stream.subscribe", {"method": "runner.events"})["stream_id"]
        pid = client.item(stream)["data"]["status"]["plugins"][0]["pid"]
        waiting = client.request("runner.invoke", invoke("experimental.wait"))
        client.call("runner.status")
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(RemoteError) as error:
            client.wait(waiting)
        assert error.value.code == -32000
        while (event := client.item(stream)["data"])["event"] != "plugin" or event["plugin"]["status"] != "ready":
            pass
        assert event["plugin"]["epoch"] == 2


def test_the_context(tmp_path: Path) -> None:
    window = {"app": "org.example.Editor", "title": "Notes"}
    with Daemon(tmp_path, entry()) as daemon, connect(daemon) as client:
        for params in ({}, {"sources": []}, {"sources": ["window", "weather"]}):
            context = client.call("context.snapshot", params)
            meta = context.pop("meta")
            assert context == {"window": window}
            assert (meta["window"]["source"], meta["window"]["provenance"]) == ("bundle", "screen")


def test_explaining_a_decision(tmp_path: Path) -> None:
    with Daemon(tmp_path, entry()) as daemon, connect(daemon) as client:
        answer = client.call("policy.explain", {"op": "open_url", "args": {"url": "http://a.example"}})
        assert (answer["decision"], answer["args"]) == ("allow", {"url": "http://a.example/"})
        params = {"op": "terminal", "args": {"command": "ls"}, "provenance": "screen"}
        assert client.call("policy.explain", params)["decision"] == "deny"


def test_push_to_talk(tmp_path: Path) -> None:
    audio = f'[audio]\nsource = "wav"\nwav_path = "{RECORDING}"\ncues = false\n'
    # Nobody but the client ends a session: not the silence behind the recording, either.
    config = audio + '[hotkeys]\nenabled = false\n[voice]\ntap_ms = 0\nvad = "off"\n'
    # It listens, and what it answers at the end is no text.
    ears = hostile("ears", "kind=stt", "provides=stt.transcribe@1")
    with Daemon(tmp_path, config + ears + entry(), quiet=False) as daemon, connect(daemon) as client:
        stream = client.call("stream.subscribe", {"method": "runner.events"})["stream_id"]
        assert client.call("ptt.cancel") == {"cancelled": False}
        pressed = client.call("ptt.press")
        assert pressed["state"] == "listening"
        assert client.call("ptt.cancel") == {"cancelled": True}
        toggled = client.call("ptt.toggle")
        assert toggled["session"] not in ("", pressed["session"])
        assert client.call("ptt.toggle")["session"] == toggled["session"]
        reports: dict[str, str] = {}
        while len(reports) < 2:
            event = client.item(stream)["data"]
            if event["event"] == "report":
                reports[event["report"]["session"]] = event["report"]["outcome"]
        assert list(reports) == [pressed["session"], toggled["session"]]
        assert reports[pressed["session"]] == "cancelled"
        held = client.call("ptt.press")
        assert client.call("ptt.release")["session"] == held["session"]


# ---- the wire


def test_handles(tmp_path: Path) -> None:
    with Daemon(tmp_path, "") as daemon, connect(daemon) as client, connect(daemon) as other:
        stored = client.call("handle.create", {"data": "hello"})
        assert stored == {
            "handle": f"handle://{stored['sha256']}",
            "sha256": stored["sha256"],
            "size": 5,
            "provenance": "screen",
        }
        assert stored["sha256"] == hashlib.sha256(b"hello").hexdigest()
        assert client.call("handle.create", {"data_b64": "aGVsbG8="}) == stored
        handle = {"handle": stored["handle"]}
        assert client.call("handle.stat", handle) == stored
        assert client.call("handle.fetch", handle) == {**stored, "data_b64": "aGVsbG8="}
        large = client.call("handle.create", {"size": 65537})
        assert large["sha256"] == hashlib.sha256(bytes(65537)).hexdigest()
        assert code(client, "handle.fetch", {"handle": large["handle"]}) == -32007
        assert code(client, "handle.fetch", {**handle, "scope": "another"}) == -32602
        assert client.call("handle.create", {"data": "hello", "scope": "another"}) == stored
        assert client.call("handle.fetch", {**handle, "scope": "another"})["size"] == 5
        assert code(client, "handle.fetch", {"handle": "handle://../../etc/passwd"}) == -32602
        assert code(other, "handle.fetch", handle) == -32602


def test_descriptors(tmp_path: Path) -> None:
    with Daemon(tmp_path, "") as daemon, connect(daemon) as client:
        large = client.call("handle.create", {"size": 70_000})
        for kind, meta, result, size in (
            ("handle", {"handle": large["handle"]}, {}, 70_000),
            ("memfd", {"size": 1000}, {"size": 1000}, 1000),
            ("memfd", {"data": "hello"}, {"size": 5}, 5),
        ):
            answer, fd = client.pass_fd(kind, meta)
            with os.fdopen(fd, "rb") as file:
                assert (answer, len(file.read())) == (result, size)
        answer, fd = client.pass_fd("memfd.ring", {})
        with os.fdopen(fd, "rb") as file:
            assert (file.read(8), answer["header_size"]) == (b"UTTRRING", 128)
        with pytest.raises(RemoteError) as error:
            client.pass_fd("handle", {"handle": "handle://" + "0" * 64})
        assert error.value.code == -32602


def test_many_requests_in_one_piece_and_answers_after_the_sending_half_is_closed(tmp_path: Path) -> None:
    with Daemon(tmp_path, entry()) as daemon, connect(daemon) as client:
        ids = [client.request("runner.invoke", invoke("plugin.health")) for _ in range(200)]
        client.socket.shutdown(socket.SHUT_WR)
        assert [client.wait(request_id)["status"] for request_id in ids] == ["ok"] * 200
        assert client.receive() is None


def test_a_bare_connection_and_half_a_frame_harm_nobody(tmp_path: Path) -> None:
    with Daemon(tmp_path, entry()) as daemon, connect(daemon) as client:
        connect(daemon).__exit__()
        half = connect(daemon)
        half.socket.sendall(b"Content-Length: 100\r\n\r\n{")
        assert client.call("runner.status")["state"] == "ready"
        half.__exit__()
        deadline = time.monotonic() + 20
        while client.call("runner.status")["clients"] > 1:
            assert time.monotonic() < deadline


def test_a_frame_that_is_no_json_is_answered_and_the_connection_goes_on(tmp_path: Path) -> None:
    with Daemon(tmp_path, entry()) as daemon, connect(daemon) as client:
        client.socket.sendall(b"Content-Length: 1\r\n\r\n{")
        message = client.receive()
        assert message is not None
        assert (message["id"], message["error"]["code"]) == (None, -32700)
        assert client.call("runner.status")["state"] == "ready"
