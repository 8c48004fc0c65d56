"""Writes the files of a package into an empty directory, entry by entry, and refuses those that no package needs.

Rules here: a name is looked at before anything is made of it; files are made anew and never opened through a link,
because links are made last; bytes are counted as they are written, whatever was announced; modes are 0644 or 0755.
`__pycache__` is left out: what is in it is made from the sources, or should not be trusted to be.
"""

from __future__ import annotations

import os
import re
import unicodedata
from typing import TYPE_CHECKING, Final, NamedTuple

from utter_runner.operate.errors import OperateError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

MAX_NAME: Final = 255
"""The longest name of one file or directory, in bytes."""
MAX_PATH: Final = 1024
"""The longest path inside a package, in bytes."""
MAX_DEPTH: Final = 32
"""How deep directories may lie in each other."""
LEFT_OUT: Final = "__pycache__"

_SHOWN = 200
_DRIVE = re.compile(r"[A-Za-z]:")


class Limits(NamedTuple):
    """How much a package may hold, and what its archive may come to."""

    max_package_files: int = 10_000
    max_package_bytes: int = 512 * 2**20
    max_package_ratio: int = 200
    """How many times its own size an archive may become; up to 1 MiB is always let pass."""


class TreeWriter:
    """Fills one directory.

    Args:
        root: an empty directory that nobody else writes to.
        source: where the entries come from, for messages.
        limits: what is too much.
        max_bytes: a bound on all content that is tighter than `limits`, with the name of that bound.
    """

    def __init__(
        self, root: Path, source: str, limits: Limits, max_bytes: tuple[int, str] = (2**63, "max_package_bytes")
    ) -> None:
        self._root = root
        self._source = source
        self._limits = limits
        self._max_bytes, self._bound = min(max_bytes, (limits.max_package_bytes, "max_package_bytes"))
        self._written = 0
        self._entries = 0
        # By the name that a file system without case would know: the spelling, and whether it is a directory.
        self._names: dict[str, tuple[str, bool]] = {}
        self._files: dict[str, bool] = {}
        self._links: list[tuple[str, str]] = []

    def refuse(self, name: str, why: str) -> OperateError:
        """The error for an entry."""
        return OperateError(f"{self._source}: the entry {name[:_SHOWN]!r} {why}.")

    def directory(self, name: str) -> None:
        """Take note of a directory; it is made when there is something in it."""
        self._count(name)
        if parts := self._parts(name.rstrip("/") if name != "/" else name):
            self._claim(name, parts, directory=True)

    def file(self, name: str, chunks: Iterable[bytes], *, executable: bool, size: int = 0) -> None:
        """Write a file.

        Args:
            name: its path, with slashes.
            chunks: its content; read to its end.
            executable: whether it gets the mode 0755.
            size: how many bytes were announced.
        """
        self._count(name)
        parts = self._parts(name)
        if not parts:
            raise self.refuse(name, "has no name")
        self._claim(name, parts, directory=False)
        self._room(name, size)
        if LEFT_OUT in parts:
            for chunk in chunks:
                self._add(name, chunk)
            return
        path = self._root.joinpath(*parts)
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb", buffering=0) as file:
            for chunk in chunks:
                self._add(name, chunk)
                file.write(chunk)
            os.fchmod(descriptor, 0o755 if executable else 0o644)
            os.fsync(descriptor)
        self._files["/".join(parts)] = executable

    def link(self, name: str, target: str) -> None:
        """Remember a symbolic link, which `finish` makes."""
        self._count(name)
        parts = self._parts(name)
        if not parts:
            raise self.refuse(name, "has no name")
        self._claim(name, parts, directory=False)
        if not target or len(os.fsencode(target)) > MAX_PATH or not target.isprintable():
            raise self.refuse(name, f"is a link to {target[:_SHOWN]!r}, which is no usable path")
        if target.startswith("/") or "\\" in target or _DRIVE.match(target):
            raise self.refuse(name, f"is a link to {target!r}, which is not relative to the package")
        if LEFT_OUT not in parts:
            self._links.append(("/".join(parts), target))

    def hard_link(self, name: str, target: str) -> None:
        """Write a file with the content of one that was written before."""
        parts = self._parts(target)
        place = "/".join(parts)
        if place not in self._files:
            raise self.refuse(name, f"is a hard link to {target!r}, which is no file before it in the package")
        with self._root.joinpath(*parts).open("rb") as file:
            self.file(name, iter(lambda: file.read(2**20), b""), executable=self._files[place])

    def finish(self) -> None:
        """Make the links."""
        for name, target in self._links:
            path = self._root / name
            path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            path.symlink_to(target)

    def _count(self, name: str) -> None:
        self._entries += 1
        if self._entries > self._limits.max_package_files:
            raise self.refuse(
                name, f"is one too many: a package has at most {self._limits.max_package_files} (max_package_files)"
            )

    def _add(self, name: str, chunk: bytes) -> None:
        self._room(name, len(chunk))
        self._written += len(chunk)

    def _room(self, name: str, size: int) -> None:
        if self._written + size > self._max_bytes:
            raise self.refuse(
                name, f"makes the package larger than {self._max_bytes} bytes, which is its limit ({self._bound})"
            )

    def _parts(self, name: str) -> tuple[str, ...]:
        """The parts of a name that may be used; none for the directory that everything lies in."""
        if not name.isprintable() or "\\" in name:
            raise self.refuse(name, "has a name with characters that hide or change what it says, or that are no text")
        if name.startswith("/"):
            raise self.refuse(name, "has an absolute path")
        if _DRIVE.match(name):
            raise self.refuse(name, "has a name that begins with a drive letter")
        parts = name.split("/")
        while parts and parts[0] == ".":
            parts.pop(0)
        if parts == [""]:
            parts = []
        if any(part in {"", ".", ".."} for part in parts):
            raise self.refuse(name, 'has "..", "." or nothing as a part of its path')
        if any(len(part.encode()) > MAX_NAME for part in parts) or len(name.encode()) > MAX_PATH:
            raise self.refuse(name, f"has a name that is too long: {MAX_NAME} bytes a part, {MAX_PATH} in all")
        if len(parts) > MAX_DEPTH:
            raise self.refuse(name, f"lies deeper than {MAX_DEPTH} directories")
        return tuple(parts)

    def _claim(self, name: str, parts: tuple[str, ...], *, directory: bool) -> None:
        """Make sure that no other entry has this name, or one that some file systems take for the same."""
        for length in range(1, len(parts) + 1):
            entry = ("/".join(parts[:length]), directory or length < len(parts))
            key = unicodedata.normalize("NFC", unicodedata.normalize("NFC", entry[0]).casefold())
            known = self._names.get(key)
            if known is not None and (known != entry or not entry[1]):
                raise self.refuse(name, f"has the same name as {known[0]!r}, or one that differs in case only")
            self._names[key] = entry
