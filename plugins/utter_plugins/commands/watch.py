"""Tells when files or folders change, by inotify, without waking up in between.

Rules here: one thread, started by `start`; it sleeps in poll until the kernel has something. Folders that do not exist
yet are waited for through their nearest parent. Whether something changed is decided by the files' stamps, not by the
events, so that a spurious event does nothing. The thread is a daemon: the process ends without it.
"""

from __future__ import annotations

import ctypes
import os
import select
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

_CLOEXEC_NONBLOCK = os.O_CLOEXEC | os.O_NONBLOCK
# inotify(7): IN_CLOSE_WRITE | IN_MOVED_FROM | IN_MOVED_TO | IN_CREATE | IN_DELETE | IN_DELETE_SELF | IN_MOVE_SELF
_MASK = 0x8 | 0x40 | 0x80 | 0x100 | 0x200 | 0x400 | 0x800
_QUIET_MS = 300
_MAX_BURST = 20

Stamps = dict[str, tuple[int, int, int]]


def stamps(files: Iterable[Path], folders: Iterable[Path]) -> Stamps:
    """What tells one state of the files, and of all files in the folders, from another."""
    found: Stamps = {}
    for path in files:
        _stamp(found, str(path))
    for folder in folders:
        for base, _, names in os.walk(folder):
            for name in names:
                _stamp(found, os.path.join(base, name))  # noqa: PTH118 - hundreds of files, strings are enough
    return found


class Watcher:
    """Calls back when one of the files, or a file in one of the folders, changed, appeared or went.

    Args:
        files: single files.
        folders: folders, with everything in them.
        changed: called on the watcher's thread, once for a burst of changes.
    """

    def __init__(self, files: Sequence[Path], folders: Sequence[Path], changed: Callable[[], None]) -> None:
        self._files = list(files)
        self._folders = list(folders)
        self._changed = changed
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._fd = -1
        self._last: Stamps = {}

    def start(self) -> None:
        """Begin to watch.

        Raises:
            OSError: the kernel gives no inotify instance.
        """
        self._fd = self._libc.inotify_init1(_CLOEXEC_NONBLOCK)
        if self._fd < 0:
            error = ctypes.get_errno()
            raise OSError(error, f"inotify: {os.strerror(error)}")
        self._arm()
        self._last = stamps(self._files, self._folders)
        threading.Thread(target=self._watch, name="watcher", daemon=True).start()

    def _watch(self) -> None:
        poll = select.poll()
        poll.register(self._fd, select.POLLIN)
        while True:
            poll.poll()
            for _ in range(_MAX_BURST):
                self._drain()
                # An editor, or a package manager, writes several files: one change for all of them.
                if not poll.poll(_QUIET_MS):
                    break
            self._arm()
            now = stamps(self._files, self._folders)
            if now != self._last:
                self._last = now
                self._changed()

    def _drain(self) -> None:
        try:
            while os.read(self._fd, 65_536):
                pass
        except BlockingIOError:
            return

    def _arm(self) -> None:
        """Watch every folder that is there; watching one again changes nothing."""
        wanted = {path.parent for path in self._files}
        for folder in self._folders:
            wanted.add(folder)
            wanted.update(path for path in folder.glob("**/") if path.is_dir())
        for folder in wanted:
            there = next((path for path in (folder, *folder.parents) if path.is_dir()), None)
            if there is not None:
                self._libc.inotify_add_watch(self._fd, os.fsencode(there), _MASK)


def _stamp(found: Stamps, path: str) -> None:
    try:
        info = os.stat(path)  # noqa: PTH116 - likewise
    except OSError:
        return
    found[path] = (info.st_mtime_ns, info.st_size, info.st_ino)
