"""A plugin's socket: where it lies, and who may be at the other end.

Rules here: nobody proves himself with words. A process is let in for what the kernel says of it: for a plugin that the
runner started, that it is that process or one of its family; for one that somebody else starts, its executable. No
trio: it is imported before the daemon is.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from utter_runner.rpc.credentials import Allowed, has_ended, peer_credentials, pinned
from utter_runner.rpc.endpoint import check_length, runtime_directory
from utter_runner.supervision.launch import INSTANCE_VARIABLE

if TYPE_CHECKING:
    import socket
    from collections.abc import Mapping

_GENERATIONS = 64


def socket_path(plugin: str, environ: Mapping[str, str], runner_socket: str | None) -> Path:
    """Return `$XDG_RUNTIME_DIR/utter/plugins/ID.sock`; without XDG_RUNTIME_DIR, `plugins/` beside the runner's socket.

    Args:
        plugin: the plugin's id.
        environ: the runner's environment.
        runner_socket: the configured path of the clients' socket, if there is one.

    Raises:
        EndpointError: there is no private place, or the path is too long for a socket.
    """
    if runner_socket and not environ.get("XDG_RUNTIME_DIR"):
        directory = Path(runner_socket).parent
    else:
        directory = runtime_directory(environ) / "utter"
    path = directory / "plugins" / f"{plugin}.sock"
    check_length(path, 'Give the plugin a shorter id, or use transport = "stdio".')
    return path


class Guest(msgspec.Struct, frozen=True, kw_only=True):
    """Who is expected at the other end of a plugin's connection.

    Attributes:
        pid: the process that the runner started; 0 when somebody else starts the plugin.
        mark: the value of UTTER_INSTANCE that this process was given, and that its descendants inherit.
        allow_binaries: where somebody else starts it, the executables that it may be; None for any.
    """

    pid: int = 0
    mark: str = ""
    allow_binaries: Allowed | None = None


def refusal(connection: socket.socket, guest: Guest) -> str | None:
    """Return why whoever is at the other end is not the guest, or None if it is.

    It reads /proc, where a process that is looked at can make the reader wait.
    """
    credentials = peer_credentials(connection)
    if credentials.uid != os.getuid():
        return f"uid {credentials.uid} is not the user of this runner"
    if credentials.pid <= 0:
        return "its process is in another pid namespace"
    if guest.pid:
        return _stranger(connection, credentials.pid, guest)
    if guest.allow_binaries is not None:
        return guest.allow_binaries.refuses(connection, credentials.pid)
    return None


def _stranger(connection: socket.socket, pid: int, guest: Guest) -> str | None:
    try:
        with pinned(connection, pid) as pidfd:
            known = pid == guest.pid or _descends(pid, guest.pid) or _carries(pid, guest.mark)
            # Once it has ended, what was read may be of another process with the same pid.
            if not has_ended(pidfd):
                return None if known else "the runner did not start it as this instance"
    except OSError:
        pass
    return "it has ended"


def _carries(pid: int, mark: str) -> bool:
    try:
        environ = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        # A process that hides from its own user shows no mark.
        return False
    return f"{INSTANCE_VARIABLE}={mark}".encode() in environ.split(b"\0")


def _descends(pid: int, ancestor: int) -> bool:
    """Whether `ancestor` is among the parents of a process. Raises OSError when it is gone."""
    parent, born = _parent(pid)
    for _ in range(_GENERATIONS):
        if parent <= 1:
            return False
        try:
            grandparent, parent_born = _parent(parent)
        except OSError:
            return False
        if parent_born > born:
            # A parent is older than its child: this one took over the pid of a parent that ended meanwhile.
            return False
        if parent == ancestor:
            return True
        parent, born = grandparent, parent_born
    return False


def _parent(pid: int) -> tuple[int, int]:
    """Return a process's parent, and when the process itself was started, in clock ticks since the boot."""
    # The second field, the program's name, may hold anything, also brackets and spaces (proc_pid_stat(5)).
    fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    return int(fields[1]), int(fields[19])
