"""The real daemon under what a service manager gives it: a socket to tell, a watchdog, a listening socket."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from support.daemon import Daemon, environment, hostile
from support.service_manager import activated, listening, notifications
from utter_sdk.client import Client


def managed(tmp_path: Path, **more: str) -> dict[str, str]:
    runtime = tmp_path / "run"
    runtime.mkdir(mode=0o700, exist_ok=True)
    return environment(runtime, NOTIFY_SOCKET=str(tmp_path / "notify"), **more)


def test_ready_is_told_after_admission_and_stopping_at_the_end(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    config = hostile("slow", f"gate={gate}", transport="connect", extra='restart = "never"')
    config += hostile("broken", "bad-hello", extra='restart = "never"')
    with notifications(tmp_path / "notify") as told:
        with Daemon(tmp_path, config, env=managed(tmp_path), wait=False, quiet=True) as daemon:
            first = told.receive()
            while "EXTEND_TIMEOUT_USEC" not in first:
                assert "READY" not in first
                first = told.receive()
            gate.touch()
            ready = told.wait_for("READY")
            assert ready["STATUS"].startswith("1 of 2 plugins run; broken failed: ")
            # It serves by then.
            with daemon.client() as client:
                status = client.call("runner.status", {})
                assert status["state"] == "ready"
                assert status["service"] == {"manager": True, "watchdog_s": None, "socket_activated": False}
                environ = client.call("runner.invoke", {"plugin": "slow", "method": "pid", "params": {}})["environ"]
                assert not {"NOTIFY_SOCKET", "WATCHDOG_USEC", "LISTEN_FDS"} & set(environ)
                with pytest.raises(Exception, match="slow"):
                    client.call("runner.invoke", {"plugin": "slow", "method": "exit", "params": {}})
            while "slow failed" not in told.wait_for("STATUS")["STATUS"]:
                pass
        stopping = told.wait_for("STOPPING")
        assert stopping["STATUS"].startswith("Stopping")
        assert int(stopping["EXTEND_TIMEOUT_USEC"]) > 0


def test_a_loop_that_stands_still_does_not_feed_the_watchdog(tmp_path: Path) -> None:
    env = managed(tmp_path, WATCHDOG_USEC="200000")
    with notifications(tmp_path / "notify") as told, Daemon(tmp_path, "", env=env) as daemon:
        told.wait_for("WATCHDOG")
        assert daemon.process is not None
        daemon.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, daemon.process.pid, os.WSTOPPED | os.WNOWAIT)
        silent = False
        while not silent:
            try:
                # What had been sent before is read first; then ten times as long as it may be silent.
                told.receive(timeout=2.0)
            except TimeoutError:
                silent = True
        daemon.process.send_signal(signal.SIGCONT)
        told.wait_for("WATCHDOG")


def test_a_broken_configuration_is_told(tmp_path: Path) -> None:
    with notifications(tmp_path / "notify") as told:
        daemon = Daemon(tmp_path, "[runner]\nnonsense = 1\n", env=managed(tmp_path), wait=False, quiet=False)
        daemon.start()
        assert "nonsense" in told.wait_for("STATUS")["STATUS"]
        assert daemon.refused() == 2


def test_a_socket_that_was_passed_is_served_and_outlives_the_runner(tmp_path: Path) -> None:
    runtime = tmp_path / "run"
    runtime.mkdir(mode=0o700)
    path = runtime / "utter" / "runner.sock"
    with listening(path) as passed:
        inode = path.stat().st_ino
        # Whoever comes before the runner is there waits.
        early = Client.connect(str(path))
        for _ in range(2):
            with Daemon(tmp_path, hostile("one"), program=activated(passed), pass_fds=[passed.fileno()]) as daemon:
                status = early.call("runner.status", {})
                assert status["service"] == {"manager": False, "watchdog_s": None, "socket_activated": True}
                assert not any("socket file" in warning for warning in status["warnings"])
                found = early.call("runner.invoke", {"plugin": "one", "method": "pid", "params": {}})
                assert not {name for name in found["environ"] if name.startswith("LISTEN_")}
                second = Daemon(tmp_path, "", wait=False)
                second.start()
                assert second.refused() == 1
                assert f"pid {daemon.process.pid if daemon.process else 0}" in "".join(second.log)
                early.close()
            assert path.stat().st_ino == inode
            early = Client.connect(str(path))
        early.close()


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("datagram", "is no stream socket"),
        ("inet", "is no unix socket"),
        ("connected", "does not listen"),
        ("elsewhere", "and the configuration says"),
        ("open", "SocketMode=0600"),
        ("gone", "is gone"),
    ],
)
def test_another_socket_is_refused_and_the_unit_is_named(tmp_path: Path, kind: str, message: str) -> None:
    runtime = tmp_path / "run"
    (runtime / "utter").mkdir(mode=0o700, parents=True)
    runtime.chmod(0o700)
    path = runtime / "utter" / "runner.sock"
    passed = socket.socket(
        socket.AF_INET if kind == "inet" else socket.AF_UNIX,
        socket.SOCK_DGRAM if kind == "datagram" else socket.SOCK_STREAM,
    )
    with passed:
        if kind == "inet":
            passed.bind(("127.0.0.1", 0))
        elif kind != "connected":
            passed.bind(str(path if kind != "elsewhere" else tmp_path / "other"))
        if kind not in {"datagram", "connected"}:
            passed.listen()
        if kind == "gone":
            path.unlink()
        elif kind != "inet" and path.exists():
            path.chmod(0o666 if kind == "open" else 0o600)
        daemon = Daemon(tmp_path, "", wait=False, program=activated(passed), pass_fds=[passed.fileno()])
        daemon.start()
        assert daemon.refused() == 1
        assert message in "".join(daemon.log)
        assert "utter-runner.socket" in "".join(daemon.log)


# What listens is asked for its name alone, and a process gives itself one.
NAMED_SYSTEMD = """
import pathlib, socket, sys
pathlib.Path("/proc/self/comm").write_text("systemd")
made = socket.socket(socket.AF_UNIX)
made.bind(sys.argv[1])
made.listen()
print("listening", flush=True)
sys.stdin.read()
"""


def test_a_runner_beside_the_socket_unit_is_told_to_be_the_service(tmp_path: Path) -> None:
    path = tmp_path / "run" / "utter" / "runner.sock"
    path.parent.mkdir(parents=True, mode=0o700)
    path.parents[1].chmod(0o700)
    argv = [sys.executable, "-c", NAMED_SYSTEMD, str(path)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as manager:
        assert manager.stdout is not None
        assert manager.stdout.readline() == b"listening\n"
        daemon = Daemon(tmp_path, "", wait=False)
        daemon.start()
        assert daemon.refused() == 1
        assert "systemctl --user start utter-runner" in "".join(daemon.log)
        manager.kill()
    assert path.exists()
