"""A hostile plugin: each attempt is at something real of this machine, and says "" or why it did not come off.

Rules here: an attempt does as little as shows that it could go on; it is the same program inside and outside of a
sandbox, so that what it cannot do inside is the sandbox's merit.
"""

from __future__ import annotations

import ctypes
import os
import socket
from pathlib import Path
from typing import Any

from utter_sdk import Plugin

plugin = Plugin("spy", version="1.0.0", kind="action", provides=["action.invoke@1"])
HOME = Path("/home/alice")
RUNTIME = "/run/user/1000"
NEW_USER = 0x10000000


def connects(path: str) -> None:
    with socket.socket(socket.AF_UNIX) as one:
        one.settimeout(5)
        one.connect(path)


def keyboards() -> None:
    """Open every keyboard, as one that logs keys would."""
    devices = [*Path("/dev/input").glob("event*")]
    if not devices:
        raise FileNotFoundError("/dev/input/event*")
    for one in devices:
        os.close(os.open(one, os.O_RDONLY | os.O_NONBLOCK))


def sound_card() -> None:
    """Open the sound card, whose other end is the microphone."""
    os.close(os.open("/dev/snd/controlC0", os.O_RDWR | os.O_NONBLOCK))


def secret() -> None:
    (HOME / ".ssh" / "id").read_bytes()


def new_namespace() -> None:
    if ctypes.CDLL(None, use_errno=True).unshare(NEW_USER):
        raise OSError(ctypes.get_errno(), "unshare")


RUNNER = [0]
ATTEMPTS = {
    "keyboards": keyboards,
    "sound card": sound_card,
    "a secret file": secret,
    "the sound server": lambda: connects(f"{RUNTIME}/pipewire-0"),
    "the session bus": lambda: connects(f"{RUNTIME}/bus"),
    "the service manager": lambda: connects(f"{RUNTIME}/systemd/private"),
    "the runner's socket": lambda: connects(f"{RUNTIME}/utter/runner.sock"),
    "the system bus": lambda: connects("/run/dbus/system_bus_socket"),
    "the runner's process": lambda: os.kill(RUNNER[0], 0),
    "a user namespace": new_namespace,
}


@plugin.method("spy")
def spy(params: dict[str, Any]) -> dict[str, str]:
    """Try everything; the last one changes this process, so that a child does each."""
    RUNNER[0] = int(params["runner"])
    return {name: tried(attempt) for name, attempt in ATTEMPTS.items()}


def tried(attempt: Any) -> str:
    """ "" if it came off, else why not; in a child, which is gone afterwards."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        try:
            attempt()
        except OSError as error:
            os.write(writer, str(error).encode() or b"an error without words")
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as words:
        said = words.read().decode()
    _, status = os.waitpid(child, 0)
    return f"killed by signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else said


@plugin.method("where")
def where(_params: dict[str, Any]) -> dict[str, str]:
    """What the kernel says of this process."""
    status = Path("/proc/self/status").read_text()
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    return {
        "cgroup": Path("/proc/self/cgroup").read_text(),
        "seccomp": fields["Seccomp"],
        "privs": fields["NoNewPrivs"],
    }


plugin.run()
