"""Who asks for something over the socket, so that they are not asked whether it may happen.

Rules here: a requester is a connection of a process; two connections of one process are the same party. Where it cannot
be told whether two processes are one, they count as one. What a process starts is a party of its own.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from utter_runner.rpc.credentials import has_ended, pinned

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterable

# Of the fields of /proc/PID/stat behind the name, which is in parentheses and may itself have some.
_STARTED = 19


class Requester(msgspec.Struct, frozen=True):
    """A connection, and the process that made it.

    Attributes:
        connection: tells connections apart as long as the runner runs.
        pid: 0 for a process that this pid namespace does not show.
        started: when the process started, in clock ticks since boot; 0 when that is unknown.
    """

    connection: int
    pid: int
    started: int = 0

    def is_same_party(self, other: Requester) -> bool:
        """Whether both are connections of one process, or could be."""
        return self.pid == other.pid and (self.started == other.started or 0 in {self.started, other.started})

    def is_among(self, others: Iterable[Requester]) -> bool:
        """Whether any of these is the same party."""
        return any(self.is_same_party(other) for other in others)


def requester_of(connection: socket.socket, number: int, pid: int) -> Requester:
    """Return who is at the other end.

    Args:
        connection: the connection.
        number: the name that it gets.
        pid: what `credentials.peer_credentials` says of it.
    """
    try:
        with pinned(connection, pid) as pidfd:
            started = _started(Path(f"/proc/{pid}/stat").read_bytes())
            if has_ended(pidfd):
                started = 0
    except (OSError, ValueError, IndexError):
        started = 0
    return Requester(number, pid, started)


def _started(stat: bytes) -> int:
    return int(stat.rpartition(b")")[2].split()[_STARTED])
