"""Players are quiet while somebody speaks: who is to be held at this moment, and seeing to it.

Rules here: the controller says which sessions listen, and never waits for that; one task brings about what is wanted,
one call at a time, new holds before releases. So each hold is followed by exactly one release, whatever becomes of its
session, and between two sessions that follow each other at once nothing sounds.

A hold ends with the recording, not with the report, and what was said is acted upon only when it has ended: a command
then finds the players as the user had left them. "Pause the music" leaves them paused and "next song" plays the next,
also where the deed is another program's, the router sees in the context what really plays, and no music waits for a
person who is asked. The price is a moment of music between the sentence and what it does.

A key that is held shorter than a tap pauses nothing: most such presses are part of a shortcut, and music would stutter
with each. What the microphone hears until then is no longer than the pre-roll, which has the music in it anyway.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from utter_runner.voice.collaborators import Media


class Quiet:
    """Holds the players for the sessions that listen.

    Args:
        media: the players; None leaves them alone.
        wanted: see the attribute.
    """

    def __init__(self, media: Media | None, *, wanted: bool = True) -> None:
        self._media = media
        self.wanted = wanted
        """Whether sessions that begin to listen from now on have them held."""
        # When each session that listens is to be held, in seconds of the loop's clock.
        self._wanted: dict[str, float] = {}
        self._held: list[str] = []
        self._settled: dict[str, trio.Event] = {}
        self._changed = trio.Event()

    def listen(self, session: str, *, after: float) -> None:
        """A session listens: hold the players in `after` seconds, or sooner if that was said before or others hold."""
        if self._media is None or not self.wanted:
            return
        due = trio.current_time() + after
        self._wanted[session] = min(due, self._wanted.get(session, math.inf))
        self._settled.setdefault(session, trio.Event())
        self._changed.set()

    def over(self, session: str) -> None:
        """A session listens no more. What never listened may be over, too, and more than once."""
        if self._wanted.pop(session, None) is None:
            return
        if session not in self._held:
            self._settle(session)
        self._changed.set()

    async def settled(self, session: str) -> None:
        """Return when the players are no longer held for a session that listens no more."""
        settled = self._settled.get(session)
        if settled is not None:
            await settled.wait()

    async def run(self) -> None:
        """Hold and release until cancelled; then release what is held."""
        try:
            while True:
                await self._step()
        finally:
            for session in [*self._held]:
                await self._release(session)
            for session in [*self._settled]:
                self._settle(session)

    async def _step(self) -> None:
        if self._media is None:
            await trio.sleep_forever()
        self._changed = trio.Event()
        waiting = {session: due for session, due in self._wanted.items() if session not in self._held}
        first = min(waiting, key=waiting.__getitem__, default=None)
        if first is not None and self._media is not None and (self._held or waiting[first] <= trio.current_time()):
            self._held.append(first)
            await self._media.hold(first)
            return
        for session in self._held:
            if session not in self._wanted:
                await self._release(session)
                return
        with trio.move_on_at(waiting[first] if first is not None else math.inf):
            await self._changed.wait()

    async def _release(self, session: str) -> None:
        self._held.remove(session)
        if self._media is not None:
            # Whoever gives it up in the middle would leave players paused; it is bounded.
            with trio.CancelScope(shield=True):
                await self._media.release(session)
        self._settle(session)

    def _settle(self, session: str) -> None:
        settled = self._settled.pop(session, None)
        if settled is not None:
            settled.set()
