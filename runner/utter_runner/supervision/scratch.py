"""A plugin's temporary directory: gone when the plugin is, or else when the next runner starts.

Rules here: the standard library alone, as in `launch`. A directory is in use while somebody holds its lock (flock(2)),
which the kernel takes back however its holder ends, so that a runner that was killed leaves nothing for ever.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import stat
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_NAME = re.compile(r"utter-.+-[0-9a-f]{32}")
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# One that is made may be taken for an abandoned one before it is locked; not again and again.
_ATTEMPTS = 3


class Scratch:
    """An empty directory with mode 0700 that is made here.

    Args:
        plugin: whose it is.
        environ: `TMPDIR` says where, else it is in /tmp.

    Attributes:
        path: where it is.

    Raises:
        OSError: it cannot be made; `filename` says where.
    """

    def __init__(self, plugin: str, environ: Mapping[str, str]) -> None:
        for _ in range(_ATTEMPTS):
            # Not by the number of the process, which a stranger could guess and make first.
            path = _parent(environ) / f"utter-{plugin}-{os.urandom(16).hex()}"
            path.mkdir(mode=0o700)
            self.path = str(path)
            with suppress(FileNotFoundError):
                self._fd = os.open(path, _DIRECTORY)
                if _take(self._fd, path):
                    return
                os.close(self._fd)
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self.path)

    def remove(self) -> None:
        """Remove it with all that is in it, as far as that can be done. Once is enough; more does no harm."""
        with suppress(OSError):
            _remove(self.path)
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _remove(path: str) -> None:
    """Remove a tree, however deep a plugin has made it. Raises OSError."""
    try:
        # As most of them are: empty.
        os.rmdir(path)  # noqa: PTH106 - a string
    except OSError:
        # shutil.rmtree goes no deeper than the stack, and takes a descriptor of the runner's for each level.
        done = subprocess.run(["rm", "-rf", "--", path], stderr=subprocess.DEVNULL, check=False)
        if done.returncode:
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), path) from None


def _take(fd: int, path: Path) -> bool:
    """Take the lock; False if somebody who removes what is abandoned was faster."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        # There are no locks here, so that nothing is taken for abandoned either.
        return True
    return path.exists()


def remove_abandoned(environ: Mapping[str, str]) -> list[str]:
    """Remove the directories of this user that nobody holds any more; return which. Blocks, and never raises."""
    removed = []
    for path in _candidates(environ):
        with suppress(OSError):
            fd = os.open(path, _DIRECTORY)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _remove(str(path))
                removed.append(str(path))
            finally:
                os.close(fd)
    return removed


def _candidates(environ: Mapping[str, str]) -> Iterator[Path]:
    with suppress(OSError), os.scandir(_parent(environ)) as entries:
        for entry in entries:
            if not _NAME.fullmatch(entry.name):
                continue
            with suppress(OSError):
                found = entry.stat(follow_symlinks=False)
                if stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid():
                    yield Path(entry.path)


def _parent(environ: Mapping[str, str]) -> Path:
    return Path(environ.get("TMPDIR") or "/tmp")  # noqa: S108 - nobody can foretell the names below it
