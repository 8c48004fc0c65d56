"""Memory that is passed as a descriptor: making it, and telling whether it can still change.

Rules here: every descriptor is close-on-exec; what is returned is the caller's to close. Sealed means that nobody, not
its maker either, can write, shrink or grow it (memfd_create(2), fcntl(2)).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from typing import TYPE_CHECKING

from utter_protocol.errors import ErrorCode, RpcError

if TYPE_CHECKING:
    from collections.abc import Iterable

# Not in Python's os (linux/memfd.h; Linux 6.3). Where vm.memfd_noexec is 2 a memfd without it is refused.
_MFD_NOEXEC_SEAL = 0x8
_SEALED = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW


def new_memfd(name: str) -> int:
    """Return an empty memfd that can be sealed. Raises OSError."""
    flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
    with contextlib.suppress(OSError):
        return os.memfd_create(name, flags | _MFD_NOEXEC_SEAL)
    return os.memfd_create(name, flags)


def zeroed_memfd(size: int) -> int:
    """Return a memfd of `size` zeros, to be written by whoever gets it. Raises OSError."""
    fd = new_memfd("utter-data")
    try:
        os.ftruncate(fd, size)
    except BaseException:
        os.close(fd)
        raise
    return fd


def sealed_memfd(chunks: Iterable[bytes | memoryview]) -> int:
    """Return a sealed memfd with this content, positioned at its beginning. Blocks; raises OSError."""
    fd = new_memfd("utter-data")
    try:
        for chunk in chunks:
            rest = memoryview(chunk)
            while rest:
                rest = rest[os.write(fd, rest) :]
        os.lseek(fd, 0, os.SEEK_SET)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALED)
    except BaseException:
        os.close(fd)
        raise
    return fd


def check_sealed(fd: int) -> int:
    """Return the size of a sealed memfd that was handed in.

    Raises:
        RpcError: -32602, it is no memfd, not sealed, or cannot be read.
    """
    try:
        seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
    except OSError:
        raise _unfit("it is no memfd") from None
    if seals & _SEALED != _SEALED:
        raise _unfit("it must be sealed with F_SEAL_WRITE, F_SEAL_SHRINK and F_SEAL_GROW")
    if fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE == os.O_WRONLY:
        raise _unfit("it cannot be read")
    return os.fstat(fd).st_size


def _unfit(why: str) -> RpcError:
    return RpcError(ErrorCode.INVALID_PARAMS, f"the descriptor is refused: {why}", {"field": "fd"})
