"""A campaign: so many frames through the targets, and a count of what came of them.

Rules here: what is tried depends on the seed and the number of the frame alone; a failure names both and how to make it
again; memory is measured, and growth beyond the bound is a failure.
"""

from __future__ import annotations

import gc
import os
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Final

import trio

from fuzz import generate
from fuzz.generate import FRAMES_PER_STREAM
from fuzz.targets import SdkTarget, codec, peer

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.rpc_tools import Kind

MOST_GROWTH: Final = 32 * 1024 * 1024
# Of so many streams one goes through a peer, and one through the SDK.
_SHARE: Final = 8
_WARM_UP: Final = 64
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
_PROGRESS_SECONDS: Final = 10.0


class Failure(Exception):
    """A stream after which something is wrong; the message says which, and how to make it again."""


class Campaign:
    """The frames `start` to `start` + `frames` of a seed.

    Args:
        seed: what the frames are made from.
        start: the first frame; rounded down to the beginning of its stream.
        frames: how many, rounded up to whole streams.
        say: told about progress, a line at a time.
    """

    def __init__(self, seed: int, start: int, frames: int, say: Callable[[str], None]) -> None:
        self.seed = seed
        self.start = start - start % FRAMES_PER_STREAM
        self.frames = frames
        self.outcomes: Counter[str] = Counter()
        self.slowest = (0.0, 0)
        self.growth = 0
        self.seconds = 0.0
        self._say = say

    def run(self) -> None:
        """Try all frames.

        Raises:
            Failure: something is wrong.
        """
        trio.run(self._run)

    async def _run(self) -> None:
        began = said = time.monotonic()
        memory = 0
        with SdkTarget() as sdk:
            for count, number in enumerate(range(self.start, self.start + self.frames, FRAMES_PER_STREAM)):
                await trio.lowlevel.checkpoint()
                self._try(sdk, number)
                if count == _WARM_UP:
                    memory = _resident()
                if time.monotonic() - said > _PROGRESS_SECONDS:
                    said = time.monotonic()
                    self._say(f"{number - self.start:>10} frames, {(number - self.start) / (said - began):.0f}/s")
        self.seconds = time.monotonic() - began
        if memory:
            gc.collect()
            self.growth = _resident() - memory
            if self.growth > MOST_GROWTH:
                raise Failure(f"the process grew by {self.growth} bytes; the bound is {MOST_GROWTH}")

    def _try(self, sdk: SdkTarget, number: int) -> None:
        began = time.monotonic()
        try:
            self._take(sdk, number)
        except Exception as error:
            raise Failure(
                f"{type(error).__name__}: {error}\n"
                f"again: make fuzz FUZZ_ARGS='--seed {self.seed} --start {number} --frames {FRAMES_PER_STREAM}'"
            ) from error
        self.slowest = max(self.slowest, (time.monotonic() - began, number))

    def _take(self, sdk: SdkTarget, number: int) -> None:
        data = generate.stream(self.seed, number)
        pieces = generate.pieces(self.seed, number, data)
        meaning = codec(data, pieces)
        self.outcomes += meaning.verdicts
        self.outcomes[f"framing: {meaning.framing or 'in order'}"] += 1
        turn = number // FRAMES_PER_STREAM % _SHARE
        if turn == 0:
            kind: Kind = "socket" if number // FRAMES_PER_STREAM % (2 * _SHARE) else "pipes"
            peer(pieces, meaning, kind)
            self.outcomes["streams through a peer"] += 1
        elif turn == _SHARE // 2:
            sdk.take(pieces)
            self.outcomes["streams through the SDK"] += 1

    def summary(self) -> list[str]:
        """What was found, for people."""
        rate = self.frames / self.seconds if self.seconds else 0
        return [
            f"seed {self.seed}, frames {self.start} to {self.start + self.frames}: {rate:.0f} frames/s",
            *(f"{count:>10}  {name}" for name, count in sorted(self.outcomes.items())),
            f"slowest stream: {self.slowest[0] * 1000:.0f} ms, at frame {self.slowest[1]}",
            f"memory grew by {self.growth / 1024:.0f} KiB (at most {MOST_GROWTH // 1024})",
        ]


def _resident() -> int:
    """Bytes of memory that this process has."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE
