"""Plugins on sockets, under the real daemon: started by it, and by somebody else."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.daemon import Daemon, External, environment, external, failing, hostile
from utter_protocol.errors import ErrorCode, RpcError
from utter_sdk.client import Client

PYTHON = os.path.realpath(sys.executable)


def plugins(client: Client) -> dict[str, dict[str, Any]]:
    return {one["id"]: one for one in client.call("runner.plugins", {}, timeout=5)["plugins"]}


def ask(client: Client, plugin: str, method: str = "pid") -> Any:
    return client.call(
        "runner.invoke", {"plugin": plugin, "method": method, "params": {"provenance": "user"}}, timeout=10
    )


def test_one_that_dials_one_that_listens_and_one_that_comes_late(tmp_path: Path) -> None:
    config = (
        hostile("dials", "provides=experimental/a@1", transport="connect")
        + hostile("listens", "requires=experimental/a@1", transport="listen")
        + external("late", extra=f'allow_binaries = ["{PYTHON}"]')
        + hostile("needy", extra='requires = ["experimental/late@1"]')
    )
    with Daemon(tmp_path, config) as daemon, daemon.client() as client:
        directory = daemon.runtime / "utter" / "plugins"
        seen = plugins(client)
        assert [one["status"] for one in seen.values()] == ["ready", "ready", "waiting", "failed"]
        assert [one["transport"] for one in seen.values()] == ["connect", "listen", "connect", "stdio"]
        assert "experimental/late@1" in seen["needy"]["detail"]
        assert str(directory / "late.sock") in seen["late"]["detail"]
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700
        for name in ("dials", "listens"):
            said = ask(client, name)
            assert said["pid"] == seen[name]["pid"]
            assert said["environ"]["UTTER_PLUGIN_SOCKET"] == str(directory / f"{name}.sock")
        with pytest.raises(RpcError) as error:
            ask(client, "late")
        assert (error.value.code, error.value.data["status"]) == (ErrorCode.PLUGIN_FAILED, "waiting")

        late = External("late", "provides=experimental/late@1", env=daemon.env)
        with late:
            assert daemon.wait_plugin("late", "ready")["pid"] == late.pid
            daemon.wait_plugin("needy", "ready")
            assert ask(client, "late")["pid"] == late.pid
            late.kill()
            daemon.wait_plugin("late", "waiting", epoch=1)
            daemon.wait_plugin("needy", "degraded")
            late.start()
            assert daemon.wait_plugin("late", "ready", epoch=2)["pid"] == late.pid
            daemon.wait_plugin("needy", "ready")
            assert ask(client, "late")["pid"] == late.pid

        for name in ("dials", "listens"):
            os.kill(plugins(client)[name]["pid"], signal.SIGKILL)
            daemon.wait_plugin(name, "ready", epoch=2)
            assert ask(client, name)["pid"] == plugins(client)[name]["pid"]
    # What a plugin leaves behind itself is removed before it is started again.
    assert [one.name for one in directory.glob("*.sock")] == ["listens.sock"]


def test_one_that_somebody_else_started_outlives_the_runner(tmp_path: Path) -> None:
    config = external("mine", transport="connect") + external("yours", transport="listen")
    env = environment(_runtime(tmp_path))
    (tmp_path / "run" / "utter" / "plugins").mkdir(parents=True, mode=0o700)
    with External("mine", env=env) as mine, External("yours", transport="listen", env=env) as yours:
        for ends in (signal.SIGTERM, signal.SIGKILL, signal.SIGTERM):
            daemon = Daemon(tmp_path, config)
            daemon.start()
            try:
                for name, process in (("mine", mine), ("yours", yours)):
                    shown = daemon.wait_plugin(name, "ready")
                    assert (shown["pid"], shown["epoch"]) == (process.pid, 1)
                    assert any("Every program of this user may attach" in one for one in shown["warnings"])
            finally:
                daemon.stop(ends)
            assert "Traceback" not in "".join(daemon.log)


def _runtime(directory: Path) -> Path:
    runtime = directory / "run"
    runtime.mkdir(mode=0o700)
    return runtime


def test_strangers_are_turned_away_and_counted(tmp_path: Path) -> None:
    with Daemon(tmp_path, hostile("good", transport="connect")) as daemon, daemon.client() as client:
        path = daemon.runtime / "utter" / "plugins" / "good.sock"
        for _ in range(50):
            with socket.socket(socket.AF_UNIX) as stranger:
                stranger.settimeout(20)
                stranger.connect(str(path))
                assert stranger.recv(1) == b""
        assert (plugins(client)["good"]["refused_connections"], plugins(client)["good"]["epoch"]) == (50, 1)
        assert ask(client, "good")["pid"] == plugins(client)["good"]["pid"]
    assert "".join(daemon.log).count("was refused") == 1


def test_a_plugin_that_cannot_have_its_socket_is_named_and_the_others_run(tmp_path: Path) -> None:
    long = "x" * 64
    config = hostile(long, transport="connect") + hostile("blocked", transport="connect") + hostile("good")
    path = _runtime(tmp_path) / "utter" / "plugins" / "blocked.sock"
    path.parent.mkdir(parents=True, mode=0o700)
    path.write_text("precious")
    daemon = Daemon(tmp_path, config)
    with daemon, daemon.client() as client:
        status = client.call("runner.status", {}, timeout=5)
        assert any(f"Plugin {long}: The socket path" in one and "at most 107" in one for one in status["warnings"])
        shown = plugins(client)
        assert f"{path} exists and is not a socket" in shown["blocked"]["detail"]
        assert (shown["blocked"]["status"], shown["good"]["status"]) == ("failed", "ready")
    assert path.read_text() == "precious"


def test_without_a_runtime_directory_plugins_meet_beside_the_runners_socket(tmp_path: Path) -> None:
    env = environment(_runtime(tmp_path), XDG_RUNTIME_DIR="")
    config = hostile("good", transport="connect") + f'[runner]\nsocket_path = "{tmp_path}/run/utter/runner.sock"\n'
    with Daemon(tmp_path, config, env=env) as daemon, daemon.client() as client:
        assert ask(client, "good")["environ"]["UTTER_PLUGIN_SOCKET"] == f"{tmp_path}/run/utter/plugins/good.sock"


def test_a_start_that_fails_leaves_no_plugin_and_no_socket(tmp_path: Path) -> None:
    config = '[hotkeys]\npush_to_talk = "KEY_RIGTCTRL"\n[audio]\nsource = "none"\n'
    # Other tests run beside this one, and each looks for its own.
    orphan, waif = (f"{name}-{secrets.token_hex(4)}" for name in ("orphan", "waif"))
    config += hostile(orphan, transport="connect") + hostile(waif, transport="listen")
    with failing(tmp_path, config, quiet=False) as (code, said):
        assert (code, "RIGHTCTRL" in said) == (2, True)
    shown = subprocess.run(["ps", "axeww"], capture_output=True, text=True, check=True).stdout
    assert f"{orphan}/" not in shown
    assert f"{waif}/" not in shown
    assert not (tmp_path / "run" / "utter" / "plugins" / f"{orphan}.sock").exists()
