"""When a session ends after the key is up, whatever the blocks are in which the microphone delivers."""

from __future__ import annotations

from typing import Any

import trio
import trio.testing
from hypothesis import example, given, settings
from hypothesis import strategies as st

from support.voice import Rig

EXAMPLES = settings(deadline=None, derandomize=True, database=None, max_examples=60)

RATE = 16_000
POST_MS = 200
LATEST = 0.005
"""What the project allows between the end of the post-roll and the request to the recogniser, in seconds."""
LARGEST = 800
"""Frames of the largest block: 50 ms."""
PRESSED, RELEASED = 0.2, 0.4
"""When the key goes down, and up if that is no time within a block."""


class Spoken:
    """One session between a feed that delivers in blocks and a recogniser that answers at once.

    Attributes:
        released: when the key went up.
        at_release: the feed's position then.
        asked: when the recogniser was asked for the text; it is a fake that takes no time.
        at_asked: the feed's position then.
        frames: what it was given.
    """

    def __init__(self, post_roll_ms: int) -> None:
        self.rig = Rig("text", on_event=self._on_event, post_roll_ms=post_roll_ms)
        self.released = self.asked = 0.0
        self.at_release = self.at_asked = 0
        self.frames: list[int] = []
        self._over = trio.Event()

    def _on_event(self, event: dict[str, Any]) -> None:
        if event["event"] == "heard":
            self.asked, self.at_asked = trio.current_time(), self.rig.feed.position
        elif event["event"] == "report":
            self._over.set()

    async def run(self, block: int, phase: float, stall: tuple[float, float] = (0.0, 0.0)) -> None:
        """Hold the key, and let go in the middle of a block.

        Args:
            block: frames of a block.
            phase: how far the block has come, from 0 to 1, when the key goes up.
            stall: the microphone delivers nothing between these two, in seconds after the release, and catches up.
        """
        feed, controller = self.rig.feed, self.rig.controller
        length = block / RATE
        self.released = RELEASED + phase * length

        async def deliver() -> None:
            start = trio.current_time()
            written = 0
            while True:
                written += 1
                await trio.sleep_until(start + written * length)
                # What was held up comes in one lump.
                if self.released + stall[0] <= trio.current_time() < self.released + stall[1]:
                    await trio.sleep_until(self.released + stall[1])
                feed.advance(block)

        async with self.rig.running(clocked=False) as nursery:
            began = trio.current_time()
            self.released += began
            nursery.start_soon(deliver)
            await trio.sleep_until(began + PRESSED)
            session = controller.press()["session"]
            await trio.sleep_until(self.released)
            self.at_release = feed.position
            controller.release()
            await self._over.wait()
            self.frames = self.rig.frames(session)


def spoken(block: int, phase: float, stall: tuple[float, float] = (0.0, 0.0), *, post_roll_ms: int = POST_MS) -> Spoken:
    """What became of one session."""
    session = Spoken(post_roll_ms)
    trio.run(session.run, block, phase, stall, clock=trio.testing.MockClock(autojump_threshold=0))
    return session


blocks = st.integers(80, LARGEST)
phases = st.floats(0, 1, exclude_max=True)


@EXAMPLES
@given(blocks, phases)
@example(320, 0.0)
@example(320, 0.999)
@example(341, 0.0)
@example(683, 0.0)
@example(LARGEST, 0.0)
def test_the_recogniser_is_asked_when_the_post_roll_is_over_however_blocks_fall(block: int, phase: float) -> None:
    """Not later than 5 ms after it, and with every frame that had arrived by then."""
    session = spoken(block, phase)
    beyond = session.asked - session.released - POST_MS / 1000
    assert beyond < LATEST
    end = session.frames[-1] + 1
    assert session.frames == list(range(session.frames[0], end))
    assert end == min(session.at_release + POST_MS * RATE // 1000, session.at_asked)
    # What was recorded until the end of the post-roll is there, but for the one block that was not complete.
    assert end > (session.released + POST_MS / 1000) * RATE - block - 1


@EXAMPLES
@given(blocks, phases, st.floats(0, 0.15), st.floats(0.21, 0.6))
def test_audio_that_is_late_is_waited_for(block: int, phase: float, begin: float, end: float) -> None:
    """A microphone that stands still while the post-roll passes still has to say what was spoken before it."""
    session = spoken(block, phase, (begin, end))
    most = session.at_release + POST_MS * RATE // 1000
    had = session.frames[-1] + 1
    assert session.frames == list(range(session.frames[0], had))
    # Whatever it waited, at most a block's length is missing.
    assert most - LARGEST <= had <= most


@EXAMPLES
@given(blocks, phases, st.integers(0, 400))
def test_no_post_roll_is_cut_by_more_than_a_quarter(block: int, phase: float, post_roll_ms: int) -> None:
    session = spoken(block, phase, post_roll_ms=post_roll_ms)
    wanted = round(post_roll_ms * RATE / 1000)
    had = session.frames[-1] + 1 - session.at_release
    assert wanted - min(wanted / 4, LARGEST) - 1 <= had <= wanted
