"""Reads a package out of a directory, a tar archive (plain, gzip, bzip2 or xz) or a zip archive.

Rules here: what a file is, is told by its first bytes; whatever an archive announces is bounded before memory is taken
for it; anything in it but files, directories and links is refused, by name; nothing that is damaged is used in part.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import stat
import struct
import tarfile
import zipfile
import zlib
from typing import TYPE_CHECKING, Any, BinaryIO, Final, Protocol, Self, TypeVar

from utter_runner.operate.contents import open_regular
from utter_runner.operate.errors import OperateError
from utter_runner.operate.tree import LEFT_OUT, MAX_PATH, Limits, TreeWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

_T = TypeVar("_T")
CHUNK: Final = 256 * 1024
_HEADERS: Final = 2**20
"""What the headers between two files of a tar archive may come to; names and their attributes are small."""
_XZ_MEMORY: Final = 128 * 2**20
"""What unpacking xz may take; `xz -9` needs 65 MiB."""
_ALWAYS_ALLOWED: Final = 2**20
_END_RECORD: Final = 22
_MAX_COMMENT: Final = 65_535
_MAX_DIRECTORY: Final = 4 * 2**20
"""The largest table of contents of a zip archive, in bytes."""
# LZMA in a zip archive says by itself how much memory it wants, and gets it.
_ZIP_METHODS: Final = frozenset({zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2})
_DAMAGE: Final = (
    tarfile.TarError,
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    EOFError,
    ValueError,
    OverflowError,
    NotImplementedError,
    RuntimeError,
    struct.error,
    MemoryError,
)


class _Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


def unpack(archive: BinaryIO, name: str, target: Path, limits: Limits) -> None:
    """Write what is in an archive into an empty directory.

    Args:
        archive: the file, which nobody else changes meanwhile.
        name: what it is called in messages.
        target: an empty directory that nobody else writes to.
        limits: what is too much.

    Raises:
        OperateError: it is no archive of a known kind, is damaged, or has an entry that no package needs.
        OSError: the target cannot be written.
    """
    size = os.fstat(archive.fileno()).st_size
    bound = (max(_ALWAYS_ALLOWED, size * limits.max_package_ratio), "max_package_ratio")
    writer = TreeWriter(target, name, limits, bound)
    start = archive.read(6)
    archive.seek(0)
    try:
        if start.startswith((b"PK\x03\x04", b"PK\x05\x06")):
            _check_directory(archive, size, name, limits)
            _unzip(archive, writer)
        else:
            _untar(_decompressed(archive, start, name), name, writer)
    except _DAMAGE as error:
        known = ".tar, .tar.gz, .tar.bz2, .tar.xz, .zip"
        raise OperateError(f"{name} is damaged, or no archive ({known}): {error}.") from None
    writer.finish()


# ---- directories


def copy_directory(source: Path, target: Path, limits: Limits) -> None:
    """Write what is in a directory into an empty one.

    Raises:
        OperateError: something in it is neither a file, a directory nor a link, or it is too much.
        OSError: it cannot be read, or the target not be written.
    """
    writer = TreeWriter(target, str(source), limits)
    _copy(source, "", writer)
    writer.finish()


def _copy(directory: Path, prefix: str, writer: TreeWriter) -> None:
    for entry in sorted(os.scandir(directory), key=lambda one: one.name):
        if entry.name == LEFT_OUT:
            continue
        name = prefix + entry.name
        if entry.is_symlink():
            writer.link(name, str((directory / entry.name).readlink()))
        elif entry.is_dir(follow_symlinks=False):
            writer.directory(name)
            _copy(directory / entry.name, f"{name}/", writer)
        else:
            if not entry.is_file(follow_symlinks=False):
                raise writer.refuse(name, _NO_FILE)
            with open_regular(entry.path, os.O_NOFOLLOW) as file:
                if file is None:
                    raise writer.refuse(name, _NO_FILE)
                found = os.fstat(file.fileno())
                executable = bool(found.st_mode & stat.S_IXUSR)
                writer.file(name, _chunks(file), executable=executable, size=found.st_size)


_NO_FILE: Final = "is neither a file, a directory nor a link"


def _chunks(file: _Readable) -> Iterator[bytes]:
    while chunk := file.read(CHUNK):
        yield chunk


# ---- tar


def _decompressed(archive: BinaryIO, start: bytes, name: str) -> _Readable:
    if start.startswith(b"\x1f\x8b"):
        return gzip.GzipFile(fileobj=archive)
    if start.startswith(b"BZh"):
        return bz2.BZ2File(archive)
    if start == b"\xfd7zXZ\x00":
        return _Xz(archive)
    if start.startswith(b"\x28\xb5\x2f\xfd"):
        raise OperateError(f"{name} is compressed with zstd, which is not read here: use .tar.gz or .tar.xz.")
    return archive


class _Xz:
    """An xz file as it is unpacked; unlike `lzma.LZMAFile`, with a bound on the memory that it may ask for."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._engine = self._new()

    @staticmethod
    def _new() -> lzma.LZMADecompressor:
        return lzma.LZMADecompressor(format=lzma.FORMAT_XZ, memlimit=_XZ_MEMORY)

    def read(self, size: int, /) -> bytes:
        while True:
            data = b""
            if self._engine.eof:
                # Another stream may follow, or padding.
                data = self._engine.unused_data.lstrip(b"\0") or self._file.read(CHUNK).lstrip(b"\0")
                if not data:
                    return b""
                self._engine = self._new()
            elif self._engine.needs_input:
                data = self._file.read(CHUNK)
                if not data:
                    raise EOFError("it ends too early")
            if found := self._engine.decompress(data, size):
                return found


class _Metered:
    """A stream of which only so much may be read as was allowed before."""

    def __init__(self, stream: _Readable, name: str) -> None:
        self._stream = stream
        self._name = name
        self.left = 0

    def read(self, size: int, /) -> bytes:
        try:
            data = self._stream.read(size)
        except OSError as error:
            # gzip and bz2 say so of what is none of theirs.
            raise OperateError(f"{self._name} is damaged: {error}.") from None
        self.left -= len(data)
        if self.left < 0:
            raise OperateError(f"{self._name} has more than {_HEADERS} bytes between two of its files.")
        return data


class _Header(tarfile.TarInfo):
    """A header of which a damaged one is no end of the archive."""

    @classmethod
    def frombuf(cls, buf: Any, encoding: Any, errors: str) -> Self:
        try:
            return super().frombuf(buf, encoding, errors)
        except tarfile.HeaderError:
            if buf and buf.count(0) != len(buf):
                raise ValueError("one of its headers is none") from None
            raise


def _untar(stream: _Readable, name: str, writer: TreeWriter) -> None:
    metered = _Metered(stream, name)
    metered.left = _HEADERS
    # Read from front to back: nothing that it says can lead the reader back or elsewhere.
    opened = tarfile.open(  # noqa: SIM115 - closed below, and it owns nothing
        fileobj=metered,
        mode="r|",
        tarinfo=_Header,
        encoding="utf-8",
        errors="strict",  # type: ignore[call-overload]  # it has `read`, and that is all that is used
    )
    with opened as tar:
        while (member := tar.next()) is not None:
            # The library remembers every member that there was.
            tar.members = []
            metered.left = _HEADERS + max(0, member.size)
            _take_member(tar, member, writer)


def _take_member(tar: tarfile.TarFile, member: tarfile.TarInfo, writer: TreeWriter) -> None:
    name = member.name
    if member.issparse():
        raise writer.refuse(name, "is a sparse file; make the archive without them")
    if member.size < 0:
        raise writer.refuse(name, "says that it is smaller than nothing")
    if member.isdir():
        writer.directory(name)
    elif member.issym():
        writer.link(name, member.linkname)
    elif member.islnk():
        writer.hard_link(name, member.linkname)
    elif member.isreg():
        content = tar.extractfile(member)
        if content is None:
            raise writer.refuse(name, "has no content")
        with content:
            executable = bool(member.mode & stat.S_IXUSR)
            writer.file(name, _whole(content, member.size), executable=executable, size=member.size)
    else:
        raise writer.refuse(name, _NO_FILE)


def _whole(content: _Readable, size: int) -> Iterator[bytes]:
    """The chunks of a file that was said to have `size` bytes."""
    for chunk in _chunks(content):
        size -= len(chunk)
        yield chunk
    if size:
        raise EOFError("a file in it is shorter than it says")


# ---- zip


def _check_directory(archive: BinaryIO, size: int, name: str, limits: Limits) -> None:
    """Refuse a table of contents that would take much memory, before `zipfile` reads it."""
    length = min(size, _END_RECORD + _MAX_COMMENT)
    archive.seek(size - length)
    tail = archive.read(length)
    archive.seek(0)
    at = len(tail) - _END_RECORD
    if at < 0 or tail[at : at + 4] != b"PK\x05\x06" or tail[-2:] != b"\0\0":
        at = tail.rfind(b"PK\x05\x06")
    if at < 0 or len(tail) - at < _END_RECORD:
        raise OperateError(f"{name} is damaged: it has no table of contents.")
    if tail[max(0, at - 20) : at].startswith(b"PK\x06\x07"):
        raise OperateError(f"{name} is of the format zip64, which no package needs.")
    entries, length = struct.unpack_from("<HL", tail, at + 10)
    if entries > limits.max_package_files or length > _MAX_DIRECTORY:
        raise OperateError(
            f"{name} has {entries} entries with {length} bytes of names: a package has at most "
            f"{limits.max_package_files} (max_package_files)."
        )


def _unzip(archive: BinaryIO, writer: TreeWriter) -> None:
    with _placed(lambda: zipfile.ZipFile(archive)) as opened:
        for member in opened.infolist():
            _take_zipped(opened, member, writer)


def _placed(open_it: Callable[[], _T]) -> _T:
    """What `open_it` opens; where it is led to a place that a file cannot have, the archive is damaged."""
    try:
        return open_it()
    except OSError as error:
        raise ValueError(error.strerror) from None


def _take_zipped(opened: zipfile.ZipFile, member: zipfile.ZipInfo, writer: TreeWriter) -> None:
    # `filename` ends at a NUL, and this one is what stands there.
    name = member.orig_filename
    if member.flag_bits & 1:
        raise writer.refuse(name, "is encrypted")
    if member.compress_type not in _ZIP_METHODS:
        raise writer.refuse(name, "is compressed in a way that is not read here: use deflate")
    mode = member.external_attr >> 16
    kind = stat.S_IFMT(mode)
    if name.endswith("/") and kind in {0, stat.S_IFDIR}:
        if member.file_size:
            raise writer.refuse(name, "is a directory with content")
        writer.directory(name)
        return
    if kind not in {0, stat.S_IFREG, stat.S_IFLNK}:
        raise writer.refuse(name, _NO_FILE)
    with _placed(lambda: opened.open(member)) as content:
        if kind == stat.S_IFLNK:
            try:
                writer.link(name, content.read(MAX_PATH + 1).decode())
            except UnicodeDecodeError:
                raise writer.refuse(name, "is a link to what is no text") from None
        else:
            executable = bool(mode & stat.S_IXUSR)
            writer.file(name, _whole(content, member.file_size), executable=executable, size=member.file_size)
