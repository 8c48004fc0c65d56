"""Who is let in: uid, binary, token, and nothing else."""

from __future__ import annotations

import errno
import hmac
import os
import select
import shutil
import socket
import struct
import subprocess
import sys
import sysconfig
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from utter_runner.clients import auth
from utter_runner.clients.auth import Admission
from utter_runner.config import SocketConfig
from utter_runner.rpc.credentials import SO_PEERPIDFD, Credentials, peer_credentials

if TYPE_CHECKING:
    from collections.abc import Iterator

OURS = os.path.realpath("/proc/self/exe")
TOKEN = "correct horse battery staple"  # noqa: S105 - a test's token
KNOCK = """
import socket, sys
s = socket.socket(socket.AF_UNIX)
s.connect(sys.argv[1])
sys.stdin.read(1)
"""


class Door:
    """A listener, and processes that connect to it."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "door"
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(self.path))
        self.listener.listen()
        self.listener.settimeout(20)
        self.processes: list[subprocess.Popen[bytes]] = []
        self.connections: list[socket.socket] = []

    def knock(self, program: str) -> tuple[socket.socket, Credentials]:
        """Start `program`, a Python interpreter, have it connect, and return who it is."""
        env = {
            "PYTHONHOME": sys.base_prefix,
            "LD_LIBRARY_PATH": sysconfig.get_config_var("LIBDIR") or "",
            "PATH": os.defpath,
        }
        process = subprocess.Popen(
            [program, "-S", "-E" if program == OURS else "-B", "-c", KNOCK, str(self.path)],
            stdin=subprocess.PIPE,
            env=env,
        )
        self.processes.append(process)
        connection, _ = self.listener.accept()
        self.connections.append(connection)
        credentials = peer_credentials(connection)
        assert credentials == Credentials(process.pid, os.getuid(), os.getgid())
        return connection, credentials

    def close(self) -> None:
        self.listener.close()
        for connection in self.connections:
            connection.close()
        for process in self.processes:
            with process:
                process.kill()


@pytest.fixture
def door(tmp_path: Path) -> Iterator[Door]:
    made = Door(tmp_path)
    yield made
    made.close()


def allowing(*paths: Path | str, **more: Any) -> Admission:
    return Admission(SocketConfig(allow_binaries=[str(path) for path in paths], **more))


@contextmanager
def pair() -> Iterator[socket.socket]:
    """A connection to ourselves."""
    ours, theirs = socket.socketpair(socket.AF_UNIX)
    with ours, theirs:
        yield ours


ME = Credentials(os.getpid(), os.getuid(), os.getgid())


# ---- uid


@pytest.mark.parametrize("config", [None, SocketConfig(allow_same_uid=True, token=TOKEN, allow_binaries=[OURS])])
def test_another_uid_is_refused_whatever_is_configured(config: SocketConfig | None) -> None:
    admission = Admission(config)
    stranger = Credentials(4711, os.getuid() + 1, os.getgid())
    refusal = admission.refuses(stranger)
    assert refusal is not None
    assert str(os.getuid() + 1) in refusal
    # The group is nobody's key.
    assert admission.refuses(Credentials(4711, os.getuid(), 99)) is None


def test_credentials_are_those_of_the_process_that_connected() -> None:
    with pair() as connection:
        assert peer_credentials(connection) == ME


@pytest.mark.parametrize(
    ("config", "at_once", "open_to_user"),
    [
        (None, True, True),
        (SocketConfig(allow_same_uid=True), True, True),
        (SocketConfig(), False, False),
        (SocketConfig(token=TOKEN), False, False),
        (SocketConfig(allow_binaries=["/nonexistent"]), False, False),
        (SocketConfig(allow_binaries=[OURS]), True, False),
        (SocketConfig(allow_binaries=["/nonexistent", OURS]), True, False),
    ],
)
def test_who_needs_no_token(config: SocketConfig | None, at_once: bool, open_to_user: bool) -> None:
    admission = Admission(config)
    with pair() as connection:
        assert (admission.needs_token(connection, ME) is None) is at_once
    assert admission.open_to_user is open_to_user


# ---- binaries


def test_an_allowed_binary_is_let_in_and_another_is_not(door: Door) -> None:
    connection, credentials = door.knock(OURS)
    assert allowing(OURS).needs_token(connection, credentials) is None
    assert allowing("/bin/sh").needs_token(connection, credentials)
    assert allowing(Path(OURS).parent).needs_token(connection, credentials)


def test_a_copy_of_an_allowed_binary_is_another_binary(door: Door, tmp_path: Path) -> None:
    copy = tmp_path / "python3"
    shutil.copy2(OURS, copy)
    connection, credentials = door.knock(str(copy))
    assert allowing(OURS).needs_token(connection, credentials)
    assert allowing(copy).needs_token(connection, credentials) is None


def test_a_symlink_to_an_allowed_binary_is_that_binary(door: Door, tmp_path: Path) -> None:
    link = tmp_path / "python3"
    link.symlink_to(OURS)
    connection, credentials = door.knock(OURS)
    assert allowing(link).needs_token(connection, credentials) is None
    through, credentials = door.knock(str(link))
    assert allowing(OURS).needs_token(through, credentials) is None
    link.unlink()
    link.symlink_to("/bin/sh")
    assert allowing(link).needs_token(connection, credentials)


def test_what_replaces_a_binary_does_not_inherit_its_right_nor_the_old_one_keep_it(door: Door, tmp_path: Path) -> None:
    program = tmp_path / "python3"
    shutil.copy2(OURS, program)
    connection, credentials = door.knock(str(program))
    admission = allowing(program)
    assert admission.needs_token(connection, credentials) is None
    program.unlink()
    # It runs on, deleted, and nothing lies at the path.
    assert admission.needs_token(connection, credentials)
    shutil.copy2(OURS, program)
    assert admission.needs_token(connection, credentials)
    replaced, credentials = door.knock(str(program))
    assert admission.needs_token(replaced, credentials) is None


def test_a_process_that_ended_is_not_let_in(door: Door) -> None:
    connection, credentials = door.knock(OURS)
    process = door.processes[0]
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    # Not reaped yet, and then gone.
    assert allowing(OURS).needs_token(connection, credentials)
    process.wait()
    assert allowing(OURS).needs_token(connection, credentials)


class Scripted:
    """A connection whose peer pidfd is what the test says."""

    def __init__(self, answer: int | OSError) -> None:
        self._answer = answer

    def getsockopt(self, _level: int, option: int, _size: int) -> bytes:
        assert option == SO_PEERPIDFD
        if isinstance(self._answer, OSError):
            raise self._answer
        return struct.pack("i", self._answer)


def test_a_recycled_pid_opens_nothing() -> None:
    # A pidfd is readable once its process has ended; the pid is by now that of an allowed binary: ours.
    reading, writing = os.pipe()
    os.close(writing)
    assert allowing(OURS).needs_token(Scripted(reading), ME)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(reading)


@pytest.mark.parametrize("number", [errno.ESRCH, errno.EINVAL, errno.ENODATA, errno.EMFILE])
def test_a_peer_whose_pidfd_cannot_be_had_is_not_asked_for_by_pid(number: int) -> None:
    assert allowing(OURS).needs_token(Scripted(OSError(number, "no")), ME)


def test_a_kernel_without_peer_pidfds_is_asked_by_pid() -> None:
    old = Scripted(OSError(errno.ENOPROTOOPT, "Protocol not available"))
    assert allowing(OURS).needs_token(old, ME) is None
    assert allowing("/bin/sh").needs_token(old, ME)


def test_a_process_that_may_not_be_looked_at_is_not_let_in(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = Path.stat

    def refuse(path: Path, **options: Any) -> os.stat_result:
        if str(path).startswith("/proc/"):
            raise PermissionError(errno.EACCES, "Permission denied")
        return plain(path, **options)

    with pair() as connection, monkeypatch.context() as patch:
        patch.setattr(Path, "stat", refuse)
        assert allowing(OURS).needs_token(connection, ME)


@pytest.mark.parametrize("path", ["/nonexistent", "~no-such-user/x", "\0", "", "/proc/self/exe/x"])
def test_a_path_that_means_nothing_lets_nobody_in_and_shuts_nobody_out(path: str) -> None:
    with pair() as connection:
        assert allowing(path).needs_token(connection, ME)
        assert allowing(path, OURS).needs_token(connection, ME) is None


# ---- token


@pytest.mark.parametrize("config", [None, SocketConfig(), SocketConfig(allow_binaries=[OURS])])
@pytest.mark.parametrize("token", ["", "None", TOKEN])
def test_without_a_configured_token_none_is_right(config: SocketConfig | None, token: str) -> None:
    assert not Admission(config).token_matches(token)


@settings(derandomize=True, database=None, deadline=None, max_examples=200)
@given(configured=st.text(min_size=16), offered=st.text())
def test_only_the_token_matches(configured: str, offered: str) -> None:
    admission = Admission(SocketConfig(token=configured))
    assert admission.token_matches(configured)
    assert admission.token_matches(offered) == (offered == configured)


@pytest.mark.parametrize("token", [TOKEN, TOKEN[:-1], "", TOKEN + "x", "ü"])
def test_every_token_is_compared_in_constant_time(token: str, monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[bytes, bytes]] = []
    plain = hmac.compare_digest

    def noting(first: bytes, second: bytes) -> bool:
        compared.append((first, second))
        return plain(first, second)

    monkeypatch.setattr(auth.hmac, "compare_digest", noting)
    assert Admission(SocketConfig(token=TOKEN)).token_matches(token) == (token == TOKEN)
    assert compared == [(token.encode(), TOKEN.encode())]


# ---- what an entry of allow_binaries stands for


def test_a_link_that_is_put_elsewhere_later_leads_nobody_in(door: Door, tmp_path: Path) -> None:
    link, other = tmp_path / "allowed", tmp_path / "python3"
    shutil.copy2(OURS, other)
    link.symlink_to("/bin/sh")
    admission = allowing(link)
    connection, credentials = door.knock(str(other))
    link.unlink()
    link.symlink_to(other)
    assert admission.needs_token(connection, credentials) == f"its executable {other} is not in allow_binaries"
    # Nor does one that comes into the path of a file that was none.
    directory = tmp_path / "bin"
    directory.mkdir()
    admission = allowing(directory / "python3")
    directory.rmdir()
    directory.symlink_to(tmp_path)
    assert (directory / "python3").samefile(other)
    assert admission.needs_token(connection, credentials) is not None


def test_a_hard_link_is_the_same_program(door: Door, tmp_path: Path) -> None:
    program, second = tmp_path / "python3", tmp_path / "other-name"
    shutil.copy2(OURS, program)
    second.hardlink_to(program)
    connection, credentials = door.knock(str(second))
    assert allowing(program).needs_token(connection, credentials) is None


@pytest.mark.parametrize("again", [False, True])
def test_one_that_was_replaced_is_told_from_a_stranger(door: Door, tmp_path: Path, again: bool) -> None:
    program = tmp_path / "python3"
    shutil.copy2(OURS, program)
    admission = allowing(program)
    connection, credentials = door.knock(str(program))
    program.unlink()
    if again:
        shutil.copy2(OURS, program)
    assert admission.needs_token(connection, credentials) == (
        f"its executable {program} was replaced or deleted since it started: start it anew"
    )


def test_one_that_turns_into_another_while_it_is_looked_at_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = iter([OURS, "/bin/sh"])
    plain = Path.stat

    def turning(path: Path, **options: Any) -> os.stat_result:
        return plain(Path(next(looks)) if str(path).startswith("/proc/") else path, **options)

    with pair() as connection, monkeypatch.context() as patch:
        patch.setattr(Path, "stat", turning)
        assert allowing(OURS).needs_token(connection, ME) == "it changed its executable while it was looked at"


def test_who_connected_is_judged_by_what_runs_now_and_whoever_was_handed_the_connection_is_not_looked_at(
    door: Door,
) -> None:
    # PROTOCOL.md and docs/operating.md say so: it is what the kernel can tell.
    script = (
        "import os, socket, sys\ns = socket.socket(socket.AF_UNIX)\ns.connect(sys.argv[1])\n"
        "os.set_inheritable(s.fileno(), True)\nos.execv('/bin/sleep', ['sleep', '100'])\n"
    )
    process = subprocess.Popen([OURS, "-S", "-E", "-c", script, str(door.path)], stdin=subprocess.PIPE)
    door.processes.append(process)
    connection, _ = door.listener.accept()
    door.connections.append(connection)
    credentials = peer_credentials(connection)
    sleep = os.path.realpath("/bin/sleep")
    for _ in range(2000):
        if os.path.realpath(f"/proc/{process.pid}/exe") == sleep:
            break
        assert process.poll() is None
        os.sched_yield()
        select.select([], [], [], 0.01)
    assert allowing(OURS).needs_token(connection, credentials) == f"its executable {sleep} is not in allow_binaries"
    assert allowing(sleep).needs_token(connection, credentials) is None


def test_a_process_of_another_pid_namespace_is_not_let_in() -> None:
    with pair() as connection:
        hidden = Credentials(0, os.getuid(), os.getgid())
        assert allowing(OURS).needs_token(connection, hidden) == "its process is in another pid namespace"
