"""`utter doctor` as a process against the real daemon: up, down, stopped, and with what it left behind."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from support.daemon import Daemon, environment, hostile

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


def doctor(env: Mapping[str, str], config: Path) -> tuple[int, dict[str, Any]]:
    """The exit code and what `--json` printed. It would hang for ever if the doctor did."""
    argv = [
        sys.executable,
        "-c",
        "from utter_runner.cli import main; raise SystemExit(main())",
        "doctor",
        "--json",
        "--config",
        str(config),
    ]
    done = subprocess.run(argv, env=dict(env), capture_output=True, text=True, timeout=90, check=False)
    assert done.stderr == ""
    return done.returncode, json.loads(done.stdout)


def answers(report: dict[str, Any]) -> dict[str, Any]:
    (found,) = [one for one in report["findings"] if one["check"] == "runner.answers"]
    return dict(found)


def test_a_runner_that_is_up_and_one_that_is_stopped(tmp_path: Path) -> None:
    with Daemon(tmp_path, hostile("hello")) as daemon:
        daemon.wait_plugin("hello", "ready")
        code, report = doctor(daemon.env, daemon.config)
        assert (report["state"], answers(report)["status"]) == ("up", "ok")
        assert report["runner"]["protocol"] == "1.0"
        assert [(one["id"], one["status"]) for one in report["plugins"]] == [("hello", "ready")]
        assert code == report["exit"]
        assert daemon.process is not None
        daemon.process.send_signal(signal.SIGSTOP)
        try:
            code, report = doctor(daemon.env, daemon.config)
        finally:
            daemon.process.send_signal(signal.SIGCONT)
        assert (code, report["state"]) == (2, "wedged")
        assert answers(report)["mend"] == f"kill -CONT {daemon.process.pid}"
        assert [(one["id"], one["status"]) for one in report["plugins"]] == [("hello", None)]


def test_no_runner_a_stale_socket_and_an_open_directory(tmp_path: Path) -> None:
    daemon = Daemon(tmp_path, hostile("hello"))
    env = environment(daemon.runtime)
    code, report = doctor(env, daemon.config)
    assert (code, report["state"], report["runner"]["version"]) == (2, "down", None)
    daemon.socket.parent.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(os.fspath(daemon.socket))
    daemon.socket.parent.chmod(0o777)
    code, report = doctor(env, daemon.config)
    assert (code, report["state"]) == (2, "stale")
    mends = [one["mend"] for one in report["findings"] if one["check"] == "sockets.directory"]
    assert mends == [f"chmod 700 {daemon.socket.parent}"]
