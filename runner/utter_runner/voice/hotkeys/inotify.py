"""inotify for one directory that may not exist yet.

Rules here: the only ctypes of this room; see inotify(7) for the constants and the event layout.
"""

from __future__ import annotations

import ctypes
import os
import struct
from functools import lru_cache
from pathlib import Path

_IN_ATTRIB = 0x4
_IN_MOVED_FROM = 0x40
_IN_MOVED_TO = 0x80
_IN_CREATE = 0x100
_IN_DELETE = 0x200
_IN_DELETE_SELF = 0x400
_IN_MOVE_SELF = 0x800
_IN_IGNORED = 0x8000
_IN_ONLYDIR = 0x1000000
_CHILDREN = _IN_ATTRIB | _IN_MOVED_FROM | _IN_MOVED_TO | _IN_CREATE | _IN_DELETE
_HEADER = struct.Struct("iIII")
_READ_BYTES = 65536


@lru_cache(maxsize=1)
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _checked(result: int, what: str) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), what)
    return result


class DirectoryWatch:
    """Readable whenever an entry of `directory` came, went or changed its permissions.

    While the directory is missing its parent is watched instead, so that its creation is noticed.

    Raises:
        OSError: inotify refused (the limit of instances or watches was reached), or the parent is missing too.
    """

    def __init__(self, directory: str) -> None:
        self._directory = Path(directory)
        self._whole = -1
        self._parent = -1
        self.fd = _checked(_libc().inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC), "inotify_init1")
        try:
            self._watch()
        except OSError:
            self.close()
            raise

    def drain(self) -> bool:
        """Consume the waiting events; True when one of them concerns the directory."""
        concerned = False
        try:
            while True:
                for watch, mask, name in _events(os.read(self.fd, _READ_BYTES)):
                    if watch == self._whole:
                        concerned = True
                        if mask & _IN_IGNORED:
                            self._whole = -1
                    elif watch == self._parent and name == self._directory.name:
                        concerned = True
        except BlockingIOError:
            pass
        if concerned:
            self._watch()
        return concerned

    def close(self) -> None:
        """Close the descriptor, and with it every watch."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def _watch(self) -> None:
        if self._whole < 0:
            try:
                self._whole = self._add(self._directory, _CHILDREN | _IN_DELETE_SELF | _IN_MOVE_SELF)
            except FileNotFoundError:
                if self._parent < 0:
                    self._parent = self._add(self._directory.parent, _IN_CREATE | _IN_MOVED_TO)
                # It may have come between the two calls.
                if self._directory.is_dir():
                    self._whole = self._add(self._directory, _CHILDREN | _IN_DELETE_SELF | _IN_MOVE_SELF)
        if self._whole >= 0 and self._parent >= 0:
            _libc().inotify_rm_watch(self.fd, self._parent)
            self._parent = -1

    def _add(self, path: Path, mask: int) -> int:
        encoded = os.fsencode(path)
        return _checked(_libc().inotify_add_watch(self.fd, encoded, mask | _IN_ONLYDIR), str(path))


def _events(data: bytes) -> list[tuple[int, int, str]]:
    found = []
    at = 0
    while at < len(data):
        watch, mask, _, length = _HEADER.unpack_from(data, at)
        at += _HEADER.size
        found.append((watch, mask, os.fsdecode(data[at : at + length].rstrip(b"\0"))))
        at += length
    return found
