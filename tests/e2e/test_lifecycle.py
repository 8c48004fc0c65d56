"""Starting and stopping the real daemon, and what it says when it cannot."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from support.daemon import Daemon, environment, failing, hostile
from utter_protocol.errors import RpcError


def test_a_second_runner_is_refused_and_names_the_first(tmp_path: Path) -> None:
    with Daemon(tmp_path, hostile("good")) as daemon:
        assert daemon.process is not None
        with failing(tmp_path, hostile("good")) as (code, said):
            assert code == 1
            assert f"(pid {daemon.process.pid})" in said
            assert str(daemon.socket) in said
        with daemon.client() as client:
            assert client.call("runner.status", {}, timeout=5)["state"] == "ready"


def test_a_stale_socket_of_a_killed_runner_is_replaced(tmp_path: Path) -> None:
    first = Daemon(tmp_path, hostile("good"))
    first.start()
    assert first.stop(signal.SIGKILL) == -signal.SIGKILL
    assert first.socket.is_socket()
    with Daemon(tmp_path, hostile("good")) as daemon, daemon.client() as client:
        assert client.call("runner.status", {}, timeout=5)["state"] == "ready"


def test_what_plugins_of_a_killed_runner_left_is_taken_away_by_the_next(tmp_path: Path) -> None:
    first = Daemon(tmp_path, hostile("good"))
    first.start()
    scratch = Path(first.env["TMPDIR"])
    (left,) = scratch.iterdir()
    (left / "big").write_bytes(bytes(1000))
    assert first.stop(signal.SIGKILL) == -signal.SIGKILL
    assert left.is_dir()
    with Daemon(tmp_path, hostile("good")) as daemon, daemon.client() as client:
        daemon.said(f"removed the temporary directory {left}, which a runner that was killed has left")
        (ours,) = scratch.iterdir()
        assert ours != left
        # Another runner beside it takes away what is nobody's, and nothing else.
        nobodys = scratch / f"utter-gone-{secrets.token_hex(16)}"
        nobodys.mkdir()
        (tmp_path / "beside" / "run").mkdir(parents=True, mode=0o700)
        env = {**environment(tmp_path / "beside" / "run"), "TMPDIR": str(scratch)}
        with Daemon(tmp_path / "beside", hostile("other"), env=env) as other:
            other.wait_for(f"removed the temporary directory {nobodys}, ")
            assert ours.is_dir()
        assert client.call("runner.status", {}, timeout=5)["state"] == "ready"
    assert not [*scratch.iterdir()]


def test_what_is_no_stale_socket_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "run" / "utter" / "runner.sock"
    path.parent.mkdir(parents=True, mode=0o700)
    path.parent.parent.chmod(0o700)
    path.write_text("precious")
    with failing(tmp_path, hostile("good")) as (code, said):
        assert code == 1
        assert str(path) in said
    assert path.read_text() == "precious"
    path.unlink()
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(path))
        other.listen()
        with failing(tmp_path, hostile("good")) as (code, said):
            assert code == 1
            assert "Another program listens" in said
    assert path.is_socket()


@pytest.mark.parametrize(
    ("config", "code", "words"),
    [
        ("[runner]\nsocket_path = '/{long}/s'\n".replace("{long}", "x" * 120), 1, "at most 107"),
        ("[runner]\nrpc_timout_ms = 1\n", 2, "did you mean 'rpc_timeout_ms'"),
        ("[security]\nsandbox = ['chroot']\n", 2, "sandbox"),
        ("[voice\n", 2, "runner.toml:1"),
    ],
)
def test_a_bad_set_up_is_said_before_anything_is_started(tmp_path: Path, config: str, code: int, words: str) -> None:
    with failing(tmp_path, config + hostile("good")) as (got, said):
        assert (got, words in said) == (code, True), said
        assert "Traceback" not in said


def test_a_wrong_key_name_is_a_config_error_and_leaves_no_plugin_behind(tmp_path: Path) -> None:
    # Other tests run beside this one, and each looks for its own.
    name = f"orphan-{secrets.token_hex(4)}"
    config = '[hotkeys]\npush_to_talk = "KEY_RIGTCTRL"\n[audio]\nsource = "none"\n' + hostile(name)
    with failing(tmp_path, config, quiet=False) as (code, said):
        assert code == 2
        assert "RIGHTCTRL" in said
    assert f"{name}/" not in subprocess.run(["ps", "axeww"], capture_output=True, text=True, check=True).stdout
    assert not (tmp_path / "run" / "utter" / "runner.sock").exists()


def test_the_runtime_directory_must_be_private(tmp_path: Path) -> None:
    with failing(tmp_path, hostile("good"), env={**environment(tmp_path), "XDG_RUNTIME_DIR": ""}) as (code, said):
        assert code == 1
        assert "XDG_RUNTIME_DIR is not set" in said
    (tmp_path / "run").chmod(0o755)
    with failing(tmp_path, hostile("good")) as (code, said):
        assert code == 1
        assert f"chmod 700 {tmp_path / 'run'}" in said


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_end_it_cleanly_however_often_they_come(tmp_path: Path, number: signal.Signals) -> None:
    # Its cases run side by side, and each looks for its own.
    name = f"slow-{secrets.token_hex(4)}"
    slow = hostile(name, "ignore-eof", "ignore-term")
    with Daemon(tmp_path, slow) as daemon:
        assert daemon.process is not None
        daemon.process.send_signal(number)
        daemon.wait_for("stopping")
        daemon.process.send_signal(signal.SIGTERM)
        daemon.process.send_signal(signal.SIGINT)
    assert f"{name}/" not in subprocess.run(["ps", "axeww"], capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("after", [0.0, 0.05, 0.15, 0.3, 0.6])
def test_sigterm_is_honoured_at_any_moment_of_start_up(tmp_path: Path, after: float) -> None:
    name = f"early-{secrets.token_hex(4)}"
    daemon = Daemon(tmp_path, hostile(name, "hang=protocol.hello"), wait=False)
    daemon.start()
    assert daemon.process is not None
    # The moment is the point here: there is no event to wait for that does not move with the code.
    time.sleep(after)
    code = daemon.stop()
    # Before the interpreter has run its first line the kernel's default applies.
    assert code in (0, -signal.SIGTERM), "".join(daemon.log)
    assert "Traceback" not in "".join(daemon.log)
    assert f"{name}/" not in subprocess.run(["ps", "axeww"], capture_output=True, text=True, check=True).stdout


def test_a_killed_runner_takes_its_plugins_along(tmp_path: Path) -> None:
    daemon = Daemon(tmp_path, hostile("bound", "ignore-eof", "ignore-term"))
    daemon.start()
    with daemon.client() as client:
        pid = client.call("runner.plugins", {}, timeout=5)["plugins"][0]["pid"]
    pidfd = os.pidfd_open(pid)
    try:
        daemon.stop(signal.SIGKILL)
        signal.pidfd_send_signal(pidfd, 0)
    except ProcessLookupError:
        pass
    finally:
        os.close(pidfd)
    deadline = time.monotonic() + 10
    while Path(f"/proc/{pid}").exists() and _state(pid) != "Z":
        assert time.monotonic() < deadline


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return "Z"


def test_check_reads_the_configuration_and_starts_nothing(tmp_path: Path) -> None:
    config = tmp_path / "runner.toml"
    config.write_text('[[plugin]]\nid = "espeak"\n[[plugin]]\nid = "nobody"\n')
    command = [sys.executable, "-m", "utter_runner", "--config", str(config), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "nobody" in done.stderr
    assert "plugins that can be run: 1; problems: 1" in done.stdout
    config.write_text('[hotkeys]\npush_to_talk = "KEY_RIGTCTRL"\n')
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, "RIGHTCTRL" in done.stderr) == (1, True)


@pytest.mark.parametrize("content", [False, True])
def test_what_was_said_is_logged_only_if_asked_for(tmp_path: Path, content: bool) -> None:
    plan = """plan=[{"op": "secret.op", "args": {"word": "xyzzy\\u202e"}, "provenance": "user"}]"""
    router = hostile("router", "kind=router", "provides=router.plan@1", plan)
    config = f"[log]\ncontent = {str(content).lower()}\nlevel = 'debug'\n" + router
    with Daemon(tmp_path, config) as daemon, daemon.client() as client:
        client.call("runner.command", {"utterance": "xyzzy"}, timeout=10)
        status = client.call("runner.status", {}, timeout=5)
        assert status["content_logging"] is content
        assert any("content" in warning for warning in status["warnings"]) is content
    log = "".join(daemon.log)
    assert ("xyzzy" in log) is content
    assert "\u202e" not in log


def test_a_token_that_others_can_read_is_a_warning(tmp_path: Path) -> None:
    daemon = Daemon(tmp_path, '[socket]\ntoken = "correct-horse-battery"\n' + hostile("good"))
    daemon.config.chmod(0o644)
    with daemon, daemon.client(token="correct-horse-battery") as client:  # noqa: S106 - a test's token
        warnings = client.call("runner.status", {}, timeout=5)["warnings"]
    assert any("chmod 600" in warning for warning in warnings)


def test_each_instance_has_a_temporary_directory_that_goes_with_it(tmp_path: Path) -> None:
    made = tmp_path / "tmp"
    made.mkdir()
    runtime = tmp_path / "run"
    runtime.mkdir(mode=0o700)
    env = environment(runtime, TMPDIR=str(made))
    config = hostile("one") + hostile("two", transport="connect")
    with Daemon(tmp_path, config, env=env) as daemon, daemon.client() as client:
        places = {}
        for name in ("one", "two"):
            seen = client.call("runner.invoke", {"plugin": name, "method": "pid"}, timeout=10)["environ"]
            places[name] = Path(seen["TMPDIR"])
        assert all(place.parent == made for place in places.values())
        assert places["one"] != places["two"]
        assert places["one"].stat().st_mode & 0o777 == 0o700
        (places["one"] / "left").write_text("over")
        with client.subscribe("runner.events") as events:
            params = {"plugin": "one", "method": "exit"}
            with suppress(RpcError):
                client.call("runner.invoke", params, timeout=10)
            next(one for one in events if one["event"] == "plugin" and one["plugin"]["epoch"] == 2)
        assert not places["one"].exists()
        assert places["two"].exists()
    assert [*made.iterdir()] == []


@pytest.mark.parametrize("asked", ["plugin.describe", "action.capabilities"])
def test_whatever_a_plugin_is_asked_while_it_starts_has_the_bound_of_the_handshake(tmp_path: Path, asked: str) -> None:
    config = "[runner]\nhandshake_timeout_ms = 400\n" + hostile("slow", "ops=wait", f"hang={asked}")
    with Daemon(tmp_path, config) as daemon:
        assert "within 400 ms" in daemon.said("slow#1: ")
