"""Landlock: what this process, and all that it starts, may open, connect to and signal.

Rules here: the standard library alone, and no import of the runner's, because it is loaded by a bare interpreter inside
the sandbox. What the kernel is too old for is left out; whether the rest holds, the probe says.
Source: https://docs.kernel.org/userspace-api/landlock.html, with the numbers of <linux/landlock.h>.
"""

from __future__ import annotations

import ctypes
import os
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_CREATE, _ADD, _RESTRICT = 444, 445, 446
_VERSION = 1
_PATH_BENEATH = 1
_NO_NEW_PRIVILEGES = 38

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1, 1 << 1, 1 << 2, 1 << 3
_REFER, _TRUNCATE, _IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15
_ON_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV
READ = _EXECUTE | _READ_FILE | _READ_DIR
_ALL_OF_1 = (1 << 13) - 1
_TCP = 0b11
_ABSTRACT, _SIGNAL = 0b01, 0b10

_ABI_REFER, _ABI_TRUNCATE, _ABI_TCP, _ABI_IOCTL, _ABI_SCOPES = 2, 3, 4, 5, 6


def abi() -> int:
    """The version of Landlock that the kernel has; 0 for none."""
    libc = ctypes.CDLL(None, use_errno=True)
    return max(0, int(libc.syscall(_CREATE, None, ctypes.c_size_t(0), _VERSION)))


def handled(version: int) -> int:
    """The rights to files that this version can take away."""
    rights = _ALL_OF_1
    for since, right in ((_ABI_REFER, _REFER), (_ABI_TRUNCATE, _TRUNCATE), (_ABI_IOCTL, _IOCTL_DEV)):
        rights |= right if version >= since else 0
    return rights


def attributes(version: int, *, network: bool, abstract: bool) -> bytes:
    """Return the `landlock_ruleset_attr` of this version.

    Args:
        version: of the ABI, at least 1.
        network: whether TCP is left alone.
        abstract: whether the abstract sockets of other programs are left alone.
    """
    data = struct.pack("=Q", handled(version))
    if version >= _ABI_TCP:
        data += struct.pack("=Q", 0 if network else _TCP)
    if version >= _ABI_SCOPES:
        data += struct.pack("=Q", _SIGNAL | (0 if abstract else _ABSTRACT))
    return data


def restrict(version: int, read: list[str], write: list[str], *, network: bool, abstract: bool) -> None:
    """Confine this process for good. A path that does not exist is passed over.

    Args:
        version: the kernel's, from `abi`.
        read: what may be read and run.
        write: what may be changed as well.
        network: whether TCP is left alone.
        abstract: whether the abstract sockets of other programs are left alone.

    Raises:
        OSError: the kernel refused it.
    """
    libc = ctypes.CDLL(None, use_errno=True)

    def call(number: int, *arguments: object) -> int:
        result = int(libc.syscall(number, *arguments))
        if result < 0:
            code = ctypes.get_errno()
            raise OSError(code, f"Landlock refuses its rules: {os.strerror(code)}")
        return result

    wanted = attributes(version, network=network, abstract=abstract)
    ruleset = call(_CREATE, wanted, ctypes.c_size_t(len(wanted)), 0)
    try:
        for paths, rights in ((read, READ), (write, handled(version))):
            for path in paths:
                _allow(call, ruleset, path, rights & handled(version))
        if libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "no_new_privs is refused")
        call(_RESTRICT, ruleset, 0)
    finally:
        os.close(ruleset)


def _allow(call: Callable[..., int], ruleset: int, path: str, rights: int) -> None:
    try:
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        if not os.path.isdir(path):  # noqa: PTH112 - pathlib is slow to import
            rights &= _ON_FILES
        call(_ADD, ruleset, _PATH_BENEATH, struct.pack("=Qi", rights, place), 0)
    finally:
        os.close(place)
