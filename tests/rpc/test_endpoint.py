"""The socket file: who owns it, what is in its way, and what is left behind."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import socket
import stat
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support.endpoints import another_runner
from utter_runner.rpc import endpoint as room
from utter_runner.rpc.endpoint import MAX_PATH_BYTES, Endpoint, EndpointError, default_socket_path

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def serving(path: Path) -> Iterator[Endpoint]:
    made = Endpoint(path)
    try:
        yield made
    finally:
        made.close()


def connect(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))


# ---- where it is by default


def test_the_default_is_in_the_runtime_directory(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    assert default_socket_path({"XDG_RUNTIME_DIR": str(tmp_path)}) == tmp_path / "utter" / "runner.sock"


@pytest.mark.parametrize("value", [None, "", "run/user/0", ".", "/nonexistent/run"])
def test_a_runtime_directory_that_is_not_there_is_named(value: str | None) -> None:
    environ = {} if value is None else {"XDG_RUNTIME_DIR": value}
    with pytest.raises(EndpointError, match="XDG_RUNTIME_DIR") as error:
        default_socket_path(environ)
    said = str(error.value)
    if value:
        assert value in said
    else:
        assert "socket_path" in said
    if value and not value.startswith("/"):
        assert "absolute" in said


@pytest.mark.parametrize("mode", [0o755, 0o770, 0o701, 0o720, 0o1777])
def test_a_runtime_directory_that_others_can_reach_is_refused(tmp_path: Path, mode: int) -> None:
    directory = tmp_path / "run"
    directory.mkdir()
    directory.chmod(mode)
    with pytest.raises(EndpointError, match=f"chmod 700 {directory}") as error:
        default_socket_path({"XDG_RUNTIME_DIR": str(directory)})
    assert f"{mode:04o}" in str(error.value)


def test_a_runtime_directory_that_is_a_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "run"
    file.touch(mode=0o600)
    with pytest.raises(EndpointError, match="is not a directory"):
        default_socket_path({"XDG_RUNTIME_DIR": str(file)})


def test_a_runtime_directory_of_somebody_else_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.chmod(0o700)
    monkeypatch.setattr(os, "getuid", lambda: tmp_path.stat().st_uid + 1)
    with pytest.raises(EndpointError, match="belongs to uid"):
        default_socket_path({"XDG_RUNTIME_DIR": str(tmp_path)})


# ---- making it


def test_directory_and_socket_are_the_users_alone_from_the_first_moment(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        path = tmp_path / "utter" / "runner.sock"
        seen: list[int] = []

        class Watching(socket.socket):
            def bind(self, address: str) -> None:  # type: ignore[override]  # a path is all that is bound here
                super().bind(address)
                seen.append(stat.S_IMODE(Path(address).stat().st_mode))

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(socket, "socket", Watching)
            made = Endpoint(path)
        assert seen == [0o600]
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        assert stat.S_IMODE(path.with_name("runner.sock.lock").stat().st_mode) == 0o600
        connect(path)
        made.close()
        assert os.umask(0) == 0
    finally:
        os.umask(before)
    assert not path.exists()


@pytest.mark.parametrize("stale", [False, True])
def test_no_room_for_more_open_files_is_an_error_that_leaves_nothing_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stale: bool
) -> None:
    path = tmp_path / "utter" / "runner.sock"
    if stale:
        path.parent.mkdir(mode=0o700)
        with socket.socket(socket.AF_UNIX) as left:
            left.bind(str(path))

    def full(*_: object) -> socket.socket:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(socket, "socket", full)
        with pytest.raises(EndpointError, match=f"{path} cannot be made: Too many open files"):
            Endpoint(path)
    # The lock is free again.
    Endpoint(path).close()


def test_the_umask_is_restored_also_after_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = os.umask(0o022)
    try:

        class Failing(socket.socket):
            def bind(self, _address: object) -> None:
                raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(socket, "socket", Failing)
        with pytest.raises(EndpointError, match=f"The socket {tmp_path / 's'} cannot be made: No space left"):
            Endpoint(tmp_path / "s")
        assert os.umask(0o022) == 0o022
    finally:
        os.umask(before)
    # The lock is free again.
    monkeypatch.undo()
    Endpoint(tmp_path / "s").close()


def test_descriptors_are_not_inherited(tmp_path: Path) -> None:
    with serving(tmp_path / "s") as made:
        assert not os.get_inheritable(made.listener.fileno())
        assert not os.get_inheritable(made._lock_fd)
        assert made.listener.gettimeout() == 0.0


def test_a_path_that_is_too_long_is_refused_with_the_bound(tmp_path: Path) -> None:
    longest = tmp_path / ("s" * (MAX_PATH_BYTES - len(os.fsencode(tmp_path)) - 1))
    Endpoint(longest).close()
    with pytest.raises(EndpointError, match=f"has {MAX_PATH_BYTES + 1} bytes; unix sockets take at most 107"):
        Endpoint(longest.with_name(longest.name + "s"))
    # Bytes count, not characters.
    with pytest.raises(EndpointError, match="bytes"):
        Endpoint(longest.with_name(longest.name[:-1] + "ü"))


@pytest.mark.parametrize("mode", [0o770, 0o702, 0o777])
def test_a_directory_that_others_can_write_is_refused(tmp_path: Path, mode: int) -> None:
    directory = tmp_path / "d"
    directory.mkdir()
    directory.chmod(mode)
    with pytest.raises(EndpointError, match=f"chmod 700 {directory}"):
        Endpoint(directory / "s")
    assert list(directory.iterdir()) == []


def test_a_directory_of_somebody_else_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: tmp_path.stat().st_uid + 1)
    with pytest.raises(EndpointError, match="belongs to uid"):
        Endpoint(tmp_path / "s")


def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(EndpointError, match=f"The directory {tmp_path / 'file'} cannot be made"):
        Endpoint(tmp_path / "file" / "s")
    with pytest.raises(EndpointError, match=f"The directory {tmp_path / 'file' / 'sub'} cannot be made"):
        Endpoint(tmp_path / "file" / "sub" / "s")


# ---- what is in the way


def test_the_stale_socket_of_a_killed_runner_is_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "runner.sock"
    with another_runner(path) as process:
        process.send_signal(signal.SIGKILL)
        process.wait()
        left = path.lstat()
        assert stat.S_ISSOCK(left.st_mode)
        with serving(path):
            assert path.lstat().st_ino != left.st_ino or path.lstat().st_ctime_ns != left.st_ctime_ns
            connect(path)
    assert not path.exists()


def test_a_second_runner_is_refused_and_told_the_pid_of_the_first(tmp_path: Path) -> None:
    path = tmp_path / "runner.sock"
    with another_runner(path) as process:
        before = path.lstat().st_ino
        with pytest.raises(EndpointError, match=rf"Another runner \(pid {process.pid}\) already serves {path}"):
            Endpoint(path)
        assert path.lstat().st_ino == before
        connect(path)


def test_a_second_one_in_the_same_process_is_refused_too(tmp_path: Path) -> None:
    with serving(tmp_path / "s"):
        with pytest.raises(EndpointError, match=rf"pid {os.getpid()}"):
            Endpoint(tmp_path / "s")
        connect(tmp_path / "s")
    with serving(tmp_path / "s"):
        connect(tmp_path / "s")


def test_a_lock_without_a_pid_is_respected(tmp_path: Path) -> None:
    lock = tmp_path / "s.lock"
    fd = os.open(lock, os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        with pytest.raises(EndpointError, match=r"\(pid unknown\)"):
            Endpoint(tmp_path / "s")
    finally:
        os.close(fd)


def test_the_pid_of_an_earlier_owner_does_not_stay(tmp_path: Path) -> None:
    lock = tmp_path / "s.lock"
    lock.write_text("123456789012345678901234567890\n")
    with serving(tmp_path / "s"):
        assert lock.read_text() == f"{os.getpid()}\n"


@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_SEQPACKET, socket.SOCK_DGRAM])
def test_a_socket_of_another_program_that_lives_is_left_alone(tmp_path: Path, kind: int) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX, kind) as foreign:
        foreign.bind(str(path))
        if kind != socket.SOCK_DGRAM:
            foreign.listen()
        before = path.lstat().st_ino
        with pytest.raises(EndpointError, match=str(path)):
            Endpoint(path)
        assert path.lstat().st_ino == before
        if kind == socket.SOCK_STREAM:
            connect(path)


def test_one_whose_queue_is_full_lives_as_well(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as foreign, socket.socket(socket.AF_UNIX) as waiting:
        foreign.bind(str(path))
        foreign.listen(0)
        waiting.connect(str(path))
        with pytest.raises(EndpointError, match="Another program listens"):
            Endpoint(path)
        assert path.exists()


@pytest.mark.parametrize("what", ["file", "directory", "fifo", "symlink", "dangling"])
def test_what_is_no_socket_is_not_touched(tmp_path: Path, what: str) -> None:
    path = tmp_path / "s"
    target = tmp_path / "target"
    if what == "file":
        path.write_text("precious")
    elif what == "directory":
        path.mkdir()
    elif what == "fifo":
        os.mkfifo(path)
    else:
        if what == "symlink":
            target.write_text("precious")
        path.symlink_to(target)
    before = path.lstat()
    with pytest.raises(EndpointError, match=f"{path} exists and is not a socket"):
        Endpoint(path)
    assert (path.lstat().st_ino, path.lstat().st_mode) == (before.st_ino, before.st_mode)
    assert target.exists() == (what == "symlink")


def test_a_lock_file_that_is_a_symlink_is_not_followed(tmp_path: Path) -> None:
    target = tmp_path / "precious"
    target.write_text("precious")
    lock = tmp_path / "s.lock"
    lock.symlink_to(target)
    with pytest.raises(EndpointError, match=f"The lock file {lock} cannot be opened"):
        Endpoint(tmp_path / "s")
    assert target.read_text() == "precious"
    target.unlink()
    with pytest.raises(EndpointError, match="lock file"):
        Endpoint(tmp_path / "s")
    assert not target.exists()


@pytest.mark.parametrize("what", ["directory", "fifo"])
def test_a_lock_file_that_is_no_file_is_an_error_that_names_it(tmp_path: Path, what: str) -> None:
    lock = tmp_path / "s.lock"
    if what == "directory":
        lock.mkdir()
    else:
        os.mkfifo(lock)
    with pytest.raises(EndpointError, match=f"The lock file {lock} cannot be"):
        Endpoint(tmp_path / "s")


def test_a_file_system_without_locks_is_an_error_that_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_fd: int, _how: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(room.fcntl, "flock", refuse)
    with pytest.raises(EndpointError, match="No locks available"):
        Endpoint(tmp_path / "s")


# ---- closing it


def test_closing_removes_the_socket_and_frees_the_lock(tmp_path: Path) -> None:
    path = tmp_path / "s"
    made = Endpoint(path)
    made.close()
    assert [one.name for one in tmp_path.iterdir()] == ["s.lock"]
    with another_runner(path):
        connect(path)


@pytest.mark.parametrize("what", ["socket", "file", "nothing", "symlink"])
def test_what_somebody_else_put_in_its_place_is_left_there(tmp_path: Path, what: str) -> None:
    path = tmp_path / "s"
    made = Endpoint(path)
    moved = tmp_path / "moved"
    if what == "symlink":
        path.rename(moved)
        path.symlink_to(moved)
    else:
        path.unlink()
    with socket.socket(socket.AF_UNIX) as other:
        if what == "socket":
            other.bind(str(path))
        elif what == "file":
            path.write_text("theirs")
        made.close()
        assert os.path.lexists(path) == (what != "nothing")


def test_the_directory_may_be_gone_by_then(tmp_path: Path) -> None:
    path = tmp_path / "d" / "s"
    made = Endpoint(path)
    for entry in path.parent.iterdir():
        entry.unlink()
    path.parent.rmdir()
    made.close()
    assert not path.parent.exists()
