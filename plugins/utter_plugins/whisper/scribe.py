"""Transcribes utterances, and while they still come in what was said so far.

Rules here: one transcription at a time. The answer to stt.finish is that of all the audio up to the end of the speech,
however it comes about: if that was transcribed at a pause already, nothing is left to do, and if it is being
transcribed, that is waited for. Everything else that is under way is given up for it between two steps of the model,
and nothing is begun that takes long and is not likely to be it. Nothing is said of an utterance that is over.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

from .loudness import LONGEST, RATE, SAMPLE_BYTES, TAIL, Loudness

if TYPE_CHECKING:
    from collections.abc import Callable

    from .bias import Hints
    from .sessions import Session

NEW_AUDIO = RATE
"""Frames that must have come since the last look, while somebody speaks, for another one."""
GLANCE_S = 0.5 * TAIL / RATE
"""A machine on which a glance takes longer is slow, and does without: nothing may be under way when a speaker stops."""
STALL_S = 0.25
"""When nothing has come for so long, the speaker pauses, and whoever feeds keeps the silence to himself."""
SLOW_STALL_S = 1.0
"""The same where the machine is slow: what has not come for a while may only be late."""


class GivenUp(Exception):
    """A transcription was given up."""


@dataclass(frozen=True)
class Heard:
    """A transcript and how sure the model is, from 0.0 to 1.0; no text when nothing was said."""

    text: str
    confidence: float | None = None


class Model(Protocol):
    """What transcribes."""

    def transcribe(self, pcm: bytes, hints: Hints, language: str, give_up: Callable[[], bool]) -> Heard:
        """Transcribe as well as can be. Raises `GivenUp`, when `give_up` says so between two steps."""

    def glance_seconds(self, frames: int) -> float:
        """How long a glance at so many frames takes, as the last transcription went."""

    def glance(self, pcm: bytes, language: str, give_up: Callable[[], bool]) -> str:
        """Transcribe as quickly as can be. Raises `GivenUp` likewise."""


@dataclass
class Utterance:
    """What is known of an open session.

    Attributes:
        audio: the session.
        loudness: where in it there is speech.
        looked_at: how many frames there were when it was last transcribed.
        done: how many frames were transcribed as stt.finish would, and what was heard in them.
        told: the last text that was sent.
        state: whether it is open, its text is asked for, or nobody wants it any more.
    """

    audio: Session
    loudness: Loudness
    looked_at: int = 0
    done: tuple[int, Heard] | None = None
    told: str = ""
    state: Literal["open", "asked", "dropped"] = "open"


@dataclass(frozen=True)
class Look:
    """A transcription that is due: the first `frames` of an utterance, `whole` as stt.finish would have it."""

    session: str
    utterance: Utterance
    frames: int
    kind: Literal["whole", "glance"]


class Scribe:
    """The one that uses the model.

    Args:
        model: transcribes.
        tell: sends what was understood so far of a session.
        log: writes a line into the log.
        partials: whether to transcribe before stt.finish.
        clock: seconds that only grow.
    """

    def __init__(
        self,
        model: Model,
        tell: Callable[[str, str], object],
        *,
        log: Callable[[str], object],
        partials: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._model = model
        self._tell = tell
        self._log = log
        self._partials = partials
        self._clock = clock
        self._open: dict[str, Utterance] = {}
        self._finishing = 0
        # Whoever has the model in use holds this; whoever knows or changes an utterance the other.
        self._busy = threading.Lock()
        self._changed = threading.Condition()

    def run(self) -> None:
        """Transcribe what is due, for ever; on a thread of its own."""
        while True:
            with self._changed:
                look, seconds = self._due()
                if look is None:
                    self._changed.wait(seconds)
            if look is None:
                continue
            try:
                self.look(look)
            except Exception as error:  # noqa: BLE001 - what is wrong with the audio or the model, stt.finish says
                self.drop(look.session)
                self._log(f"session {look.session}: no text before its end: {error}")

    def fed(self, name: str, session: Session) -> None:
        """A session has more audio."""
        if not self._partials:
            return
        with self._changed:
            if name not in self._open:
                self._open[name] = Utterance(session, Loudness())
            self._changed.notify()

    def drop(self, name: str) -> None:
        """Nobody wants to know more of a session."""
        with self._changed:
            utterance = self._open.pop(name, None)
            if utterance is not None:
                utterance.state = "dropped"

    def finish(self, name: str, session: Session) -> Heard:
        """Transcribe a session that is complete."""
        with self._changed:
            utterance = self._open.pop(name, None) or Utterance(session, Loudness())
            utterance.state = "asked"
            utterance.loudness.update(session.pcm)
            frames = utterance.loudness.end
            self._finishing += 1
        try:
            with self._busy:
                if utterance.done is not None and utterance.done[0] == frames:
                    return utterance.done[1]
                pcm = bytes(session.pcm[: frames * SAMPLE_BYTES])
                return self._model.transcribe(pcm, session.hints, session.language, bool)
        finally:
            with self._changed:
                self._finishing -= 1
                self._changed.notify()

    def due(self) -> tuple[Look | None, float | None]:
        """Return what is to be transcribed now, or None and in how many seconds to ask again, if nothing changes."""
        with self._changed:
            return self._due()

    def _due(self) -> tuple[Look | None, float | None]:
        if self._finishing:
            return None, None
        soonest = None
        for name, utterance in self._open.items():
            utterance.loudness.update(utterance.audio.pcm)
            quick = self._model.glance_seconds(len(utterance.audio.pcm) // SAMPLE_BYTES) <= GLANCE_S
            left = utterance.audio.touched + (STALL_S if quick else SLOW_STALL_S) - self._clock()
            look = self._look_at(name, utterance, stalled=left <= 0, quick=quick)
            if look is not None:
                return look, None
            if left > 0:
                soonest = left if soonest is None else min(soonest, left)
        return None, soonest

    @staticmethod
    def _look_at(name: str, utterance: Utterance, *, stalled: bool, quick: bool) -> Look | None:
        loudness, end = utterance.loudness, utterance.loudness.end
        if end > LONGEST:
            # It takes several windows: too long for what is thrown away if the speaker goes on.
            return None
        if loudness.paused or stalled:
            known = utterance.done is not None and utterance.done[0] == end
            return None if known or not end else Look(name, utterance, end, "whole")
        frames = len(utterance.audio.pcm) // SAMPLE_BYTES
        if quick and frames - utterance.looked_at >= NEW_AUDIO and loudness.speaking:
            return Look(name, utterance, frames, "glance")
        return None

    def look(self, look: Look) -> None:
        """Transcribe what is due, and tell what was understood."""
        utterance = look.utterance
        pcm = bytes(utterance.audio.pcm[: look.frames * SAMPLE_BYTES])
        language = utterance.audio.language

        def give_up() -> bool:
            return self._is_void(look)

        with self._busy:
            try:
                if give_up():
                    return
                utterance.looked_at = look.frames
                if look.kind == "glance":
                    text = self._model.glance(pcm, language, give_up)
                else:
                    heard = self._model.transcribe(pcm, utterance.audio.hints, language, give_up)
                    utterance.done = (look.frames, heard)
                    text = heard.text
            except GivenUp:
                return
        with self._changed:
            if text and text != utterance.told and utterance.state == "open":
                utterance.told = text
                self._tell(look.session, text)

    def _is_void(self, look: Look) -> bool:
        """Whether what is being transcribed is of no use any more."""
        with self._changed:
            utterance = look.utterance
            utterance.loudness.update(utterance.audio.pcm)
            same = utterance.loudness.end == look.frames
            if utterance.state == "dropped":
                return True
            if utterance.state == "asked":
                # What is asked for may be just this.
                return look.kind == "glance" or not same
            return self._finishing > 0 or (look.kind == "whole" and not same)
