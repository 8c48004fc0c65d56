"""Tests of finding the runner's socket: each failure names the path, the cause and what to do."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

import pytest

from utter_sdk.client import Client, RunnerUnavailable, default_socket_path
from utter_sdk.runner_socket import MAX_PATH, connect

if TYPE_CHECKING:
    from pathlib import Path


def refusal(path: str, timeout: float = 5.0) -> str:
    with pytest.raises(RunnerUnavailable) as caught:
        Client.connect(path, timeout=timeout)
    assert caught.value.path == path
    assert str(caught.value) == (f"{path}: {caught.value.reason}" if path else caught.value.reason)
    return caught.value.reason


def test_the_default_path() -> None:
    assert default_socket_path({"XDG_RUNTIME_DIR": "/run/user/7"}) == "/run/user/7/utter/runner.sock"
    for environ in ({}, {"XDG_RUNTIME_DIR": ""}):
        with pytest.raises(RunnerUnavailable, match=r"^XDG_RUNTIME_DIR is not set, so the runner's socket"):
            default_socket_path(environ)
    with pytest.raises(RunnerUnavailable, match="must be an absolute path, not 'run'"):
        default_socket_path({"XDG_RUNTIME_DIR": "run"})


def test_the_default_path_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    with pytest.raises(RunnerUnavailable) as caught:
        Client.connect()
    assert caught.value.path == f"{tmp_path}/utter/runner.sock"


def test_no_socket(tmp_path: Path) -> None:
    assert refusal(f"{tmp_path}/none").startswith("there is no socket, so the runner is not running.")


def test_nobody_listens(tmp_path: Path) -> None:
    path = f"{tmp_path}/dead"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(path)
    assert refusal(path).startswith("nothing listens on the socket")


def test_not_a_socket(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert refusal(f"{tmp_path}/file") == "this is not a socket."
    assert refusal(f"{tmp_path}/file/s") == "cannot connect: Not a directory."
    for path in ("", "\0x", "x\0"):
        assert refusal(path).startswith("this is not the path of a file")


def test_too_long(tmp_path: Path) -> None:
    longest = f"{tmp_path}/{'x' * MAX_PATH}"[:MAX_PATH]
    assert refusal(longest).startswith("there is no socket")
    assert refusal(longest + "x").startswith(f"the path has 108 bytes, and a unix socket's may have {MAX_PATH}.")


def test_permission_denied(monkeypatch: pytest.MonkeyPatch) -> None:
    class Denied(socket.socket):
        def connect(self, _address: object) -> None:
            raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("utter_sdk.runner_socket.socket.socket", Denied)
    assert refusal("/x") == (
        f"permission denied for uid {os.geteuid()}. The socket is its owner's; run this as the same user."
    )


def test_a_runner_that_does_not_accept(tmp_path: Path) -> None:
    path = f"{tmp_path}/full"
    with socket.socket(socket.AF_UNIX) as full:
        full.bind(path)
        full.listen(0)
        with connect(path, 5, 5):
            reason = refusal(path, 0.05)
    assert reason == "the runner did not accept the connection within 0.05 s; it is overloaded or hangs."
