"""The journal's own protocol (systemd.io/JOURNAL_NATIVE_PROTOCOL): records with fields, one datagram for each.

Rules here: `encode` is pure. `JournalSocket.send` never blocks and never raises: whoever logs must not be held up by
the logger. No trio, because the first records are written before the rest of the daemon is loaded.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import socket
import stat
import struct
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

JOURNAL_SOCKET = "/run/systemd/journal/socket"
STREAM_VARIABLE = "JOURNAL_STREAM"

# What journald takes; it drops a field whose name is another without a word.
_NAME = re.compile(r"[A-Z][A-Z0-9_]{0,63}", re.ASCII)
# memfd_create(2): journald reads a memfd only if nobody can change it any more.
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL
# sd_journal_sendv(3) does the same: the datagram is larger than the socket takes.
_TOO_LARGE = frozenset({errno.EMSGSIZE, errno.ENOBUFS})

Sent = Literal["sent", "busy", "gone"]


def encode(fields: Iterable[tuple[str, str]]) -> bytes:
    """Return a record. A name may come several times; a lone surrogate in a value becomes an escape.

    Raises:
        ValueError: a name is none that the journal takes: capitals, digits and `_`, a capital first, at most 64.
    """
    record = bytearray()
    for name, text in fields:
        if _NAME.fullmatch(name) is None:
            raise ValueError(f"{name!r} is no name of a journal field")
        value = text.encode("utf-8", "backslashreplace")
        if b"\n" in value:
            record += b"%s\n%s%s\n" % (name.encode(), struct.pack("<Q", len(value)), value)
        else:
            record += b"%s=%s\n" % (name.encode(), value)
    return bytes(record)


def is_journal(environ: Mapping[str, str], fd: int) -> bool:
    """Whether a descriptor leads to the journal: JOURNAL_STREAM is its device and inode (systemd.exec(5)).

    The variable alone says nothing: whatever is started below a service inherits it.
    """
    device, _, inode = environ.get(STREAM_VARIABLE, "").partition(":")
    try:
        status = os.fstat(fd)
    except OSError:
        return False
    return stat.S_ISSOCK(status.st_mode) and (device, inode) == (str(status.st_dev), str(status.st_ino))


class JournalSocket:
    """A way to the journal.

    Args:
        path: journald's socket. It is named with each datagram, so that a restart of journald is no event.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)

    def close(self) -> None:
        """Close it. Harmless when repeated."""
        self._socket.close()

    def send(self, record: bytes) -> Sent:
        """Send a record, or say why not: the journal is `busy` (its queue is full) or `gone`."""
        try:
            self._socket.sendto(record, self._path)
        except BlockingIOError:
            return "busy"
        except OSError as error:
            return self._send_memfd(record) if error.errno in _TOO_LARGE else "gone"
        return "sent"

    def _send_memfd(self, record: bytes) -> Sent:
        try:
            fd = os.memfd_create("journal-record", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        except OSError:
            return "gone"
        try:
            # Writing to memory does not wait.
            rest = memoryview(record)
            while rest:
                rest = rest[os.write(fd, rest) :]
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
            passed = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("i", fd))]
            self._socket.sendmsg([b""], passed, 0, self._path)
        except BlockingIOError:
            return "busy"
        except OSError:
            return "gone"
        finally:
            os.close(fd)
        return "sent"


class StreamSocket:
    """Where stderr leads under the manager: what is written there is a line in the journal, without fields.

    Args:
        fd: the socket (`is_journal`); it stays the caller's.
    """

    def __init__(self, fd: int) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, os.dup(fd))

    def close(self) -> None:
        """Close it. Harmless when repeated."""
        self._socket.close()

    def send(self, line: str, priority: int) -> bool:
        """Write a line with its priority (sd-daemon(3)), unless that would block; return whether it was written."""
        data = f"<{priority}>{line}\n".encode("utf-8", "backslashreplace")
        # For this call only: the descriptor's flags are shared with whoever else has it.
        with contextlib.suppress(OSError):
            return self._socket.send(data, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL) == len(data)
        return False
