"""Keyboards that replay event streams through real pipes, for tests and for trying bindings without hardware.

Rules here: `FakeKeyboard` is the hardware's side and remembers which keys are down, as the kernel does; the service
reads the other end through the same interfaces as the kernel's devices.
"""

from __future__ import annotations

import contextlib
import errno
import os
from typing import TYPE_CHECKING

from utter_runner.voice.hotkeys.events import (
    DOWN,
    EV_KEY,
    EV_SYN,
    EVENT,
    REPEAT,
    SYN_DROPPED,
    SYN_REPORT,
    UP,
    encode,
)

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Mapping

_EVERY_KEY = frozenset(range(1, 0x300))
_REPORT = encode(EV_SYN, SYN_REPORT, 0)


class FakeKeyboard:
    """One keyboard, seen from the side of the fingers.

    Args:
        name: what it calls itself.
        phys: where it is plugged in.
        keys: the codes that it can produce; every code by default.
    """

    def __init__(self, name: str, *, phys: str = "", keys: Iterable[int] = _EVERY_KEY) -> None:
        self.name = name
        self.phys = phys
        self.keys = frozenset(keys)
        self.down: set[int] = set()
        self.gone = False
        self._readers: list[FakeDevice] = []

    def press(self, *codes: int) -> None:
        """Keys go down, one report each."""
        for code in codes:
            self.write(encode(EV_KEY, code, DOWN) + _REPORT)

    def release(self, *codes: int) -> None:
        """Keys go up, one report each."""
        for code in codes:
            self.write(encode(EV_KEY, code, UP) + _REPORT)

    def repeat(self, code: int) -> None:
        """The kernel repeats a held key."""
        self.write(encode(EV_KEY, code, REPEAT) + _REPORT)

    def write(self, data: bytes) -> None:
        """Replay packed events as they are; the last event may be partial."""
        self._remember(data)
        for reader in self._readers:
            reader.deliver(data)

    def lose(self, data: bytes) -> None:
        """The kernel's queue overflows: these events happen but only SYN_DROPPED and the next report are delivered."""
        self._remember(data)
        for reader in self._readers:
            reader.deliver(encode(EV_SYN, SYN_DROPPED, 0) + _REPORT)

    def open(self) -> FakeDevice:
        """Another reader of this keyboard."""
        if self.gone:
            raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))
        device = FakeDevice(self)
        self._readers.append(device)
        return device

    def vanish(self) -> None:
        """Unplug it: readers see the end of the stream after what is still in the pipe."""
        self.gone = True
        for reader in self._readers:
            reader.hang_up()
        self._readers.clear()

    def _remember(self, data: bytes) -> None:
        whole = len(data) - len(data) % EVENT.size
        for _, _, kind, code, value in EVENT.iter_unpack(data[:whole]):
            if kind == EV_KEY and value == DOWN:
                self.down.add(code)
            elif kind == EV_KEY and value == UP:
                self.down.discard(code)


class FakeDevice:
    """An `InputDevice` that reads a `FakeKeyboard`."""

    def __init__(self, keyboard: FakeKeyboard) -> None:
        self._keyboard = keyboard
        self.name = keyboard.name
        self.phys = keyboard.phys
        self.keys = keyboard.keys
        self.fd, self._feed = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def read(self) -> bytes:
        """What waits in the pipe; b"" at its end."""
        return os.read(self.fd, EVENT.size * 64)

    def pressed_keys(self) -> frozenset[int]:
        """The keys that are down on the keyboard now."""
        if self._keyboard.gone:
            raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))
        return frozenset(self._keyboard.down)

    def deliver(self, data: bytes) -> None:
        """Hand bytes to the reader; lost when it closed."""
        if self._feed >= 0:
            with contextlib.suppress(BrokenPipeError):
                os.write(self._feed, data)

    def hang_up(self) -> None:
        """Close the keyboard's end."""
        if self._feed >= 0:
            os.close(self._feed)
            self._feed = -1

    def close(self) -> None:
        """Close both ends."""
        self.hang_up()
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


class FakeBackend:
    """An `InputBackend` whose devices are plugged in by hand.

    Args:
        keyboards: path and keyboard of what is there from the start.
        hot_plug: False to refuse watching for changes, as inotify does at its limit.
    """

    directory = "/dev/input"

    def __init__(self, keyboards: Mapping[str, FakeKeyboard | OSError] | None = None, *, hot_plug: bool = True) -> None:
        self._nodes: dict[str, tuple[int, FakeKeyboard | OSError]] = {}
        self._made = 0
        self._hot_plug = hot_plug
        self._changes = -1
        self.changes_fd = -1
        self.missing = False
        for path, keyboard in (keyboards or {}).items():
            self.plug(path, keyboard)

    def plug(self, path: str, keyboard: FakeKeyboard | OSError) -> None:
        """A node appears, or is replaced; an OSError is what opening it raises."""
        self._made += 1
        self._nodes[path] = (self._made, keyboard)
        self.notify()

    def unplug(self, path: str) -> None:
        """The keyboard vanishes, and its node with it."""
        _, keyboard = self._nodes.pop(path)
        if isinstance(keyboard, FakeKeyboard):
            keyboard.vanish()
        self.notify()

    def notify(self) -> None:
        """Make `changes_fd` readable."""
        if self._changes >= 0:
            with contextlib.suppress(BlockingIOError):
                os.write(self._changes, b"!")

    def start(self) -> None:
        """Begin to watch; see `InputBackend.start`."""
        if not self._hot_plug:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        if self.changes_fd < 0:
            self.changes_fd, self._changes = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def drain_changes(self) -> None:
        """Empty the pipe."""
        with contextlib.suppress(BlockingIOError):
            os.read(self.changes_fd, 4096)

    def scan(self) -> Mapping[str, Hashable]:
        """The nodes that are plugged in."""
        if self.missing:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self.directory)
        return {path: identity for path, (identity, _) in self._nodes.items()}

    def open(self, path: str) -> FakeDevice:
        """Open one keyboard."""
        _, keyboard = self._nodes[path]
        if isinstance(keyboard, OSError):
            raise keyboard
        return keyboard.open()

    def close(self) -> None:
        """Close the pipe."""
        for fd in (self.changes_fd, self._changes):
            if fd >= 0:
                os.close(fd)
        self.changes_fd = self._changes = -1
