"""The kernel's input devices, through evdev and inotify.

Rules here: evdev is imported when the first device is opened; devices are opened for reading only and never grabbed.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from utter_runner.voice.hotkeys.events import EV_KEY, EVENT
from utter_runner.voice.hotkeys.inotify import DirectoryWatch

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping

    from utter_runner.voice.hotkeys.backend import InputDevice

_EVENTS_PER_READ = 64
"""The kernel's own queue of a keyboard holds about as many."""


class KernelDevice:
    """An `InputDevice` over `/dev/input/eventN`.

    Raises:
        OSError: the node cannot be opened, or is no input device.
    """

    def __init__(self, path: str) -> None:
        import evdev  # noqa: PLC0415 - costs 15 ms and 2 MiB, wanted only where hotkeys are configured

        self._device: Any = evdev.InputDevice(path, readonly=True)
        self.name: str = self._device.name
        self.phys: str = self._device.phys
        self.keys = frozenset[int](self._device.capabilities(absinfo=False).get(EV_KEY, ()))

    @property
    def fd(self) -> int:
        """The non-blocking descriptor."""
        fd: int = self._device.fd
        return fd

    def read(self) -> bytes:
        """The waiting events; see `InputDevice.read`."""
        return os.read(self.fd, EVENT.size * _EVENTS_PER_READ)

    def pressed_keys(self) -> frozenset[int]:
        """The kernel's key bitmap; see `InputDevice.pressed_keys`."""
        return frozenset(self._device.active_keys())

    def close(self) -> None:
        """Close the descriptor."""
        with contextlib.suppress(OSError):
            self._device.close()


class KernelBackend:
    """An `InputBackend` over `/dev/input`.

    Args:
        directory: where the event nodes are.
        opener: opens one node.
    """

    def __init__(self, directory: str = "/dev/input", opener: Callable[[str], InputDevice] = KernelDevice) -> None:
        self.directory = directory
        self._opener = opener
        self._watch: DirectoryWatch | None = None

    @property
    def changes_fd(self) -> int:
        """The inotify descriptor, -1 when nothing is watched."""
        return self._watch.fd if self._watch else -1

    def start(self) -> None:
        """Begin to watch the directory; see `InputBackend.start`."""
        if self._watch is None:
            self._watch = DirectoryWatch(self.directory)

    def drain_changes(self) -> None:
        """Consume the inotify events."""
        if self._watch is not None:
            self._watch.drain()

    def scan(self) -> Mapping[str, Hashable]:
        """The event nodes, each with its device and inode number."""
        found: dict[str, Hashable] = {}
        for path in sorted(Path(self.directory).iterdir()):
            if not path.name.startswith("event"):
                continue
            # A node that went in between is simply not there.
            with contextlib.suppress(FileNotFoundError):
                node = path.stat()
                found[str(path)] = (node.st_dev, node.st_ino, node.st_rdev)
        return found

    def open(self, path: str) -> InputDevice:
        """Open one node for reading."""
        return self._opener(path)

    def close(self) -> None:
        """Stop watching."""
        if self._watch is not None:
            self._watch.close()
            self._watch = None
