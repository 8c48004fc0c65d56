"""Puts a package in its place, or takes it away, in one step that is done whole or not at all.

Rules here: a package is complete on the disk, beside its place, before a *commit* says what is to happen to it; from
then on it happens, if not now then when the next command finds the commit (`recovered`). The place holds the old
package, or the new one, or nothing if there was or will be none, and never a part of one.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import shutil
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from utter_runner.operate import lockfile
from utter_runner.operate.contents import digest_of
from utter_runner.operate.errors import OperateError
from utter_runner.operate.lockfile import Entry, locked, replace_file, sync_directory

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from utter_runner.operate.places import Places

_PREFIX: Final = ".staging-"
_COMMIT: Final = "commit.json"
_PACKAGE: Final = "package"
_ASIDE: Final = "aside"
_AT_FDCWD: Final = -100
_RENAME_EXCHANGE: Final = 2


class Commit(msgspec.Struct, frozen=True, kw_only=True):
    """What is to happen: the package of `plugin` is put in place with this entry; without one it is removed."""

    plugin: str
    entry: Entry | None = None


class Staging:
    """A directory beside the installed packages, in which the next one is made. `staged` makes one.

    Attributes:
        directory: itself; nobody but this process writes there.
        package: where the package lies when it is complete.
    """

    def __init__(self, places: Places, directory: Path) -> None:
        self._places = places
        self.directory = directory
        self.package = directory / _PACKAGE

    def commit(self, plugin: str, entry: Entry | None) -> None:
        """Put the package in place, or remove the one that is there. To be called while `held` is.

        Raises:
            OSError, OperateError: it is not done, or it is begun and the next command completes it.
        """
        if entry is not None:
            for directory, _, _ in os.walk(self.package, topdown=False):
                # Whatever the umask: the runner refuses what everybody can change.
                Path(directory).chmod(0o755)
                sync_directory(Path(directory))
        commit = Commit(plugin=plugin, entry=entry)
        replace_file(self.directory / _COMMIT, msgspec.json.encode(commit))
        _carry_out(self._places, self.directory, commit)


def held(places: Places) -> AbstractContextManager[None]:
    """Hold everything that is installed against other commands; waits for them."""
    return locked(places.plugins, places.lockfile.parent)


@contextmanager
def staged(places: Places) -> Iterator[Staging]:
    """A staging directory, deleted afterwards. What earlier commands left behind is completed or deleted first.

    Raises:
        OperateError: what was left behind cannot be completed.
        OSError: the directories cannot be written.
    """
    with held(places):
        recovered(places)
        directory = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=places.plugins))
        # As long as this is held the directory is not left behind.
        holder = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        fcntl.flock(holder, fcntl.LOCK_EX)
    try:
        yield Staging(places, directory)
    finally:
        if not (directory / _COMMIT).exists():
            shutil.rmtree(directory, ignore_errors=True)
        os.close(holder)


def recovered(places: Places) -> list[str]:
    """Complete what was committed and delete what was not, of commands that did not come to their end.

    To be called while `held` is. Returns the ids of the plugins that it concerned.
    """
    found = []
    for directory in sorted(places.plugins.glob(f"{_PREFIX}*")):
        holder = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(holder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if (directory / _COMMIT).exists():
                commit = _read(directory / _COMMIT)
                _carry_out(places, directory, commit)
                found.append(commit.plugin)
            shutil.rmtree(directory, ignore_errors=True)
        except BlockingIOError:
            # Of a command that runs now.
            continue
        finally:
            os.close(holder)
    return found


def _read(path: Path) -> Commit:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Commit)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise OperateError(f"{path} is not what `utter plugins` has written: delete {path.parent}.") from None


def _carry_out(places: Places, directory: Path, commit: Commit) -> None:
    """Do what the commit says, or what is left of it."""
    package, place = directory / _PACKAGE, places.plugins / commit.plugin
    entries = lockfile.read(places.lockfile)
    if commit.entry is None:
        if os.path.lexists(place) and not os.path.lexists(package):
            os.rename(place, package)  # noqa: PTH104 - the tests end the process at each change that `os` makes
        entries.pop(commit.plugin, None)
    else:
        # When it is in place, the old package is here, or nothing.
        if os.path.lexists(package) and digest_of(package) == commit.entry.digest:
            _put(package, place, directory / _ASIDE)
        entries[commit.plugin] = commit.entry
    sync_directory(directory)
    sync_directory(places.plugins)
    lockfile.write(places.lockfile, entries)
    os.unlink(directory / _COMMIT)  # noqa: PTH108 - see above


def _put(package: Path, place: Path, aside: Path) -> None:
    if os.path.lexists(place) and not exchange(package, place):
        os.rename(place, aside)  # noqa: PTH104 - see above
    if not os.path.lexists(place):
        os.rename(package, place)  # noqa: PTH104 - see above


def exchange(first: Path, second: Path) -> bool:
    """Let two paths change places in one step; False if this file system, or this C library, cannot.

    Raises:
        OSError: it failed for another reason.
    """
    call = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if call is None:
        return False
    if call(_AT_FDCWD, os.fsencode(first), _AT_FDCWD, os.fsencode(second), _RENAME_EXCHANGE) == 0:
        return True
    number = ctypes.get_errno()
    if number in {errno.ENOSYS, errno.EINVAL}:
        return False
    raise OSError(number, os.strerror(number), str(second))
