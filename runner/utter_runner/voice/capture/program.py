"""Programs that record: started with pipes, read, and killed.

Rules here: a program is started on the loop's own thread, because the kernel ties its parent-death signal to the thread
that forked; it has a session of its own, so that a Ctrl-C meant for the runner does not reach it; and it is killed, for
it has nothing to save and may be past listening.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from collections.abc import Sequence

    from utter_runner.voice.capture.source import OnFrames

_FRAME = 4
STDERR_TAIL = 2_000
_PATIENCE = 2.0


class Program:
    """A child process with pipes for stdin, stdout and stderr.

    Args:
        argv: the program and its arguments.

    Attributes:
        stdin: what it reads.
        stdout: what it writes.
        stderr: what it complains. As much as a pipe holds may be left unread.

    Raises:
        OSError: it cannot be started.
    """

    def __init__(self, argv: Sequence[str]) -> None:
        with contextlib.ExitStack() as theirs, contextlib.ExitStack() as ours:
            pipes = []
            for _ in range(3):
                read, write = os.pipe()
                pipes.append((read, write))
                own, other = (write, read) if len(pipes) == 1 else (read, write)
                ours.callback(os.close, own)
                theirs.callback(os.close, other)
            (stdin, to), (out, stdout), (err, stderr) = pipes
            self._process = subprocess.Popen(argv, stdin=stdin, stdout=stdout, stderr=stderr, start_new_session=True)
            ours.pop_all()
        self.stdin, self.stdout, self.stderr = map(trio.lowlevel.FdStream, (to, out, err))

    @property
    def ended(self) -> bool:
        """Whether it has ended by itself."""
        return self._process.poll() is not None

    async def wait(self) -> int:
        """Its exit status, or less than 0 the signal that ended it, when it has ended."""
        await trio.lowlevel.checkpoint()
        if self._process.returncode is None:
            watch = os.pidfd_open(self._process.pid)
            try:
                await trio.lowlevel.wait_readable(watch)
            finally:
                os.close(watch)
        return self._process.wait()

    async def end(self) -> None:
        """Kills it, and returns when it is gone with all that was made for it."""
        with trio.CancelScope(shield=True):
            self._process.kill()
            # Whom a driver holds in the kernel dies when the driver lets go of it.
            with trio.move_on_after(_PATIENCE):
                await self.wait()
            for stream in (self.stdin, self.stdout, self.stderr):
                await stream.aclose()


async def deliver_frames(stream: trio.abc.ReceiveStream, on_frames: OnFrames, rest: bytes = b"") -> None:
    """Delivers what a program writes, whole frames at a time, until its output ends.

    Args:
        stream: the output.
        on_frames: see `OnFrames`.
        rest: what was read of it already.
    """
    while True:
        whole = len(rest) // _FRAME * _FRAME
        if whole:
            on_frames(rest[:whole])
        piece = await stream.receive_some()
        if not piece:
            return
        rest = rest[whole:] + piece


async def collect(stream: trio.abc.ReceiveStream, tail: bytearray) -> None:
    """Reads what a program complains until it is silent for good; `tail` gets the end of it."""
    async for piece in stream:
        tail += piece
        del tail[:-STDERR_TAIL]


def said(tail: bytes | bytearray) -> str:
    """What a program complained, in one line with a colon before it, or nothing."""
    words = " ".join(tail.decode(errors="replace").split())
    return f": {words}" if words else ""
