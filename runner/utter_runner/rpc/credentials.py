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
from typing import TYPE_CHECKING

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


def runs_one_of(connection: socket.socket, pid: int, programs: Iterable[str]) -> bool:
    """Whether the process at the other end runs one of these executable files, by device and inode.

    Args:
        connection: the connection to it.
        pid: what `peer_credentials` said of it.
        programs: paths; `~` is the home directory. A path that leads nowhere matches nothing.
    """
    try:
        with pinned(connection, pid) as pidfd:
            running = Path(f"/proc/{pid}/exe").stat()
            if has_ended(pidfd):
                return False
    except OSError:
        return False
    for path in programs:
        try:
            allowed = Path(path).expanduser().stat()
        except (OSError, RuntimeError, ValueError):
            continue
        if (allowed.st_dev, allowed.st_ino) == (running.st_dev, running.st_ino):
            return True
    return False


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
