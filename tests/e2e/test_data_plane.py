"""Handles and descriptors between the real daemon, real plugins on both kinds of wire, and real clients."""

from __future__ import annotations

import hashlib
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from support.daemon import Daemon, asking
from support.descriptors import memfd
from utter_protocol.blobs import handle_of
from utter_protocol.errors import ErrorCode, RpcError
from utter_sdk.client import Client, RunnerUnavailable

if TYPE_CHECKING:
    from collections.abc import Iterator

PICTURE = handle_of(hashlib.sha256(b"picture").hexdigest())
PASSING = Path(__file__).parents[1] / "support" / "passing_plugin.py"
EARLY = handle_of(hashlib.sha256(b"early").hexdigest())


def passing(name: str, *permissions: str) -> str:
    words = ", ".join(f"'{word}'" for word in (sys.executable, str(PASSING), name, *permissions))
    return f'[[plugin]]\nid = "{name}"\ntransport = "connect"\nentrypoint = [{words}]\n'


def invoke(client: Client, plugin: str, method: str, **params: Any) -> Any:
    return client.call("runner.invoke", {"plugin": plugin, "method": method, "params": params}, timeout=10)


def test_what_a_plugin_on_stdio_makes_reaches_whoever_it_tells(tmp_path: Path) -> None:
    script = {
        "start": [{"method": "handle.create", "params": {"data": "early"}}],
        "on": {
            "look": {
                "asks": [
                    {"method": "handle.create", "params": {"data": "picture"}},
                    {"method": "fd.pass", "params": {"kind": "handle", "meta": {"handle": PICTURE}}},
                    {"method": "handle.create", "params": {"fd": True}},
                ]
            },
            "fetch": {"asks": [{"method": "handle.fetch", "params": {"handle": PICTURE}}]},
        },
    }
    other = {"on": {"fetch": script["on"]["fetch"]}}  # type: ignore[index]  # JSON
    with Daemon(tmp_path, asking("eyes", script) + asking("thief", other)) as daemon, daemon.client() as client:
        with pytest.raises(RpcError, match="no such handle"):
            client.handles.stat(PICTURE)
        created, passed, handed_in = invoke(client, "eyes", "look")["answers"]
        assert created["handle"] == PICTURE
        for refused in (passed, handed_in):
            assert refused["code"] == ErrorCode.NOT_PERMITTED
            assert refused["data"]["transport"] == "stdio"
        assert client.handles.read(PICTURE) == b"picture"
        assert invoke(client, "eyes", "early")["answers"][0]["handle"] == EARLY
        # Who was told nothing has nothing; who is given it has it.
        with daemon.client() as another, pytest.raises(RpcError, match="no such handle"):
            another.handles.stat(PICTURE)
        assert invoke(client, "thief", "fetch")["answers"][0]["message"] == "no such handle"
        client.handles.grant(PICTURE, "thief")
        assert invoke(client, "thief", "fetch")["answers"][0]["size"] == 7


def test_handles_travel_between_plugins(tmp_path: Path) -> None:
    capability = "experimental/eyes@1"
    eyes = {
        "hello": {"provides": [capability]},
        "on": {"look": {"asks": [{"method": "handle.create", "params": {"data": "picture"}}]}},
    }
    asks = [
        {"method": "host.invoke", "params": {"capability": capability, "method": "look", "request": "$"}},
        {"method": "handle.fetch", "params": {"handle": PICTURE}},
    ]
    reader = {"hello": {"requires": [capability]}, "on": {"read": {"asks": asks}}}
    with Daemon(tmp_path, asking("eyes", eyes) + asking("reader", reader)) as daemon, daemon.client() as client:
        _, fetched = invoke(client, "reader", "read")["answers"]
        assert fetched["size"] == 7


def test_a_plugin_on_a_socket_passes_descriptors_both_ways(tmp_path: Path) -> None:
    config = passing("camera") + passing("ear", "microphone")
    with Daemon(tmp_path, config) as daemon, daemon.client() as client:
        large = "x" * 300_000
        stored = invoke(client, "camera", "store", text=large)
        assert stored["handle"] == handle_of(hashlib.sha256(large.encode()).hexdigest())
        assert client.handles.read(stored["handle"]) == large.encode()
        assert invoke(client, "camera", "read", handle=stored["handle"]) == {"text": large, "left": 0}
        assert invoke(client, "camera", "read", handle=EARLY) == {"text": "early", "left": 0}
        mine = client.handles.create(b"for the ear").handle
        assert invoke(client, "ear", "read", handle=mine)["text"] == "for the ear"
        with pytest.raises(RpcError) as error:
            invoke(client, "camera", "ring")
        assert (error.value.code, error.value.data) == (
            ErrorCode.NOT_PERMITTED,
            {"field": "permissions", "method": "fd.pass"},
        )
        assert invoke(client, "ear", "ring")["magic"] == "UTTRRING"


def test_a_plugin_that_sends_more_than_it_announced_is_restarted(tmp_path: Path) -> None:
    with Daemon(tmp_path, passing("camera")) as daemon, daemon.client() as client:
        with client.subscribe("runner.events") as events:
            with pytest.raises(RpcError, match="max_fds_per_message"):
                invoke(client, "camera", "crowd")
            while (event := events.get(10)).get("plugin", {}).get("epoch") != 2 or event["plugin"]["status"] != "ready":
                pass
        # Its handles are the plugin's and not the epoch's.
        assert invoke(client, "camera", "read", handle=EARLY)["text"] == "early"


def test_a_client_that_sends_what_nobody_announced_is_told_and_left(tmp_path: Path) -> None:
    with Daemon(tmp_path, "") as daemon:
        for config in ({"data": "x"}, {"fd": True}):
            fds = [memfd(b"x") for _ in range(1 if "data" in config else 2)]
            with daemon.client() as client, pytest.raises((RunnerUnavailable, RpcError)):
                assert client.call("handle.create", config, 10, fds=fds) == client.call("runner.status", {}, 10)
            for fd in fds:
                os.close(fd)
        with daemon.client() as client:
            assert client.call("runner.status")["state"] == "ready"
    root = daemon.runtime / "utter" / "handles"
    assert not [path for path in root.rglob("*") if path.is_file() and path.name != "handles.lock"]


def test_a_stranger_gets_no_descriptors_in(tmp_path: Path) -> None:
    with Daemon(tmp_path, '[socket]\ntoken = "a-secret-of-16-characters"\n') as daemon:
        fd = memfd(b"x")
        with daemon.client() as client, pytest.raises((RunnerUnavailable, RpcError)):
            assert client.call("handle.create", {"fd": True}, 10, fds=[fd]) == client.call("runner.status", {}, 10)
        os.close(fd)


# ---- killed


def creations(client: Client) -> Iterator[str]:
    """Store and grant one thing after the other; the handles of what the runner has confirmed."""
    number = 0
    while True:
        number += 1
        stored = client.handles.create(b"%d " % number * (1 if number % 3 else 30_000))
        client.handles.grant(stored.handle, "keeper")
        yield stored.handle


@pytest.mark.parametrize("confirmed", [1, 3, 7])
def test_a_runner_that_was_killed_leaves_what_it_had_confirmed(tmp_path: Path, confirmed: int) -> None:
    keeper = asking("keeper", {})
    daemon = Daemon(tmp_path, keeper)
    daemon.start()
    try:
        with daemon.client() as client:
            made = creations(client)
            handles = [next(made) for _ in range(confirmed)]
            # One more is under way when it dies.
            client._send_request("handle.create", {"size": 50_000_000})
    finally:
        daemon.stop(signal.SIGKILL)
    with Daemon(tmp_path, keeper) as daemon:
        root = daemon.runtime / "utter" / "handles"
        with daemon.client() as client:
            # Answered when the directory is open.
            client.handles.create(b"after")
            (directory,) = (root / "plugins").iterdir()
            found = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in directory.iterdir()}
            assert found == {name: name for name in found}
            assert {handle_of(name) for name in found} == set(handles)
            assert list((root / "tmp").iterdir()) == []
            (own,) = (root / "clients").iterdir()
            assert len(list(own.iterdir())) == 1
    assert sorted(path.name for path in root.iterdir()) == ["handles.lock", "plugins"]
