"""A plugin's process and the bytes to and from it, over pipes or a socket.

Rules here: one thread owns a channel and waits in `pump` alone, which reads while it writes, so that neither side can
block the other unless a check wants it to; every wait has an end; stderr is always read.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import socket
import sys
import termios
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING

from utter_sdk.conformance.launch import marked, start
from utter_sdk.conformance.report import CheckFailed

if TYPE_CHECKING:
    from collections.abc import Callable

    from utter_sdk.conformance.launch import Started, Subject
    from utter_sdk.testing.ring import AudioRing

_SLICE_S = 0.25
_RETRY_S = 0.01
_POLL_S = 0.0005
_TAKEN_S = 0.1
_READ = 65536
_MOST = 256 * 1024 * 1024
_STDERR_KEPT = 64 * 1024
_STDERR_SHOWN = 600


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How long the kit waits, in seconds.

    Attributes:
        handshake: for a connection, and for each answer of the handshake.
        answer: for an answer, and for whatever else must happen without being timed by the protocol.
        work: for an answer that takes work, such as that of a language model.
        health: for `plugin.health` of a busy plugin.
        end: for a process to end after it was told so.
        quiet: how long nothing must come where the protocol says that nothing comes.
        stop: set it from another thread to give up all waits.
    """

    handshake: float = 10.0
    answer: float = 10.0
    work: float = 30.0
    health: float = 5.0
    end: float = 2.0
    quiet: float = 0.2
    stop: threading.Event = field(default_factory=threading.Event)


class PluginEndedError(CheckFailed):
    """What was waited for cannot come: the plugin ended, or closed its end of the wire."""


class StoppedError(Exception):
    """The whole run was given up."""


class Channel:
    """A plugin that was started, and connected if its transport needs that.

    Args:
        subject: what to start.
        limits: how long to wait.
        receive: called with what has arrived, and with nothing at the end of it.

    Attributes:
        pid: the process and its group.
        reading: false stops reading what the plugin writes.
        output_ended: whether nothing more will be read.
        input_ended: whether nothing more can be written.

    Raises:
        LaunchError: it cannot be started.
        CheckFailed: it did not connect, or listen.
    """

    def __init__(self, subject: Subject, limits: Limits, receive: Callable[[bytes], None]) -> None:
        self.reading = True
        self.output_ended = False
        self.input_ended = False
        self._limits = limits
        self._receive = receive
        self._exited = False
        self._received = 0
        self._outgoing = bytearray()
        self._stderr = bytearray()
        self._socket: socket.socket | None = None
        self._started = start(subject)
        self.pid = self._started.process.pid
        self._pidfd = os.pidfd_open(self.pid)
        self._stdin, self._stdout, self._log = _pipes(self._started)
        try:
            if self._started.transport != "stdio":
                self._connect(known=bool(subject.id))
        except BaseException:
            self.close()
            raise

    @property
    def exited(self) -> bool:
        """Whether the process has ended."""
        if not self._exited:
            poll = select.poll()
            poll.register(self._pidfd, select.POLLIN)
            self._exited = bool(poll.poll(0))
        return self._exited

    @property
    def ring(self) -> AudioRing | None:
        """What the plugin hears."""
        return self._started.ring

    @property
    def socket_mode(self) -> int:
        """The permission bits of the socket that the plugin made."""
        return Path(self._started.path).stat().st_mode & 0o777

    def write(self, data: bytes) -> None:
        """Write bytes; what the plugin does not take while nothing is read from it is written later."""
        if not self.input_ended:
            self._outgoing += data
            self.pump(lambda: not self._outgoing, self._limits.answer if self.reading else self._limits.quiet)

    def settle(self) -> None:
        """Wait a moment for the plugin to read what was written, so that what is written next arrives by itself."""
        end = time.monotonic() + _TAKEN_S
        while not self.input_ended and self._unread() and time.monotonic() < end:
            self.pump(lambda: False, _POLL_S)

    def queue(self, data: bytes) -> None:
        """Write bytes with the next `pump`."""
        if not self.input_ended:
            self._outgoing += data

    def pump(self, until: Callable[[], bool], seconds: float) -> bool:
        """Move bytes until `until()` or the time is over; return whether it is true.

        Raises:
            StoppedError: the run was given up.
        """
        end = time.monotonic() + seconds
        while True:
            if self._limits.stop.is_set():
                raise StoppedError
            if until():
                return True
            left = end - time.monotonic()
            if left <= 0:
                self._turn(0)
                return until()
            self._turn(min(left, _SLICE_S))

    def drain(self) -> None:
        """Read what is there already, without waiting for more."""
        fd = self._output_fd()
        while fd >= 0 and not self.output_ended and self._read(fd):
            pass

    def end_input(self) -> None:
        """End the plugin's input as the runner does: the sending half of the socket, and stdin."""
        if self._socket is not None:
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_WR)
        self._outgoing.clear()
        self.input_ended = True
        self._stdin.close()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process, not to its group."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, number)

    def exit_code(self) -> int | None:
        """The exit code, minus a signal's number; None while it runs."""
        return self._started.process.poll()

    def ending(self) -> str:
        """How the plugin ended, with its last words, as part of a sentence."""
        self.pump(lambda: self.exited, _SLICE_S)
        words = self._stderr[-_STDERR_SHOWN:].decode("utf-8", "replace").strip()
        code = self.exit_code()
        how = "it closed its output" if code is None else f"it ended with exit code {code}"
        return f"{how}; stderr: {words}" if words else how

    def outlived(self) -> list[str]:
        """The names of the processes that the plugin, which has ended, has left behind, and that do not end either."""
        end = time.monotonic() + self._limits.end
        while (left := marked(self._started.mark)) and time.monotonic() < end:
            self._limits.stop.wait(_RETRY_S)
        return [_name_of(pid) for pid in left]

    def close(self) -> None:
        """End the plugin by all means, and read what came until then."""
        self.end_input()
        self.reading = True
        with suppress(StoppedError):
            self.pump(lambda: self.exited, self._limits.end)
        with suppress(ProcessLookupError, PermissionError):
            # Not reaped yet, so the group is still its own.
            os.killpg(self.pid, signal.SIGKILL)
        self._started.process.wait()
        self.drain()
        if self._socket is not None:
            self._socket.close()
        for stream in (self._stdin, self._stdout, self._log):
            stream.close()
        os.close(self._pidfd)
        self._started.clean_up()

    def _connect(self, *, known: bool) -> None:
        end = time.monotonic() + self._limits.handshake
        while True:
            self._socket = self._accept() if self._started.listener else self._dial(known=known)
            if self._socket is not None:
                break
            if self.exited:
                raise PluginEndedError(f"no connection was made: {self.ending()}", expected="a connection")
            if time.monotonic() > end:
                how = "it did not dial" if self._started.listener else "it did not listen at"
                raise CheckFailed(
                    f"{how} {self._started.path} in {self._limits.handshake:g} s", expected="a connection"
                )
            self.pump(lambda: False, _RETRY_S)
        self._socket.settimeout(0)

    def _accept(self) -> socket.socket | None:
        listener = self._started.listener
        with suppress(BlockingIOError):
            return listener.accept()[0] if listener else None
        return None

    def _dial(self, *, known: bool) -> socket.socket | None:
        path = Path(self._started.path)
        if not known:
            # Without a manifest nobody knows the id: whatever socket appears is the plugin's.
            path = min(path.parent.glob("*.sock"), default=path)
        dialled = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            dialled.connect(str(path))
        except OSError:
            dialled.close()
            return None
        self._started.path = str(path)
        return dialled

    def _turn(self, seconds: float) -> None:
        """Wait until something can be moved, or the process has ended, and move it."""
        wanted = {stream.fileno(): select.POLLIN for stream in self._logs()}
        output, into = self._output_fd(), self._input_fd() if self._outgoing else -1
        reads = self.reading and not self.output_ended and output >= 0
        if reads:
            wanted[output] = select.POLLIN
        if self._outgoing:
            wanted[into] = wanted.get(into, 0) | select.POLLOUT
        if not self._exited:
            wanted[self._pidfd] = select.POLLIN
        poll = select.poll()
        for fd, mask in wanted.items():
            poll.register(fd, mask)
        ready = {fd for fd, _ in poll.poll(0 if self._exited and reads else seconds * 1000)}
        for stream in self._logs():
            if stream.fileno() in ready:
                self._read_log(stream)
        if self._outgoing and into in ready:
            self._flush()
        if reads and output in ready:
            self._read(output)
        elif reads and self._exited:
            # Everything was read and the process is gone: only a descendant could still write.
            self.output_ended = True
        self._exited = self._exited or self._pidfd in ready

    def _logs(self) -> list[IO[bytes]]:
        streams = [self._log] if self._started.transport == "stdio" else [self._log, self._stdout]
        return [stream for stream in streams if not stream.closed]

    def _output_fd(self) -> int:
        if self._socket is not None:
            return self._socket.fileno()
        return self._stdout.fileno() if self._started.transport == "stdio" else -1

    def _input_fd(self) -> int:
        return self._stdin.fileno() if self._socket is None else self._socket.fileno()

    def _read_log(self, stream: IO[bytes]) -> None:
        try:
            data = os.read(stream.fileno(), _READ)
        except BlockingIOError:
            return
        if not data:
            stream.close()
        self._stderr += data
        del self._stderr[:-_STDERR_KEPT]

    def _unread(self) -> int:
        # On a pipe's either end, and on the sending end of a socket, the kernel says how much waits to be read.
        asked = termios.FIONREAD if self._socket is None else termios.TIOCOUTQ
        answer = fcntl.ioctl(self._input_fd(), asked, bytes(4))
        return int.from_bytes(answer, sys.byteorder)

    def _flush(self) -> None:
        try:
            sent = os.write(self._input_fd(), bytes(self._outgoing[:_READ]))
        except BlockingIOError:
            return
        except OSError:
            self.input_ended = True
            self._outgoing.clear()
            return
        del self._outgoing[:sent]

    def _read(self, fd: int) -> bool:
        """Read once; whether there may be more."""
        try:
            data = os.read(fd, _READ)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        self._received += len(data)
        self.output_ended = not data or self._received > _MOST
        self._receive(data)
        return not self.output_ended


def _pipes(started: Started) -> tuple[IO[bytes], IO[bytes], IO[bytes]]:
    """The process's stdin, stdout and stderr, which were asked for."""
    process = started.process
    assert process.stdin is not None  # noqa: S101 - `launch` asks for it
    assert process.stdout is not None  # noqa: S101 - see above
    assert process.stderr is not None  # noqa: S101 - see above
    pipes = process.stdin, process.stdout, process.stderr
    for stream in pipes:
        os.set_blocking(stream.fileno(), False)
    return pipes


def _name_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return str(pid)
