"""Where the runner's socket is, and what keeps one from reaching it (PROTOCOL.md, "The client API").

Rules here: every way in which connecting fails is a `RunnerUnavailable` that names the path, the cause and what to do.
"""

from __future__ import annotations

import errno
import os
import socket
import stat
import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

SOCKET_NAME = "utter/runner.sock"
# sun_path of struct sockaddr_un (unix(7)) has 108 bytes, the last one zero.
MAX_PATH = 107


class RunnerUnavailable(Exception):
    """The runner cannot be reached, or went away.

    Args:
        path: the socket's path; empty if it is not known.
        reason: why, and what to do, in plain sentences.
    """

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}" if path else reason)
        self.path = path
        self.reason = reason


def default_socket_path(environ: Mapping[str, str]) -> str:
    """Return `$XDG_RUNTIME_DIR/utter/runner.sock`.

    Raises:
        RunnerUnavailable: XDG_RUNTIME_DIR is unset, empty or not absolute (XDG base directory specification).
    """
    runtime = environ.get("XDG_RUNTIME_DIR", "")
    if not runtime:
        raise RunnerUnavailable(
            "",
            "XDG_RUNTIME_DIR is not set, so the runner's socket cannot be found. A login session sets it; "
            "under su or cron set it to /run/user/$(id -u), or name the socket.",
        )
    if not runtime.startswith("/"):
        raise RunnerUnavailable("", f"XDG_RUNTIME_DIR must be an absolute path, not {runtime!r}.")
    return f"{runtime}/{SOCKET_NAME}"


def connect(path: str, timeout: float, send_timeout: float) -> socket.socket:
    """Return a socket connected to the runner at `path`.

    Args:
        path: the socket.
        timeout: seconds for the runner to accept.
        send_timeout: seconds that a later send may take.

    Raises:
        RunnerUnavailable: says why.
    """
    if not path or "\0" in path:
        raise RunnerUnavailable(path, "this is not the path of a file: it is empty or contains a zero byte.")
    if len(os.fsencode(path)) > MAX_PATH:
        raise RunnerUnavailable(
            path,
            f"the path has {len(os.fsencode(path))} bytes, and a unix socket's may have {MAX_PATH}. "
            "Choose a shorter [runner] socket_path or XDG_RUNTIME_DIR.",
        )
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # While the backlog is full connect() waits for as long as SO_SNDTIMEO says (unix(7), socket(7)).
        seconds = max(timeout, 0.001)
        connection.setsockopt(
            socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("@ll", int(seconds), int(seconds % 1 * 1e6))
        )
        connection.connect(path)
        connection.settimeout(send_timeout)
    except OSError as error:
        connection.close()
        raise RunnerUnavailable(path, _why(path, error, timeout)) from None
    return connection


def _why(path: str, error: OSError, timeout: float) -> str:
    code = error.errno
    if code == errno.ENOENT:
        return (
            "there is no socket, so the runner is not running. "
            "Start it with `systemctl --user start utter-runner`, or `utter-runner` in a terminal."
        )
    if code == errno.ECONNREFUSED:
        if not _is_socket(path):
            return "this is not a socket."
        return (
            "nothing listens on the socket: the runner has ended without removing it, or is just starting. "
            "Start it with `systemctl --user start utter-runner`, or `utter-runner` in a terminal."
        )
    if code in (errno.EACCES, errno.EPERM):
        return f"permission denied for uid {os.geteuid()}. The socket is its owner's; run this as the same user."
    if code in (errno.EAGAIN, errno.EINPROGRESS):
        return f"the runner did not accept the connection within {timeout:g} s; it is overloaded or hangs."
    return f"cannot connect: {error.strerror}."


def _is_socket(path: str) -> bool:
    """Whether a socket is at `path`, as far as can be seen."""
    try:
        return stat.S_ISSOCK(os.stat(path).st_mode)  # noqa: PTH116 - pathlib costs the CLI 5 ms
    except OSError:
        return True
