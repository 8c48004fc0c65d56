"""A plugin's end of the wire: the frames' two file descriptors, kept apart from everything else that prints.

Rules here: from `take_over` on, fd 1 is stderr and fd 0 is empty, for this process and its children, so that a stray
print (from C code too) cannot corrupt the wire and no child eats frames; the frames' descriptors are close-on-exec;
one lock makes each frame whole, whichever thread sends it.
"""

from __future__ import annotations

import os
import sys
import threading
from typing import TYPE_CHECKING

from utter_protocol.framing import MAX_FRAME, encode_frame

if TYPE_CHECKING:
    from collections.abc import Sequence

_READ_SIZE = 256 * 1024


def log(text: str) -> None:
    """Write `text` to stderr as whole lines; a stderr that is closed or full loses it."""
    line = text.rstrip("\n") + "\n"
    try:
        os.write(2, line.encode("utf-8", "backslashreplace"))
    except OSError:
        return


def take_over() -> Wire:
    """Move the frames to private descriptors, point fd 0 at nothing and fd 1 at stderr.

    Raises:
        OSError: stdin, stdout or stderr is closed.
    """
    wire = Wire(empty_stdin(), os.dup(1))
    stdout_to_stderr()
    return wire


def empty_stdin() -> int:
    """Point fd 0 at nothing; return a private descriptor of what it was."""
    stdin = os.dup(0)
    nothing = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    os.dup2(nothing, 0)
    os.close(nothing)
    return stdin


def stdout_to_stderr() -> None:
    """Point fd 1 at stderr."""
    os.dup2(2, 1)
    # What was printed before now goes where it belongs; later prints appear at once.
    sys.stdout.flush()
    reconfigure = getattr(sys.stdout, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(line_buffering=True, errors="backslashreplace")


class FrameTooLargeError(ValueError):
    """A body exceeds the protocol's `max_frame`; nothing of it was sent."""

    def __init__(self, size: int) -> None:
        super().__init__(f"a frame of {size} bytes exceeds max_frame ({MAX_FRAME} bytes)")


class Wire:
    """Blocking reads for one thread, whole frames out for any."""

    def __init__(self, read_fd: int, write_fd: int) -> None:
        self._read_fd = read_fd
        self._write_fd = write_fd
        self._lock = threading.Lock()

    def read(self) -> bytes:
        """Return what has arrived, waiting for at least one byte; empty at the end.

        Raises:
            OSError: the wire broke.
        """
        while True:
            try:
                return os.read(self._read_fd, _READ_SIZE)
            except BlockingIOError:
                _wait(self._read_fd, for_writing=False)

    def send(self, body: bytes, fds: Sequence[int] = ()) -> None:
        """Send one frame.

        Raises:
            FrameTooLargeError: before anything is sent.
            ValueError: there are descriptors, which pipes do not carry.
            OSError: the wire broke.
        """
        if fds:
            raise ValueError("descriptors travel on sockets only; the transport must be connect or listen")
        if len(body) > MAX_FRAME:
            raise FrameTooLargeError(len(body))
        frame = encode_frame(body)
        with self._lock:
            try:
                sent = os.write(self._write_fd, frame)
            except BlockingIOError:
                sent = 0
            if sent != len(frame):
                self._send_rest(memoryview(frame)[sent:])

    def take(self, _count: int) -> list[int]:
        """No descriptors come over pipes."""
        return []

    def close_surplus(self, _unhandled: int) -> bool:
        """No descriptors come over pipes."""
        return False

    def _send_rest(self, rest: memoryview) -> None:
        while rest:
            try:
                rest = rest[os.write(self._write_fd, rest) :]
            except BlockingIOError:
                _wait(self._write_fd, for_writing=True)


def _wait(fd: int, *, for_writing: bool) -> None:
    import select  # noqa: PLC0415 - only a parent that handed over a non-blocking descriptor makes it needed

    poll = select.poll()
    poll.register(fd, select.POLLOUT if for_writing else select.POLLIN)
    poll.poll()
