"""The end of an utterance behind the screen: what needs not be looked at is let through at once."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from utter_runner.voice.collaborators import SAMPLE_BYTES, Chunk
from utter_runner.voice.fakes import FakeVoiceActivity, numbered
from utter_runner.voice.recording import Session
from utter_runner.voice.settings import VoiceSettings
from utter_runner.voice.vad.screen import PADDING_MS, Screen

RATE, WINDOW = 16_000, 512
PADDING = PADDING_MS * RATE // 1000
HELD = 20 * WINDOW


class Counting(FakeVoiceActivity):
    """Counts the windows that are looked at."""

    looked = 0

    def probability(self, frames: bytes) -> float:
        self.looked += 1
        return super().probability(frames)


async def screened(activity: FakeVoiceActivity, last: int) -> int:
    """Pass `HELD` frames on while the key is held, and `last` more together with the end; how many come out."""
    session = Session("s1", 0.0, lambda data: data, screened=True)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(Screen(activity, RATE, VoiceSettings()).run, session, lambda: None)
        session.sender.send_nowait(Chunk(numbered(0, HELD), 0))
        await trio.testing.wait_all_tasks_blocked()
        if last:
            session.sender.send_nowait(Chunk(numbered(HELD, last), HELD))
        session.close()
    came = b"".join([chunk.data async for chunk in session.audio])
    return len(came) // SAMPLE_BYTES


@pytest.mark.parametrize("last", [0, 100, WINDOW, 3 * WINDOW - 1])
async def test_an_end_near_speech_is_not_looked_at(last: int) -> None:
    activity = Counting((0, HELD), window=WINDOW)
    assert await screened(activity, last) == HELD + last
    assert activity.looked == HELD // WINDOW


async def test_an_end_far_from_speech_is_looked_at_and_dropped() -> None:
    spoken = 2 * WINDOW
    activity = Counting((0, spoken), window=WINDOW)
    last = 3 * WINDOW
    assert await screened(activity, last) == spoken + PADDING
    assert activity.looked == -(-(HELD + last) // WINDOW)


async def test_speech_that_comes_with_the_end_is_kept() -> None:
    last = PADDING
    activity = Counting((0, 2 * WINDOW), (HELD + WINDOW, HELD + last), window=WINDOW)
    assert await screened(activity, last) == HELD + last


async def test_an_end_without_any_audio_is_an_end() -> None:
    session = Session("s1", 0.0, lambda data: data, screened=True)
    session.close()
    await Screen(FakeVoiceActivity(), RATE, VoiceSettings()).run(session, lambda: None)
    assert [chunk async for chunk in session.audio] == []
