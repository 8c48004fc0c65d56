"""Plugins made with the SDK under the real daemon: what they ask, offer and pass, on every transport."""

from __future__ import annotations

import sys
import textwrap
from typing import TYPE_CHECKING, Any

import pytest

from support.audio import write_wav
from support.daemon import Daemon
from utter_protocol.errors import ErrorCode, RpcError
from utter_sdk.testing import PluginProcess

if TYPE_CHECKING:
    from pathlib import Path

    from utter_sdk.client import Client

TRANSPORTS = pytest.mark.parametrize("transport", ["stdio", "connect", "listen"])

COUNTER = """
import asyncio, os, threading
from typing import Any
from utter_sdk import AsyncStream, Cancelled, Plugin, Stream, StreamClosed

plugin = Plugin(
    "counter", version="1", kind="bundle", transport=TRANSPORT,
    provides=["experimental/Counter@1", "context.live@1"],
)

@plugin.method("counter.add", blocking=True)
def add(params: dict) -> dict:
    return {"sum": sum(params["numbers"])}

@plugin.method("counter.hang")
async def hang() -> None:
    plugin.log("hanging")
    try:
        await asyncio.Event().wait()
    finally:
        plugin.log("let go")

@plugin.stream("context.live")
def live(params: dict, stream: Stream) -> None:
    if stream.mode == "reliable":
        for n in range(1000):
            stream.send({"n": n})

@plugin.stream("for_ever", mode="reliable")
async def for_ever(params: dict, stream: AsyncStream) -> None:
    n = 0
    try:
        while True:
            await stream.send(n)
            n += 1
    except StreamClosed:
        plugin.log("stopped")

@plugin.method("counter.pid")
def pid() -> dict:
    return {"pid": os.getpid()}

plugin.run()
"""

ASKER = """
import os
from typing import Any
from msgspec import Struct
from utter_sdk import Plugin, RpcError
from utter_sdk.ring import RingReader

class Sum(Struct):
    sum: int

COUNTER = "experimental/Counter@1"
plugin = Plugin(
    "asker", version="1", kind="bundle", transport=TRANSPORT, requires=[COUNTER, "context.live@1"],
    permissions=["microphone"],
)

@plugin.method("ask", blocking=True)
def ask() -> Any:
    return plugin.host.invoke(COUNTER, "counter.add", {"numbers": [1, 2, 3]}, result=Sum).result().sum

@plugin.method("ask_async")
async def ask_async() -> Any:
    return (await plugin.host.invoke(COUNTER, "counter.add", {"numbers": [1, 2, 3]}, result=Sum)).sum

@plugin.method("hang")
async def hang() -> Any:
    return await plugin.host.invoke(COUNTER, "counter.hang")

@plugin.method("context")
async def context() -> Any:
    return await plugin.host.context()

@plugin.method("forbidden")
async def forbidden() -> Any:
    return await plugin.host.invoke("llm.complete@1", "llm.complete")

@plugin.method("collect", blocking=True)
def collect() -> Any:
    with plugin.subscribe("context.live", {"sources": ["n"]}, mode="reliable", plugin="counter") as live:
        return {"sum": sum(item["n"] for item in live), "missed": live.missed}

@plugin.method("collect_async")
async def collect_async() -> Any:
    async with plugin.subscribe("context.live", mode="reliable") as live:
        return {"sum": sum([item["n"] async for item in live]), "missed": live.missed}

@plugin.method("not_mine", blocking=True)
def not_mine() -> Any:
    return plugin.subscribe("for_ever").get()

@plugin.method("ring", blocking=True)
def ring() -> Any:
    with plugin.host.fd_pass("memfd.ring", {"wake": True}).result() as received, RingReader(received.fd) as ring:
        os.read(received.fds[1], 65536)
        return {"rate": received.result["rate"], "layout": ring.layout.rate, "written": ring.position > 0}

@plugin.method("keep", blocking=True)
def keep(params: dict) -> Any:
    content = bytes(range(256)) * (params["size"] // 256)
    made = plugin.handles.create(content)
    plugin.handles.retain(made.handle)
    same = plugin.handles.read(made.handle) == content
    for _ in range(2):
        plugin.handles.release(made.handle)
    try:
        plugin.handles.stat(made.handle)
    except RpcError as error:
        return {"size": made.size, "same": same, "gone": error.data["field"]}

plugin.run()
"""


def plugin(path: Path, source: str, name: str, transport: str) -> str:
    """Write a plugin; return its `[[plugin]]` entry."""
    script = path / f"{name}.py"
    script.write_text(f"TRANSPORT = {transport!r}\n" + textwrap.dedent(source))
    argv = f'["{sys.executable}", "{script}"]'
    return f'[[plugin]]\nid = "{name}"\ntransport = "{transport}"\nentrypoint = {argv}\n'


def invoke(client: Client, plugin: str, method: str, timeout: float = 10, **params: Any) -> Any:
    return client.call("runner.invoke", {"plugin": plugin, "method": method, "params": params}, timeout=timeout)


@TRANSPORTS
def test_two_plugins_talk_through_the_runner(tmp_path: Path, transport: str) -> None:
    config = plugin(tmp_path, COUNTER, "counter", transport) + plugin(tmp_path, ASKER, "asker", transport)
    with Daemon(tmp_path, config) as daemon, daemon.client() as client:
        assert {one["id"]: one["status"] for one in client.call("runner.plugins")["plugins"]} == {
            "counter": "ready",
            "asker": "ready",
        }
        assert invoke(client, "asker", "ask") == 6
        assert invoke(client, "asker", "ask_async") == 6
        assert "meta" in invoke(client, "asker", "context")
        with pytest.raises(RpcError) as caught:
            invoke(client, "asker", "forbidden")
        assert caught.value.code == ErrorCode.NOT_PERMITTED
        # A plugin's subscription, with its credit, and a client's beside it.
        for method in ("collect", "collect_async"):
            assert invoke(client, "asker", method) == {"sum": 499_500, "missed": 0}
        with pytest.raises(RpcError, match="its requires do not name the capability"):
            invoke(client, "asker", "not_mine")
        with client.subscribe("context.live", mode="reliable") as stream:
            assert [item["n"] for item in stream] == list(range(1000))
        # A subscriber that stops ends the handler, and one that is slow holds it up without a loss.
        with client.subscribe("for_ever", mode="reliable") as stream:
            assert [stream.get(10) for _ in range(200)] == list(range(200))
        daemon.wait_for("counter: stopped")
        # Cancelling goes the whole way.
        with daemon.client() as other:
            other._send_request("runner.invoke", {"plugin": "asker", "method": "hang", "params": {}})
            daemon.wait_for("counter: hanging")
        daemon.wait_for("counter: let go")
        assert invoke(client, "asker", "ask") == 6


@pytest.mark.parametrize("transport", ["connect", "listen"])
def test_descriptors_come_and_go(tmp_path: Path, transport: str) -> None:
    write_wav(tmp_path / "speech.wav", [0.1] * 32_000)
    config = plugin(tmp_path, COUNTER, "counter", "stdio") + plugin(tmp_path, ASKER, "asker", transport)
    audio = f'[audio]\nsource = "wav"\nwav_path = "{tmp_path}/speech.wav"\ncues = false\n[hotkeys]\nenabled = false\n'
    with Daemon(tmp_path, audio + config, quiet=False) as daemon, daemon.client() as client:
        assert invoke(client, "asker", "ring") == {"rate": 16_000, "layout": 16_000, "written": True}
        for size in (256, 65_536, 262_144):
            assert invoke(client, "asker", "keep", size=size) == {"size": size, "same": True, "gone": "handle"}


def test_over_stdio_a_plugin_keeps_what_travels_inline_and_is_told_of_the_rest(tmp_path: Path) -> None:
    config = plugin(tmp_path, COUNTER, "counter", "stdio") + plugin(tmp_path, ASKER, "asker", "stdio")
    with Daemon(tmp_path, config) as daemon, daemon.client() as client:
        assert invoke(client, "asker", "keep", size=65_536) == {"size": 65_536, "same": True, "gone": "handle"}
        with pytest.raises(RpcError) as caught:
            invoke(client, "asker", "keep", size=131_072)
        assert caught.value.code == ErrorCode.NOT_PERMITTED
        assert caught.value.data == {"method": "handle.create", "transport": "stdio"}


@pytest.mark.parametrize("transport", ["connect", "listen"])
def test_a_plugin_that_somebody_else_started_meets_two_runners(tmp_path: Path, transport: str) -> None:
    entry = f'[[plugin]]\nid = "counter"\ntransport = "{transport}"\nspawn = false\n'
    plugin(tmp_path, COUNTER, "counter", transport)
    first, second = Daemon(tmp_path, entry), Daemon(tmp_path, entry)
    env = {"XDG_RUNTIME_DIR": str(first.runtime), "UTTER_PLUGIN_SOCKET": "", "UTTER_INSTANCE": ""}
    # It is there before the runner is.
    with PluginProcess([sys.executable, tmp_path / "counter.py"], env=env, handshake=False, timeout=20) as started:
        with first as daemon, daemon.client() as client:
            daemon.wait_plugin("counter", "ready")
            assert invoke(client, "counter", "counter.pid") == {"pid": started.pid}
            with client.subscribe("for_ever", mode="reliable") as stream:
                assert stream.get(10) == 0
        started.wait_stderr("the runner has gone; waiting for the runner at ")
        with second as daemon, daemon.client() as client:
            daemon.wait_plugin("counter", "ready")
            assert invoke(client, "counter", "counter.add", numbers=[4, 5]) == {"sum": 9}
        started.kill(15)
        assert started.wait() == 0
