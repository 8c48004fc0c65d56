"""Secrets reach the plugin that needs them and nothing else; what is said and shown is not logged."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from support.audio import babble, wav
from support.daemon import Daemon, asking, environment, failing, hostile
from support.dbus import PrivateBus
from support.secret_service import Item, SecretService
from support.terminal import UTTER
from utter_protocol.errors import RpcError
from utter_runner.supervision.words import HIDDEN

KEY, TOKEN, VARIABLE = "canary-sk-of-the-keyring", "canary-token-of-a-file", "canary-sk-of-a-variable"
CANARIES = (KEY, TOKEN, VARIABLE)
MANIFEST = """
name = "talker"
version = "1.0.0"
kind = "action"
protocol = "1.0"
abi = 1
runtime = "subprocess"
transport = "stdio"
entrypoint = ["${PYTHON}", "talker.py"]
[config_schema]
type = "object"
[config_schema.properties.key]
type = "string"
writeOnly = true
"""
# A plugin that talks of all that it has.
TALKER = """
import os, sys
from utter_protocol.errors import RpcError
from utter_sdk import Plugin

plugin = Plugin("talker", version="1.0.0", kind="action")
had = {}

@plugin.on_start
def start(settings: dict) -> None:
    had.update(settings)
    print("settings", settings, "key", os.environ["TALKER_KEY"], file=sys.stderr, flush=True)
    print("has talked", file=sys.stderr, flush=True)

@plugin.method("have")
def have(params: dict) -> dict:
    return {"settings": had, "variable": os.environ["TALKER_KEY"], "pid": os.getpid()}

plugin.run()
"""


def package(directory: Path) -> None:
    (directory / "packages" / "talker").mkdir(parents=True)
    (directory / "packages" / "talker" / "utter-plugin.toml").write_text(MANIFEST)
    (directory / "packages" / "talker" / "talker.py").write_text(TALKER)
    (directory / "token").write_text(TOKEN)
    (directory / "token").chmod(0o600)


CONFIG = """
[runner]
plugin_dirs = ["packages"]
[socket]
token = "file:token"
[log]
level = "debug"
[[plugin]]
id = "talker"
secret_env = { TALKER_KEY = "env:OUR_KEY" }
[plugin.settings]
key = "secret:service=talker"
""" + hostile("other", "ops=wave")


def of_process(pid: int) -> str:
    return "".join(Path(f"/proc/{pid}/{what}").read_text() for what in ("cmdline", "environ"))


def test_secrets_are_where_they_are_needed_and_nowhere_else(tmp_path: Path) -> None:
    package(tmp_path)
    runtime = tmp_path / "run"
    runtime.mkdir(mode=0o700)
    items = [Item({"service": "talker"}, KEY.encode())]
    with PrivateBus(tmp_path) as bus, SecretService(bus.address, items):
        env = environment(runtime, OUR_KEY=VARIABLE, DBUS_SESSION_BUS_ADDRESS=bus.address)
        with Daemon(tmp_path, CONFIG, env=env) as daemon:
            shown: list[Any] = []
            with daemon.client(TOKEN) as client, client.subscribe("runner.events") as events:
                shown.append(events.get(30))
                had = client.call("runner.invoke", {"plugin": "talker", "method": "have"}, timeout=30)
                assert (had["settings"]["key"], had["variable"]) == (KEY, VARIABLE)
                status = client.call("runner.status", {}, timeout=30)
                pids = {plugin["id"]: plugin["pid"] for plugin in status["plugins"]}
                shown += [status, client.call("runner.plugins", {}, timeout=30)]
                shown += [client.call("runner.validate_plugin", {"plugin": plugin}, timeout=30) for plugin in pids]
                for params in ({"plugin": "talker", "method": "no"}, {"plugin": "none", "method": "no"}):
                    with pytest.raises(RpcError) as error:
                        client.call("runner.invoke", params, timeout=30)
                    shown.append(str(error.value))
                other = client.call("runner.invoke", {"plugin": "other", "method": "pid"}, timeout=30)
                assert had["pid"] == pids["talker"]
                shown += [other, of_process(pids["other"]), Path(f"/proc/{status['pid']}/cmdline").read_text()]
                # The plugin that needs them has no more than its variable where others could look.
                shown.append(of_process(pids["talker"]).replace(f"TALKER_KEY={VARIABLE}", ""))
                for tool in (["status", "--json"], ["plugins", "--json"], ["status"], ["audit", "--json"]):
                    told = [*UTTER, *tool, *(["--token-file", str(tmp_path / "token")] if tool[0] != "audit" else [])]
                    tool_env = {**env, "UTTER_SOCKET": str(daemon.socket)}
                    done = subprocess.run(told, env=tool_env, capture_output=True, text=True, check=False, timeout=60)
                    assert done.returncode == 0, done.stderr
                    shown.append(done.stdout)
                # Whoever tries to get in is not told what would have been right.
                with pytest.raises(RpcError) as refused:
                    daemon.client(TOKEN[:-1])
                shown.append(str(refused.value))
        checked = subprocess.run(
            [sys.executable, "-m", "utter_runner", "--config", str(daemon.config), "--check"],
            env=env,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert checked.returncode == 0, checked.stderr
    shown += [daemon.log, checked.stdout, checked.stderr]
    # The plugin's own words are logged without them.
    assert any("settings" in line and line.count(HIDDEN) == 2 for line in daemon.log), daemon.log
    everything = json.dumps(shown)
    for canary in CANARIES:
        assert canary not in everything


def test_a_secret_that_cannot_be_had_is_said_so_and_the_others_run(tmp_path: Path) -> None:
    package(tmp_path)
    with Daemon(tmp_path, CONFIG) as daemon, daemon.client(TOKEN) as client:
        status = client.call("runner.status", {}, timeout=30)
        assert [plugin["id"] for plugin in status["plugins"]] == ["other"]
        found = [warning for warning in status["warnings"] if warning.startswith("Plugin talker: ")]
        assert len(found) == 2
        assert "secret_env.TALKER_KEY: The environment variable OUR_KEY is not set for the runner." in found[0]
        assert "settings.key: There is no session bus" in found[1] or "cannot be reached" in found[1]
        assert all(f"{daemon.config}:" in warning for warning in found)


def test_a_token_that_others_can_read_keeps_the_runner_from_starting(tmp_path: Path) -> None:
    package(tmp_path)
    (tmp_path / "token").chmod(0o644)
    with failing(tmp_path, CONFIG) as (code, said):
        assert code == 2
        assert "[socket] token: The secret's file" in said
        assert "run chmod 600" in said
        assert TOKEN not in said


# ---- content

SAID = "canarysaid"
EAR = {
    "kind": "stt",
    "hello": {"provides": ["stt.transcribe@1"]},
    "on": {
        "stt.start": {"result": {"ring": False}},
        "stt.finish": {"result": {"text": f"open {SAID}-spoken.example"}},
        "stt.cancel": {"result": {}},
    },
}
WINDOWS = {
    "kind": "context",
    "hello": {"provides": ["context.snapshot@1"]},
    "on": {"context.snapshot": {"result": {"context": {"window": f"{SAID} title", "clipboard": f"{SAID} clip"}}}},
}
SESSION = (
    """
[log]
level = "debug"
[policy]
enabled_ops = ["terminal"]
# The client that asks is the one that says yes.
self_confirm = true
[[plugin]]
id = "commands"
[[plugin.settings.phrase]]
say = "run it"
op = "terminal"
args = { command = "echo canarysaid-command" }
[[plugin]]
id = "desktop"
[plugin.settings]
dry_run = true
"""
    + hostile("actor", "ops=terminal")
    + asking("ear", EAR)
    + asking("windows", WINDOWS)
)


def test_what_is_said_and_shown_is_not_logged_at_any_level(tmp_path: Path) -> None:
    with Daemon(tmp_path, SESSION) as daemon, daemon.client() as client:
        asked: list[str] = []

        def confirm(params: dict[str, Any]) -> dict[str, Any]:
            asked.append(params["text"])
            return {"approved": len(asked) > 1}

        client.on_request("host.confirm", confirm)
        heard = [
            client.call("runner.command", {"utterance": utterance}, timeout=60)
            for utterance in (f"open {SAID}.example", f"{SAID} makes no sense", "run it", "run it")
        ]
        speech = base64.b64encode(wav(babble(1.0))).decode()
        report = client.call("runner.listen", {"wav_b64": speech}, timeout=60)
        snapshot = client.call("context.snapshot", {}, timeout=30)
        for params in (
            {"op": "open_url", "args": {"url": f"javascript:{SAID}"}, "provenance": "user"},
            {"op": SAID, "provenance": "user"},
            {"op": "launch_app", "args": {"app": SAID}, "provenance": "user"},
        ):
            with suppress(RpcError):
                invoked = {"plugin": "desktop", "method": "action.invoke", "params": params}
                client.call("runner.invoke", invoked, timeout=30)
        with suppress(RpcError):
            client.call("runner.speak", {"text": f"{SAID} aloud"}, timeout=30)
        client.call("handle.create", {"data": f"{SAID} blob"}, timeout=30)
    # All of it was there to be logged.
    assert any(SAID in json.dumps(one) for one in heard)
    assert SAID in json.dumps(report)
    assert SAID in json.dumps(snapshot)
    assert len(asked) == 2, heard
    assert SAID in asked[0]
    log = "".join(daemon.log)
    assert "DEBUG" in log
    assert SAID not in log
    trail = daemon.runtime / "home" / ".local" / "state" / "utter" / "audit.jsonl"
    assert len(trail.read_text().splitlines()) >= 6
    assert f"{SAID}-" not in trail.read_text()
    assert f"{SAID}." not in trail.read_text()


def test_with_content_it_is_logged_in_lines_of_its_own(tmp_path: Path) -> None:
    with Daemon(tmp_path, SESSION.replace('"debug"', '"debug"\ncontent = true')) as daemon, daemon.client() as client:
        client.call("runner.command", {"utterance": f"open {SAID}.example"}, timeout=60)
    assert any("content: " in line and SAID in line for line in daemon.log)
    trail = daemon.runtime / "home" / ".local" / "state" / "utter" / "audit.jsonl"
    assert SAID in trail.read_text()
