"""Finding wake words in sound, and where they end.

Rules here: nothing but the sound that is handed in is known: no clock, no microphone. Positions are frames, counted as
whoever hands in the sound counts them.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from .models import STEP

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from .models import Features

_LOUDEST = 32_767
_BEFORE, _AFTER = 15, 10
"""How many steps around the guess the end of a word is looked for."""
_GAP = 3
"""How many steps long the quietest place is."""
_MARGIN = 2.0
"""Places that are less than this much louder than the quietest count as quiet, too."""
_REMEMBERED = 256


class Spotter(Protocol):
    """A word (`models.Word`)."""

    @property
    def name(self) -> str:
        """What the user calls it."""

    @property
    def cutoff(self) -> float:
        """The probability above which it counts as said."""

    @property
    def span(self) -> int:
        """Over how many frames the probability is averaged."""

    def probability(self, features: Features) -> float:
        """How likely it is that the word was said."""

    def reset(self) -> None:
        """Forget what was heard."""


class Ear(Protocol):
    """Turns sound into features (`models.Frontend`)."""

    def hear(self, samples: bytes) -> Iterable[Features]:
        """The features that are complete with these 16-bit samples."""

    def reset(self) -> None:
        """Forget what was heard."""


@dataclass(frozen=True, slots=True)
class Heard:
    """A word was said.

    Attributes:
        word: its name.
        probability: how likely.
        ended: the frame at which it ended, as near as can be told.
        noticed: the frame after the last one that was needed to know.
    """

    word: str
    probability: float
    ended: int
    noticed: int


class Detector:
    """Listens for words in sound that comes piece by piece.

    Args:
        words: which words.
        ear: turns sound into features.
        refractory: for how many frames after a word no other is heard.
    """

    def __init__(self, words: Sequence[Spotter], ear: Ear, refractory: int) -> None:
        self._words = words
        self._ear = ear
        self._refractory = refractory
        self._position = 0
        self._deaf_until = 0
        self._ringing: set[str] = set()
        """Words whose probability has been high since they were heard: each is said once."""
        self._energy: deque[float] = deque(maxlen=_REMEMBERED)

    def restart(self, position: int) -> None:
        """Forget what was heard; the next frame has this number."""
        self._position = position
        self._ringing.clear()
        self._energy.clear()
        self._ear.reset()
        for word in self._words:
            word.reset()

    def take(self, pcm: bytes) -> Iterator[Heard]:
        """Hear the next frames, and yield the words in them. All of it is heard once the iterator is exhausted.

        Args:
            pcm: 32-bit floats, little-endian, mono, at `models.RATE`; a multiple of `models.STEP` frames.
        """
        sound = np.nan_to_num(np.frombuffer(pcm, "<f4"), nan=0.0, posinf=0.0, neginf=0.0).clip(-1.0, 1.0)
        steps = np.rint(sound * _LOUDEST).astype("<i2").reshape(-1, STEP)
        energies = np.square(steps, dtype="f8").sum(axis=1).tolist()
        for step, energy in zip(steps, energies, strict=True):
            self._energy.append(energy)
            self._position += STEP
            for features in self._ear.hear(step.tobytes()):
                yield from self._look(features)

    def _look(self, features: Features) -> Iterator[Heard]:
        for word in self._words:
            probability = word.probability(features)
            if probability <= word.cutoff:
                self._ringing.discard(word.name)
            elif word.name not in self._ringing:
                self._ringing.add(word.name)
                if self._position >= self._deaf_until:
                    self._deaf_until = self._position + self._refractory
                    yield Heard(word.name, probability, self._end_of(word), self._position)

    def _end_of(self, word: Spotter) -> int:
        """Where the word ends: the quietest place near the one that the model's delay points at."""
        guess = len(self._energy) - word.span // STEP
        energy = list(self._energy)
        first, last = max(guess - _BEFORE, 0), min(guess + _AFTER, len(energy)) - _GAP
        places = {place: sum(energy[place : place + _GAP]) for place in range(first, last + 1)}
        if not places:
            return max(self._position - word.span, 0)
        quiet = _MARGIN * min(places.values())
        # The last of them: a word has quiet places in it, too.
        place = max(place for place, loudness in places.items() if loudness <= quiet)
        return self._position - (len(energy) - place) * STEP
