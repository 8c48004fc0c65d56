"""Stands between the recorder and the recogniser of a session, and lets through what may be speech.

Rules here: nothing is let through twice or in another order, and nothing that may be speech is dropped. When in doubt
(no speech was found, the model fails or cannot keep up) everything is let through. Between any two windows the loop has
its turn. The recogniser is asked when the last window was looked at, so what cannot change anything is not looked at.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING

import trio

from utter_runner.config.log_fields import in_session
from utter_runner.voice.collaborators import SAMPLE_BYTES
from utter_runner.voice.vad.segments import Lengths, Segmenter, Trimmer

if TYPE_CHECKING:
    from collections.abc import Callable

    from utter_runner.voice.collaborators import Chunk, SpeechDetector, VoiceActivity
    from utter_runner.voice.recording import Session
    from utter_runner.voice.settings import VoiceSettings

PADDING_MS = 500
"""What is kept before and after speech, so that no soft sound at its ends is lost. Recognisers also like to have some
silence around a word: with 300 ms whisper took a short one for another, with 500 ms it did not."""
BACKLOG_MS = 4_000
"""What may wait to be looked at: with more, the machine is too slow. The longest pre-roll is half of it."""

log = logging.getLogger(__name__)


class Screen:
    """Screens sessions.

    Args:
        activity: the model.
        rate: frames per second.
        settings: when silence ends a session.
    """

    def __init__(self, activity: VoiceActivity, rate: int, settings: VoiceSettings) -> None:
        self._activity = activity
        self._rate = rate
        self._settings = settings

    async def run(self, session: Session, on_over: Callable[[], object]) -> None:
        """Pass a session's audio on until no more comes.

        Args:
            session: whose audio it is.
            on_over: told after each window for as long as nobody speaks any more, or nobody has begun to.
        """
        with session.recorded, session.cleared:
            detector = await self._activity.open()
            passage = _Passage(session)
            try:
                if detector is not None:
                    await self._follow(session, passage, detector, on_over)
            except Exception:  # whatever is wrong with the model, speaking must go on
                log.exception("voice activity detection failed in session %s", session.id, extra=in_session(session.id))
            finally:
                if detector is not None:
                    detector.close()
            passage.let_all_through()
            async for chunk in session.recorded:
                session.cleared.send_nowait(chunk)

    async def _follow(
        self, session: Session, passage: _Passage, detector: SpeechDetector, on_over: Callable[[], object]
    ) -> None:
        """Look at everything, unless the machine is too slow."""
        segmenter: Segmenter | None = None
        size = detector.window * SAMPLE_BYTES
        while await passage.more():
            if segmenter is None:
                # The first chunk is there, so it is known where the key went down.
                foreign = session.lead if session.since is None else 0
                segmenter = Segmenter(self._lengths(detector.window), lead=session.lead, foreign=foreign)
            if len(passage.unseen) > self._bytes(BACKLOG_MS):
                log.warning(
                    "voice activity detection does not keep up in session %s and is left out",
                    session.id,
                    extra=in_session(session.id),
                )
                return
            while len(passage.unseen) >= size and not passage.decided(segmenter):
                segmenter.add(detector.probability(passage.look(size)))
                passage.settle(segmenter)
                if segmenter.over:
                    on_over()
                await trio.lowlevel.checkpoint()
        if segmenter is None:
            return
        if passage.unseen and not passage.decided(segmenter):
            segmenter.add(detector.probability(passage.look(len(passage.unseen))))
        segmenter.finish()
        passage.settle(segmenter)
        if segmenter.heard:
            passage.drop_rest()

    def _lengths(self, window: int) -> Lengths:
        settings = self._settings
        return Lengths(
            window=window,
            padding=self._frames(PADDING_MS),
            silence=self._frames(settings.silence_ms),
            no_speech=self._frames(settings.no_speech_ms),
        )

    def _frames(self, milliseconds: int) -> int:
        return milliseconds * self._rate // 1000

    def _bytes(self, milliseconds: int) -> int:
        return self._frames(milliseconds) * SAMPLE_BYTES


class _Passage:
    """The audio of one session on its way through.

    Attributes:
        unseen: what the model has not looked at yet.
        frames: how many there have been.
        complete: no more come.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._trimmer = Trimmer()
        self.unseen = bytearray()
        self.frames = 0
        self.complete = False

    async def more(self) -> bool:
        """Wait for audio or for its end, and take all that is there; False if there was nothing to wait for."""
        incoming = self._session.recorded
        try:
            self._take(await incoming.receive())
            with suppress(trio.WouldBlock):
                while True:
                    self._take(incoming.receive_nowait())
        except trio.EndOfChannel:
            # What came together with the end is still to be looked at.
            before, self.complete = self.complete, True
            return not before
        return True

    def _take(self, chunk: Chunk) -> None:
        self._trimmer.add(chunk)
        self.unseen += chunk.data
        self.frames += chunk.frames

    def decided(self, segmenter: Segmenter) -> bool:
        """Whether everything that is left is kept, whatever it is: the utterance ends within the padding of speech."""
        return self.complete and segmenter.heard and segmenter.kept[1] >= self.frames

    def look(self, size: int) -> bytes:
        """The next unseen bytes."""
        seen = bytes(self.unseen[:size])
        del self.unseen[:size]
        return seen

    def settle(self, segmenter: Segmenter) -> None:
        """Let through and drop what is decided."""
        if segmenter.heard:
            first, last = segmenter.kept
            self._trimmer.drop(first)
            self._let_through(last)

    def drop_rest(self) -> None:
        """What is held back is silence."""
        self._trimmer = Trimmer()

    def let_all_through(self) -> None:
        """Nothing is decided of what is held back, and will not be."""
        self._let_through(None)

    def _let_through(self, until: int | None) -> None:
        for chunk in self._trimmer.take(until):
            self._session.cleared.send_nowait(chunk)
