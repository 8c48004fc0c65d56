"""How `PluginProcess` reaches the plugin: over its pipes, or over a unix socket that one of the two listens on.

Rules here: a link never blocks for longer than its caller says; whoever makes a link closes it; the socket's directory
is the door's and goes with it.
"""

from __future__ import annotations

import os
import select
import shutil
import socket
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Sequence

Transport = Literal["stdio", "connect", "listen"]

_READ_SIZE = 65536
_MAX_DESCRIPTORS = 16
_DIAL_PAUSE = 0.005


class Link:
    """The test's end of one connection.

    Args:
        read_fd: where frames come from.
        write_fd: where frames go; non-blocking.
        connection: the socket that both belong to; None for pipes.
        close_writing: sends the end of input.

    Attributes:
        ended: why nothing will come any more; empty while something may.
        descriptors: what came and nobody has taken out.
    """

    def __init__(
        self, read_fd: int, write_fd: int, connection: socket.socket | None, close_writing: Callable[[], object]
    ) -> None:
        self.read_fd = read_fd
        self.ended = ""
        self.descriptors: list[int] = []
        self.writing_closed = False
        self.name = "its stdin" if connection is None else "the connection"
        self.source = "its stdout" if connection is None else "the connection"
        self._write_fd = write_fd
        self._socket = connection
        self._close_writing = close_writing

    def read(self) -> bytes:
        """Return what has arrived; empty at the end."""
        if self._socket is None:
            return os.read(self.read_fd, _READ_SIZE)
        try:
            data, fds, _, _ = socket.recv_fds(self._socket, _READ_SIZE, _MAX_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC)
        except ConnectionResetError:
            return b""
        self.descriptors += fds
        return data

    def write(self, data: bytes, fds: Sequence[int], seconds: float) -> bool:
        """Send bytes, and descriptors with the first of them; return whether the plugin took all in `seconds`.

        Raises:
            BrokenPipeError: nobody reads any more.
        """
        end = time.monotonic() + seconds
        poll = select.poll()
        poll.register(self._write_fd, select.POLLOUT)
        rest = memoryview(data)
        while rest:
            if not poll.poll(max(0.0, end - time.monotonic()) * 1000):
                return False
            try:
                rest = rest[self._write_some(rest, fds) :]
                fds = ()
            except BlockingIOError:
                continue
            except ConnectionResetError as error:
                raise BrokenPipeError from error
        return True

    def close_writing(self) -> None:
        """Send the end of input. Idempotent."""
        if not self.writing_closed:
            self.writing_closed = True
            self._close_writing()

    def close(self) -> None:
        """Close the socket; pipes are their process's."""
        self.close_writing()
        if self._socket is not None:
            self._socket.close()

    def hang_up(self) -> None:
        """End both directions, so that whoever reads returns."""
        self.close_writing()
        if self._socket is not None:
            _shut(self._socket, socket.SHUT_RDWR)

    def _write_some(self, rest: memoryview, fds: Sequence[int]) -> int:
        if self._socket is None:
            return os.write(self._write_fd, rest)
        return socket.send_fds(self._socket, [rest], list(fds), socket.MSG_DONTWAIT) if fds else self._socket.send(rest)


class Door:
    """Where links come from.

    Args:
        transport: as in the plugin's manifest.

    Attributes:
        path: the socket; empty for `stdio`.
    """

    def __init__(self, transport: Transport) -> None:
        self._directory = ""
        self._listener: socket.socket | None = None
        self.path = ""
        if transport == "stdio":
            return
        # Not in the test's own directory, whose name may be longer than a socket's may be.
        self._directory = tempfile.mkdtemp(prefix="utter-")
        self.path = str(Path(self._directory, "s"))
        if transport == "connect":
            self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self._listener.bind(self.path)
            self._listener.listen()

    def link(self, popen: subprocess.Popen[bytes], seconds: float) -> Link | None:
        """Return a connection to the plugin; None if there is none in `seconds`, or it has ended."""
        if not self._directory:
            if popen.stdin is None or popen.stdout is None:
                return None
            os.set_blocking(popen.stdin.fileno(), False)
            return Link(popen.stdout.fileno(), popen.stdin.fileno(), None, popen.stdin.close)
        end = time.monotonic() + seconds
        connection = self._dial(popen, end) if self._listener is None else self._accept(self._listener, popen, end)
        if connection is None:
            return None
        fd = connection.fileno()
        os.set_blocking(fd, False)
        return Link(fd, fd, connection, lambda: _shut(connection, socket.SHUT_WR))

    def close(self) -> None:
        """Remove the socket."""
        if self._listener is not None:
            self._listener.close()
        if self._directory:
            shutil.rmtree(self._directory)

    def _accept(self, listener: socket.socket, popen: subprocess.Popen[bytes], end: float) -> socket.socket | None:
        pidfd = os.pidfd_open(popen.pid)
        try:
            poll = select.poll()
            poll.register(listener, select.POLLIN)
            poll.register(pidfd, select.POLLIN)
            ready = {fd for fd, _ in poll.poll(max(0.0, end - time.monotonic()) * 1000)}
        finally:
            os.close(pidfd)
        return listener.accept()[0] if listener.fileno() in ready else None

    def _dial(self, popen: subprocess.Popen[bytes], end: float) -> socket.socket | None:
        while time.monotonic() < end and popen.poll() is None:
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                connection.connect(self.path)
            except (FileNotFoundError, ConnectionRefusedError):
                connection.close()
                time.sleep(_DIAL_PAUSE)
            else:
                return connection
        return None


def _shut(connection: socket.socket, how: int) -> None:
    try:
        connection.shutdown(how)
    except OSError:
        return
