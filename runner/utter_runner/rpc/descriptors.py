"""Descriptors that travel with bytes on a unix socket (SCM_RIGHTS): leaving, arriving, and being closed.

Rules here: whoever holds a descriptor closes it, once; a descriptor leaves with the first byte of its frame and is then
the other side's; what arrives is close-on-exec from the start. Nothing here waits.
"""

from __future__ import annotations

import array
import errno
import fcntl
import os
import socket
import stat
import termios
from typing import TYPE_CHECKING

from utter_protocol.descriptors import MAX_FDS_PER_MESSAGE, ArrivedDescriptors
from utter_protocol.errors import ErrorCode, RpcError
from utter_runner.rpc.interface import bound_error

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from utter_runner.rpc.peer import Peer

MAX_UNREAD_FDS = 32
"""How many descriptors may be on their way to a peer that has not read them."""

_SIZE = array.array("i").itemsize
# Room for one more than may come tells "too many" from "no room in this process's table".
ROOM = socket.CMSG_LEN((MAX_FDS_PER_MESSAGE + 1) * _SIZE)


class Parcel(bytes):
    """A frame that descriptors ride on.

    Attributes:
        fds: the descriptors; they are the parcel's until it has left.
        instead: what to send if the kernel has too many descriptors under way.
    """

    fds: Sequence[int]
    instead: bytes

    @classmethod
    def of(cls, data: bytes, fds: Sequence[int], instead: bytes) -> Parcel:
        """Return `data` with descriptors."""
        parcel = cls(data)
        parcel.fds = fds
        parcel.instead = instead
        return parcel

    def close(self) -> None:
        """Close this side's descriptors: they have left, or never will."""
        close_all(self.fds)
        self.fds = ()


def unix_socket(fd: int) -> socket.socket | None:
    """Return a socket object over `fd`, which it shares, or None for what passes no descriptors."""
    if not _is_socket(fd):
        return None
    found = socket.socket(fileno=fd)
    if found.family == socket.AF_UNIX:
        return found
    found.detach()
    return None


def _is_socket(fd: int) -> bool:
    try:
        return stat.S_ISSOCK(os.fstat(fd).st_mode)
    except OSError:
        return False


def send_parcel(connection: socket.socket, parcel: Parcel) -> int | None:
    """Send as much of a parcel as the kernel takes, in one call; None: it takes no more descriptors.

    Raises:
        BlockingIOError: the kernel takes nothing now; the descriptors have not left.
        OSError: the connection is broken.
    """
    rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", parcel.fds))
    try:
        return connection.sendmsg([parcel], [rights])
    except OSError as error:
        # More descriptors of this user than RLIMIT_NOFILE are under way in sockets (unix(7)).
        if error.errno == errno.ETOOMANYREFS:
            return None
        raise


def received(ancillary: Iterable[tuple[int, int, bytes]]) -> list[int]:
    """Return the descriptors in what came beside the bytes of a `recvmsg`."""
    found = array.array("i")
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            found.frombytes(data[: len(data) - len(data) % _SIZE])
    return list(found)


def all_was_read(fd: int) -> bool:
    """Whether the other side of a unix socket has read everything that was sent to it."""
    try:
        waiting = fcntl.ioctl(fd, termios.TIOCOUTQ, bytes(4))
    except OSError:
        return False
    return not any(waiting)


class Arrivals:
    """The descriptors that a peer was sent and no request has taken yet. `close` it with the peer."""

    def __init__(self) -> None:
        self._waiting = ArrivedDescriptors()

    def __len__(self) -> int:
        return len(self._waiting)

    def arrive(self, fds: Sequence[int], end: int, *, truncated: bool) -> RpcError | None:
        """Keep descriptors, or close them and say why they end the connection.

        Args:
            fds: what came with one read.
            end: how many bytes the peer has received with it.
            truncated: whether the kernel had to leave some out.
        """
        if len(fds) > MAX_FDS_PER_MESSAGE:
            close_all(fds)
            return RpcError(
                ErrorCode.INVALID_REQUEST,
                f"more than max_fds_per_message ({MAX_FDS_PER_MESSAGE}) descriptors came with a message",
                {"descriptors": "too_many", "bound": "max_fds_per_message", "limit": MAX_FDS_PER_MESSAGE},
            )
        if truncated:
            close_all(fds)
            return RpcError(
                ErrorCode.INVALID_REQUEST,
                "a descriptor was cut off: this process has no room for more open files",
                {"descriptors": "truncated"},
            )
        self._waiting.arrive(fds, end)
        return None

    def take(self) -> int | None:
        """Give the oldest descriptor to the request that is being handled; None if there is none."""
        return self._waiting.take()

    def surplus(self, position: int) -> RpcError | None:
        """Close what no message announced, once everything before `position` has been handled; say so."""
        left = self._waiting.surplus(position)
        if not left:
            return None
        close_all(left)
        return RpcError(
            ErrorCode.INVALID_REQUEST,
            "a descriptor arrived that no message announced",
            {"descriptors": "surplus"},
        )

    def close(self) -> None:
        """Close what is left."""
        close_all(self._waiting.clear())


def check_passing(peer: Peer, method: str, count: int) -> None:
    """Say whether `count` descriptors may be sent to a peer now, for its request `method`.

    Raises:
        RpcError: -32003 on stdio, -32600 if it has not read those that were sent before.
    """
    if not peer.channel.passes_descriptors:
        raise RpcError(
            ErrorCode.NOT_PERMITTED,
            f"{method} needs a socket; this connection is stdio, which takes no descriptors",
            {"method": method, "transport": "stdio"},
        )
    if peer.channel.unread_descriptors + count > MAX_UNREAD_FDS:
        raise bound_error(peer.name, "max_unread_fds", MAX_UNREAD_FDS)


def close_all(fds: Iterable[int]) -> None:
    """Close descriptors."""
    for fd in fds:
        os.close(fd)
