"""The bytes of an evdev device, decoded: which keys went down or up, and when the state must be read again.

Rules here: sans-IO and one decoder per device. Layout and the meaning of SYN_DROPPED: kernel documentation,
"Input event codes" (input/event-codes.rst) and struct input_event of linux/input.h.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

EVENT = struct.Struct("llHHi")
"""struct input_event: seconds, microseconds, type, code, value."""

EV_SYN = 0
EV_KEY = 1
SYN_REPORT = 0
SYN_DROPPED = 3

UP = 0
DOWN = 1
REPEAT = 2


@dataclass(frozen=True, slots=True)
class KeyChange:
    """A key went down or up."""

    code: int
    down: bool


@dataclass(frozen=True, slots=True)
class Resync:
    """Events were lost: the state must be read from the kernel before the next event is believed."""


class EventDecoder:
    """Turns reads of any length into key changes; a partial event waits for its rest."""

    def __init__(self) -> None:
        self._rest = b""
        self._dropping = False

    def feed(self, data: bytes) -> list[KeyChange | Resync]:
        """Decode `data`. Repeats and everything that is no key are left out."""
        data = self._rest + data
        whole = len(data) - len(data) % EVENT.size
        self._rest = data[whole:]
        found: list[KeyChange | Resync] = []
        for _, _, kind, code, value in EVENT.iter_unpack(data[:whole]):
            if kind == EV_SYN and code == SYN_DROPPED:
                self._dropping = True
            elif self._dropping:
                if kind == EV_SYN and code == SYN_REPORT:
                    self._dropping = False
                    found.append(Resync())
            elif kind == EV_KEY and value in (UP, DOWN):
                found.append(KeyChange(code, value == DOWN))
        return found


def encode(kind: int, code: int, value: int, *, time: float = 0.0) -> bytes:
    """One event as the kernel would write it; recordings and tests are made of these."""
    seconds = int(time)
    return EVENT.pack(seconds, int((time - seconds) * 1_000_000), kind, code, value)
