"""The daemon with `[security] enforce = true`: real plugins, real wrappers, and nobody who runs without."""

from __future__ import annotations

import base64
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.audio import write_wav
from support.daemon import Daemon, environment, hostile
from support.llm_server import LlmServer
from utter_runner.supervision.sandbox.wrappers import find_sandbox
from utter_sdk.client import Client

EXAMPLES = Path(__file__).parents[2] / "plugins" / "examples"
NEXT = Path(__file__).parents[1] / "data" / "audio" / "en" / "recorded_next.wav"
ENFORCE = "[security]\nenforce = true\n"
PENDING = "it has not been tried yet"

FOUND = find_sandbox(None, os.environ)
pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif("bubblewrap" not in FOUND.wrappers, reason=FOUND.without.get("bubblewrap", "-")),
]


def plugins(client: Client) -> dict[str, dict[str, Any]]:
    return {one["id"]: one for one in client.call("runner.plugins", {}, timeout=20)["plugins"]}


def validate(client: Client, plugin: str) -> dict[str, Any]:
    return dict(client.call("runner.validate_plugin", {"plugin": plugin}, timeout=20))


def wait_known(client: Client, plugin: str) -> dict[str, Any]:
    """Wait until the sandbox has been tried; return what is then said of a plugin."""
    with client.subscribe("runner.events") as events:
        while PENDING in (answer := validate(client, plugin))["sandbox"]["reasons"].values():
            events.get(60)
        return answer


def invoke(client: Client, plugin: str, op: str, **args: Any) -> dict[str, Any]:
    params = {"op": op, "args": args, "provenance": "user"}
    request = {"plugin": plugin, "method": "action.invoke", "params": params}
    return dict(client.call("runner.invoke", request, timeout=60))


@pytest.mark.model
def test_what_ships_works_inside(tmp_path: Path) -> None:
    with LlmServer(lambda exchange: exchange.chat("forty-two")) as server:
        config = f"""{ENFORCE}
[runner]
plugin_dirs = ["{EXAMPLES}"]
[[plugin]]
id = "commands"
[[plugin]]
id = "whisper"
[[plugin]]
id = "espeak"
[[plugin]]
id = "desktop"
[plugin.settings]
dry_run = true
[[plugin]]
id = "llm"
[plugin.settings]
base_url = "{server.base_url}"
[[plugin]]
id = "wasm-hello"
[[plugin]]
id = "python-hello"
[[plugin]]
id = "shell-hello"
"""
        config += '[[plugin]]\nid = "node-hello"\n' if shutil.which("node") else ""
        with Daemon(tmp_path, config) as daemon, daemon.client() as client:
            daemon.wait_plugin("whisper", "ready", timeout=120)
            shown = plugins(client)
            assert {one["status"] for one in shown.values()} <= {"ready", "degraded"}, shown
            assert all(one["sandbox"]["wrappers"] == [*FOUND.wrappers] for one in shown.values())
            # What was said is heard, understood and done, each by one of them.
            wav = base64.b64encode(NEXT.read_bytes()).decode()
            report = client.call("runner.listen", {"wav_b64": wav}, timeout=120)
            assert [(one["op"], one["ok"]) for one in report["results"]] == [("media", True)], report
            ask = {"plugin": "llm", "method": "llm.complete", "params": {"prompt": "What is it?"}}
            assert client.call("runner.invoke", ask, timeout=60)["text"] == "forty-two"
            for name in {"wasm-hello", "python-hello", "shell-hello", "node-hello"} & shown.keys():
                assert "hello" in shown[name]["ops"], name
                assert "Ada" in str(invoke(client, name, "hello", name="Ada")), name


def test_a_permission_is_called_enforced_once_it_was_tried(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir(mode=0o700)
    env = environment(tmp_path / "run", XDG_CACHE_HOME=str(tmp_path / "cache"))
    config = ENFORCE + hostile("good", extra='permissions = ["network", "files.read"]')
    cache = tmp_path / "cache" / "utter" / "sandbox.json"
    with Daemon(tmp_path, config, env=env) as daemon, daemon.client() as client:
        answer = wait_known(client, "good")
        expected = [{"name": name, "enforced": True, "advisory": False} for name in ("network", "files.read")]
        assert answer["permissions"] == answer["sandbox"]["permissions"] == expected
        kept = {one["name"]: one["enforced"] for one in answer["sandbox"]["besides"]}
        assert (kept["other processes"], kept["the runner's socket"]) == (True, True)
        assert plugins(client)["good"]["sandbox"] == answer["sandbox"]
    written = cache.stat().st_mtime_ns
    # On the next start it is known.
    with Daemon(tmp_path, config, env=env) as daemon, daemon.client() as client:
        assert wait_known(client, "good")["permissions"] == expected
    assert cache.stat().st_mtime_ns == written


@pytest.mark.parametrize("transport", ["stdio", "connect", "listen"])
def test_it_is_greeted_restarted_and_stopped_inside(transport: str, tmp_path: Path) -> None:
    with Daemon(tmp_path, ENFORCE + hostile("good", "runaway", transport=transport)) as daemon:
        with daemon.client() as client:
            seen = client.call("runner.invoke", {"plugin": "good", "method": "pid"}, timeout=20)
            mark = seen["environ"]["UTTER_INSTANCE"]
            assert seen["environ"]["HOME"] == daemon.env["HOME"]
            if transport == "listen":
                assert seen["environ"]["UTTER_PLUGIN_SOCKET"] == f"{daemon.runtime}/utter/plugins/good/good.sock"
            os.kill(plugins(client)["good"]["pid"], 9)
        daemon.wait_plugin("good", "ready", epoch=2)
        with daemon.client() as client:
            again = client.call("runner.invoke", {"plugin": "good", "method": "pid"}, timeout=20)
            assert again["environ"]["UTTER_INSTANCE"] != mark
    left = [one for one in Path("/proc").iterdir() if one.name.isdigit() and _carries(one, mark)]
    assert left == []


def _carries(process: Path, mark: str) -> bool:
    try:
        return mark.encode() in (process / "environ").read_bytes()
    except OSError:
        return False


def test_the_audio_ring_goes_in(tmp_path: Path) -> None:
    pytest.importorskip("pymicro_wakeword")
    write_wav(tmp_path / "silence.wav", np.zeros(16_000 * 30, dtype=np.float32), 16_000)
    audio = f'[audio]\nsource = "wav"\nwav_path = "{tmp_path}/silence.wav"\n[hotkeys]\nenabled = false\n'
    with Daemon(tmp_path, f'{ENFORCE}{audio}[[plugin]]\nid = "wake"\n', quiet=False) as daemon:
        daemon.said("wake: listening for okay_nabu")


def test_where_its_sandbox_cannot_be_made_a_plugin_is_not_run(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir(mode=0o700)
    (tmp_path / "bin").mkdir()
    env = environment(tmp_path / "run", PATH=str(tmp_path / "bin"))
    config = '[security]\nenforce = true\nsandbox = ["bubblewrap"]\n' + hostile("good")
    with Daemon(tmp_path, config, env=env) as daemon, daemon.client() as client:
        status = client.call("runner.status", {}, timeout=20)
        assert status["plugins"] == []
        (words,) = [one for one in status["warnings"] if "good" in one]
        assert words.startswith("Plugin good is not run: [security] enforce = true")
        assert "there is no program bwrap in PATH" in words


READER = """
import pathlib
from utter_sdk import Plugin

plugin = Plugin("reader", version="1.0.0", kind="action")

@plugin.method("read")
def read(params: dict) -> dict:
    try:
        return {"found": pathlib.Path(params["path"]).read_text()}
    except OSError as error:
        return {"found": "", "error": str(error)}

plugin.run()
"""


def test_with_the_whole_home_directory_it_still_has_none_of_the_runners_files(tmp_path: Path) -> None:
    """Wherever they lie, and whatever links lead there."""
    home = tmp_path / "home"
    for name in ("dotfiles", "state/utter", "secrets", "package"):
        (home / name).mkdir(parents=True)
    (home / "note").write_text("mine")
    for name in ("token", "key"):
        (home / "secrets" / name).write_text(f"canary-of-a-{name}-that-is-long")
        (home / "secrets" / name).chmod(0o600)
    (home / "package" / "reader.py").write_text(READER)
    (tmp_path / "runner.toml").symlink_to("home/dotfiles/runner.toml")
    (tmp_path / "state").symlink_to("home/state")
    (tmp_path / "run").mkdir(mode=0o700)
    config = f"""{ENFORCE}
[socket]
token = "file:{home}/secrets/token"
[[plugin]]
id = "reader"
entrypoint = ["{sys.executable}", "{home}/package/reader.py"]
permissions = ["files.read"]
secret_env = {{ KEY = "file:{home}/secrets/key" }}
"""
    env = environment(tmp_path / "run", HOME=str(home), XDG_STATE_HOME=str(tmp_path / "state"))
    with (
        Daemon(tmp_path, config, env=env) as daemon,
        daemon.client("canary-of-a-token-that-is-long") as client,
    ):
        (home / "state" / "utter" / "tokens.toml").write_text("hashes")

        def read(name: str) -> str:
            request = {"plugin": "reader", "method": "read", "params": {"path": f"{home}/{name}"}}
            return str(client.call("runner.invoke", request, timeout=30)["found"])

        assert read("note") == "mine"
        kept = ["dotfiles/runner.toml", "secrets/token", "secrets/key", "state/utter/tokens.toml"]
        assert {name: read(name) for name in kept} == dict.fromkeys(kept, "")


def test_one_that_is_left_out_is_warned_of(tmp_path: Path) -> None:
    with Daemon(tmp_path, ENFORCE + hostile("good", extra="sandbox = false")) as daemon, daemon.client() as client:
        answer = validate(client, "good")
        assert answer["sandbox"]["wrappers"] == []
        (warning,) = answer["warnings"]
        assert warning == (
            "No sandbox holds it, although [security] enforce = true: its [[plugin]] table says sandbox = false. "
            "It has all of your rights."
        )


def test_the_sandbox_can_be_switched_on_and_off_while_it_runs(tmp_path: Path) -> None:
    plain = hostile("held", extra=f'read_paths = ["{Path(__file__).parents[1]}"]') + hostile(
        "free", extra="sandbox = false"
    )
    with Daemon(tmp_path, plain) as daemon, daemon.client() as client:
        assert plugins(client)["held"]["sandbox"]["wrappers"] == []
        text = daemon.config.read_text()
        for enforced in (True, False):
            daemon.config.write_text((ENFORCE if enforced else "") + text)
            answer = client.call("runner.reload", {}, timeout=60)
            assert (answer["changed"], answer["plugins"]["restarted"]) == (["security.enforce"], ["held"])
            up = client.call("runner.control", {"plugin": "held", "action": "start"}, timeout=60)
            assert (up["status"], bool(up["sandbox"]["wrappers"])) == ("ready", enforced)
            assert (plugins(client)["free"]["epoch"], plugins(client)["free"]["status"]) == (1, "ready")
            if enforced:
                assert wait_known(client, "held")["sandbox"]["besides"][0]["enforced"]
