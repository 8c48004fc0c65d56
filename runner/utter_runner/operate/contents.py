"""What lies in the directory of a package: its digest, and links that lead out of it.

Rules here: nothing is written and no link is followed. The digest is PROTOCOL.md's ("Packages"); it does not depend on
how the package came, and is the same on every machine.
"""

from __future__ import annotations

import hashlib
import os
import stat
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from utter_runner.operate.errors import OperateError
from utter_runner.operate.tree import LEFT_OUT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from io import BufferedReader

SIGNATURE_NAME: Final = "utter-plugin.minisig"
"""The signature over a package's digest; it lies beside the manifest and is no part of the package."""
_FIRST_LINE: Final = b"utter-package 1\n"


@contextmanager
def open_regular(path: str | os.PathLike[str], flags: int = 0) -> Iterator[BufferedReader | None]:
    """Open a file to read it; None if it is another thing, such as a pipe, which blocks nobody here.

    Raises:
        OSError: it cannot be opened.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | flags)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        yield None
        return
    with os.fdopen(descriptor, "rb") as file:
        yield file


def digest_of(root: Path) -> str:
    """The digest of the package in `root`, as `sha256:` and 64 hexadecimal digits.

    Raises:
        OperateError: there is something in it that no package has.
        OSError: it cannot be read.
    """
    whole = hashlib.sha256(_FIRST_LINE)
    for name, path in sorted(_entries(root, ""), key=lambda entry: os.fsencode(entry[0])):
        mode = path.lstat().st_mode
        if stat.S_ISLNK(mode):
            kind, content = b"link", hashlib.sha256(os.fsencode(path.readlink()))
        elif stat.S_ISREG(mode):
            kind = b"755" if mode & stat.S_IXUSR else b"644"
            with path.open("rb") as file:
                content = hashlib.file_digest(file, "sha256")
        else:
            raise OperateError(f"{path} is neither a file, a directory nor a link.")
        whole.update(b"%s %s %s\n" % (kind, content.hexdigest().encode(), os.fsencode(name)))
    return f"sha256:{whole.hexdigest()}"


def _entries(directory: Path, prefix: str) -> Iterator[tuple[str, Path]]:
    """Everything that counts and is no directory: its path inside the package, and where it is."""
    with os.scandir(directory) as found:
        for entry in found:
            name = prefix + entry.name
            if entry.name == LEFT_OUT or name == SIGNATURE_NAME:
                continue
            if entry.is_dir(follow_symlinks=False):
                yield from _entries(Path(entry.path), f"{name}/")
            else:
                yield name, Path(entry.path)


def check_links(root: Path, source: str) -> None:
    """Refuse a link that leads out of `root`, to nothing, or to a directory that it lies in itself.

    Raises:
        OperateError: there is one; the message names it.
    """
    top = root.resolve(strict=True)
    for name, path in _entries(root, ""):
        if not path.is_symlink():
            continue
        shown = f"{source}: the link {name!r}"
        try:
            # A loop is an OSError or, before Python 3.13, a RuntimeError.
            end = path.resolve(strict=True)
        except (OSError, RuntimeError):
            raise OperateError(f"{shown} leads to nothing.") from None
        if not end.is_relative_to(top):
            raise OperateError(f"{shown} leads out of the package.")
        if path.parent.resolve().is_relative_to(end):
            raise OperateError(f"{shown} leads to a directory that it lies in.")
