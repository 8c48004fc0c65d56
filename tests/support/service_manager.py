"""A service manager, as far as a service sees one: a real datagram socket that takes what services tell."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class Notifications:
    """What was told, one dictionary for each datagram."""

    def __init__(self, bound: socket.socket) -> None:
        self.socket = bound

    def receive(self, timeout: float = 60.0) -> dict[str, str]:
        """The next one. Raises TimeoutError."""
        self.socket.settimeout(timeout)
        text = self.socket.recv(1 << 16).decode()
        return dict(line.split("=", 1) for line in text.split("\n"))

    def wait_for(self, name: str, timeout: float = 60.0) -> dict[str, str]:
        """The next one that has this assignment; those before it are dropped."""
        while name not in (told := self.receive(timeout)):
            pass
        return told


@contextmanager
def notifications(address: Path | str) -> Iterator[Notifications]:
    """Listen at a path, or at an abstract name that begins with `@`."""
    name = str(address)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as bound:
        bound.bind("\0" + name[1:] if name.startswith("@") else name)
        yield Notifications(bound)
    if not name.startswith("@"):
        Path(name).unlink()


@contextmanager
def listening(path: Path) -> Iterator[socket.socket]:
    """A socket as `utter-runner.socket` makes it."""
    path.parent.mkdir(mode=0o700, exist_ok=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as made:
        made.bind(str(path))
        path.chmod(0o600)
        made.listen()
        yield made
    path.unlink(missing_ok=True)


# LISTEN_PID is known after the fork only: what systemd does between fork and exec.
ACTIVATED = """
import os, sys
passed = int(sys.argv.pop(1))
if passed != 3:
    os.dup2(passed, 3)
    os.close(passed)
os.set_inheritable(3, True)
os.environ |= {"LISTEN_FDS": "1", "LISTEN_PID": str(os.getpid()), "LISTEN_FDNAMES": "utter-runner.socket"}
os.execv(sys.executable, [sys.executable, "-m", "utter_runner", *sys.argv[1:]])
"""


def activated(passed: socket.socket) -> tuple[str, ...]:
    """The interpreter's arguments for a daemon that is started with this socket; pass its descriptor, too."""
    return ("-c", ACTIVATED, str(passed.fileno()))
