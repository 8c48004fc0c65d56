"""The microphone of the plugin, for defects that have to do with it.

Rules here: standard library only; nothing is read unless a defect needs it.
"""

from __future__ import annotations

import os
import struct

RING = int(os.environ.get("UTTER_AUDIO_RING_FD", "-1"))
WAKE = int(os.environ.get("UTTER_AUDIO_WAKE_FD", "-1"))


def position() -> int:
    """How many frames were written."""
    return int(struct.unpack("<Q", os.pread(RING, 8, 72))[0]) if RING >= 0 else 0


def overrun() -> bool:
    """Whether more was written than there is room for."""
    return RING >= 0 and position() > struct.unpack("<Q", os.pread(RING, 8, 32))[0]


def hear_on() -> None:
    """Wait for audio until there cannot be any more."""
    while position() and os.read(WAKE, 65536):
        pass
