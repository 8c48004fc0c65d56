"""Where in an utterance there is speech, judged by loudness alone.

Rules here: what it says of the beginning of an utterance never depends on how the audio was cut into pieces; audio is
looked at once. Needs numpy, so it is imported with the model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Samples = NDArray[np.float32]

RATE = 16_000
SAMPLE_BYTES = 4
BLOCK = RATE // 100
"""Loudness is that of 10 ms."""
QUIET = 0.02
"""Of the loudest block: 34 dB below it, there is room noise and no speech."""
TAIL = 3 * RATE // 10
"""So much is kept of what is quiet at the end. Words end softly, and tiny.en hears them otherwise when nothing follows:
with this, one text of 66 was another one than with all that was quiet, and not a worse one; with 200 ms three were."""
LONGEST = 28 * RATE
"""In an utterance with more frames than this the loudest word says nothing of the softest: all of it is kept."""
# Blocks: so much quiet must have been heard before speech can be told from it, and so recent speech is going on.
_ROOM = 5


def samples_of(pcm: bytes | bytearray) -> Samples:
    """Little-endian float32 samples as numbers from -1 to 1; what is no number is 0."""
    found: Samples = np.nan_to_num(np.frombuffer(pcm, dtype="<f4"), nan=0.0, posinf=0.0, neginf=0.0).clip(-1.0, 1.0)
    return found


class Loudness:
    """The loudness of an utterance that still grows."""

    def __init__(self) -> None:
        self._blocks: Samples = np.zeros(0, dtype=np.float32)
        self._frames = 0

    def update(self, pcm: bytearray) -> None:
        """Look at what has come; `pcm` is all of the utterance so far."""
        self._frames = len(pcm) // SAMPLE_BYTES
        seen = len(self._blocks) * BLOCK * SAMPLE_BYTES
        whole = self._frames // BLOCK * BLOCK * SAMPLE_BYTES
        if whole > seen:
            # A slice is a copy: the utterance may grow meanwhile.
            blocks = samples_of(pcm[seen:whole]).reshape(-1, BLOCK)
            self._blocks = np.concatenate((self._blocks, np.sqrt(np.square(blocks).mean(axis=1))))

    @property
    def end(self) -> int:
        """How many frames to transcribe: all but what is quiet at the end beyond `TAIL`."""
        return min(self._frames, self._spoken() + TAIL) if self._tells else self._frames

    @property
    def paused(self) -> bool:
        """Whether something was said, and it has been quiet since for as long as `TAIL`."""
        return self._tells and self._frames - self._spoken() >= TAIL

    @property
    def speaking(self) -> bool:
        """Whether something is being said now, where speech can be told from the room."""
        if not self._tells:
            return False
        loud = self._blocks > QUIET * self._blocks.max()
        return bool(loud[-_ROOM:].any()) and int((~loud).sum()) >= _ROOM

    @property
    def _tells(self) -> bool:
        return self._frames <= LONGEST and len(self._blocks) > 0 and float(self._blocks.max()) > 0.0

    def _spoken(self) -> int:
        """The frame after the last loud block."""
        loud = np.flatnonzero(self._blocks > QUIET * self._blocks.max())
        return (int(loud[-1]) + 1) * BLOCK
