"""A `pw-record` whose frames are numbered, that is faster than time and never well for long.

Environment: SOAK_DIRECTORY (where the campaign lies), SOAK_SEED, SOAK_SPEED (how many times faster than time).

The first frame of an opening is minus its number, counted from 1; frame k after it is (k mod 2**20) + 1. So whoever
reads knows of each frame which one it is. How an opening ends is written into DIRECTORY/openings/NUMBER.json before it
does: `{fate, frames}`, and the frames are those that were written until then.

Standard library only, for it is started again and again.
"""

from __future__ import annotations

import array
import json
import os
import random
import sys
import time
from pathlib import Path

RATE = 16_000
COUNT = 2**20
BLOCK = 1_600
FATES = ("ends", "ends with a torn frame", "stalls", "zeros")
ZERO_SECONDS = 15
# Capture opens at once again what was well for more than five seconds, and later and later what was not.
LIVES = ((0.3, 2.0), (5.5, 7.0))

NUMBERS = array.array("f", (float(number % COUNT + 1) for number in range(COUNT + BLOCK))).tobytes()


def frames(start: int, count: int) -> bytes:
    """Frames of an opening, without its first; at most `BLOCK`."""
    at = 4 * (start % COUNT)
    return NUMBERS[at : at + 4 * count]


class Opening:
    """One life."""

    def __init__(self) -> None:
        self._journal = Path(os.environ["SOAK_DIRECTORY"]) / "openings"
        self._speed = float(os.environ["SOAK_SPEED"])
        self.number = self._take_number()
        self.random = random.Random(f"{os.environ['SOAK_SEED']}:{self.number}")
        self.written = 0
        self._began = time.monotonic()

    def _take_number(self) -> int:
        for number in range(1, 1_000_000):
            try:
                (self._journal / f"{number}.json").touch(exist_ok=False)
            except FileExistsError:
                continue
            return number
        raise SystemExit("too many openings")

    def note(self, fate: str) -> None:
        """Write down how it ends."""
        text = json.dumps({"fate": fate, "frames": self.written})
        (self._journal / f"{self.number}.json").write_text(text)

    def play(self, until: int, *, silent: bool = False) -> None:
        """Write frames at their time."""
        while self.written < until:
            count = min(BLOCK, until - self.written)
            due = self._began + (self.written + count) / RATE / self._speed
            time.sleep(max(0.0, due - time.monotonic()))
            data = bytes(4 * count) if silent else frames(self.written, count)
            if not self.written:
                data = array.array("f", [-float(self.number)]).tobytes() + data[4:]
            write(data)
            self.written += count

    def live(self) -> int:
        """All of it; returns the exit status."""
        fate = self.random.choice(FATES)
        life = self.random.uniform(*self.random.choice(LIVES))
        self.play(round(life * self._speed * RATE))
        self.note(fate)
        if fate == "zeros":
            # Told only while somebody listens; then this process is killed.
            self.play(self.written + ZERO_SECONDS * RATE, silent=True)
            self.play(self.written + round(self._speed * RATE))
        elif fate == "stalls":
            time.sleep(600)
        elif fate == "ends with a torn frame":
            write(b"\x01\x02\x03")
        sys.stderr.write("the sound server has left\n")
        return 3


def write(data: bytes) -> None:
    """Write all of it."""
    view = memoryview(data)
    while view:
        view = view[os.write(1, view) :]


if __name__ == "__main__":
    sys.exit(0 if "--help" in sys.argv else Opening().live())
