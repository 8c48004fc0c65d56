"""A client's or a plugin's socket with the descriptors that travel on it (PROTOCOL.md, "Descriptors and frames").

Rules here: what arrives is close-on-exec from the start and is either taken, once, or closed; what is sent stays the
caller's.
"""

from __future__ import annotations

import array
import socket
from typing import TYPE_CHECKING

from utter_protocol.descriptors import MAX_FDS_PER_ANSWER, ArrivedDescriptors
from utter_sdk.received import Received, close_all

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["LostDescriptors", "PassingSocket", "Received", "close_all"]

_INT = array.array("i").itemsize
# One more than may come, to tell too many from too little room.
_ROOM = socket.CMSG_LEN((MAX_FDS_PER_ANSWER + 1) * _INT)


class PassingSocket:
    """A connected unix socket.

    Args:
        connection: the socket, which becomes this one's.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._arrived = ArrivedDescriptors()
        self._received = 0

    def fileno(self) -> int:
        """The socket's descriptor."""
        return self._socket.fileno()

    def close(self) -> None:
        """Close the socket, and what nobody took. Idempotent."""
        self._socket.close()
        close_all(self._arrived.clear())

    def send(self, data: bytes, fds: Sequence[int] = ()) -> None:
        """Send all of `data`, the descriptors with its first byte. Raises OSError."""
        sent = 0
        if fds:
            sent = self._socket.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))])
        # Nothing is sent of nothing: that would be an error if the other side has read all and gone.
        if sent < len(data):
            self._socket.sendall(memoryview(data)[sent:])

    def receive(self, size: int) -> bytes:
        """Read once.

        Raises:
            OSError: the connection broke.
            LostDescriptors: a descriptor came that this process has no room for.
        """
        data, ancillary, flags, _ = self._socket.recvmsg(size, _ROOM, socket.MSG_CMSG_CLOEXEC)
        self._received += len(data)
        if ancillary or flags & socket.MSG_CTRUNC:
            self._take_in(ancillary, lost=bool(flags & socket.MSG_CTRUNC))
        return data

    def _take_in(self, ancillary: Iterable[tuple[int, int, bytes]], *, lost: bool) -> None:
        fds = array.array("i")
        for level, kind, data in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                fds.frombytes(data[: len(data) - len(data) % _INT])
        if lost or len(fds) > MAX_FDS_PER_ANSWER:
            close_all(fds)
            raise LostDescriptors
        self._arrived.arrive(fds, self._received)

    def take(self, count: int) -> list[int]:
        """Return up to `count` descriptors of the message that is being handled, the caller's from now on."""
        taken = (self._arrived.take() for _ in range(count))
        return [fd for fd in taken if fd is not None]

    def close_surplus(self, unhandled: int) -> bool:
        """Close what no message took, while `unhandled` received bytes wait; whether there was something."""
        surplus = self._arrived.surplus(self._received - unhandled)
        close_all(surplus)
        return bool(surplus)


class LostDescriptors(Exception):
    """A descriptor came that this process has no room for, or more than a message brings."""

    def __str__(self) -> str:
        return "descriptors were lost: this process has too many files open, or too many came"
