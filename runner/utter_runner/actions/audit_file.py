"""The files of the audit trail: appending lines, and rotating within a bound.

Rules here: everything blocks and runs on one thread at a time. A file is only ever appended to, a line in one write; a
line that a crash or a full disk cut off stays as it is, and the next one says so. Whenever the process is killed, the
chain goes on from the last whole line.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from typing import TYPE_CHECKING

import msgspec

from utter_protocol.audit import (
    AUDIT_NAME,
    MAX_LINE,
    NOTHING_BEFORE,
    AuditLineError,
    rotated,
    rotated_name,
    seal,
    unseal,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from utter_protocol.audit import AuditEntry

FILES = 8
"""Of how many files the trail is made, so that an eighth of it goes when it is full."""


class AuditFile:
    """The trail in a directory.

    Args:
        directory: is made, for this user alone.
        limit: bytes of all files together.
    """

    def __init__(self, directory: Path, limit: int) -> None:
        self.path = directory / AUDIT_NAME
        self._directory = directory
        self.set_limit(limit)
        self._fd = -1
        self._size = 0
        self._seq = 0
        self._prev = NOTHING_BEFORE
        self._cut = False
        self._known = False

    def set_limit(self, limit: int) -> None:
        """Have another bound, in bytes of all files together, from the next line on. From any thread."""
        self._limit = limit
        self._most = limit // FILES

    def open(self) -> None:
        """Open it, and find the last line. Raises OSError; `strerror` is fit for a message."""
        if self._fd >= 0:
            return
        _make_private(self._directory)
        # Neither a symbolic link nor a pipe that somebody put there is followed or waited for.
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        fd = os.open(self.path, flags, 0o600)
        try:
            self._size = _claim(fd)
            self._find_end(fd)
        except BaseException:
            os.close(fd)
            raise
        self._fd = fd

    def append(self, entries: Sequence[AuditEntry], lost: int) -> tuple[int, OSError | None]:
        """Write lines.

        Args:
            entries: without their places in the chain.
            lost: how many lines before the first of them could not be written.

        Returns:
            How many of them were written, and why the others were not.
        """
        written = 0
        try:
            self._reopen_if_moved()
            for entry in entries:
                self._append(entry, 0 if written else lost)
                written += 1
        except OSError as error:
            return written, error
        return written, None

    def close(self) -> None:
        """Close it."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def _append(self, entry: AuditEntry, lost: int) -> None:
        placed = msgspec.structs.replace(entry, seq=self._seq + 1, lost=lost, after_cut=self._cut, prev=self._prev)
        line, digest = seal(placed)
        data = b"\n" + line + b"\n" if self._cut else line + b"\n"
        if self._size and self._size + len(data) > self._most:
            self._rotate()
        count = os.write(self._fd, data)
        self._size += count
        if count < len(data):
            self._cut = True
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._seq, self._prev, self._cut = placed.seq, digest, False

    def _reopen_if_moved(self) -> None:
        if self._fd >= 0:
            mine = os.fstat(self._fd)
            try:
                there = self.path.lstat()
            except FileNotFoundError:
                there = None
            if there is not None and (there.st_dev, there.st_ino) == (mine.st_dev, mine.st_ino):
                return
            # Somebody has moved or removed it; what is written must be where it is looked for.
            self.close()
        self.open()

    def _rotate(self) -> None:
        for number in reversed(self._older()):
            (self._directory / rotated_name(number)).rename(self._directory / rotated_name(number + 1))
        self.path.rename(self._directory / rotated_name(1))
        self.close()
        left = self._limit - self._most
        for number in self._older():
            path = self._directory / rotated_name(number)
            left -= path.lstat().st_size
            if left < 0:
                path.unlink()
        cut, self._cut = self._cut, False
        self.open()
        self._cut = cut

    def _older(self) -> list[int]:
        return rotated(path.name for path in self._directory.iterdir())

    def _find_end(self, fd: int) -> None:
        """Find where the chain is to go on: behind the last whole line of the youngest file that has one."""
        self._cut = self._size > 0 and os.pread(fd, 1, self._size - 1) != b"\n"
        if self._known:
            return
        if not self._take_last(fd, self._size):
            for number in self._older()[:1]:
                older = os.open(self._directory / rotated_name(number), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
                try:
                    self._take_last(older, os.fstat(older).st_size)
                finally:
                    os.close(older)
        self._known = True

    def _take_last(self, fd: int, size: int) -> bool:
        span = min(size, 3 * MAX_LINE)
        for line in reversed(os.pread(fd, span, size - span).split(b"\n")):
            try:
                entry, self._prev, _ = unseal(line)
            except AuditLineError:
                continue
            self._seq = entry.seq
            return True
        return False


def _claim(fd: int) -> int:
    """See that a file is this runner's alone; return its size."""
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode) or status.st_uid != os.getuid():
        raise OSError(errno.EPERM, "it is not a regular file of this user")
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise OSError(errno.EBUSY, "another runner of this user writes to it") from None
    os.fchmod(fd, 0o600)
    return status.st_size


def _make_private(directory: Path) -> None:
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = directory.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        raise OSError(errno.EPERM, f"{directory} is not a directory of this user")
    if stat.S_IMODE(status.st_mode) & 0o077:
        directory.chmod(0o700)
