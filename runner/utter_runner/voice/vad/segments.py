"""Where speech is in an utterance, from the model's probabilities, and which frames of it are kept.

Rules here: pure; frames are counted from the first one of the utterance. Nothing is dropped before speech was heard for
certain, so that an utterance in which none was found is kept whole.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from utter_runner.voice.collaborators import Chunk

SPEECH = 0.25
"""From this probability on a window is speech."""
SILENCE = 0.15
"""Below this it is none; in between it is what the one before it was."""
DOUBT = 0.07
"""From this on a window may be speech. Single words at 5 dB above noise did not reach `SPEECH` where this was measured,
but 0.1; noise passed this now and then, for a window."""
DOUBT_WINDOWS = 2
"""So many in a row are kept, or one at an end of the utterance."""
SPEECH_WINDOWS = 2
"""So many windows of speech make it certain."""
SILENCE_WINDOWS = 3
"""So many in a row without any end it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """What is told from what, in frames.

    Attributes:
        window: what one probability is of.
        padding: what is kept before and after speech.
        silence: after speech, the utterance is over after so much silence.
        no_speech: without speech, it is over after so much.
    """

    window: int
    padding: int
    silence: int
    no_speech: int


class Segmenter:
    """Follows an utterance window by window.

    Args:
        lengths: in frames.
        lead: frames from before the utterance was asked for; only after them it is waited for speech.
        foreign: frames at the beginning that may have been said to somebody else. Speech in them is kept, but that
            nothing follows it ends nothing.
    """

    def __init__(self, lengths: Lengths, *, lead: int = 0, foreign: int = 0) -> None:
        self._lengths = lengths
        self._lead = lead
        self._foreign = foreign
        self._at = 0
        self._speaking = self._heard = False
        self._loud = self._quiet = self._doubtful = 0
        # The first and the last frame that may be speech; the end of the last speech that is not foreign.
        self._first: int | None = None
        self._last = 0
        self._spoken_until: int | None = None

    def add(self, probability: float) -> None:
        """Take the probability that the next window is speech."""
        start = self._at
        self._at += self._lengths.window
        self._doubtful = self._doubtful + 1 if probability >= DOUBT else 0
        if self._doubtful >= DOUBT_WINDOWS or (self._doubtful and start == 0):
            self._keep()
        self._follow(probability)
        if self._speaking and probability >= SILENCE:
            self._loud += 1
            if self._loud >= SPEECH_WINDOWS:
                self._heard = True
                # Those before it are near enough to be within the padding.
                self._keep()
            if min(self._loud, (self._at - self._foreign) // self._lengths.window) >= SPEECH_WINDOWS:
                self._spoken_until = self._at

    def finish(self) -> None:
        """There are no more windows: if the last one may be speech, what would follow it is missing."""
        if self._doubtful:
            self._keep()

    def _keep(self) -> None:
        if self._first is None:
            self._first = self._at - self._doubtful * self._lengths.window
        self._last = self._at

    def _follow(self, probability: float) -> None:
        if probability >= SPEECH:
            self._speaking = True
        self._quiet = 0 if probability >= SILENCE else self._quiet + 1
        if self._quiet >= SILENCE_WINDOWS:
            self._speaking = False
            self._loud = 0

    @property
    def heard(self) -> bool:
        """There was speech."""
        return self._heard

    @property
    def kept(self) -> tuple[int, int]:
        """The first frame to keep, and the frame after the last one as far as is known. Both only grow once `heard`."""
        if not self._heard or self._first is None:
            return 0, 0
        return max(self._first - self._lengths.padding, 0), self._last + self._lengths.padding

    @property
    def over(self) -> bool:
        """Nobody speaks any more, or nobody has begun to."""
        if self._spoken_until is None:
            return self._at - self._lead >= self._lengths.no_speech
        return self._at - self._spoken_until >= self._lengths.silence


class Trimmer:
    """Holds chunks back until it is known whether they are kept. Their places in the ring stay right."""

    def __init__(self) -> None:
        self._held: deque[Chunk] = deque()
        self._at = 0

    def add(self, chunk: Chunk) -> None:
        """Take the next chunk."""
        self._held.append(chunk)

    def drop(self, until: int) -> None:
        """Forget what is held of the frames before `until`."""
        for _ in self.take(until):
            pass

    def take(self, until: int | None = None) -> Iterator[Chunk]:
        """Yield what is held of the frames before `until`, or everything. Chunks are cut only at its end."""
        while self._held and (until is None or self._at < until):
            chunk = self._held.popleft()
            if until is not None and self._at + chunk.frames > until:
                chunk, rest = chunk.cut(until - self._at)
                self._held.appendleft(rest)
            self._at += chunk.frames
            yield chunk
