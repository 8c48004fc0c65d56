"""Who is at the other end of a unix socket: its user, its process, and the program that the process runs.

Rules here: a pid alone proves nothing, because pids are recycled. What is read of a process is read while a pidfd holds
it, and counts only if the process had not ended once it was read. Nothing here waits for the other end, but /proc is
read, and a process that is looked at can make that slow.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import struct
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

SO_PEERPIDFD = 77


class Credentials(msgspec.Struct, frozen=True):
    """Who is at the other end: SO_PEERCRED. `pid` is 0 for a process that this pid namespace does not show."""

    pid: int
    uid: int
    gid: int


def peer_credentials(connection: socket.socket) -> Credentials:
    """Return pid, uid and gid of the process that connected; for a connection made here, of the one that listens."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return Credentials(*struct.unpack("3i", raw))


@contextmanager
def pinned(connection: socket.socket, pid: int) -> Iterator[int]:
    """Hold the process at the other end by a pidfd.

    Raises:
        OSError: it is gone.
    """
    pidfd = _peer_pidfd(connection, pid)
    try:
        yield pidfd
    finally:
        os.close(pidfd)


def has_ended(pidfd: int) -> bool:
    """Whether the process of a pidfd has ended, so that its pid may by now be another's."""
    # A pidfd is readable once its process has ended.
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(0))


def program_of(pid: int) -> str:
    """Return the path of the executable file that a process runs now, or an empty text. For a record, not to decide."""
    try:
        return str(Path(f"/proc/{pid}/exe").readlink()) if pid else ""
    except OSError:
        return ""


class Allowed:
    """Executables that are let in, by device and inode.

    The paths are resolved here, once: a symbolic link that is put elsewhere later leads nobody in. The file at the end
    is looked at anew each time, because an update of the program puts another one there.

    Args:
        paths: of executables; `~` is the home directory. A path that leads nowhere matches nothing.
    """

    def __init__(self, paths: Iterable[str]) -> None:
        self._paths = [resolved for path in paths if (resolved := _resolved(path)) is not None]

    def refuses(self, connection: socket.socket, pid: int) -> str | None:
        """Return why the process at the other end is none of these, in one phrase, or None if it is one.

        What it ran before it was looked at, and who else holds its end of the connection, nobody can tell.

        Args:
            connection: the connection to it.
            pid: what `peer_credentials` said of it.
        """
        if pid <= 0:
            return "its process is in another pid namespace"
        try:
            with pinned(connection, pid) as pidfd:
                looks = _looks(pid)
                # Once it has ended, what was read may be of another process with the same pid.
                if has_ended(pidfd):
                    return "it has ended"
        except OSError as error:
            return f"its process cannot be held: {error.strerror}"
        if isinstance(looks, str):
            return looks
        running, again = looks
        return "it changed its executable while it was looked at" if running != again else self._stranger(running)

    def _stranger(self, running: _Executable) -> str | None:
        if running.identity in map(_identity, self._paths):
            return None
        before = running.name.removesuffix(_DELETED)
        if running.deleted and before in self._paths:
            return f"its executable {before} was replaced or deleted since it started: start it anew"
        return f"its executable {running.name} is not in allow_binaries"


class _Executable(NamedTuple):
    identity: tuple[int, int]
    name: str
    deleted: bool


def _looks(pid: int) -> tuple[_Executable, _Executable] | str:
    """Look twice at what a process runs; or return why that cannot be seen."""
    try:
        return _executable(pid), _executable(pid)
    except OSError as error:
        return f"its executable cannot be seen: {error.strerror}"


def _executable(pid: int) -> _Executable:
    """Look at what a process runs. Raises OSError."""
    link = Path(f"/proc/{pid}/exe")
    status = link.stat()
    # Path.readlink would drop what the kernel adds to the name of a deleted file.
    return _Executable((status.st_dev, status.st_ino), os.readlink(link), status.st_nlink == 0)  # noqa: PTH115 - see above


_DELETED = " (deleted)"


def _resolved(path: str) -> str | None:
    try:
        return os.path.realpath(Path(path).expanduser())
    except (OSError, RuntimeError, ValueError):
        return None


def _identity(path: str) -> tuple[int, int] | None:
    """Return device and inode of the file at a resolved path; None if none is there, or a link has come into it."""
    try:
        status = os.stat(path)  # noqa: PTH116 - together with the next line
        return (status.st_dev, status.st_ino) if os.path.realpath(path) == path else None
    except (OSError, ValueError):
        return None


def _peer_pidfd(connection: socket.socket, pid: int) -> int:
    try:
        raw = connection.getsockopt(socket.SOL_SOCKET, SO_PEERPIDFD, 4)
    except OSError as error:
        # Only a kernel before 6.5 may be asked by pid. Any other error is about this peer, and its pid may by now be
        # that of a stranger.
        if error.errno != errno.ENOPROTOOPT:
            raise
        return os.pidfd_open(pid)
    fd: int = struct.unpack("i", raw)[0]
    os.set_inheritable(fd, False)  # noqa: FBT003 - the signature is the standard library's
    return fd
