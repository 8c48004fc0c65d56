"""A journal: a real datagram socket that takes records as journald does, and reads them back."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
from pathlib import Path
from typing import Self

SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL


def decode(record: bytes) -> list[tuple[str, str]]:
    """The fields of a record, read as systemd.io/JOURNAL_NATIVE_PROTOCOL says."""
    fields = []
    while record:
        line, newline, rest = record.partition(b"\n")
        assert newline, "a record ends with a line end"
        name, equals, value = line.partition(b"=")
        if not equals:
            (size,) = struct.unpack_from("<Q", rest)
            value, rest = rest[8 : 8 + size], rest[8 + size :]
            assert len(value) == size
            assert rest.startswith(b"\n"), "a value in binary form ends with a line end"
            rest = rest[1:]
        fields.append((name.decode("ascii"), value.decode()))
        record = rest
    return fields


class Journal:
    """Listens at `path`; a context manager."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.passed = 0
        """How many records came through a memfd."""

    def __enter__(self) -> Self:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.settimeout(60)
        self.socket.bind(str(self.path))
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()
        self.path.unlink(missing_ok=True)

    def receive(self) -> dict[str, str]:
        """The next record."""
        data, fds, _flags, _from = socket.recv_fds(self.socket, 1 << 20, 1)
        if fds:
            assert data == b""
            self.passed += 1
            with os.fdopen(fds[0], "rb") as file:
                assert fcntl.fcntl(file, fcntl.F_GET_SEALS) == SEALS
                data = os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0)
        return dict(decode(data))

    def wait_for(self, text: str) -> dict[str, str]:
        """The next record whose message has `text`; those before it are dropped."""
        while text not in (record := self.receive())["MESSAGE"]:
            pass
        return record
