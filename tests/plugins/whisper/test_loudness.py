from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from utter_plugins.whisper.loudness import BLOCK, LONGEST, RATE, TAIL, Loudness

SPEECH, ROOM, NOTHING = 0.2, 0.002, 0.0


def audio(*parts: tuple[float, int]) -> bytearray:
    """Square waves: pairs of amplitude and frames."""
    waves = [level * np.tile([1.0, -1.0], (frames + 1) // 2)[:frames] for level, frames in parts]
    return bytearray(np.concatenate(waves).astype("<f4").tobytes())


def after(pcm: bytearray) -> Loudness:
    loudness = Loudness()
    loudness.update(pcm)
    return loudness


@pytest.mark.parametrize("quiet", [ROOM, NOTHING])
def test_what_is_quiet_at_the_end_is_left_out_but_for_a_tail(quiet: float) -> None:
    loudness = after(audio((quiet, RATE), (SPEECH, RATE), (quiet, RATE)))
    assert loudness.end == 2 * RATE + TAIL
    assert loudness.paused
    assert not loudness.speaking


def test_a_pause_is_one_when_it_is_as_long_as_the_tail() -> None:
    for short in (0, BLOCK, TAIL - 1):
        loudness = after(audio((SPEECH, RATE), (ROOM, short)))
        assert (loudness.paused, loudness.end) == (False, RATE + short)
    assert after(audio((SPEECH, RATE), (ROOM, TAIL))).paused


def test_where_the_room_is_as_loud_as_the_speech_nothing_is_left_out() -> None:
    loudness = after(audio((SPEECH / 10, RATE), (SPEECH, RATE), (SPEECH / 10, RATE)))
    assert (loudness.paused, loudness.speaking, loudness.end) == (False, False, 3 * RATE)


def test_of_a_long_utterance_nothing_is_left_out() -> None:
    for frames, end in ((LONGEST, 2 * RATE + TAIL), (LONGEST + 1, LONGEST + 1)):
        loudness = after(audio((ROOM, RATE), (SPEECH, RATE), (ROOM, frames - 2 * RATE)))
        assert (loudness.end, loudness.paused) == (end, frames == LONGEST)


def test_speech_that_is_going_on() -> None:
    assert after(audio((ROOM, RATE), (SPEECH, RATE))).speaking
    assert after(audio((ROOM, RATE), (SPEECH, RATE), (ROOM, BLOCK))).speaking
    assert not after(audio((ROOM, RATE), (SPEECH, RATE), (ROOM, 10 * BLOCK))).speaking


@pytest.mark.parametrize("pcm", [bytearray(), audio((NOTHING, RATE)), bytearray(np.full(RATE, np.nan, "<f4"))])
def test_nothing_is_no_speech(pcm: bytearray) -> None:
    loudness = after(pcm)
    assert (loudness.paused, loudness.speaking, loudness.end) == (False, False, len(pcm) // 4)


@given(st.lists(st.integers(0, 5_000), max_size=20), st.integers(0, RATE), st.integers(0, RATE))
def test_pieces_make_no_difference(pieces: list[int], before: int, behind: int) -> None:
    whole = audio((ROOM, before), (SPEECH, RATE // 2), (ROOM, behind))
    loudness, at = Loudness(), 0
    for piece in pieces:
        at += 4 * piece
        loudness.update(whole[:at])
    loudness.update(whole)
    other = after(whole)
    assert (loudness.end, loudness.paused, loudness.speaking) == (other.end, other.paused, other.speaking)
