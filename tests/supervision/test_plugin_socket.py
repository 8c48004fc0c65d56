"""Where a plugin's socket is, and who may be at the other end."""

from __future__ import annotations

import errno
import os
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from utter_runner.rpc.credentials import SO_PEERPIDFD, Allowed
from utter_runner.rpc.endpoint import EndpointError
from utter_runner.supervision import plugin_socket as room
from utter_runner.supervision.launch import INSTANCE_VARIABLE
from utter_runner.supervision.plugin_socket import Guest, refusal, socket_path

PYTHON = os.path.realpath(sys.executable)
STRANGER = "the runner did not start it as this instance"
MARK = "good/1/0123456789abcdef"

# Connects, says so, and holds the connection until it is told to end.
KNOCK = """
import socket, sys
s = socket.socket(socket.AF_UNIX)
s.connect(sys.argv[1])
sys.stdin.read(1)
"""
# The same by a grandchild.
KNOCK_DEEP = f"""
import subprocess, sys
deeper = "import subprocess, sys; subprocess.run([sys.executable, '-S', '-c', sys.argv[1], sys.argv[2]])"
subprocess.run([sys.executable, "-S", "-c", deeper, {KNOCK!r}, sys.argv[1]])
"""


# ---- where


def test_it_is_in_the_runtime_directory(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    environ = {"XDG_RUNTIME_DIR": str(tmp_path)}
    for runner_socket in (None, "/elsewhere/s"):
        assert socket_path("timer", environ, runner_socket) == tmp_path / "utter" / "plugins" / "timer.sock"


@pytest.mark.parametrize("environ", [{}, {"XDG_RUNTIME_DIR": ""}])
def test_without_a_runtime_directory_it_is_beside_the_runners(environ: dict[str, str]) -> None:
    assert socket_path("timer", environ, "/x/runner.sock") == Path("/x/plugins/timer.sock")
    with pytest.raises(EndpointError, match="XDG_RUNTIME_DIR is not set"):
        socket_path("timer", environ, None)


def test_a_runtime_directory_that_is_open_to_others_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    with pytest.raises(EndpointError, match=f"chmod 700 {tmp_path}"):
        socket_path("timer", {"XDG_RUNTIME_DIR": str(tmp_path)}, "/x/runner.sock")


def test_a_path_that_is_too_long_is_refused_with_the_bound(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    environ = {"XDG_RUNTIME_DIR": str(tmp_path)}
    with pytest.raises(EndpointError, match="unix sockets take at most 107") as error:
        socket_path("x" * 64, {**environ, "XDG_RUNTIME_DIR": str(_long(tmp_path))}, None)
    assert "shorter id" in str(error.value)


def _long(directory: Path) -> Path:
    made = directory / ("d" * 60)
    made.mkdir(mode=0o700)
    return made


# ---- who


@contextmanager
def visitor(path: Path, *, program: str = KNOCK, mark: str | None = None) -> Iterator[tuple[socket.socket, int]]:
    """A process, or one of its descendants, that connected; and the pid of the process."""
    env = {"PATH": os.defpath} | ({INSTANCE_VARIABLE: mark} if mark is not None else {})
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        listener.settimeout(20)
        argv = [PYTHON, "-S", "-E", "-c", program, str(path)]
        with subprocess.Popen(argv, stdin=subprocess.PIPE, env=env) as process:
            try:
                with listener.accept()[0] as connection:
                    yield connection, process.pid
            finally:
                # Those that wait for more input find its end.
                assert process.stdin is not None
                process.stdin.close()
                process.wait(20)


def test_the_process_that_was_started_is_let_in_and_another_is_not(tmp_path: Path) -> None:
    with visitor(tmp_path / "s") as (connection, pid):
        assert refusal(connection, Guest(pid=pid, mark=MARK)) is None
        assert refusal(connection, Guest(pid=_other_process(pid), mark=MARK)) == STRANGER


def _other_process(visitor: int) -> int:
    """A process that is neither the visitor nor one of its parents, and not 1."""
    ours = {visitor, os.getpid()}
    parent = os.getpid()
    while parent > 1:
        parent = room._parent(parent)[0]
        ours.add(parent)
    return max(set(map(int, filter(str.isdigit, os.listdir("/proc")))) - ours, default=2**22 - 1)  # noqa: PTH208 - names only


def test_its_descendants_are_let_in(tmp_path: Path) -> None:
    with visitor(tmp_path / "s", program=KNOCK_DEEP) as (connection, pid):
        assert refusal(connection, Guest(pid=pid, mark=MARK)) is None
        # All of them descend from this process.
        assert refusal(connection, Guest(pid=os.getpid(), mark=MARK)) is None


@pytest.mark.parametrize(
    ("carried", "right"),
    [(MARK, True), (MARK + "0", False), (MARK[:-1], False), ("good/2/0123456789abcdef", False), ("", False)],
)
def test_whoever_carries_the_mark_is_let_in(tmp_path: Path, carried: str, right: bool) -> None:
    with visitor(tmp_path / "s", mark=carried) as (connection, pid):
        assert (refusal(connection, Guest(pid=_other_process(pid), mark=MARK)) is None) == right


def test_a_mark_in_another_variable_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "INSTANCE_VARIABLE", "X" + INSTANCE_VARIABLE)
    with visitor(tmp_path / "s", mark=MARK) as (connection, pid):
        assert refusal(connection, Guest(pid=_other_process(pid), mark=MARK)) == STRANGER


def test_whoever_has_ended_is_nobody(tmp_path: Path) -> None:
    with visitor(tmp_path / "s", mark=MARK) as (connection, pid):
        os.kill(pid, signal.SIGKILL)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        for guest in (Guest(pid=pid, mark=MARK), Guest(pid=_other_process(pid), mark=MARK)):
            assert refusal(connection, guest) == "it has ended"
        assert refusal(connection, Guest(allow_binaries=Allowed((PYTHON,)))) == "it has ended"


@contextmanager
def pair() -> Iterator[socket.socket]:
    """A connection to ourselves."""
    ours, theirs = socket.socketpair(socket.AF_UNIX)
    with ours, theirs:
        yield ours


class Scripted:
    """A connection whose peer is what the test says."""

    def __init__(self, pid: int, uid: int, pidfd: int | OSError) -> None:
        self._credentials = struct.pack("3i", pid, uid, 0)
        self._pidfd = pidfd

    def getsockopt(self, _level: int, option: int, _size: int) -> bytes:
        if option != SO_PEERPIDFD:
            return self._credentials
        if isinstance(self._pidfd, OSError):
            raise self._pidfd
        return struct.pack("i", self._pidfd)


def test_another_uid_is_refused_whatever_else_is_right() -> None:
    stranger: Any = Scripted(os.getpid(), os.getuid() + 1, OSError(errno.ESRCH, "gone"))
    for guest in (Guest(), Guest(pid=os.getpid(), mark=MARK), Guest(allow_binaries=(PYTHON,))):
        said = refusal(stranger, guest)
        assert said is not None
        assert str(os.getuid() + 1) in said


def test_a_process_of_another_pid_namespace_is_refused() -> None:
    hidden: Any = Scripted(0, os.getuid(), OSError(errno.ENODATA, "no data"))
    for guest in (Guest(), Guest(pid=1, mark=MARK)):
        assert refusal(hidden, guest) == "its process is in another pid namespace"


def test_a_recycled_pid_opens_nothing() -> None:
    # A pidfd is readable once its process has ended; the pid is by now that of the right process: ours.
    reading, writing = os.pipe()
    os.close(writing)
    recycled: Any = Scripted(os.getpid(), os.getuid(), reading)
    assert refusal(recycled, Guest(pid=os.getpid(), mark=MARK)) == "it has ended"
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(reading)


@pytest.mark.parametrize("number", [errno.ESRCH, errno.EINVAL, errno.ENODATA])
def test_a_peer_that_cannot_be_held_is_refused(number: int) -> None:
    gone: Any = Scripted(os.getpid(), os.getuid(), OSError(number, "no"))
    assert refusal(gone, Guest(pid=os.getpid(), mark=MARK)) == "it has ended"


def test_somebody_elses_plugin_needs_an_allowed_executable_if_there_are_any() -> None:
    with pair() as connection:
        assert refusal(connection, Guest()) is None
        assert refusal(connection, Guest(allow_binaries=Allowed((PYTHON,)))) is None
        assert refusal(connection, Guest(allow_binaries=Allowed(("/bin/true", PYTHON)))) is None
        for wrong in ((), ("/bin/true",), ("/nonexistent", "~nobody-at-all/x", "\0")):
            why = refusal(connection, Guest(allow_binaries=Allowed(wrong)))
            assert why == f"its executable {os.path.realpath(PYTHON)} is not in allow_binaries"


# ---- descent


def family(monkeypatch: pytest.MonkeyPatch, members: dict[int, tuple[int, int]]) -> None:
    """Replace the processes: by pid, the parent and when it was started."""

    def parent(pid: int) -> tuple[int, int]:
        if pid not in members:
            raise ProcessLookupError(errno.ESRCH, "No such process")
        return members[pid]

    monkeypatch.setattr(room, "_parent", parent)


def test_descent_is_followed_to_the_top(monkeypatch: pytest.MonkeyPatch) -> None:
    family(monkeypatch, {50: (40, 500), 40: (30, 400), 30: (20, 400), 20: (1, 200), 60: (0, 10)})
    assert [pid for pid in (10, 20, 30, 40, 50, 60, 1, 0) if room._descends(50, pid)] == [20, 30, 40]
    assert not room._descends(60, 20)


def test_a_parent_that_is_younger_than_its_child_is_a_stranger(monkeypatch: pytest.MonkeyPatch) -> None:
    """The parent ended after it was named, and a child of the ancestor took over its pid."""
    family(monkeypatch, {50: (40, 500), 40: (20, 501), 20: (1, 200)})
    assert not room._descends(50, 20)
    family(monkeypatch, {50: (20, 500), 20: (1, 501)})
    assert not room._descends(50, 20)


def test_a_family_that_ends_or_goes_round_is_no_descent(monkeypatch: pytest.MonkeyPatch) -> None:
    family(monkeypatch, {50: (40, 500)})
    assert not room._descends(50, 20)
    family(monkeypatch, {50: (40, 500), 40: (50, 500)})
    assert not room._descends(50, 20)
    with pytest.raises(ProcessLookupError):
        room._descends(99, 20)


def test_a_programs_name_may_look_like_anything(tmp_path: Path) -> None:
    program = tmp_path / "a) S 1 1 (b"
    program.symlink_to("/bin/sleep")
    with subprocess.Popen([str(program), "60"]) as process:
        try:
            assert room._parent(process.pid)[0] == os.getpid()
            assert room._parent(process.pid)[1] >= room._parent(os.getpid())[1]
            assert room._descends(process.pid, os.getpid())
        finally:
            process.kill()


def test_a_process_that_hides_its_environment_shows_no_mark(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_path: Path) -> bytes:
        raise PermissionError(errno.EACCES, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_bytes", refuse)
        assert not room._carries(os.getpid(), MARK)
