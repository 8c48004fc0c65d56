"""The files behind handles: each written whole under a temporary name and then moved to its own.

Rules here: file names are made of digests and numbers, never of what somebody sent; a blob is complete as soon as it
has its name, so that a runner that was killed at any moment leaves a directory that the next one can use. Everything
blocks: whoever calls decides on which thread. Only one runner at a time uses a directory, and it touches no directory
that it did not make. The mark is part of the name, and what has none is the screen's: trust is never left over by
accident, and a mark goes down by a rename.

    handles.lock                            held while a runner uses the directory
    plugins/DIGEST/SHA256[.DIGEST][.MARK]   what a plugin holds; the digests are those of its id and of the part's name
    clients/NUMBER/SHA256[.DIGEST][.MARK]   what a connection holds
    tmp/NUMBER                              what is being written, and what is to be deleted
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import stat
import time
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

from utter_runner.policy.marks import Mark, lowest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

CHUNK = 1024 * 1024
_LOCK = "handles.lock"
_DIRECTORY = re.compile(r"[0-9a-f]{64}")
_BLOB = re.compile(r"([0-9a-f]{64}(?:\.[0-9a-f]{64})?)(\.user|\.llm)?")
_SUFFIXES: dict[Mark, str] = {"user": ".user", "llm": ".llm", "screen": ""}
_MARKS: dict[str | None, Mark] = {".user": "user", ".llm": "llm", None: "screen"}
_ZEROS = bytes(CHUNK)


class StoreError(Exception):
    """The directory cannot be used; the message names it and says why."""


class Found(NamedTuple):
    """A blob of a plugin that a former runner left."""

    directory: str
    name: str
    size: int
    age: float
    """Seconds since it was written."""
    mark: Mark


class Content(Protocol):
    """What a blob is made of."""

    @property
    def size(self) -> int:
        """Bytes."""

    def chunks(self) -> Iterator[bytes | memoryview]:
        """The content in order; a piece is used before the next one is asked for."""


class Bytes:
    """Content that is in memory."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.size = len(data)

    def chunks(self) -> Iterator[bytes | memoryview]:
        """Return the content in pieces."""
        view = memoryview(self._data)
        for start in range(0, self.size, CHUNK):
            yield view[start : start + CHUNK]


class Zeros:
    """So many zero bytes, which take no room on the disk."""

    def __init__(self, size: int) -> None:
        self.size = size

    def chunks(self) -> Iterator[bytes | memoryview]:
        """Return the content in pieces."""
        for _ in range(self.size // CHUNK):
            yield _ZEROS
        if self.size % CHUNK:
            yield memoryview(_ZEROS)[: self.size % CHUNK]


class Open:
    """The content of an open file, which must not change meanwhile; the descriptor stays the caller's."""

    def __init__(self, fd: int, size: int) -> None:
        self._fd = fd
        self.size = size

    def chunks(self) -> Iterator[bytes | memoryview]:
        """Return the content in pieces. Raises OSError if it is shorter than it was."""
        buffer = memoryview(bytearray(min(CHUNK, self.size)))
        done = 0
        while done < self.size:
            got = os.preadv(self._fd, [buffer[: self.size - done]], done)
            if not got:
                raise OSError(0, f"it ended after {done} of {self.size} bytes")
            yield buffer[:got]
            done += got


def digest_of(content: Content, check: Callable[[], None] = lambda: None) -> str:
    """Return the SHA-256 of content in hexadecimal; `check` is called between pieces and may raise."""
    digest = hashlib.sha256()
    for chunk in content.chunks():
        check()
        digest.update(chunk)
    return digest.hexdigest()


def name_of(sha256: str, part: str) -> str:
    """Return the name of a blob in its scope."""
    return f"{sha256}.{hashlib.sha256(part.encode()).hexdigest()}" if part else sha256


def file_of(name: str, mark: Mark) -> str:
    """Return the name of the file of a blob with this name and mark."""
    return name + _SUFFIXES[mark]


class BlobFiles:
    """The directory; `open` it before anything else.

    Args:
        root: where it is, or is to be made.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.plugins = root / "plugins"
        self.clients = root / "clients"
        self._tmp = root / "tmp"
        self._next = count(1).__next__
        self._lock_fd = -1

    def open(self) -> list[Found]:
        """Take possession: lock it, sweep what a former runner left unfinished, and return the blobs of plugins.

        Raises:
            StoreError: it is another runner's, holds other files, or cannot be used.
        """
        try:
            self._take()
            try:
                for directory in (self._tmp, self.clients):
                    shutil.rmtree(directory, ignore_errors=True)
                self._make(self._tmp)
                return list(self._scan())
            except OSError:
                self.close()
                raise
        except OSError as error:
            raise StoreError(f"The directory for handles, {self.root}, cannot be used: {error.strerror}.") from None

    def _take(self) -> None:
        _make_private(self.root)
        status = self.root.stat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
            raise StoreError(f"The directory for handles, {self.root}, is not a directory of yours.")
        lock = self.root / _LOCK
        if not lock.exists() and any(self.root.iterdir()):
            raise StoreError(
                f"The directory for handles, {self.root}, holds other files. Set [runner] handle_root to another one."
            )
        self.root.chmod(0o700)
        fd = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(fd)
            if isinstance(error, BlockingIOError):
                raise StoreError(
                    f"Another runner uses {self.root} for its handles. Set [runner] handle_root to another directory."
                ) from None
            raise
        self._lock_fd = fd

    def _scan(self) -> Iterator[Found]:
        now = time.time()
        for directory in _entries(self.plugins):
            if not (_DIRECTORY.fullmatch(directory.name) and directory.is_dir(follow_symlinks=False)):
                self._delete(self.retire(Path(directory.path)))
                continue
            found: dict[str, Found] = {}
            for entry in _entries(directory.path):
                status = entry.stat(follow_symlinks=False)
                blob = _BLOB.fullmatch(entry.name)
                if blob is None or not stat.S_ISREG(status.st_mode):
                    self._delete(self.retire(Path(entry.path)))
                    continue
                name, mark = blob[1], _MARKS[blob[2]]
                known = found.get(name)
                if known is not None:
                    # Somebody else did that. The lower one counts.
                    mark = lowest(known.mark, mark)
                    higher = known.mark if mark != known.mark else _MARKS[blob[2]]
                    self._delete(self.retire(Path(directory.path) / file_of(name, higher)))
                    status = (Path(directory.path) / file_of(name, mark)).stat()
                found[name] = Found(directory.name, name, status.st_size, max(0.0, now - status.st_mtime), mark)
            yield from found.values()

    def close(self) -> None:
        """Delete what no later runner may find, and let the directory go. May be called again."""
        if self._lock_fd < 0:
            return
        for directory in (self._tmp, self.clients):
            shutil.rmtree(directory, ignore_errors=True)
        os.close(self._lock_fd)
        self._lock_fd = -1

    def write(self, content: Content, check: Callable[[], None] = lambda: None) -> tuple[Path, str]:
        """Write content to a temporary file; return its path, and the SHA-256 in hexadecimal.

        Args:
            content: what to write.
            check: called between pieces of 1 MiB; what it raises ends the writing.

        Raises:
            OSError: it cannot be written; nothing is left then.
        """
        path = self._temporary()
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            fd = os.open(path, flags, 0o600)
        except FileNotFoundError:
            # Somebody has tidied up.
            self._make(self._tmp)
            fd = os.open(path, flags, 0o600)
        try:
            try:
                return path, _fill(fd, content, check)
            finally:
                os.close(fd)
        except BaseException:
            path.unlink(missing_ok=True)
            raise

    def place(self, temporary: Path, target: Path) -> None:
        """Give a written file its name; directories are made. Raises OSError."""
        self._with_directory(target, lambda: temporary.rename(target))

    def link(self, source: Path, target: Path) -> None:
        """Give a blob another name.

        Raises:
            FileNotFoundError: `source` is not there any more.
            OSError: it cannot be done.
        """
        temporary = self._temporary()
        self._with_directory(temporary, lambda: os.link(source, temporary, follow_symlinks=False))
        try:
            self.place(temporary, target)
        finally:
            # The two may be the same file already; then it was not moved.
            temporary.unlink(missing_ok=True)

    @staticmethod
    def rename(path: Path, other: Path) -> None:
        """Give a blob another name in the same directory, if it is there. Raises OSError."""
        with suppress(FileNotFoundError):
            path.rename(other)

    def retire(self, path: Path) -> Path | None:
        """Take a file or directory out of sight at once; return what is to be deleted, if it was there."""
        temporary = self._temporary()
        try:
            self._with_directory(temporary, lambda: path.rename(temporary))
        except OSError:
            return None
        return temporary

    def delete(self, paths: Iterable[Path]) -> None:
        """Delete what was retired."""
        for path in paths:
            self._delete(path)

    @staticmethod
    def _delete(path: Path | None) -> None:
        if path is None:
            return
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            with suppress(OSError):
                path.unlink()

    def _temporary(self) -> Path:
        return self._tmp / str(self._next())

    def _make(self, directory: Path) -> None:
        for path in (self.root, directory.parent, directory):
            _make_private(path)

    def _with_directory(self, target: Path, act: Callable[[], object]) -> None:
        """Do something that needs the directory of `target`, which is made if it is not there."""
        try:
            act()
        except FileNotFoundError:
            self._make(target.parent)
            act()


def _make_private(path: Path) -> None:
    path.mkdir(mode=0o700, parents=True, exist_ok=True)


def _entries(path: Path | str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(path) as entries:
            return list(entries)
    except FileNotFoundError:
        return []


def _fill(fd: int, content: Content, check: Callable[[], None]) -> str:
    digest = hashlib.sha256()
    done = 0
    for chunk in content.chunks():
        check()
        digest.update(chunk)
        done += len(chunk)
        if isinstance(content, Zeros):
            continue
        rest = memoryview(chunk)
        while rest:
            rest = rest[os.write(fd, rest) :]
    if isinstance(content, Zeros):
        os.ftruncate(fd, done)
    return digest.hexdigest()
