"""A running `Capture` whose source is a real one, and what it tells."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
import trio

from support import pipewire
from utter_runner.voice.capture.capture import RATE, Capture, Mode
from utter_runner.voice.capture.portaudio import PortAudioSource
from utter_runner.voice.capture.pw_record import PwRecordSource

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from utter_runner.voice.capture.source import AudioSource

# On a busy machine blocks are lost between the programs; half of what was said proves that it was heard.
ENOUGH = 0.5

SOURCES: list[Any] = [pytest.param(PortAudioSource, id="portaudio"), pytest.param(PwRecordSource, id="pw-record")]


PATIENCE = 30.0
"""Seconds for what takes an instant where nothing else runs, and some seconds where opening is tried again."""

NOTICED = 8.0
"""Seconds within which a fault is told: a moment or a short stall, and what a busy machine adds."""

UNHURRIED = 10.0
"""Seconds without audio that are a fault where none is meant to be: a busy machine holds everything up now and then."""


class Events:
    def __init__(self) -> None:
        self._send, self._receive = trio.open_memory_channel[tuple[float, dict[str, Any]]](100)
        self.told = 0.0
        """When the event was told that was returned last, by trio's clock."""

    def __call__(self, event: dict[str, Any]) -> None:
        self._send.send_nowait((trio.current_time(), event))

    async def next(self, state: str) -> str:
        """The next event, which is to be of this state; returns its text."""
        with trio.fail_after(PATIENCE):
            self.told, event = await self._receive.receive()
        assert event["state"] == state, event
        return str(event["detail"])


@asynccontextmanager
async def capturing(
    source: AudioSource, mode: Mode = "on-demand", *, stall: float = UNHURRIED, open_seconds: float = UNHURRIED
) -> AsyncIterator[tuple[Capture, Events]]:
    """One that runs while the context lasts.

    Args:
        source: what it records from.
        mode: as for `Capture`.
        stall: seconds without audio that are a fault.
        open_seconds: within which there is the first audio.
    """
    events = Events()
    # Loading a library takes its time, which what is opened is not given.
    await source.prepare()
    capture = Capture(source, mode=mode, on_event=events, open_seconds=open_seconds, stall_seconds=stall)
    async with trio.open_nursery() as nursery:
        await nursery.start(lambda task_status: capture.run(task_status=task_status))
        yield capture, events
        nursery.cancel_scope.cancel()


async def hear(
    capture: Capture, bed: Any, recording: Path, seconds: float, *, into: str = pipewire.MICROPHONE
) -> bytes:
    """What the microphone hears from the moment it is acquired until some time after the recording."""
    with trio.fail_after(seconds + PATIENCE):
        await capture.acquire()
        start = capture.oldest
        player = bed.play(recording, f"{into}_in")
        # How long it takes until it plays is the machine's to say; it ends when all of it has been played.
        assert await trio.to_thread.run_sync(player.wait) == 0
        await capture.wait_beyond(capture.position + round(0.7 * RATE))
        heard = capture.read(start, capture.position - start)
        capture.release()
    return heard
