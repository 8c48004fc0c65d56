"""One plugin process: its exit, its words for the log, and ending it with all that it started.

Rules here: every wait is bounded; `stop` survives cancellation; a process is reaped exactly once. What the process
started is found by its process group and by the `UTTER_INSTANCE` variable that descendants inherit, so that a child in
a session of its own is found too.
"""

from __future__ import annotations

import os
import select
import signal
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import trio

from utter_runner.rpc.reactor import HANGUP, READABLE, Reactor
from utter_runner.supervision.launch import INSTANCE_VARIABLE
from utter_runner.supervision.words import Words

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from utter_runner.supervision.launch import Launched

STOP_SECONDS = 2.0
STDERR_TAIL = 64 * 1024
_DYING_SECONDS = 1.0
# What shells and wrappers add to the number of a signal to make an exit code of it.
_SIGNALLED = 128


class ChildProcess:
    """A launched plugin process.

    Over stdio `stdin_fd` and `stdout_fd` are handed to a peer, which then owns them. Over a socket stdin is kept here,
    for its end tells the plugin to stop, and stdout is read like stderr, with which it is one.

    Args:
        launched: the process.
        reactor: reports its end and its stderr.
        on_stderr: called with each line of stderr, as `Words` makes them.
        secrets: what must not be among them.
    """

    def __init__(
        self,
        launched: Launched,
        reactor: Reactor,
        on_stderr: Callable[[str], None],
        secrets: Sequence[str] = (),
    ) -> None:
        process = launched.process
        assert process.stdin is not None and process.stdout is not None  # noqa: S101, PT018 - launch makes them
        self.pid = process.pid
        self.mark = launched.mark
        self._tmp = launched.tmp
        self._wrapped = launched.wrapped
        self.returncode: int | None = None
        self.exited = trio.Event()
        self._owns_stdin = process.stderr is None
        self.stdin_fd = os.dup(process.stdin.fileno())
        self.stdout_fd = -1 if self._owns_stdin else os.dup(process.stdout.fileno())
        self._stderr_fd = os.dup((process.stderr or process.stdout).fileno())
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                stream.close()
        self._process = process
        self._reactor = reactor
        self._on_stderr = on_stderr
        self._tail: deque[str] = deque()
        self._tail_size = 0
        self._words = Words(self._add_line, secrets)
        os.set_blocking(self._stderr_fd, False)
        self._pidfd = os.pidfd_open(self.pid)
        reactor.register(self._stderr_fd, READABLE, self._read_stderr)
        reactor.register(self._pidfd, READABLE, self._reap)

    @property
    def stderr_tail(self) -> str:
        """The last lines that the process wrote to stderr, at most 64 KiB."""
        return "\n".join(self._tail)

    def _reap(self, _events: int) -> None:
        if self._process.poll() is None:
            return
        code = self._process.returncode
        self.returncode = _SIGNALLED - code if self._wrapped and code > _SIGNALLED else code
        self._reactor.unregister(self._pidfd)
        os.close(self._pidfd)
        self.exited.set()

    def _read_stderr(self, events: int) -> None:
        try:
            data = os.read(self._stderr_fd, 64 * 1024) if events & READABLE else b""
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            self._words.feed(data)
        elif events & (READABLE | HANGUP):
            self.close_stderr()

    def _add_line(self, line: str) -> None:
        self._tail.append(line)
        self._tail_size += len(line) + 1
        while self._tail_size > STDERR_TAIL:
            self._tail_size -= len(self._tail.popleft()) + 1
        self._on_stderr(line)

    def close_stderr(self) -> None:
        """Stop reading stderr: at its end, or when a stranger still holds it after the process is gone."""
        if self._stderr_fd < 0:
            return
        fd, self._stderr_fd = self._stderr_fd, -1
        self._reactor.unregister(fd)
        os.close(fd)
        self._words.end()

    def close_stdin(self) -> None:
        """Give the process end-of-file on its stdin, unless that is a peer's."""
        if self._owns_stdin and self.stdin_fd >= 0:
            fd, self.stdin_fd = self.stdin_fd, -1
            os.close(fd)

    def signal_group(self, number: signal.Signals) -> None:
        """Send a signal to the process group, which outlives its leader as long as it has members."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)

    async def stop(self, end_input: Callable[[], None], *, grace: float = STOP_SECONDS) -> int:
        """End the process and all that it started: EOF, SIGTERM, SIGKILL, then its stray descendants.

        Args:
            end_input: gives the plugin end-of-file on its connection.
            grace: seconds to wait after EOF and again after SIGTERM.

        Returns:
            The exit code, negative for a signal.
        """
        with trio.CancelScope(shield=True):
            end_input()
            self.close_stdin()
            if not await self._exits_within(grace):
                self.signal_group(signal.SIGTERM)
                if not await self._exits_within(grace):
                    self.signal_group(signal.SIGKILL)
                    with suppress(ProcessLookupError):
                        os.kill(self.pid, signal.SIGKILL)
                    await self._exits_within(grace)
            await self.clean_up()
        return self.returncode if self.returncode is not None else -signal.SIGKILL

    async def clean_up(self) -> None:
        """Kill and remove what the process left behind, and let go of its stderr. The process itself has exited."""
        with trio.CancelScope(shield=True):
            self.close_stdin()
            self.signal_group(signal.SIGKILL)
            await trio.to_thread.run_sync(self._leave_nothing)
            self.close_stderr()

    def _leave_nothing(self) -> None:
        kill_marked(self.mark)
        self._tmp.remove()

    async def _exits_within(self, seconds: float) -> bool:
        with trio.move_on_after(seconds):
            await self.exited.wait()
        return self.exited.is_set()


def kill_marked(mark: str) -> int:
    """Kill every process of this user whose environment carries `UTTER_INSTANCE=mark`; return how many.

    Repeats until none is found, so that one that forks while it is looked for does not get away, but at most 10 times.
    """
    needle = f"{INSTANCE_VARIABLE}={mark}".encode()
    killed: set[str] = set()
    for _ in range(10):
        found = False
        for entry in os.scandir("/proc"):
            if not entry.name.isdigit():
                continue
            try:
                if needle not in Path(entry.path, "environ").read_bytes().split(b"\0"):
                    continue
                pidfd = os.pidfd_open(int(entry.name))
                try:
                    # The pid may have been recycled since it was read: look again through what cannot be.
                    if needle in Path(entry.path, "environ").read_bytes().split(b"\0"):
                        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
                        # Gone is gone only when it is: what still dies holds its files, and would be counted as left.
                        select.select([pidfd], [], [], _DYING_SECONDS)
                        found = True
                        # One that is still dying is met again, and is one all the same.
                        killed.add(entry.name)
                finally:
                    os.close(pidfd)
            except OSError:
                continue
        if not found:
            break
    return len(killed)
