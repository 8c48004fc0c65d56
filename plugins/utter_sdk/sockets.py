"""The transports `connect` and `listen`: where a plugin meets the runner, and frames and descriptors on that socket.

Rules here: one connection at a time; a plugin that the runner started (it has a UTTER_INSTANCE) serves one and ends,
one that was started by somebody else waits for the next; every descriptor is close-on-exec, also those that arrive;
the socket's file is removed by whoever made it, and by nobody else.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import stat
import struct
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from utter_protocol.framing import MAX_FRAME, encode_frame
from utter_sdk.passing import LostDescriptors, PassingSocket
from utter_sdk.runner_socket import MAX_PATH
from utter_sdk.stdio import FrameTooLargeError, empty_stdin, log, stdout_to_stderr

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from utter_sdk.plugin import Transport

GREETING_SECONDS = 10.0
"""How long whoever connects to a listening plugin may take to say `protocol.hello`."""
FIRST_PAUSE = 0.1
LONGEST_PAUSE = 2.0
"""Seconds between two tries to reach a runner that is not there; each pause is twice the one before."""

_READ_SIZE = 256 * 1024
_UCRED = struct.Struct("3i")
_NOT_THERE = (errno.ENOENT, errno.ECONNREFUSED, errno.ECONNRESET, errno.EAGAIN)


class SocketWire:
    """Blocking reads for one thread, whole frames out for any, over a connected stream socket that becomes its own.

    Attributes:
        deadline: `time.monotonic()` until which something must arrive; None: for ever.
    """

    def __init__(self, connection: socket.socket) -> None:
        self.deadline: float | None = None
        self._socket = connection
        self._passing = PassingSocket(connection)
        self._lock = threading.Lock()

    def read(self) -> bytes:
        """Return what has arrived, waiting for at least one byte; empty at the end.

        Raises:
            TimeoutError: `deadline` passed.
            OSError: the wire broke, or descriptors that came were lost.
        """
        if self.deadline is not None:
            self._wait(self.deadline)
        try:
            return self._passing.receive(_READ_SIZE)
        except LostDescriptors as lost:
            raise OSError(errno.EMFILE, str(lost)) from None

    def send(self, body: bytes, fds: Sequence[int] = ()) -> None:
        """Send one frame, and descriptors with its first byte, which stay the caller's.

        Raises:
            FrameTooLargeError: before anything is sent.
            OSError: the wire broke.
        """
        if len(body) > MAX_FRAME:
            raise FrameTooLargeError(len(body))
        frame = encode_frame(body)
        with self._lock:
            self._passing.send(frame, fds)

    def take(self, count: int) -> list[int]:
        """Return up to `count` descriptors that came with the frame that is being handled."""
        return self._passing.take(count)

    def close_surplus(self, unhandled: int) -> bool:
        """Close descriptors that no frame took, while `unhandled` bytes wait; return whether there were any."""
        return self._passing.close_surplus(unhandled)

    def end_input(self) -> None:
        """Let `read` return what has arrived, and then the end; from any thread."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RD)

    def hang_up(self) -> None:
        """End both directions, so that whoever reads or sends returns; from any thread."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the socket and what nobody took; only the reading thread does."""
        self.hang_up()
        with self._lock:
            self._passing.close()

    def _wait(self, deadline: float) -> None:
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
            raise TimeoutError(errno.ETIMEDOUT, "nobody said protocol.hello in time")


class Endpoint:
    """Where a plugin's connections come from.

    Args:
        name: the plugin's id.
        transport: "connect" or "listen".
        environ: UTTER_PLUGIN_SOCKET is the socket's path, else XDG_RUNTIME_DIR says where it is; UTTER_INSTANCE says
            that the runner started this process.

    Raises:
        SystemExit: there is no path, or no socket can be made there; says why.
    """

    def __init__(self, name: str, transport: Transport, environ: Mapping[str, str]) -> None:
        self.path = socket_path(name, environ)
        self.spawned = bool(environ.get("UTTER_INSTANCE"))
        self._pause = FIRST_PAUSE
        self._waiting = False
        self._listener: socket.socket | None = None
        self._made: tuple[int, int] | None = None
        if transport == "listen":
            self._listen()

    def take_over(self, on_end_of_input: Callable[[], object]) -> None:
        """Point fd 1 at stderr; of a plugin that the runner started also fd 0 at nothing, and watch its end.

        Args:
            on_end_of_input: called on a thread of its own when the runner closes stdin.
        """
        stdout_to_stderr()
        if not self.spawned:
            # A debugger on a terminal needs its stdin.
            return
        stdin = empty_stdin()
        kind = os.fstat(stdin).st_mode
        if not (stat.S_ISFIFO(kind) or stat.S_ISSOCK(kind)):
            os.close(stdin)
            return

        def watch() -> None:
            while os.read(stdin, 4096):
                pass
            on_end_of_input()

        threading.Thread(target=watch, name="utter-stdin", daemon=True).start()

    def next(self) -> SocketWire:
        """Wait for the next connection, for as long as it takes.

        Raises:
            SystemExit: the runner's socket cannot be reached for a reason that waiting does not change.
        """
        return self._dial() if self._listener is None else self._accept(self._listener)

    def is_last(self, *, greeted: bool) -> bool:
        """Whether the process ends with the connection that has just ended.

        Args:
            greeted: whether the runner had said hello. Whoever connects to a listening plugin and does not was none.
        """
        return self.spawned and (greeted or self._listener is None)

    def over(self, *, greeted: bool) -> None:
        """Hear that a connection has ended that was not the last."""
        if greeted:
            self._pause = FIRST_PAUSE
            self._say_waiting("the runner has gone; ")
        elif self._listener is None:
            # A runner that refuses this plugin says why in its own log, and would refuse it again at once.
            log("the runner closed the connection before it said protocol.hello; its log says why")
            self._sleep()

    def close(self) -> None:
        """Remove the socket's file, if this process made it."""
        if self._made is None:
            return
        with suppress(OSError):
            found = os.stat(self.path)  # noqa: PTH116 - pathlib costs start-up time
            if (found.st_dev, found.st_ino) == self._made:
                os.unlink(self.path)  # noqa: PTH108 - as above

    def _dial(self) -> SocketWire:
        while True:
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                connection.connect(self.path)
            except OSError as error:
                connection.close()
                if error.errno not in _NOT_THERE:
                    raise SystemExit(f"{self.path}: cannot connect: {error.strerror}.") from None
            else:
                self._waiting = False
                return SocketWire(connection)
            self._say_waiting()
            self._sleep()

    def _say_waiting(self, why: str = "") -> None:
        if not self._waiting:
            self._waiting = True
            log(f"{why}waiting for the runner at {self.path}")

    def _sleep(self) -> None:
        time.sleep(self._pause)
        self._pause = min(LONGEST_PAUSE, self._pause * 2)

    def _accept(self, listener: socket.socket) -> SocketWire:
        while True:
            connection, _ = listener.accept()
            credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
            uid = _UCRED.unpack(credentials)[1]
            if uid == os.geteuid():
                self._waiting = False
                wire = SocketWire(connection)
                wire.deadline = time.monotonic() + GREETING_SECONDS
                return wire
            connection.close()
            log(f"refused a connection of uid {uid}: the runner is the same user's")

    def _listen(self) -> None:
        # Nobody else gets in at any moment, whoever makes the directories.
        mask = os.umask(0o077)
        try:
            os.makedirs(os.path.dirname(self.path), exist_ok=True)  # noqa: PTH103, PTH120 - pathlib costs start-up time
            self._listener = self._bind()
        except OSError as error:
            raise SystemExit(f"{self.path}: cannot listen: {error.strerror}.") from None
        finally:
            os.umask(mask)

    def _bind(self) -> socket.socket:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            try:
                listener.bind(self.path)
            except OSError as error:
                if error.errno != errno.EADDRINUSE or not self._is_stale():
                    raise
                os.unlink(self.path)  # noqa: PTH108 - as above
                listener.bind(self.path)
            os.chmod(self.path, 0o600)  # noqa: PTH101 - as above
            found = os.stat(self.path)  # noqa: PTH116 - as above
            self._made = found.st_dev, found.st_ino
            listener.listen(1)
        except BaseException:
            listener.close()
            raise
        return listener

    def _is_stale(self) -> bool:
        """Whether the file is a socket that nobody listens on: what a process that was killed leaves behind."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            try:
                probe.connect(self.path)
            except ConnectionRefusedError:
                return stat.S_ISSOCK(os.stat(self.path).st_mode)  # noqa: PTH116 - as above
            except OSError:
                return False
        return False


def socket_path(name: str, environ: Mapping[str, str]) -> str:
    """Return UTTER_PLUGIN_SOCKET, else `$XDG_RUNTIME_DIR/utter/plugins/<name>.sock`.

    Raises:
        SystemExit: there is neither, or the path is none.
    """
    path = environ.get("UTTER_PLUGIN_SOCKET", "")
    if not path:
        runtime = environ.get("XDG_RUNTIME_DIR", "")
        if not runtime.startswith("/"):
            raise SystemExit(
                f"{name}: there is no way to know where its socket is: neither UTTER_PLUGIN_SOCKET nor XDG_RUNTIME_DIR "
                "is set. A login session sets the latter; the runner sets the former for what it starts."
            )
        path = f"{runtime}/utter/plugins/{name}.sock"
    if "\0" in path or len(os.fsencode(path)) > MAX_PATH:
        raise SystemExit(f"{path}: a unix socket's path may have {MAX_PATH} bytes; choose a shorter one.")
    return path
