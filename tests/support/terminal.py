"""Runs `utter` in a process of its own, on a pseudo-terminal or on pipes, for tests.

Rules here: every wait is for text or for the end of the process, and has an end itself.
"""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Mapping

UTTER = [sys.executable, "-c", "import sys; from utter_runner.cli import main; sys.exit(main())"]
_DEADLINE_S = 30.0


class Terminal:
    """A process whose stdin, stdout and stderr are one terminal of 80 columns; a context manager.

    Args:
        argv: the command.
        env: variables on top of this process's environment.
        stdout_to_pipe: stdout is a pipe instead, read by `finish`.
    """

    def __init__(self, argv: list[str], env: Mapping[str, str] | None = None, *, stdout_to_pipe: bool = False) -> None:
        self._master, slave = pty.openpty()
        self.process = subprocess.Popen(
            argv,
            stdin=slave,
            stdout=subprocess.PIPE if stdout_to_pipe else slave,
            stderr=slave,
            env={**os.environ, "TERM": "xterm", **(env or {})},
        )
        os.close(slave)
        self.shown = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()
        os.close(self._master)

    def type(self, text: str) -> None:
        """Type on the keyboard."""
        os.write(self._master, text.encode())

    def wait_for(self, text: str, *, after: str = "") -> None:
        """Wait until `text` has been shown, behind the first `after`."""
        deadline = time.monotonic() + _DEADLINE_S
        while after not in self.shown or text not in self.shown.partition(after or "\0")[2 if after else 0]:
            assert self._read(deadline), f"{text!r} was not shown, but {self.shown!r}"

    def finish(self) -> tuple[int, str]:
        """Wait for the end; return the exit code and what went to the stdout pipe."""
        deadline = time.monotonic() + _DEADLINE_S
        while self._read(deadline):
            pass
        out, _ = self.process.communicate(timeout=_DEADLINE_S)
        return self.process.returncode, (out or b"").decode()

    def _read(self, deadline: float) -> bool:
        if not select.select([self._master], [], [], max(0.0, deadline - time.monotonic()))[0]:
            return False
        try:
            data = os.read(self._master, 65536)
        except OSError:
            # EIO: nobody has the other end open any more.
            return False
        self.shown += data.decode(errors="replace")
        return bool(data)
