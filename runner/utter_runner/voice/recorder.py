"""The microphone's part of a session: which frames belong to it, and taking them out of the ring.

Rules here: the recorder owns the two marks that keep sessions apart, the frame before which nothing may be used again
and the moment until which a cue may be heard; it moves no state of a session. The post-roll ends at its last frame or
with its time, whichever is first: nobody waits for a block of which only a part belongs to the session.
"""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING

import trio

from utter_runner.config.log_fields import in_session
from utter_runner.voice.collaborators import AudioUnavailable
from utter_runner.voice.machine import OPEN_ENDED, RECORDING, State

if TYPE_CHECKING:
    from collections.abc import Callable

    from utter_runner.voice.collaborators import AudioFeed
    from utter_runner.voice.recording import Session
    from utter_runner.voice.settings import VoiceSettings

_LEAST_STALL_S = 2.0
MAX_REACH_S = 2.0
"""How far a session that is told its first frame reaches back before its key."""
_GRACE_S = 0.001
"""A block that is due when the post-roll ends, and that much later, still belongs to it."""
_BLOCK_S = 0.05
_BLOCK_SHARE = 0.25
"""How much of the post-roll may be in a block that has not arrived when its time is over: so many seconds, which is
more than sound servers take for a block, and so much of it all. If more is missing the microphone is late, and is
waited for: what was said before the key went up may be in it."""

log = logging.getLogger(__name__)


class Recorder:
    """Cuts sessions out of the feed.

    Args:
        feed: the microphone.
        settings: pre-roll, post-roll, maximum length and the cue's margin.
        heard_until: until when the runner's own speech can be heard, see `Speaker.heard_until`.
    """

    def __init__(self, feed: AudioFeed, settings: VoiceSettings, heard_until: Callable[[], float]) -> None:
        self._feed = feed
        self._settings = settings
        self._heard_until = heard_until
        self._floor = 0
        self._cue_until = -math.inf

    def reconfigure(self, settings: VoiceSettings) -> None:
        """Cut by other settings; between two sessions."""
        self._settings = settings

    @property
    def floor(self) -> int:
        """The frame before which everything belongs to earlier sessions."""
        return self._floor

    async def open(self, session: Session) -> None:
        """Get the microphone, unless the session took it over.

        Raises:
            AudioUnavailable: it cannot be opened.
        """
        if not session.holding:
            await self._feed.acquire()
            session.holding = True

    def close(self, session: Session) -> None:
        """Give the microphone back, unless another session took it over."""
        if session.holding:
            session.holding = False
            self._feed.release()

    def begin(self, session: Session) -> None:
        """The microphone is open: choose the first frame.

        It lies the pre-roll before the key went down, or where the session was told, but never in audio of an earlier
        opening, of another session, of a cue or of the runner's own speech, nor further back than `MAX_REACH_S`
        before the key.
        """
        now, position = trio.current_time(), self._feed.position
        since, reach = 0, self._settings.pre_roll_ms / 1000
        if session.since is not None:
            since, reach = session.since, MAX_REACH_S
            if since > position:
                log.warning(
                    "session %s is to begin at frame %d; only %d are there",
                    session.id,
                    since,
                    position,
                    extra=in_session(session.id),
                )
        before = now - session.opened_at + reach
        quiet = max(now - max(self._cue_until, self._heard_until()), 0.0)
        earliest = position - self._frames(min(before, quiet))
        session.begin(min(position, max(self._feed.oldest, self._floor, since, earliest)))
        session.lead = position - session.cursor
        if session.state is State.TAIL:
            self._end_after_post_roll(session)

    def mute_cue(self, session: Session) -> None:
        """From here on no cue is heard in the session for as long as one sounds."""
        position = self._feed.position
        session.muted = (position, position + self._frames(max(self._cue_until - trio.current_time(), 0.0)))

    def cue_sounds(self, seconds: float) -> None:
        """A cue was started that has died away after `seconds`."""
        if seconds > 0:
            self._cue_until = trio.current_time() + seconds + self._settings.cue_margin_ms / 1000

    async def more(self, session: Session) -> bool:
        """Wait for frames and take them; at the maximum length return False instead, and wait no longer.

        Raises:
            AudioUnavailable: the microphone failed, or delivers nothing though the key is up.
            Overrun: audio was lost.
        """
        with trio.CancelScope(deadline=self._patience(session)) as session.waiting:
            await self._feed.wait_beyond(session.cursor)
        if session.state not in RECORDING:
            return True
        now = trio.current_time()
        if session.state in OPEN_ENDED:
            if now >= self._patience(session):
                return False
        elif session.waiting.cancelled_caught and now >= session.due + self._stall_s:
            raise AudioUnavailable("The microphone delivered nothing more after the key was released: speak again.")
        session.pull(self._feed)
        if now >= session.due + _GRACE_S and session.end is not None:
            rest = session.end - session.cursor
            session.end = session.cursor if rest <= self._in_a_block else session.end
        return True

    def stop(self, session: Session) -> None:
        """The key is up: the session ends after the post-roll. Its state is `TAIL` next."""
        session.key_up_at = trio.current_time()
        self._end_after_post_roll(session)
        session.waiting.deadline = session.due + _GRACE_S

    def cut(self, session: Session) -> None:
        """End the session at the present frame, where the next one begins.

        Raises:
            Overrun: audio was lost.
        """
        self._floor = self._feed.position
        session.recording.cancel()
        if session.start is not None:
            session.end = self._feed.position if session.end is None else min(self._feed.position, session.end)
            self._floor = session.end
            session.pull(self._feed)
        session.close()

    def complete(self, session: Session) -> None:
        """All of the session's audio is there."""
        self._floor = session.cursor
        session.close()

    def abandon(self) -> None:
        """The session that records is dropped: nobody may hear what it recorded."""
        self._floor = self._feed.position

    def _patience(self, session: Session) -> float:
        if session.state in OPEN_ENDED:
            return session.opened_at + self._settings.max_ms / 1000
        over = session.due + _GRACE_S
        return over if trio.current_time() < over else session.due + self._stall_s

    @property
    def _stall_s(self) -> float:
        return max(_LEAST_STALL_S, self._settings.stall_ms / 1000)

    def _end_after_post_roll(self, session: Session) -> None:
        """The post-roll begins now, or has to begin when the microphone is open."""
        post_roll = self._settings.post_roll_ms / 1000
        session.due = trio.current_time() + post_roll
        if session.start is not None:
            session.end = self._feed.position + self._frames(post_roll)

    @property
    def _in_a_block(self) -> int:
        return self._frames(min(_BLOCK_S, _BLOCK_SHARE * self._settings.post_roll_ms / 1000))

    def _frames(self, seconds: float) -> int:
        return round(seconds * self._feed.rate)
