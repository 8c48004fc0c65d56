"""The program that is put into a sandbox to find out what it lets through: it tries, and says what it could do.

Rules here: the standard library alone. Each attempt is what a hostile plugin would do, as shortly as it can be done, at
targets that the prober made or that the machine has. An attempt that succeeds says how; one that is refused says
nothing. Its argument is a JSON object of targets (see `targets` in probe.py), its answer one on stdout.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import sys
from contextlib import suppress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

_SECONDS = 2.0
_SEIZE, _DETACH = 0x4206, 17


def connects(family: int, address: Any) -> str:
    """How a connection was made, or nothing."""
    with suppress(OSError), socket.socket(family, socket.SOCK_STREAM) as one:
        one.settimeout(_SECONDS)
        one.connect(address)
        return f"it connected to {shown(address)}"
    return ""


def reaches_out(address: list[Any]) -> str:
    """Whether the kernel takes a connection to another machine in hand; it is not waited for."""
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_STREAM) as one:
        one.settimeout(0)
        try:
            one.connect(tuple(address))
        except BlockingIOError:
            return f"it began to connect to {shown(address)}"
        return f"it connected to {shown(address)}"
    return ""


def sends(address: list[Any], words: str) -> None:
    """Send a datagram; whether it arrives, the prober sees."""
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        one.sendto(words.encode(), tuple(address))


def shown(address: Any) -> str:
    """An address for a person."""
    if isinstance(address, str):
        return address.replace("\0", "@")
    return ":".join(map(str, address))


def reads(path: str, wanted: str) -> str:
    """How a file was read, or nothing."""
    with suppress(OSError):
        with open(path, "rb") as file:  # noqa: PTH123 - pathlib is slow to import
            data = file.read(1 << 16)
        if wanted.encode() in data:
            return f"it read {path}"
    return ""


def writes(path: str, words: str) -> None:
    """Write a file; whether it was the real one, the prober sees."""
    with suppress(OSError), open(path, "ab") as file:  # noqa: PTH123 - pathlib is slow to import
        file.write(words.encode())


def opens(path: str, flags: int) -> str:
    """How a device was opened, or nothing."""
    with suppress(OSError):
        os.close(os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY))
        return f"it opened {path}"
    return ""


def looks_into(pid: int, secret: str) -> Iterator[str]:
    """What could be done to a process of the same user."""
    yield reads(f"/proc/{pid}/environ", secret)
    with suppress(OSError):
        os.close(os.open(f"/proc/{pid}/mem", os.O_RDWR))
        yield f"it opened the memory of process {pid}"
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.ptrace(_SEIZE, pid, None, None) == 0:
        libc.ptrace(_DETACH, pid, None, None)
        yield f"it traced process {pid}"


def outlives(life: int) -> None:
    """Leave a process behind that puts itself into a session of its own and takes off the mark of this plugin."""
    # Closed with the last process that holds it and is not a new program yet: until then it still has its mark.
    waiting, changed = os.pipe()
    if os.fork() != 0:
        os.close(changed)
        os.read(waiting, 1)
        return
    os.setsid()
    if os.fork() != 0:
        os._exit(0)
    # Only a new program has another environment for the kernel; it goes on until the prober lets it end.
    code = f"import os; os.read({life}, 1)"
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(nothing, number)
    with suppress(OSError):
        os.execve(sys.executable, [sys.executable, "-I", "-S", "-c", code], {})  # noqa: S606 - it is to be a program
    os._exit(1)


def main() -> None:
    """Try everything, and say what could be done, by what it is about."""
    targets = json.loads(sys.argv[1])
    words = targets["words"]
    done: dict[str, list[str]] = {}

    def note(about: str, *how: str) -> None:
        done.setdefault(about, []).extend(filter(None, how))

    note("network", connects(socket.AF_INET, tuple(targets["tcp"])), reaches_out(targets["far"]))
    sends(targets["udp"], words)
    note("files.read", reads(targets["home_file"], words))
    for path in targets["written"]:
        writes(path, "written " + words)
    for about, paths in targets["sockets"].items():
        note(about, *(connects(socket.AF_UNIX, path) for path in paths))
    for about, paths in targets["devices"].items():
        note(about, *(opens(path, os.O_RDWR) for path in paths))
    note("system secrets", *(reads(path, "") for path in targets["secrets"]))
    note("input devices", *(opens(path, os.O_RDONLY) for path in targets["input"]))
    note("other processes", *looks_into(targets["victim"], words))
    with suppress(OSError):
        os.kill(targets["victim"], signal.SIGTERM)
    outlives(int(os.environ["UTTER_PROBE_LIFE"]))
    sys.stdout.write(json.dumps(done))


if __name__ == "__main__":
    main()
