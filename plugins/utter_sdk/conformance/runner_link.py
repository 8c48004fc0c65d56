"""One connection to a running runner, as a client has it, friendly or not.

Rules here: it reads while it writes, so that neither side can block the other unless a check wants it to; every wait
has an end; whatever the runner sends that a sender must not send, and every answer that nobody waits for, fails the
check that reads it.
"""

from __future__ import annotations

import array
import fcntl
import os
import select
import socket
import struct
import termios
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Self

from utter_sdk.conformance.report import CheckFailed
from utter_sdk.conformance.talk import Talk
from utter_sdk.conformance.wire import MISSING, Fault, Message, Reader, dumps, frame, key_of, read_message, shown

if TYPE_CHECKING:
    from collections.abc import Callable

_READ = 262_144
_MOST_FDS = 16
_SHOWN_ID = 60
# How long the runner may take to read a piece before the next one is sent, and how often that is looked at.
_TAKEN_S = 0.1
_POLL_S = 0.0005


class RunnerLink(Talk):
    """A connection; use it as a context manager, which closes it.

    Args:
        path: the runner's socket.
        seconds: how long to wait for an answer.

    Attributes:
        heard: notifications of the runner that nobody has taken yet, in order.
        descriptors: what came with frames and nobody has taken yet.
        received: how many bytes have come.
        ended: whether the runner has closed its end.

    Raises:
        CheckFailed: the runner does not accept it.
    """

    def __init__(self, path: str, seconds: float) -> None:
        super().__init__()
        self.heard: deque[Message] = deque()
        self.descriptors: deque[int] = deque()
        self.received = 0
        self.ended = False
        self._seconds = seconds
        self._out = bytearray()
        self._broken = False
        self._reader = Reader()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            self._socket.settimeout(seconds)
            self._socket.connect(path)
            self._socket.settimeout(0)
        except OSError as error:
            self._socket.close()
            raise CheckFailed(f"it does not accept a connection: {error.strerror or error}") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection, and what came with it."""
        self._socket.close()
        while self.descriptors:
            os.close(self.descriptors.popleft())

    # ---- What is sent

    def flood(self, data: bytes, seconds: float) -> bool:
        """Write bytes and read nothing meanwhile; whether a runner that is still there took all of them in time."""
        self._out += data
        self.pump(lambda: not self._out, seconds, reading=False)
        taken = not self._out and not self._broken
        self._out.clear()
        return taken

    def half_close(self) -> None:
        """Send nothing more."""
        self.transcript.append(("-", "the sending half is closed"))
        self._socket.shutdown(socket.SHUT_WR)

    # ---- What comes

    def unanswered(self, what: str, settle: Callable[[], object]) -> None:
        """Go on only if nothing is answered but what `settle` asks, which goes on behind everything that was sent.

        Raises:
            CheckFailed: something was answered, or it does not answer any more.
        """
        try:
            settle()
            settle()
        except CheckFailed as why:
            raise CheckFailed(f"after {what}: {why.detail}", expected=why.expected or "no answer") from None

    def wait(self, found: Callable[[], bool], what: str, seconds: float | None = None) -> None:
        """Read until `found()`.

        Raises:
            CheckFailed: it did not become true in time, or cannot any more.
        """
        limit = self._seconds if seconds is None else seconds
        self.pump(lambda: found() or self.ended, limit)
        if not found():
            how = "the connection was closed" if self.ended else f"nothing came in {limit:g} s"
            raise CheckFailed(f"{what} did not come: {how}", expected=f"{what} within {limit:g} s")

    def wait_closed(self, seconds: float | None = None) -> None:
        """Read until the runner has closed the connection.

        Raises:
            CheckFailed: it does not.
        """
        limit = self._seconds if seconds is None else seconds
        self.pump(lambda: self.ended, limit)
        if not self.ended:
            raise CheckFailed(f"it keeps the connection open {limit:g} s later", expected="the end of the connection")

    def take(self, method: str, stream_id: Any) -> Message:
        """Wait for the next item of a stream.

        Raises:
            CheckFailed: none came.
        """

        def first() -> Message | None:
            for message in self.heard:
                if isinstance(message.params, dict) and message.params.get("stream_id") == stream_id:
                    return message
            return None

        self.wait(lambda: first() is not None, f"an item of the stream {method}")
        message = first()
        if message is None or message.method != method:
            raise CheckFailed(f"an item came as {'nothing' if message is None else message.method}", expected=method)
        self.heard.remove(message)
        return message

    # ---- Below

    def pump(self, done: Callable[[], bool], seconds: float, *, reading: bool = True) -> None:
        """Read and write until `done()`, for at most so long."""
        end = time.monotonic() + seconds
        poll = select.poll()
        while not done():
            writing = bool(self._out) and not self._broken
            reading_now = reading and not self.ended
            if not writing and not reading_now:
                return
            poll.register(self._socket, select.POLLIN * reading_now | select.POLLOUT * writing)
            left = end - time.monotonic()
            events = poll.poll(max(0, left) * 1000)
            if not events:
                return
            mask = events[0][1]
            if mask & (select.POLLOUT | select.POLLERR | select.POLLHUP) and writing:
                self._flush()
            if mask & (select.POLLIN | select.POLLERR | select.POLLHUP) and reading_now:
                self._read()

    def _write(self, data: bytes) -> None:
        self._out += data
        self.pump(lambda: not self._out, self._seconds)

    def _settle(self) -> None:
        end = time.monotonic() + _TAKEN_S
        while self._unread() and time.monotonic() < end:
            time.sleep(_POLL_S)

    def _flush(self) -> None:
        try:
            sent = self._socket.send(self._out)
        except BlockingIOError:
            return
        except OSError:
            self._broken = True
            self._out.clear()
            return
        del self._out[:sent]

    def _read(self) -> None:
        room = socket.CMSG_SPACE(_MOST_FDS * 4)
        try:
            data, ancillary, _, _ = self._socket.recvmsg(_READ, room, socket.MSG_CMSG_CLOEXEC)
        except BlockingIOError:
            return
        except OSError:
            data, ancillary = b"", []
        for level, kind, content in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                self.descriptors.extend(array.array("i", content[: len(content) - len(content) % 4]))
        if not data:
            self.ended = True
            self.transcript.append(("-", "the runner closed the connection"))
            self._fail(*self._reader.end())
            return
        self.received += len(data)
        for found in self._reader.feed(data):
            if isinstance(found, Fault):
                self._fail(found)
            else:
                self.transcript.append(("<", shown(found)))
                self._take(read_message(found))

    def _fail(self, *faults: Fault) -> None:
        for fault in faults:
            self.tainted = True
            raise CheckFailed(
                f"what came is wrong: {fault.text}", expected="frames and messages as a sender writes them"
            )

    def _take(self, message: Message | Fault) -> None:
        if isinstance(message, Fault):
            self._fail(message)
        elif message.is_answer:
            key = key_of(message.id)
            if not self._take_open(key):
                raise CheckFailed(
                    f"an answer came that nobody waits for: id {key[:_SHOWN_ID]}", expected="exactly one answer"
                )
            self._keep(key, message)
        elif message.id is MISSING:
            self.heard.append(message)
        else:
            # Such as host.confirm: nobody is asked here.
            error = {"code": -32601, "message": "the conformance kit answers no requests"}
            self._out += frame(dumps({"jsonrpc": "2.0", "id": message.id, "error": error}))

    def _unread(self) -> int:
        """How many bytes the runner has not read yet."""
        if self._broken:
            return 0
        try:
            answer = fcntl.ioctl(self._socket, termios.TIOCOUTQ, bytes(4))
        except OSError:
            return 0
        return int(struct.unpack("@i", answer)[0])
