"""Writes a WAV file while it grows, so that it is whole whenever the writing ends.

Rules here: pure but for the descriptor that is handed in; the header is corrected after each tenth of a second, so that
it never claims more than there is and a process that is killed leaves a file that can be played, short of no more than
that. What cannot be corrected, such as a pipe, gets the largest length there is, as readers of streams expect.
"""

from __future__ import annotations

import math
import os
import struct
import sys
from array import array
from typing import Literal

Encoding = Literal["s16", "f32"]

_LARGEST = 0xFFFFFFFF
"""Lengths have 32 bits: what lies beyond 4 GiB, more than 18 hours, is not counted."""
_FULL_SCALE = 32768
_FORMATS = {"s16": (1, 2), "f32": (3, 4)}
"""The format's code, and the bytes of a sample."""
_STEPS_PER_SECOND = 10
"""A recorder that was slow writes much at once, and none of it counts before the header says so."""


class WavWriter:
    """Mono audio into a descriptor, which stays the caller's.

    Args:
        fd: where it goes; if it is a file, at its beginning.
        rate: frames per second.
        encoding: "s16", or "f32" for what the runner hears, bit by bit.
        seekable: whether the header can be corrected.

    Attributes:
        frames: how many have been written.

    Raises:
        OSError: it cannot be written; so do the methods.
    """

    def __init__(self, fd: int, rate: int, encoding: Encoding, *, seekable: bool) -> None:
        self.frames = 0
        self._fd = fd
        self._rate = rate
        self._encoding = encoding
        self._seekable = seekable
        self._all(self._header(0 if seekable else None))

    def write(self, frames: bytes) -> None:
        """Append f32le frames. What is no number is written as silence in "s16", and as it is in "f32"."""
        step = 4 * (self._rate // _STEPS_PER_SECOND) if self._seekable else len(frames)
        for at in range(0, len(frames), step or 1):
            self._step(frames[at : at + step])

    def _step(self, frames: bytes) -> None:
        self._all(frames if self._encoding == "f32" else _to_s16(frames))
        self.frames += len(frames) // 4
        if self._seekable:
            os.pwrite(self._fd, self._header(self.frames), 0)

    def _header(self, frames: int | None) -> bytes:
        code, size = _FORMATS[self._encoding]
        form = struct.pack("<HHIIHH", code, 1, self._rate, self._rate * size, size, 8 * size)
        # Formats other than 16-bit PCM are to tell how long they are in frames, too.
        counted = _LARGEST if frames is None else min(frames, _LARGEST)
        fact = b"" if code == 1 else b"fact" + struct.pack("<II", 4, counted)
        data = _LARGEST if frames is None else min(frames * size, _LARGEST)
        # A data chunk of an odd length would need padding; samples have 2 or 4 bytes.
        body = b"WAVEfmt " + struct.pack("<I", len(form)) + form + fact + b"data" + struct.pack("<I", data)
        return b"RIFF" + struct.pack("<I", min(len(body) + data, _LARGEST)) + body

    def _all(self, data: bytes) -> None:
        left = memoryview(data)
        while left:
            left = left[os.write(self._fd, left) :]


def _to_s16(frames: bytes) -> bytes:
    samples = array("h", map(_quantised, array("f", frames)))
    if sys.byteorder != "little":
        samples.byteswap()
    return samples.tobytes()


def _quantised(sample: float) -> int:
    if math.isnan(sample):
        return 0
    return round(max(-_FULL_SCALE, min(_FULL_SCALE - 1, sample * _FULL_SCALE)))
