"""Strangers at the real daemon's socket: tokens that come and go, other users and namespaces, floods."""

from __future__ import annotations

import os
import shutil
import socket
import stat
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from support.daemon import Daemon
from utter_protocol.errors import RpcError
from utter_protocol.framing import encode_frame
from utter_sdk.client import Client, RunnerUnavailable

LOCKED = "[socket]\n"
WAIT_S = 60.0
STATUS = encode_frame(b'{"jsonrpc":"2.0","id":1,"method":"runner.status"}')
# Says what came of it: the first bytes of the answer, or why there is none.
KNOCK = """
import os, socket, sys
if sys.argv[2] != "-":
    os.setgroups([]); os.setgid(int(sys.argv[2])); os.setuid(int(sys.argv[2]))
s = socket.socket(socket.AF_UNIX)
s.settimeout(60)
try:
    if len(sys.argv) > 3:
        s.bind(sys.argv[3].replace("@", chr(0)))
    s.connect(sys.argv[1].replace("@", chr(0)))
    body = b'{"jsonrpc":"2.0","id":1,"method":"runner.status"}'
    s.sendall(b"Content-Length: %d\\r\\n\\r\\n" % len(body) + body)
    data = s.recv(100000)
    print("closed" if not data else "refused" if b"-32003" in data else "served")
except OSError as error:
    print(type(error).__name__)
"""


def knock(path: Path | str, *more: str, wrap: tuple[str, ...] = (), uid: str = "-") -> str:
    argv = [*wrap, sys.executable, "-S", "-E", "-c", KNOCK, str(path), uid, *more]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def utter(daemon: Daemon, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", "from utter_runner.cli import main; raise SystemExit(main())", *arguments],
        env={**daemon.env, "UTTER_SOCKET": str(daemon.socket), **env},
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )


def test_a_token_works_at_once_and_is_revoked_at_once(tmp_path: Path) -> None:
    with Daemon(tmp_path, LOCKED) as daemon:
        assert utter(daemon, "status").returncode == 3
        token = utter(daemon, "token", "new", "cli").stdout.strip()
        other = utter(daemon, "token", "new", "other").stdout.strip()
        assert utter(daemon, "status", UTTER_TOKEN=token).returncode == 0
        own = Path(daemon.env["HOME"], ".config", "utter", "token")
        own.parent.mkdir(parents=True)
        own.touch(0o600)
        own.write_text(token)
        assert utter(daemon, "ptt", "cancel").returncode == 0
        with daemon.client(token) as first, daemon.client(other) as second:
            assert first.call("runner.status", {}, WAIT_S)["state"] == "ready"
            assert utter(daemon, "token", "revoke", "cli").returncode == 0
            assert utter(daemon, "status").returncode == 3
            assert _ends(first)
            assert second.call("runner.status", {}, WAIT_S)["warnings"] == []
            tokens = Path(daemon.env["HOME"], ".local", "state", "utter", "tokens.toml")
            assert stat.S_IMODE(tokens.stat().st_mode) == 0o600
        with daemon.client(other) as second:
            daemon.socket.rename(daemon.socket.with_name("moved"))
            (warning,) = second.call("runner.status", {}, WAIT_S)["warnings"]
            assert f"The socket file {daemon.socket} is gone" in warning
            daemon.socket.with_name("moved").rename(daemon.socket)


def _ends(client: Client) -> bool:
    try:
        while True:
            client.call("runner.status", {}, WAIT_S)
    except RunnerUnavailable:
        return True


def test_modes_other_users_and_other_namespaces(tmp_path: Path) -> None:
    with Daemon(tmp_path, "[socket]\nallow_same_uid = true\n") as daemon:
        assert stat.S_IMODE(daemon.socket.stat().st_mode) == 0o600
        assert stat.S_IMODE(daemon.socket.parent.stat().st_mode) == 0o700
        assert knock(daemon.socket) == "served"
        # One that has an abstract address of its own is like any other; the runner listens on none.
        assert knock(daemon.socket, f"@utter-{os.getpid()}") == "served"
        assert knock(f"@{daemon.socket}") == "ConnectionRefusedError"
        if shutil.which("unshare") and subprocess.run(["unshare", "-U", "true"], check=False).returncode == 0:
            # Whoever calls himself root in a namespace of his own is who he is.
            assert knock(daemon.socket, wrap=("unshare", "-U", "-r")) == "served"
        if os.getuid() == 0:
            assert knock(daemon.socket, uid="65534") == "PermissionError"


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody else")
def test_another_user_who_gets_past_the_modes_is_turned_away() -> None:
    # Not below the tests' directory, which others cannot enter.
    with TemporaryDirectory() as directory, Daemon(Path(directory), "[socket]\nallow_same_uid = true\n") as daemon:
        opened = [daemon.socket, daemon.socket.parent, daemon.runtime, Path(directory)]
        modes = {path: stat.S_IMODE(path.stat().st_mode) for path in opened}
        for path in modes:
            path.chmod(0o777)
        # It was accepted and closed before it had said anything, or while it did.
        assert knock(daemon.socket, uid="65534") in {"closed", "BrokenPipeError", "ConnectionResetError"}
        for path, mode in modes.items():
            path.chmod(mode)
        assert "uid 65534 is not the user of this runner" in daemon.wait_for("was refused")
        assert knock(daemon.socket) == "served"


def test_a_flood_of_connections_and_requests_leaves_an_honest_client_served(tmp_path: Path) -> None:
    with Daemon(tmp_path, LOCKED) as daemon:
        token = utter(daemon, "token", "new").stdout.strip()
        with daemon.client(token) as honest:
            for _ in range(1500):
                with socket.socket(socket.AF_UNIX) as sock:
                    # Without a time-out, so that the kernel makes it wait where its queue is full.
                    sock.connect(str(daemon.socket))
            held = []
            for _ in range(300):
                sock = socket.socket(socket.AF_UNIX)
                sock.connect(str(daemon.socket))
                sock.settimeout(WAIT_S)
                held.append(sock)
            held[-1].sendall(STATUS)
            assert b"-32003" in held[-1].recv(4096)
            assert honest.call("runner.status", {}, WAIT_S)["state"] == "ready"
            for sock in held:
                sock.close()
            with daemon.client(token) as flood:
                flood_ids = b"".join(
                    encode_frame(b'{"jsonrpc":"2.0","method":"$/cancel","params":{"id":%d}}' % n) for n in range(500)
                )
                raw = socket.socket(socket.AF_UNIX)
                with raw:
                    raw.connect(str(daemon.socket))
                    raw.settimeout(WAIT_S)
                    raw.sendall(
                        encode_frame(
                            b'{"jsonrpc":"2.0","id":1,"method":"runner.auth","params":{"token":"%s"}}' % token.encode()
                        )
                    )
                    assert b'"ok":true' in raw.recv(4096)
                    for _ in range(24):
                        raw.sendall(flood_ids)
                    assert flood.call("runner.status", {}, WAIT_S)["state"] == "ready"
                    raw.sendall(STATUS)
                    # What was behind the flood is answered all the same.
                    assert b'"result"' in raw.recv(65536)
        with pytest.raises(RpcError, match=r"the token is not right"):
            daemon.client(token + "x")
