"""`[policy.ops.NAME]` in the real daemon, and what `utter policy` says of it."""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from support.daemon import Daemon, asking, failing, hostile
from support.terminal import UTTER
from utter_protocol.errors import ErrorCode, RpcError

if TYPE_CHECKING:
    from pathlib import Path

    from utter_sdk.client import Client

POLICY = """
[policy.ops.wave]
rate = "2/hour"
schema = { properties = { n = { maximum = 5 } } }
[policy.ops.open_url]
schemes = ["https"]
confirm = "untrusted"
[policy.ops.terminal]
enabled = true
[policy.ops.sleep]
enabled = false
"""
# "mine" is for another plugin's ops, "any" for all.
CATALOG = {
    "describe": {"methods": ["knowledge.catalog"]},
    "hello": {"kind": "knowledge", "provides": ["knowledge.catalog@1"]},
    "on": {
        "knowledge.catalog": {
            "result": {
                "candidates": [
                    {"id": "mine", "value": "https://mine.example/", "plugin": "other"},
                    {"id": "any", "value": "https://any.example/"},
                ]
            }
        }
    },
}


def invoke(client: Client, op: str, args: dict[str, Any], plugin: str = "actor", provenance: str = "user") -> Any:
    params = {"op": op, "args": args, "provenance": provenance}
    call = {"plugin": plugin, "method": "action.invoke", "params": params}
    return client.call("runner.invoke", call, timeout=30)


def refused(client: Client, op: str, args: dict[str, Any], **more: str) -> dict[str, Any]:
    with pytest.raises(RpcError) as caught:
        invoke(client, op, args, **more)
    data: dict[str, Any] = caught.value.data
    return {"code": caught.value.code, **data}


def utter(daemon: Daemon, *arguments: str) -> subprocess.CompletedProcess[str]:
    env = {**daemon.env, "UTTER_SOCKET": str(daemon.socket)}
    argv = [*UTTER, "policy", *arguments]
    return subprocess.run(argv, env=env, capture_output=True, text=True, timeout=60, check=False)


def test_what_is_said_of_an_op_holds_for_whoever_asks(tmp_path: Path) -> None:
    config = POLICY + hostile("actor", "ops=wave,open_url,terminal,sleep")
    with Daemon(tmp_path, config) as daemon, daemon.client() as client, daemon.client() as other:
        assert refused(client, "sleep", {})["rule"] == "op-disabled"
        assert refused(client, "open_url", {"url": "http://a.org"})["rule"] == "url"
        assert refused(client, "wave", {"n": 6}) == {
            "code": ErrorCode.NOT_PERMITTED,
            "rule": "configured-schema",
            "op": "wave",
            "field": "n",
        }
        # What was denied or explained does not count; what was done does, for all clients together.
        for _ in range(3):
            assert client.call("policy.explain", {"op": "wave"}, timeout=30)["decision"] == "allow"
        assert [invoke(one, "wave", {"n": 5})["ok"] for one in (client, other)] == [True, True]
        late = refused(other, "wave", {"n": 5})
        assert 0 < late.pop("retry_after_ms") <= 3_600_000
        assert late == {
            "code": ErrorCode.NOT_PERMITTED,
            "rule": "rate",
            "op": "wave",
            "bound": "rate",
            "limit": 2,
            "per": "hour",
        }
        assert client.call("policy.explain", {"op": "wave"}, timeout=30)["rule"] == "rate"


def test_a_candidate_for_one_plugin_fills_no_argument_of_another_s_op(tmp_path: Path) -> None:
    config = asking("known", CATALOG) + hostile("actor", "ops=open_url") + hostile("other", "ops=open_url")
    with Daemon(tmp_path, config) as daemon, daemon.client() as client:
        picks = {name: {"url": {"select": name}} for name in ("mine", "any")}
        for plugin in ("actor", "other"):
            done = invoke(client, "open_url", picks["any"], plugin, "screen")
            assert done["data"]["args"] == {"url": "https://any.example/"}
        done = invoke(client, "open_url", picks["mine"], "other", "screen")
        assert done["data"]["args"] == {"url": "https://mine.example/"}
        denied = refused(client, "open_url", picks["mine"], plugin="actor", provenance="screen")
        assert (denied["code"], denied["rule"]) == (ErrorCode.UNTRUSTED_PROVENANCE, "unknown-candidate")


def test_the_command_explains_and_lists(tmp_path: Path) -> None:
    config = POLICY + hostile("actor", "ops=wave,open_url,terminal,sleep")
    with Daemon(tmp_path, config) as daemon:
        asked = utter(daemon, "explain", "terminal", '{"command": "make  clean"}')
        assert (asked.returncode, asked.stderr) == (5, "")
        assert "Question   Run in a terminal: make\u2423\u2423clean" in asked.stdout
        assert "Rules      always-confirm, destructive" in asked.stdout
        by_model = utter(daemon, "explain", "terminal", '{"command": "ls"}', "--llm", "--json")
        assert by_model.returncode == 3
        assert json.loads(by_model.stdout)["data"] == {"rule": "command-from-llm", "op": "terminal"}
        url = ["explain", "open_url", '{"url": "https://a.org"}']
        assert utter(daemon, *url).returncode == 0
        assert utter(daemon, *url, "--arg", "url=screen").returncode == 3
        wrong = utter(daemon, "explain", "open_url", '{"url": https}')
        assert (wrong.returncode, wrong.stdout) == (2, "")
        assert "Expecting value in line 1, column 9, at 'https}'." in wrong.stderr

        listed = json.loads(utter(daemon, "list", "--json").stdout)["ops"]
        found = {one["op"]: (one["state"], one["key"], one["rate"]) for one in listed if one["plugin"] == "actor"}
        assert found == {
            "open_url": ("on", "[policy.ops.open_url] confirm", None),
            "sleep": ("off", "[policy.ops.sleep] enabled", None),
            "terminal": ("asks", "[policy.ops.terminal] enabled", None),
            "wave": ("on", "", "2/hour"),
        }
        assert {one["op"] for one in listed if one["plugin"] is None} == {"ensure_url", "input", "launch_app", "niri"}
        shown = utter(daemon, "list")
        assert shown.returncode == 0
        assert "[policy.ops.sleep] enabled" in shown.stdout


def test_a_config_that_contradicts_itself_is_refused_at_start(tmp_path: Path) -> None:
    wrong = '[policy]\ndisabled_ops = ["wave"]\n[policy.ops.wave]\nenabled = true\n'
    with failing(tmp_path, wrong) as (code, said):
        assert code == 2
        assert "runner.toml:4: [policy.ops.wave] enabled is true, but [policy] disabled_ops names 'wave'." in said
