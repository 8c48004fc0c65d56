"""A microphone made of nothing, for tests of what listens to one.

Rules here: paced by trio's clock and steered by plain attributes; it follows the contract of `AudioSource` in all that
it does.
"""

from __future__ import annotations

import array
from typing import TYPE_CHECKING

import trio

from utter_runner.voice.capture.source import SourceError

if TYPE_CHECKING:
    from utter_runner.voice.capture.source import OnFrames

BLOCK = 320


class FakeSource:
    """Delivers 20 ms blocks whose samples count up from 1 at each opening (modulo 2**20).

    Attributes, which may be changed at any time:
        refuse: raised by the next openings, if not None.
        open_delay: seconds that opening takes.
        stalled: deliver nothing, as a stopped audio server does.
        muted: deliver zeros.
        opened_at: when it was opened, by trio's clock.
        is_open: whether it is open now.
    """

    description = "the fake microphone"

    def __init__(self, *, live: bool = True) -> None:
        self.live = live
        self.refuse: SourceError | None = None
        self.open_delay = 0.0
        self.stalled = False
        self.muted = False
        self.opened_at: list[float] = []
        self.is_open = False
        self._end = SourceError("")
        self._ended = trio.Event()

    @property
    def openings(self) -> int:
        """How often it was opened."""
        return len(self.opened_at)

    async def prepare(self) -> None:
        """Nothing to prepare."""

    async def aclose(self) -> None:
        """Nothing to give back."""

    async def run(self, on_frames: OnFrames) -> None:
        """See `AudioSource.run`."""
        self.opened_at.append(trio.current_time())
        await trio.sleep(self.open_delay)
        if self.refuse is not None:
            raise self.refuse
        self.is_open = True
        self._ended = trio.Event()
        start = trio.current_time()
        block = 0
        try:
            while not self._ended.is_set():
                with trio.move_on_at(start + (block + 1) * BLOCK / 16_000):
                    await self._ended.wait()
                    break
                if not self.stalled:
                    on_frames(bytes(4 * BLOCK) if self.muted else self._block(block))
                block += 1
            raise self._end
        finally:
            self.is_open = False

    def end(self, reason: str) -> None:
        """The device ends by itself."""
        self._end = SourceError(reason)
        self._ended.set()

    @staticmethod
    def _block(block: int) -> bytes:
        first = block * BLOCK
        return array.array("f", (float((first + n) % 2**20 + 1) for n in range(BLOCK))).tobytes()
