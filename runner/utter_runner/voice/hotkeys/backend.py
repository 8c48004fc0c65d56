"""Where key events come from: the interface that the kernel's devices and the recorded ones share.

Rules here: Protocols only. Everything that touches a device node or makes an ioctl is behind them; what they raise is
OSError, which the service turns into a status and never lets out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping


class InputDevice(Protocol):
    """One opened keyboard. It is never grabbed: the keys go on to the desktop as well."""

    @property
    def name(self) -> str:
        """What the device calls itself."""
        ...

    @property
    def phys(self) -> str:
        """Where it is plugged in; "" for virtual devices."""
        ...

    @property
    def fd(self) -> int:
        """A non-blocking descriptor that is readable when events wait."""
        ...

    @property
    def keys(self) -> frozenset[int]:
        """The key codes that it can produce."""
        ...

    def read(self) -> bytes:
        """The waiting events, packed `struct input_event`; b"" when the device is gone.

        Raises:
            BlockingIOError: nothing waits.
            OSError: the device is gone (ENODEV).
        """
        ...

    def pressed_keys(self) -> frozenset[int]:
        """The keys that are down now, from the kernel's bitmap (EVIOCGKEY).

        Raises:
            OSError: the device is gone.
        """
        ...

    def close(self) -> None:
        """Close the descriptor. Never raises; may be called twice."""
        ...


class InputBackend(Protocol):
    """The set of devices."""

    @property
    def directory(self) -> str:
        """Where the device nodes are, for messages."""
        ...

    @property
    def changes_fd(self) -> int:
        """A descriptor that is readable when a device may have come, gone or changed its permissions."""
        ...

    def start(self) -> None:
        """Begin to watch for changes.

        Raises:
            OSError: changes cannot be watched; `scan` and `open` work all the same, and `changes_fd` is -1.
        """
        ...

    def drain_changes(self) -> None:
        """Consume what made `changes_fd` readable."""
        ...

    def scan(self) -> Mapping[str, Hashable]:
        """The device nodes there are now: path and an identity that a node made anew does not share.

        Raises:
            FileNotFoundError: there is no directory of devices.
            OSError: it cannot be listed.
        """
        ...

    def open(self, path: str) -> InputDevice:
        """Open one device for reading.

        Raises:
            PermissionError: this user may not read it.
            OSError: it cannot be opened, or is no input device.
        """
        ...

    def close(self) -> None:
        """Stop watching. Never raises; may be called twice."""
        ...
