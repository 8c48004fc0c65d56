"""`PluginProcess`: runs a plugin as the runner would, in a plugin author's tests.

Rules here: every wait has an end, and an error that a wait raises carries the end of the plugin's stderr; one thread
reads the wire and stderr, so that neither fills up, and a message is not looked at before what was logged ahead of it;
whatever the plugin started in its process group is gone after `close`.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self, TypeVar

from utter_protocol.framing import FrameDecoder, FramingError, encode_frame
from utter_protocol.messages import InvalidMessage, decode_message
from utter_sdk.testing.links import Door, Link, Transport
from utter_sdk.testing.parts import PluginDiedError
from utter_sdk.testing.runner_end import RunnerEnd

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path
    from types import TracebackType

_STDERR_SHOWN = 2000
_STDERR_KEPT = 1024 * 1024
_GRACE = 10.0
_DYING = 0.5

T = TypeVar("T")


class PluginProcess(RunnerEnd):
    """A plugin's process; use it as a context manager, which spawns it, shakes hands and ends it.

    Args:
        argv: the command.
        env: variables on top of this process's environment.
        settings: the plugin's settings, sent with `protocol.hello`.
        cwd: working directory.
        handshake: whether entering sends protocol.hello, plugin.describe and plugin.health.
        timeout: seconds that any wait may take unless it says otherwise.
        transport: as in the plugin's manifest. For `connect` and `listen` the socket is UTTER_PLUGIN_SOCKET.
        fds: descriptors that it inherits, by the variable that names the number, such as `AudioRing.fds`; they stay
            the caller's.
        spawned: whether the plugin is to believe that the runner has started it (it gets a UTTER_INSTANCE). One that
            was started by somebody else outlives its connection; see `reconnect`.

    Attributes:
        hello, description, health: the answers of the handshake.
        junk: bytes on stdout that belong to no frame.
        pid: process and process group id.
    """

    def __init__(
        self,
        argv: Sequence[str | os.PathLike[str]],
        *,
        env: Mapping[str, str] | None = None,
        settings: Mapping[str, Any] | None = None,
        cwd: str | Path | None = None,
        handshake: bool = True,
        timeout: float = 10.0,
        transport: Transport = "stdio",
        spawned: bool = True,
        fds: Mapping[str, int] | None = None,
    ) -> None:
        super().__init__(settings)
        self.junk = b""
        self.pid = 0
        self._argv = [os.fspath(part) for part in argv]
        self._env = dict(env or {})
        self._cwd = cwd
        self._handshake = handshake
        self._timeout = timeout
        self._transport: Transport = transport
        self._spawned = spawned
        self._fds = dict(fds or {})
        self._write_lock = threading.Lock()
        self._stderr = bytearray()
        self._stderr_ended = False
        self._popen: subprocess.Popen[bytes] | None = None
        self._door: Door | None = None
        self._link: Link | None = None
        self._links: list[Link] = []
        self._reader: threading.Thread | None = None
        self._wake = (-1, -1)
        self._closed = False

    def __enter__(self) -> Self:
        self._spawn()
        try:
            self._connect()
            if self._handshake:
                self.shake_hands()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def stderr(self) -> str:
        """What the plugin has written to stderr so far (the last MiB)."""
        with self._changed:
            return self._stderr.decode("utf-8", "replace")

    def wait_stderr(self, text: str, timeout: float | None = None) -> None:
        """Wait until stderr contains `text`."""
        wanted = text.encode()
        self._wait_for(
            lambda: True if wanted in self._stderr else None,
            timeout,
            f"{text!r} on stderr",
            lambda: "its stderr ended" if self._stderr_ended else "",
        )

    def write(self, data: bytes, timeout: float | None = None, *, fds: Sequence[int] = ()) -> None:
        """Write raw bytes to the plugin; on a socket, `fds` go with the first of them.

        Raises:
            TimeoutError: the plugin does not read.
            PluginDiedError: it closed its end.
        """
        link = self._linked()
        seconds = self._seconds(timeout)
        if link.writing_closed:
            raise self._died(f"{link.name} was closed by the test")
        try:
            with self._write_lock:
                done = link.write(data, fds, seconds)
        except BrokenPipeError:
            what = "stdin" if self._transport == "stdio" else link.name
            raise self._died(f"it closed {what}") from None
        if not done:
            raise TimeoutError(f"{self._name()} did not read {link.name} in {seconds:g} s{self._tail()}")

    def send_body(self, body: bytes, fds: Sequence[int] = ()) -> None:
        """Send a message's body to the plugin, and descriptors with it; raises as `write`."""
        self.write(encode_frame(body), fds=fds)

    def close_stdin(self) -> None:
        """Send the end of input: close stdin, and the sending half of a socket."""
        if self._link is not None:
            self._link.close_writing()
        stdin = self._running().stdin
        if stdin is not None:
            stdin.close()

    def hang_up(self) -> None:
        """End the connection as a runner does that ends; the process is left alone."""
        self._linked().hang_up()

    def reconnect(self, settings: Mapping[str, Any] | None = None) -> None:
        """Be the next runner: hang up, meet the plugin again, and shake hands; `settings` are new ones.

        Raises:
            PluginDiedError: it has ended, as a plugin does that the runner has started.
            TimeoutError: it does not connect, or does not listen.
        """
        self.hang_up()
        self._connect()
        self.shake_hands(settings, epoch=len(self._links))

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the process to end and return its exit code (minus the signal's number if it was killed).

        Raises:
            TimeoutError: it does not end.
        """
        if not self._wait_exit(self._seconds(timeout)):
            raise TimeoutError(f"{self._name()} did not end in {self._seconds(timeout):g} s{self._tail()}")
        code = self._reap()
        with self._changed:
            # Descendants outside of the process group may hold it open.
            self._changed.wait_for(lambda: self._stderr_ended, _DYING)
        return code

    def close(self, timeout: float | None = None) -> int:
        """Send EOF, wait, then terminate, then kill; return the exit code (minus a signal's number).

        After SIGTERM it has 10 s, for tests run on busy machines; the runner gives it 2 s. A plugin that was started by
        somebody else is terminated at once.

        Args:
            timeout: seconds to wait after EOF.
        """
        popen = self._running()
        if self._closed:
            return popen.wait(0)
        self._closed = True
        self.close_stdin()
        outlives = self._transport != "stdio" and not self._spawned
        if not self._wait_exit(0 if outlives else self._seconds(timeout)):
            os.killpg(self.pid, signal.SIGTERM)
            if not self._wait_exit(_GRACE):
                os.killpg(self.pid, signal.SIGKILL)
                self._wait_exit(_GRACE)
        code = self._reap()
        os.close(self._wake[1])
        if self._reader is not None:
            self._reader.join(_GRACE)
        os.close(self._wake[0])
        for link in self._links:
            link.close()
        self.close_descriptors()
        if self._door is not None:
            self._door.close()
        for stream in (popen.stdout, popen.stderr):
            if stream is not None:
                stream.close()
        return code

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Send a signal to the plugin's process, not to its group."""
        os.kill(self.pid, number)

    def wait_for(self, find: Callable[[], T | None], timeout: float | None, what: str) -> T:
        """Wait until `find`, which is called with the plugin's messages at rest, returns something.

        Raises:
            TimeoutError: it did not; names `what`, and shows the end of stderr.
            PluginDiedError: it never will.
        """
        return self._wait_for(find, timeout, what, lambda: "" if self._link is None else self._link.ended)

    def _wait_for(self, find: Callable[[], T | None], timeout: float | None, what: str, ended: Callable[[], str]) -> T:
        found: list[T] = []

        def look() -> bool:
            value = find()
            if value is not None:
                found.append(value)
            return bool(found or ended() or self._mistake)

        with self._changed:
            self._changed.wait_for(look, self._seconds(timeout))
            self._raise_mistake()
        if found:
            return found[0]
        if ended():
            raise self._died(f"{what} cannot come any more: {ended()}")
        raise TimeoutError(f"{self._name()}: {what} did not come in {self._seconds(timeout):g} s{self._tail()}")

    def _spawn(self) -> None:
        self._door = Door(self._transport)
        env = {**os.environ, **self._env, **{name: str(fd) for name, fd in self._fds.items()}}
        if self._door.path:
            env["UTTER_PLUGIN_SOCKET"] = self._door.path
            env.pop("UTTER_INSTANCE", None)
            if self._spawned:
                env["UTTER_INSTANCE"] = os.urandom(16).hex()
        try:
            self._popen = popen = subprocess.Popen(
                self._argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                # Where the wire is a socket, stdout is for the log like stderr.
                stderr=subprocess.STDOUT if self._door.path else subprocess.PIPE,
                bufsize=0,
                cwd=self._cwd,
                env=env,
                start_new_session=True,
                pass_fds=tuple(self._fds.values()),
            )
        except BaseException:
            self._door.close()
            raise
        self.pid = popen.pid
        self._wake = os.pipe()
        log = popen.stdout if self._door.path else popen.stderr
        if log is not None:
            os.set_blocking(log.fileno(), False)
            self._reader = threading.Thread(target=self._read, args=(log.fileno(),), daemon=True)
            self._reader.start()

    def _connect(self) -> None:
        popen, door = self._running(), self._door
        link = None if door is None else door.link(popen, self._timeout)
        if link is None:
            if self._wait_exit(0):
                raise self._died("it ended before there was a connection")
            raise TimeoutError(f"{self._name()}: no connection in {self._timeout:g} s{self._tail()}")
        with self._changed:
            self._links.append(link)
            self._link = link
        os.write(self._wake[1], b"+")

    def _read(self, log: int) -> None:
        """Drain all links and stderr until the process is closed and nothing more is there."""
        wake = self._wake[0]
        poll = select.poll()
        poll.register(log, select.POLLIN)
        poll.register(wake, select.POLLIN)
        links: dict[int, tuple[Link, FrameDecoder]] = {}
        known = 0
        while ready := {fd for fd, _ in poll.poll()}:
            came = {fd: links[fd][0].read() for fd in ready & set(links)}
            with self._changed:
                if not self._stderr_ended and not self._read_log(log):
                    poll.unregister(log)
                for fd, data in came.items():
                    self._take_descriptors(links[fd][0])
                    self._take(*links[fd], data)
                    if not data:
                        poll.unregister(fd)
                        del links[fd]
                for link in self._links[known:]:
                    known += 1
                    links[link.read_fd] = link, FrameDecoder()
                    poll.register(link.read_fd, select.POLLIN)
                self._changed.notify_all()
            if wake in ready and not os.read(wake, 64) and ready == {wake}:
                return

    def _read_log(self, log: int) -> bool:
        """Take what is on stderr; return whether more may come."""
        while True:
            try:
                data = os.read(log, 65536)
            except BlockingIOError:
                return True
            self._stderr += data
            del self._stderr[:-_STDERR_KEPT]
            if not data:
                self._stderr_ended = True
                return False

    def _take_descriptors(self, link: Link) -> None:
        fds, link.descriptors = link.descriptors, []
        self.descriptors += fds

    def _take(self, link: Link, decoder: FrameDecoder, data: bytes) -> None:
        try:
            if not data:
                decoder.end()
                link.ended = link.ended or f"{link.source} ended"
            if link.ended:
                return
            decoder.receive(data)
            while (body := decoder.next_frame()) is not None:
                self._sort(decode_message(body))
            self.junk += decoder.take_junk()
        except (FramingError, InvalidMessage) as error:
            link.ended = f"{link.source} is no frames: {error}"

    def _reply(self, body: bytes, fds: Sequence[int] = ()) -> None:
        with suppress(TimeoutError, PluginDiedError):
            self.send_body(body, fds)

    def _died(self, why: str) -> PluginDiedError:
        self._wait_exit(_DYING)
        code = None if self._popen is None else self._popen.poll()
        ended = "" if code is None else f" (exit code {code})"
        return PluginDiedError(f"{self._name()}: {why}{ended}{self._tail()}", code)

    def _wait_exit(self, seconds: float) -> bool:
        """Wait for the process without reaping it, so that its group id stays its own."""
        if self._running().returncode is not None:
            return True
        with suppress(ProcessLookupError):
            pidfd = os.pidfd_open(self.pid)
            try:
                poll = select.poll()
                poll.register(pidfd, select.POLLIN)
                return bool(poll.poll(seconds * 1000))
            finally:
                os.close(pidfd)
        return True

    def _reap(self) -> int:
        popen = self._running()
        if popen.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
        return popen.wait(_GRACE)

    def _linked(self) -> Link:
        self._running()
        if self._link is None:
            raise RuntimeError(f"{self._name()}: there is no connection yet")
        return self._link

    def _running(self) -> subprocess.Popen[bytes]:
        if self._popen is None:
            raise RuntimeError("PluginProcess is a context manager: `with PluginProcess([...]) as process:`")
        return self._popen

    def _seconds(self, timeout: float | None) -> float:
        return self._timeout if timeout is None else timeout

    def _name(self) -> str:
        return " ".join(self._argv)

    def _tail(self) -> str:
        text = self.stderr[-_STDERR_SHOWN:].strip()
        return f"\nstderr:\n{text}" if text else " (stderr is empty)"
