"""QEMU's control socket: commands and their answers, as far as a checkpoint needs them.

Rules here: every wait ends by the time-out of the connection.
"""

from __future__ import annotations

import json
import socket
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from vm.bed.cache import BedError


class Qmp:
    """A connection to the control socket; a context manager that closes it.

    Args:
        path: the socket.
        timeout: seconds for it to appear, and for each answer.
    """

    def __init__(self, path: Path, timeout: float) -> None:
        self._socket = connect(path, timeout)
        self._file = self._socket.makefile("rw", encoding="utf-8")
        self.call("qmp_capabilities")

    def call(self, command: str, **arguments: object) -> Any:
        """Send a command; return what it returns."""
        self._file.write(json.dumps({"execute": command, "arguments": arguments}) + "\n")
        self._file.flush()
        while line := self._file.readline():
            answer = json.loads(line)
            if "error" in answer:
                raise BedError(f"QEMU refuses {command}: {answer['error']['desc']}")
            if "return" in answer:
                return answer["return"]
        raise BedError(f"QEMU ended during {command}.")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
        self._socket.close()


def connect(path: Path, timeout: float) -> socket.socket:
    """Connect to a socket that a program which was just started will make."""
    deadline = time.monotonic() + timeout
    while True:
        made = socket.socket(socket.AF_UNIX)
        try:
            made.connect(str(path))
        except OSError:
            made.close()
            if time.monotonic() > deadline:
                raise BedError(f"QEMU did not make its socket {path.name} within {timeout:.0f} s.") from None
            time.sleep(0.05)
        else:
            made.settimeout(timeout)
            return made
