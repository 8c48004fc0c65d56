"""What lies in the directory of a package: its digest, and links that lead out of it.

Rules here: no link is followed, and nothing is written; `drop_left_out` deletes what is no part of a package. The
digest is PROTOCOL.md's ("Packages"); it does not depend on how the package came, and is the same on every machine.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import stat
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from utter_protocol.packages import MANIFEST_NAME
from utter_runner.operate.errors import OperateError
from utter_runner.operate.tree import LEFT_OUT, MAX_DEPTH

if TYPE_CHECKING:
    from collections.abc import Iterator
    from io import BufferedReader

    from utter_runner.operate.tree import Limits

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


class Contents(NamedTuple):
    """The digests of a package: of all of it, of all but the manifest, and of the manifest alone (hexadecimal).

    The second is empty if there is nothing but the manifest, the third if there is none.
    """

    digest: str
    code: str
    manifest: str


def digest_of(root: Path) -> str:
    """The digest of the package in `root`, as `sha256:` and 64 hexadecimal digits.

    Raises:
        OperateError: there is something in it that no package has.
        OSError: it cannot be read.
    """
    return contents_of(root).digest


def contents_of(root: Path, manifest: str = MANIFEST_NAME, limits: Limits | None = None) -> Contents:
    """The digests of the package in `root`, from one pass over it.

    Args:
        root: its directory.
        manifest: the name of the manifest there.
        limits: what is too much; None where it was looked at before.

    Raises:
        OperateError: there is something in it that no package has, or too much.
        OSError: it cannot be read.
    """
    whole, code, own = hashlib.sha256(_FIRST_LINE), hashlib.sha256(_FIRST_LINE), ""
    entries = []
    for entry in _entries(root, "", MAX_DEPTH if limits else None):
        entries.append(entry)
        if limits and len(entries) > limits.max_package_files:
            raise OperateError(
                f"{root} holds more than {limits.max_package_files} files, the limit of a package (max_package_files)."
            )
    left = limits.max_package_bytes if limits else None
    for name, path in sorted(entries, key=lambda entry: os.fsencode(entry[0])):
        kind, content, size = _content(path, left)
        if limits and left is not None:
            left -= size
            if left < 0:
                raise OperateError(
                    f"{root} is larger than {limits.max_package_bytes} bytes, the limit of a package "
                    "(max_package_bytes)."
                )
        line = b"%s %s %s\n" % (kind, content.encode(), os.fsencode(name))
        whole.update(line)
        if name == manifest:
            own = content
        else:
            code.update(line)
    besides = len(entries) > (1 if own else 0)
    return Contents(f"sha256:{whole.hexdigest()}", f"sha256:{code.hexdigest()}" if besides else "", own)


def _content(path: Path, most: int | None) -> tuple[bytes, str, int]:
    """What an entry is, the digest of what it holds, and how much that is: of a file, up to one byte over `most`."""
    mode = path.lstat().st_mode
    if stat.S_ISLNK(mode):
        return b"link", hashlib.sha256(os.fsencode(path.readlink())).hexdigest(), 0
    if stat.S_ISREG(mode):
        with open_regular(path, os.O_NOFOLLOW) as file:
            if file is not None:
                return (b"755" if mode & stat.S_IXUSR else b"644"), *file_digest(file, most)
    raise OperateError(f"{path} is neither a file, a directory nor a link.")


def file_digest(file: BufferedReader, most: int | None = None) -> tuple[str, int]:
    """The SHA-256 of what is left of a file, in hexadecimal, and how many bytes that is; it ends when that is too many.

    One that grows while it is read is so read to its bound and not for ever.
    """
    found, size = hashlib.sha256(), 0
    while chunk := file.read(2**20):
        found.update(chunk)
        size += len(chunk)
        if most is not None and size > most:
            break
    return found.hexdigest(), size


def drop_left_out(root: Path) -> None:
    """Delete what is in a package and no part of it, so that only what has a digest is there to be run.

    What this user may not delete, this user's programs could not have put there, either.

    Raises:
        OSError: it could have been put there by others of this user's programs, and cannot be deleted.
    """
    for directory, names, files in os.walk(root):
        for name in (LEFT_OUT,) if LEFT_OUT in names or LEFT_OUT in files else ():
            path = Path(directory, name)
            try:
                if path.is_symlink() or not path.is_dir():
                    path.unlink()
                else:
                    shutil.rmtree(path)
            except OSError as error:
                if path.parent.stat().st_uid == os.geteuid() and error.errno != errno.EROFS:
                    raise
        names[:] = [name for name in names if name != LEFT_OUT]


def _entries(directory: Path, prefix: str, depth: int | None = None) -> Iterator[tuple[str, Path]]:
    """Everything that counts and is no directory: its path inside the package, and where it is."""
    if depth is not None and depth < 0:
        raise OperateError(f"{directory} lies deeper than {MAX_DEPTH} directories, the limit of a package.")
    with os.scandir(directory) as found:
        for entry in found:
            name = prefix + entry.name
            if entry.name == LEFT_OUT or name == SIGNATURE_NAME:
                continue
            if entry.is_dir(follow_symlinks=False):
                yield from _entries(Path(entry.path), f"{name}/", None if depth is None else depth - 1)
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
