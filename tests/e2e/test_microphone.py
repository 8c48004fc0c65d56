"""Plugins that hear the microphone through the audio ring: inherited over stdio, passed over a socket."""

from __future__ import annotations

import hashlib
import os
import re
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest

from support.audio import babble, write_wav
from support.daemon import Daemon
from utter_protocol.errors import ErrorCode, RpcError
from utter_protocol.inherited import RING_CAPABILITY, RING_VARIABLE, WAKE_VARIABLE
from utter_runner.voice.capture.resample import wav_to_pcm
from utter_sdk.client import Client
from utter_sdk.testing import PluginProcess

SECONDS = 1.0

LISTENER = """
import hashlib
import os
import threading
from utter_sdk import Plugin
from utter_sdk.microphone import MicrophoneClosed, Overrun

plugin = Plugin(
    "listener", version="1", kind="bundle", transport=TRANSPORT, requires=["host.audio.ringbuffer@1"],
    permissions=["microphone"],
)

@plugin.method("hear", blocking=True)
def hear() -> dict:
    digest, at, waits, goal = hashlib.sha256(), 0, 0, 0
    with plugin.microphone() as mic:
        generation = mic.generation
        while waits == 0 or at < goal:
            assert mic.wait(at, 60)
            waits += 1
            end = mic.position
            digest.update(mic.read(at, end - at))
            at = end
            # From the first read on: however late that was, there is a second one.
            goal = goal or at + 8000
        return {
            "sha256": digest.hexdigest(), "count": at, "waits": waits, "oldest": mic.oldest,
            "same": mic.generation == generation, "rate": mic.layout.rate, "capacity": mic.layout.capacity,
        }

@plugin.method("together", blocking=True)
def together() -> dict:
    heard = []
    def listen() -> None:
        with plugin.microphone() as mic:
            goal = start + 8000
            while mic.wait(mic.position, 60) and mic.position < goal:
                pass
            heard.append(mic.position >= goal)
    with plugin.microphone() as mic:
        start = mic.position
    threads = [threading.Thread(target=listen) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {"heard": heard}

@plugin.method("waiting", blocking="waiting")
def waiting(params: dict) -> None:
    try:
        with plugin.microphone() as mic:
            plugin.log(f"{params['who']} waits for what never comes")
            mic.wait(2**62)
    finally:
        plugin.log(f"{params['who']} waits no longer")

@plugin.method("timeout", blocking=True)
def timeout() -> dict:
    with plugin.microphone() as mic:
        return {"came": mic.wait(2**62, 0.05)}

@plugin.method("closed", blocking=True)
def closed() -> dict:
    mic = plugin.microphone()
    threading.Timer(0.05, mic.close).start()
    try:
        mic.wait(2**62)
    except MicrophoneClosed as why:
        return {"why": str(why)}

@plugin.method("inline")
def inline() -> None:
    plugin.microphone()

@plugin.method("descriptors")
def descriptors() -> dict:
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            found[name] = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:
            pass
    env = {name: value for name, value in os.environ.items() if name.startswith("UTTER_AUDIO")}
    return {"fds": found, "env": env}

@plugin.method("die")
def die() -> None:
    os._exit(1)

plugin.run()
"""


def listener(directory: Path, transport: str, *, name: str = "listener", more: str | None = None) -> str:
    """Write the plugin; return its `[[plugin]]` entry."""
    script = directory / f"{name}.py"
    source = textwrap.dedent(LISTENER).replace('"listener"', f'"{name}"')
    script.write_text(f"TRANSPORT = {transport!r}\n" + source)
    if more is None:
        more = f'requires = ["{RING_CAPABILITY}"]\npermissions = ["microphone"]\n'
    return (
        f'[[plugin]]\nid = "{name}"\ntransport = "{transport}"\n'
        f'entrypoint = ["{sys.executable}", "{script}"]\nrestart = "always"\n{more}'
    )


def audio(directory: Path) -> str:
    write_wav(directory / "speech.wav", babble(SECONDS))
    return (
        f'[audio]\nsource = "wav"\nwav_path = "{directory}/speech.wav"\ncapture = "always"\nring_seconds = 75\n'
        "cues = false\n[hotkeys]\nenabled = false\n"
    )


def recorded(directory: Path, count: int) -> str:
    """The digest of so many frames: the file, and silence after it."""
    pcm = wav_to_pcm((directory / "speech.wav").read_bytes(), 60)
    return hashlib.sha256(pcm[: 4 * count].ljust(4 * count, b"\0")).hexdigest()


def ask(client: Client, method: str, timeout: float = 60, plugin: str = "listener", **params: Any) -> Any:
    return client.call("runner.invoke", {"plugin": plugin, "method": method, "params": params}, timeout=timeout)


@pytest.mark.parametrize("transport", ["stdio", "connect", "listen"])
def test_a_plugin_hears_what_is_recorded_whatever_carries_its_frames(tmp_path: Path, transport: str) -> None:
    config = audio(tmp_path) + listener(tmp_path, transport)
    with Daemon(tmp_path, config, quiet=False) as daemon, daemon.client() as client:
        heard = ask(client, "hear")
        assert heard.pop("waits") > 1
        assert heard == {
            "sha256": recorded(tmp_path, heard.pop("count")),
            "oldest": 0,
            "same": True,
            "rate": 16_000,
            "capacity": 75 * 16_000,
        }
        assert ask(client, "together") == {"heard": [True] * 4}
        assert ask(client, "timeout") == {"came": False}
        assert ask(client, "closed") == {"why": "the microphone was closed"}
        with pytest.raises(RpcError, match=r"microphone\(\): the answer arrives on this thread"):
            ask(client, "inline")
        # Whoever asked gives up, and the handler goes on to its end.
        with daemon.client() as other:
            other._send_request("runner.invoke", {"plugin": "listener", "method": "waiting", "params": {"who": "Ada"}})
            daemon.wait_for("listener: Ada waits for what never comes")
        daemon.wait_for("listener: Ada waits no longer")
        # What was opened is closed, but for what was inherited.
        fds = [one for one in ask(client, "descriptors")["fds"].values() if "utter-ring" in one]
        assert len(fds) == (transport == "stdio")


def test_a_plugin_that_outlives_the_runner_is_told(tmp_path: Path) -> None:
    listener(tmp_path, "connect")
    entry = '[[plugin]]\nid = "listener"\ntransport = "connect"\nspawn = false\npermissions = ["microphone"]\n'
    first, second = (Daemon(tmp_path, audio(tmp_path) + entry, quiet=False) for _ in range(2))
    env = {"XDG_RUNTIME_DIR": str(first.runtime), "UTTER_PLUGIN_SOCKET": "", "UTTER_INSTANCE": ""}
    with PluginProcess([sys.executable, tmp_path / "listener.py"], env=env, handshake=False, timeout=60) as plugin:
        for who, daemon in (("Ada", first), ("Bob", second)):
            with daemon, daemon.client() as client:
                daemon.wait_plugin("listener", "ready")
                assert ask(client, "timeout") == {"came": False}
                client._send_request(
                    "runner.invoke", {"plugin": "listener", "method": "waiting", "params": {"who": who}}
                )
                plugin.wait_stderr(f"{who} waits for what never comes")
            plugin.wait_stderr(f"{who} waits no longer")
        plugin.kill(15)
        assert plugin.wait() == 0


def test_who_inherits_the_ring_and_who_does_not(tmp_path: Path) -> None:
    needs = f'requires = ["{RING_CAPABILITY}"]\n'
    config = (
        audio(tmp_path)
        + listener(tmp_path, "stdio")
        + listener(tmp_path, "stdio", name="second")
        + listener(tmp_path, "stdio", name="unpermitted", more=needs)
        + listener(tmp_path, "stdio", name="late", more="")
        + listener(tmp_path, "connect", name="connected")
    )
    with Daemon(tmp_path, config, quiet=False) as daemon, daemon.client() as client:
        for name in ("listener", "second"):
            seen = ask(client, "descriptors", plugin=name)
            ring, *more = [one for one in seen["fds"].values() if "utter-ring" in one]
            assert ring
            # One ring, and of pipes its own one only; the SDK leaves nothing of it to what the plugin starts.
            assert not more
            assert seen["env"] == {}
        for name in ("unpermitted", "late", "connected"):
            seen = ask(client, "descriptors", plugin=name)
            assert not [one for one in seen["fds"].values() if "utter-ring" in one]
        with pytest.raises(RpcError, match="inherited no audio ring: its manifest must require") as caught:
            ask(client, "timeout", plugin="late")
        assert caught.value.code == ErrorCode.NOT_PERMITTED
        plugins = {one["id"]: one["warnings"] for one in client.call("runner.plugins")["plugins"]}
        assert plugins["listener"] == plugins["second"] == plugins["connected"] == []
        (lacks,) = plugins["unpermitted"]
        assert 'lacks the permission "microphone"' in lacks
        (late,) = plugins["late"]
        assert "in protocol.hello only" in late
    assert any("unpermitted: " in line and 'lacks the permission "microphone"' in line for line in daemon.log)


def test_every_epoch_has_a_pipe_of_its_own_and_nothing_is_left_of_the_last(tmp_path: Path) -> None:
    with Daemon(tmp_path, audio(tmp_path) + listener(tmp_path, "stdio"), quiet=False) as daemon:
        assert daemon.process is not None
        mine = Path(f"/proc/{daemon.process.pid}/fd")

        def open_files() -> list[str]:
            found = []
            for entry in mine.iterdir():
                try:
                    # Each epoch's temporary directory has a name of its own.
                    found.append(re.sub(r":.*|-[0-9a-f]{32}$", "", str(entry.readlink())))
                except FileNotFoundError:
                    continue
            return sorted(found)

        before: list[str] = []
        for epoch in (1, 2, 3):
            daemon.wait_plugin("listener", "ready", epoch=epoch)
            with daemon.client() as client:
                assert ask(client, "timeout") == {"came": False}
                assert ask(client, "together") == {"heard": [True] * 4}
                before = before or open_files()
                # What an epoch or a client leaves behind is closed in its own time.
                deadline = time.monotonic() + 30
                while open_files() != before and time.monotonic() < deadline:
                    time.sleep(0.05)
                assert open_files() == before
                with pytest.raises(RpcError):
                    ask(client, "die")


def test_the_numbers_are_in_the_environment_and_name_what_they_say(tmp_path: Path) -> None:
    script = tmp_path / "raw.sh"
    script.write_text(
        f'#!/bin/sh\nexec >&2\nreadlink "/proc/$$/fd/${RING_VARIABLE}" "/proc/$$/fd/${WAKE_VARIABLE}"\nls /proc/$$/fd\n'
        'echo "that is all"\nexit 125\n'
    )
    config = (
        audio(tmp_path) + f'[[plugin]]\nid = "raw"\nentrypoint = ["sh", "{script}"]\n'
        f'requires = ["{RING_CAPABILITY}"]\npermissions = ["microphone"]\n'
    )
    with Daemon(tmp_path, config, quiet=False, wait=False) as daemon:
        daemon.wait_for("raw: that is all")
        said = [line.partition("raw: ")[2].strip() for line in daemon.log if "raw: " in line]
        assert said[0].startswith("/memfd:utter-ring")
        assert said[1].startswith("pipe:")
        # Its pipes, the shell's own script and the two; the listing opens none of the shell's.
        assert len([one for one in said if one.isdigit()]) == 3 + 1 + 2
        daemon.wait_for("ready on ")
    assert os.environ.get(RING_VARIABLE) is None
