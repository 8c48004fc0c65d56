"""Who may use the socket.

Rules here: default-deny once `[socket]` is configured; the peer's uid comes first, then the binary (device and inode of
/proc/PID/exe, held through a pidfd so that a recycled pid opens nothing), else a token compared in constant time.
"""

from __future__ import annotations

import errno
import hmac
import os
import select
import socket
import struct
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from utter_runner.config import SocketConfig

SO_PEERPIDFD = 77


class Credentials(msgspec.Struct, frozen=True):
    """Who is at the other end: SO_PEERCRED."""

    pid: int
    uid: int
    gid: int


def peer_credentials(connection: socket.socket) -> Credentials:
    """Return pid, uid and gid of the process that connected."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return Credentials(*struct.unpack("3i", raw))


class Admission:
    """Decides about connections.

    Args:
        config: the `[socket]` section, or None when there is none: then the same user is let in.
    """

    def __init__(self, config: SocketConfig | None) -> None:
        self._config = config

    @property
    def open_to_user(self) -> bool:
        """Whether every program of this user is let in."""
        return self._config is None or self._config.allow_same_uid

    def refuses(self, credentials: Credentials) -> str | None:
        """Return why a connection is closed at once, or None."""
        if credentials.uid != os.getuid():
            return f"uid {credentials.uid} is not the user of this runner"
        return None

    def admits_at_once(self, connection: socket.socket, credentials: Credentials) -> bool:
        """Whether the peer needs no token."""
        if self._config is None or self._config.allow_same_uid:
            return True
        return self._is_allowed_binary(connection, credentials)

    def token_matches(self, token: str) -> bool:
        """Compare a token in constant time; without a configured one nothing matches."""
        wanted = self._config.token if self._config is not None else None
        return wanted is not None and hmac.compare_digest(token.encode(), wanted.encode())

    def _is_allowed_binary(self, connection: socket.socket, credentials: Credentials) -> bool:
        if self._config is None or not self._config.allow_binaries:
            return False
        try:
            pidfd = _peer_pidfd(connection, credentials.pid)
        except OSError:
            return False
        try:
            try:
                running = Path(f"/proc/{credentials.pid}/exe").stat()
            except OSError:
                return False
            # A pidfd is readable once its process has ended: what was read may then be of a recycled pid.
            poll = select.poll()
            poll.register(pidfd, select.POLLIN)
            if poll.poll(0):
                return False
        finally:
            os.close(pidfd)
        for path in self._config.allow_binaries:
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
