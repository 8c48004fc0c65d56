"""The microphone that the rest of the house hears through: owns the ring, opens a source, and keeps it alive.

Rules here: only `run` opens and closes the source and changes the state; the source writes into the ring from whatever
thread it has, and the loop learns of it through an eventfd while somebody waits, and not otherwise. A closed microphone
costs no wake-up. This is `voice.collaborators.AudioFeed`.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any, Literal

import trio

from utter_runner.dataplane.ring import RingReader, RingWriter
from utter_runner.voice.capture.source import NoSource, SourceError
from utter_runner.voice.collaborators import AudioUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable

    from utter_runner.voice.capture.source import AudioSource, Frames

Mode = Literal["always", "on-demand"]
Event = dict[str, Any]
Outcome = SourceError | Literal["closed", "silent"]
"""Why an opening ended: it failed, nobody needed it any more, or it delivered nothing but zeros."""

RATE = 16_000
MOST_PATIENCE = 10.0
"""What is to be open all the time, and is opened again after it delivered nothing in time, gets twice that time, and so
on, up to so many seconds: a headset that needs 3 s to come up would never do it in 2."""
_LONGER = "One that needs longer gets it by `[voice] open_ms`."
STALL_TICKS = 5
"""A stream that delivers nothing for this many ticks, which together are `stall_seconds`, has stalled. Ticks are
counted, not seconds, so that a loop that was busy for a moment does not take its own absence for the microphone's."""
FIRST_RETRY, LAST_RETRY = 0.1, 5.0

ON_DEMAND_NOTE = "The microphone is opened when the key goes down, so there is no pre-roll."


class Capture:
    """One source of audio behind a ring.

    Args:
        source: what records.
        mode: "always" keeps the microphone open, for pre-roll; "on-demand" opens it while somebody has acquired it.
        on_event: told `{"event": "audio", "state": "open" | "closed" | "fault" | "recovered", "detail": text}`.
        ring_seconds: how much audio the ring holds.
        open_seconds: what is opened delivers its first frames within so long; whoever acquires it waits no longer.
        stall_seconds: a stream that delivers nothing for so long has stalled.
        silence_seconds: nothing but zeros for so long, while somebody listens to a device, is a fault.
    """

    rate = RATE

    def __init__(
        self,
        source: AudioSource,
        *,
        mode: Mode = "on-demand",
        on_event: Callable[[Event], None],
        ring_seconds: float = 70.0,
        open_seconds: float = 2.0,
        stall_seconds: float = 0.5,
        silence_seconds: float = 3.0,
    ) -> None:
        self._source = source
        self._next: AudioSource | None = None
        self._mode = mode
        self._on_event = on_event
        self._open_seconds = open_seconds
        self._patience = 0.0
        self._stall_seconds = stall_seconds
        self._silence_frames = round(silence_seconds * RATE)
        self._ring = RingWriter.create(ring_seconds, RATE)
        self._reader = RingReader(self._ring.fd)
        self._holders = 0
        self._changed = trio.Event()
        self._delivering = False
        self._announced = False
        self._floor = 0
        self._faults = 0
        self._fault = ""
        self._hopeless = False
        self._silent = self._silence_told = False
        self._checked = self._sounded = 0

    def reconfigure(
        self,
        source: AudioSource | None,
        *,
        mode: Mode,
        open_seconds: float,
        stall_seconds: float,
        silence_seconds: float,
    ) -> None:
        """Record in another way from now on; see the class.

        Args:
            source: replaces the one that there is, which is closed; readers of the ring see a new generation. None
                leaves it as it is, open or not.
            mode: as for the class.
            open_seconds: as for the class.
            stall_seconds: as for the class.
            silence_seconds: as for the class.
        """
        self._mode = mode
        self._open_seconds = open_seconds
        self._patience = 0.0
        self._stall_seconds = stall_seconds
        self._silence_frames = round(silence_seconds * RATE)
        self._next = source or self._next
        self._notify()

    @property
    def ring(self) -> RingWriter:
        """The ring, for handing its descriptor to readers."""
        return self._ring

    @property
    def position(self) -> int:
        """How many frames have been written so far: the number of the next one."""
        return self._ring.position

    @property
    def oldest(self) -> int:
        """The first frame that can still be read and was recorded since the source was last opened."""
        return max(self._reader.oldest, self._floor)

    @property
    def status(self) -> dict[str, Any]:
        """`{capture, open, device, faults, detail}`, the `audio` of `runner.status`."""
        if self._fault:
            detail = self._fault
        elif self._silent:
            detail = self._silence_text()
        else:
            detail = ON_DEMAND_NOTE if self._mode == "on-demand" else ""
        return {
            "capture": self._mode,
            "open": self._delivering,
            "device": self._source.description,
            "faults": self._faults,
            "detail": detail,
        }

    @property
    def delivering(self) -> bool:
        """Whether the microphone is open and audio arrives."""
        return self._delivering

    @property
    def hopeless(self) -> str:
        """Why the microphone cannot ever be opened, in a sentence, or nothing."""
        if self._hopeless:
            return self._fault
        return self._source.reason if isinstance(self._source, NoSource) else ""

    async def until_delivering(self) -> None:
        """Returns when the microphone is open and audio arrives, whoever opens it."""
        await trio.lowlevel.checkpoint()
        while not self._delivering:
            await self._changed.wait()

    async def acquire(self) -> None:
        """Has the microphone open until `release`; returns when audio arrives, or after `open_seconds`. Calls nest.

        Raises:
            AudioUnavailable: it cannot be opened. Nothing is held then.
        """
        if self._hopeless:
            raise AudioUnavailable(self._fault)
        self._holders += 1
        if self._holders == 1:
            self._begin_listening()
        self._notify()
        try:
            await self._until_delivering()
        except BaseException:
            self.release()
            raise

    def _begin_listening(self) -> None:
        self._checked = self._sounded = self.position
        self._silence_told = False
        if self._mode == "on-demand" and not self._delivering:
            # What went wrong while the key was held the last time says nothing about this time.
            self._fault = ""
            self._announced = False

    async def _until_delivering(self) -> None:
        await trio.lowlevel.checkpoint()
        with trio.move_on_after(self._open_seconds):
            while not self._delivering and not self._hopeless:
                await self._changed.wait()
        if not self._delivering:
            late = f"No audio came from {self._source.description} within {self._open_seconds:g} s."
            raise AudioUnavailable(self._fault or f"{late} {_LONGER}")

    def release(self) -> None:
        """Gives one `acquire` back."""
        self._holders -= 1
        self._notify()

    def read(self, start: int, count: int) -> bytes:
        """The frames `[start, start + count)` as f32le mono.

        Raises:
            Overrun: some of them have been overwritten.
            ValueError: some of them are not written yet.
        """
        return self._reader.read(start, count)

    async def wait_beyond(self, position: int) -> None:
        """Returns once `self.position > position`.

        Raises:
            AudioUnavailable: the microphone failed and is not back, or it is closed and nobody has acquired it.
        """
        await trio.lowlevel.checkpoint()
        if self.position <= position:
            await self._wait_beyond(position, self._require_audio)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Opens, watches, re-opens and closes the source until it is cancelled; then closes the ring."""
        try:
            task_status.started()
            await self._source.prepare()
            retry = FIRST_RETRY
            while True:
                await self._until(needed=True)
                if self._next is not None:
                    await self._replace_source(self._next)
                    continue
                opened = trio.current_time()
                outcome = await self._open_once()
                if not self._hopeless and self._next is None:
                    await self._source.prepare()
                # A source that works for a while and fails again and again is not opened ten times a second.
                if outcome == "closed" or trio.current_time() - opened > LAST_RETRY:
                    retry = FIRST_RETRY
                if isinstance(outcome, SourceError):
                    with trio.move_on_after(retry):
                        await self._until(needed=False)
                    retry = min(2 * retry, LAST_RETRY)
        finally:
            await self._source.aclose()
            self.close()

    def close(self) -> None:
        """Gives the ring back; only for a capture that does not run."""
        self._delivering = False
        self._reader.close()
        self._ring.close()

    async def _replace_source(self, source: AudioSource) -> None:
        before, self._source, self._next = self._source, source, None
        await before.aclose()
        # What was wrong with the other says nothing about this one.
        self._fault, self._hopeless, self._silent, self._announced = "", False, False, False
        self._patience = 0.0
        await source.prepare()
        self._notify()

    async def _open_once(self) -> Outcome:
        """One opening of the source, to its end."""
        opening = _Opening(self._ring)
        self._floor = start = self.position
        try:
            async with trio.open_nursery() as nursery:
                opening.scope = nursery.cancel_scope
                nursery.start_soon(self._record, opening)
                nursery.start_soon(self._close_when_unneeded, opening)
                nursery.start_soon(self._watch, opening, start)
        finally:
            opening.live = False
            self._delivering = False
        if isinstance(opening.outcome, SourceError):
            self._report(opening.outcome)
        elif opening.outcome == "closed" and self._announced and not self._fault:
            self._announced = False
            self._emit("closed", "")
        return opening.outcome

    async def _record(self, opening: _Opening) -> None:
        try:
            await self._source.run(opening.write)
        except SourceError as error:
            opening.finish(error)

    async def _close_when_unneeded(self, opening: _Opening) -> None:
        await self._until(needed=False)
        opening.finish("closed")

    async def _watch(self, opening: _Opening, start: int) -> None:
        name = self._source.description
        patience = max(self._patience, self._open_seconds)
        with trio.move_on_after(patience) as first:
            await self._wait_beyond(start, lambda: None)
        if first.cancelled_caught:
            self._patience = min(2 * patience, MOST_PATIENCE)
            late = f"No audio came from {name} within {patience:g} s after it was opened."
            opening.finish(SourceError(f"{late} {_LONGER}"))
            return
        self._patience = 0.0
        self._open_and_well()
        seen, missed = self.position, 0
        while missed < STALL_TICKS:
            await trio.sleep(self._stall_seconds / STALL_TICKS)
            position = self.position
            missed = missed + 1 if position == seen else 0
            seen = position
            if self._heard_only_silence(position):
                opening.finish("silent")
                return
        reason = (
            f"No audio has come from {name} for {self._stall_seconds:g} s; "
            "the sound server may hang, or the device is gone."
        )
        opening.finish(SourceError(reason))

    def _open_and_well(self) -> None:
        self._delivering = True
        if self._fault:
            self._fault = ""
            self._emit("recovered", f"Audio comes from {self._source.description} again.")
        elif not self._announced:
            self._emit("open", self._source.description)
        self._announced = True
        self._notify()

    def _report(self, fault: SourceError) -> None:
        """A fault is counted and told once, however often re-opening fails after it."""
        known, self._fault = self._fault, fault.reason
        self._hopeless = fault.permanent
        if not known:
            # What cannot ever be opened is a matter of the set-up and did not break.
            self._faults += not fault.permanent
            self._emit("fault", fault.reason)
        self._notify()
        # Whoever waits for frames is to learn of it.
        self._ring.wake()

    def _heard_only_silence(self, position: int) -> bool:
        """Looks at the new frames; True once when a device has delivered nothing but zeros for too long."""
        if not self._source.live or not self._holders:
            return False
        start = max(self._checked, self._reader.oldest)
        # Bytes of +0.0 and -0.0; what is left of other numbers that consist of these is below any microphone's noise.
        sound = self._reader.read(start, position - start).translate(None, b"\0\x80")
        self._checked = position
        if sound:
            self._sounded = position
            if self._silent:
                self._silent = False
                self._emit("recovered", f"{self._source.description} is not silent any more.")
        elif not self._silence_told and position - self._sounded >= self._silence_frames:
            self._silent = self._silence_told = True
            self._faults += 1
            self._emit("fault", self._silence_text())
            return True
        return False

    def _silence_text(self) -> str:
        return (
            f"{self._source.description} delivers nothing but silence. It may be muted, or the wrong microphone may be"
            " chosen in the sound settings."
        )

    def _require_audio(self) -> None:
        if self._fault:
            raise AudioUnavailable(self._fault)
        if not self._needed:
            raise AudioUnavailable("The microphone is closed.")

    async def _wait_beyond(self, position: int, check: Callable[[], None]) -> None:
        fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        try:
            self._ring.attach(fd)
            try:
                while self._ring.position <= position:
                    check()
                    await trio.lowlevel.wait_readable(fd)
                    with contextlib.suppress(BlockingIOError):
                        os.eventfd_read(fd)
            finally:
                self._ring.detach(fd)
        finally:
            os.close(fd)

    @property
    def _needed(self) -> bool:
        return not self._hopeless and (self._mode == "always" or self._holders > 0)

    async def _until(self, *, needed: bool) -> None:
        """Wait until the source is needed, or not, or is to be replaced."""
        while self._needed != needed and self._next is None:
            await self._changed.wait()

    def _notify(self) -> None:
        changed, self._changed = self._changed, trio.Event()
        changed.set()

    def _emit(self, state: str, detail: str) -> None:
        self._on_event({"event": "audio", "state": state, "detail": detail})


class _Opening:
    """One opening of the source: what it delivers after its end is dropped."""

    def __init__(self, ring: RingWriter) -> None:
        self._ring = ring
        self.live = True
        self.scope: trio.CancelScope
        self.outcome: Outcome = "closed"
        self._finished = False
        ring.new_generation()

    def write(self, frames: Frames) -> None:
        """Takes frames from the source, on any thread."""
        if self.live:
            self._ring.write(frames)

    def finish(self, outcome: Outcome) -> None:
        """Ends the opening; of several reasons the first counts."""
        if not self._finished:
            self._finished = True
            self.outcome = outcome
            self.scope.cancel()
