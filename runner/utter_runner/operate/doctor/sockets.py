"""Checks of the sockets: where they are, whose they are, and what was left behind.

Rules here: nothing is connected to and nothing is removed. What makes the runner refuse to start is broken, what it
would tidy up by itself is a warning.
"""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

from utter_runner.operate.doctor.model import Finding, broken, ok, warning
from utter_runner.operate.doctor.registry import check
from utter_sdk.runner_socket import MAX_PATH

if TYPE_CHECKING:
    from collections.abc import Iterator

    from utter_runner.operate.doctor.look import Look

_REFUSED = "The runner refuses to put its socket there."
_OPEN = "Other users could replace what lies there."


@check("sockets.runtime")
def runtime(look: Look) -> Iterator[Finding]:
    """Whether $XDG_RUNTIME_DIR is a private place."""
    path = look.outside.environ.get("XDG_RUNTIME_DIR", "")
    usual = f"/run/user/{look.outside.uid}"
    if not path.startswith("/"):
        yield broken(
            f"XDG_RUNTIME_DIR is {path!r}." if path else "XDG_RUNTIME_DIR is not set.",
            "There is no private place for sockets. A login sets it; su, sudo and cron do not.",
            f"export XDG_RUNTIME_DIR={usual}",
        )
        return
    yield _directory(look, path, 0o077) or ok(f"XDG_RUNTIME_DIR is {path}, and private.")


def _directory(look: Look, path: str, closed: int) -> Finding | None:
    try:
        found = look.outside.stat(path)
    except FileNotFoundError:
        return broken(f"There is no directory {path}.", _REFUSED, f"mkdir -m 700 {path}")
    except OSError as error:
        return broken(f"{path} cannot be looked at: {error.strerror}.", _REFUSED, f"ls -ld {path}")
    mode = stat.S_IMODE(found.mode)
    if not stat.S_ISDIR(found.mode):
        return broken(f"{path} is not a directory.", _REFUSED, f"mv {path} {path}.old")
    if found.uid != look.outside.uid:
        return broken(
            f"{path} belongs to uid {found.uid}, not to you.", _REFUSED, f"sudo chown {look.outside.uid} {path}"
        )
    if mode & closed:
        return broken(f"{path} is open to others (mode {mode:04o}).", f"{_REFUSED} {_OPEN}", f"chmod 700 {path}")
    return None


@check("sockets.directory")
def directory(look: Look) -> Iterator[Finding]:
    """Whether the socket's own directory is yours alone."""
    if not look.socket:
        return
    path = os.path.dirname(look.socket)  # noqa: PTH120 - text, as everything that goes through Outside
    try:
        look.outside.stat(path)
    except FileNotFoundError:
        yield ok(f"{path} will be made by the runner.")
        return
    except OSError:
        # What is wrong with it is told below.
        pass
    yield _directory(look, path, 0o022) or ok(f"{path} is yours.")


@check("sockets.file")
def file(look: Look) -> Iterator[Finding]:
    """Whether the socket can be there, and is private."""
    if not look.socket:
        return
    size = len(os.fsencode(look.socket))
    if size > MAX_PATH:
        yield broken(
            f"The socket's path {look.socket} has {size} bytes, and {MAX_PATH} are possible.",
            _REFUSED,
            look.edit("[runner] socket_path = a shorter path"),
        )
        return
    try:
        found = look.outside.stat(look.socket)
    except OSError:
        return
    mode = stat.S_IMODE(found.mode)
    if stat.S_ISSOCK(found.mode) and mode & 0o077:
        yield warning(
            f"The socket {look.socket} has mode {mode:04o}.",
            "Other users may connect; they are turned away only then.",
            f"chmod 600 {look.socket}",
        )
    elif stat.S_ISSOCK(found.mode):
        yield ok(f"{look.socket} is yours alone (mode {mode:04o}).")


@check("sockets.plugins")
def plugins(look: Look) -> Iterator[Finding]:
    """Whether sockets of plugins were left behind."""
    if not look.socket or look.contact().state == "wedged":
        return
    place = f"{os.path.dirname(look.socket)}/plugins"  # noqa: PTH120 - as above
    try:
        names = [name.removesuffix(".sock") for name in look.outside.names(place) if name.endswith(".sock")]
    except OSError:
        names = []
    running = {str(plugin.get("id")) for plugin in look.status.get("plugins", ())}
    left = [name for name in names if name not in running]
    for name in left:
        yield warning(
            f"{place}/{name}.sock belongs to no plugin that runs.",
            "A program that looks for it there waits in vain.",
            f"rm {place}/{name}.sock",
        )
    if not left:
        yield ok("No socket of a plugin was left behind.")
