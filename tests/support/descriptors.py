"""Descriptors that can be told apart, and a process that has no room for more of them."""

from __future__ import annotations

import fcntl
import os
import resource
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

SEALS = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW


def memfd(content: bytes, seals: int = SEALS) -> int:
    """A memfd with this content."""
    fd = os.memfd_create("test", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.write(fd, content)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    return fd


def content(fd: int) -> bytes:
    """What is in a file; the descriptor is closed."""
    assert not os.get_inheritable(fd)
    try:
        return os.pread(fd, os.fstat(fd).st_size, 0)
    finally:
        os.close(fd)


@contextmanager
def no_room() -> Iterator[None]:
    """No descriptor can be made any more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.dup(0)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
