"""A package that needs a model, from its installation to what it reads, with the real daemon and the real sandbox."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from support.daemon import Daemon, environment
from support.model_server import ModelServer, Way
from support.terminal import UTTER
from utter_runner.supervision.sandbox.wrappers import find_sandbox

FOUND = find_sandbox(None, os.environ)
pytestmark = pytest.mark.timeout(300)

MANIFEST = """\
name = "reader"
version = "1.0.0"
kind = "action"
protocol = "1.0"
abi = 1
runtime = "subprocess"
transport = "stdio"
entrypoint = ["${{PYTHON}}", "-P", "reader.py"]
provides = ["action.invoke@1"]

[[models]]
name = "small/words.txt"
url = "{url}"
sha256 = "{sha256}"
size = {size}
"""
PROGRAM = """\
from utter_sdk import Plugin

plugin = Plugin("reader", version="1.0.0", kind="action", provides=["action.invoke@1"])
words = ""


@plugin.on_start(blocking=True)
def load() -> None:
    global words
    words = plugin.model("small/words.txt").read_text()


@plugin.action("reader.read", side_effect="none", blocking=True)
def read() -> str:
    return words


plugin.run()
"""


def utter(env: dict[str, str], *arguments: str | Path, code: int = 0) -> str:
    done = subprocess.run(
        [*UTTER, *map(str, arguments)],
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == code, done
    return done.stdout


def plugin_in(daemon: Daemon) -> dict[str, Any]:
    with daemon.client() as client:
        (found,) = client.call("runner.plugins", {}, timeout=60)["plugins"]
    return dict(found)


@pytest.mark.parametrize("enforce", [False, True])
def test_from_the_package_to_what_it_reads(tmp_path: Path, enforce: bool) -> None:
    if enforce and not FOUND.wrappers:
        pytest.skip(str(FOUND.without))
    with ModelServer(tmp_path, b"what it reads", [Way("drop", 4)]) as server:
        source = tmp_path / "source"
        source.mkdir()
        model = server.model("small/words.txt")
        manifest = MANIFEST.format(url=model.url, sha256=model.sha256, size=model.size)
        (source / "utter-plugin.toml").write_text(manifest)
        (source / "reader.py").write_text(PROGRAM)
        runtime = tmp_path / "run"
        runtime.mkdir(mode=0o700)
        env = environment(runtime, **server.env)
        assert utter(env, "plugins", "install", source, "--yes").endswith("utter models pull reader\n")
        config = f'[security]\nenforce = {str(enforce).lower()}\n[[plugin]]\nid = "reader"\n'
        with Daemon(tmp_path, config, env=env) as daemon:
            assert plugin_in(daemon)["warnings"] == [
                "The model small/words.txt must be fetched: utter models pull reader"
            ]
            # The plugin itself says so, too, when it comes to load it.
            daemon.said("The model small/words.txt has not been fetched: utter models pull reader")
        utter(env, "models", "pull", "reader", "--yes")
        assert [asked for _, asked in server.requests] == ["", "bytes=4-"]
        with Daemon(tmp_path, config, env=env) as daemon:
            assert plugin_in(daemon)["warnings"] == []
            with daemon.client() as client:
                step: dict[str, Any] = {"op": "reader.read", "args": {}, "provenance": "user"}
                request = {"plugin": "reader", "method": "action.invoke", "params": step}
                assert "what it reads" in json.dumps(client.call("runner.invoke", request, timeout=60))
