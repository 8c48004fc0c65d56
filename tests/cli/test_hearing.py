"""What is made of what a microphone heard: with made-up sounds, and with recordings of people."""

from __future__ import annotations

import math
import struct
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support import audio
from utter_runner.cli.exits import Exit
from utter_runner.cli.hearing import SILENCE_DB, judge, measure, unavailable
from utter_runner.voice.capture.resample import wav_to_pcm

if TYPE_CHECKING:
    from support.audio import Samples
    from utter_runner.cli.hearing import Verdict

RATE = 16_000
SPEECH = sorted((Path(__file__).parents[1] / "data" / "audio" / "en").glob("*.wav"))


def verdict(samples: Samples | bytes, *, lost_s: float = 0.0, fault: str = "") -> Verdict:
    frames = samples if isinstance(samples, bytes) else samples.astype("<f4").tobytes()
    return judge(measure(frames, RATE), lost_s=lost_s, fault=fault)


def speech(path: Path) -> Samples:
    return audio.floats(wav_to_pcm(path.read_bytes()))


def noise(level: float, seconds: float = 3.0) -> Samples:
    random = np.random.default_rng(7)
    return (level * random.standard_normal(round(seconds * RATE))).astype("f4")


@pytest.mark.parametrize("path", SPEECH, ids=lambda path: path.stem)
def test_people_are_heard_well(path: Path) -> None:
    found = verdict(speech(path))
    assert (found.name, found.advice, found.exit) == ("fine", "", Exit.DONE)


@pytest.mark.parametrize("path", SPEECH[::6], ids=lambda path: path.stem)
@pytest.mark.parametrize(
    ("spoil", "name"),
    [
        (lambda said: said * 0.01, "quiet"),
        (lambda said: np.clip(said * 30, -1, 1), "clips"),
        (lambda said: np.clip(said * 30, -1, 32767 / 32768), "clips"),
        (lambda said: said * 0.3 / np.abs(said).max() + noise(0.1)[: len(said)], "noisy"),
        (lambda said: said * 0, "silent"),
    ],
    ids=["far away", "too loud", "too loud in 16 bit", "in a noisy room", "muted"],
)
def test_what_is_wrong_with_it_is_found(path: Path, spoil: object, name: str) -> None:
    found = verdict(spoil(speech(path)))  # type: ignore[operator] # one of the functions above
    assert found.name == name
    assert found.advice
    assert found.exit == (Exit.UNAVAILABLE if name == "silent" else Exit.FAILED)


def test_a_room_in_which_nobody_speaks_is_quiet_or_noisy() -> None:
    assert verdict(noise(0.001)).name == "quiet"
    assert verdict(noise(0.05)).name == "noisy"
    assert "If you did speak" in verdict(noise(0.001)).advice


def test_a_knock_on_the_table_is_not_speech_and_one_clipped_peak_is_no_clipping() -> None:
    knock = noise(0.001)
    knock[20_000:20_100] = 1.0
    assert verdict(knock).name == "quiet"
    said = speech(SPEECH[0])
    said = said.copy()
    said[10_000:10_010] = 1.0
    assert verdict(said).name == "fine"


def test_the_gravest_comes_first() -> None:
    said = speech(SPEECH[0])
    assert verdict(b"").name == "nothing"
    assert verdict(b"", fault="The device is gone.").detail == "The device is gone."
    assert verdict(bytes(64_000), fault="It delivers nothing but silence.").name == "silent"
    assert verdict(said, fault="The device is gone.").name == "fault"
    assert verdict(said * 30, lost_s=2.0).name == "clips"
    gaps = verdict(said, lost_s=0.5)
    assert (gaps.name, gaps.exit) == ("gaps", Exit.FAILED)
    assert "0.5 s of audio did not arrive" in gaps.detail
    assert verdict(said, lost_s=0.05).name == "fine"


def test_a_microphone_that_cannot_be_opened_is_judged_by_the_runners_words() -> None:
    found = unavailable("It is in use.")
    assert (found.name, found.detail, found.exit) == ("unavailable", "It is in use.", Exit.UNAVAILABLE)


def test_figures() -> None:
    quiet, loud = np.full(RATE, 0.01, "f4"), np.full(RATE, 0.5, "f4")
    figures = measure(np.concatenate([quiet, loud]).tobytes(), RATE)
    assert figures == (2.0, -40.0, -6.0, -6.0, 0, 0, False)
    broken = np.array([np.nan, np.inf, -np.inf, 0.5] * 80, "f4")
    assert measure(broken.tobytes(), RATE)[1:4] == (-12.0, -12.0, -6.0)
    assert measure(np.full(640, np.nan, "f4").tobytes(), RATE).silent
    # What is left over at the end is too short to be a level.
    assert measure(quiet[:320].tobytes() + struct.pack("<f", 0.9), RATE).loudest_db == -40.0
    assert measure(struct.pack("<f", 0.5), RATE).loudest_db == -6.0


@given(st.binary(max_size=12_000).map(lambda data: data[: len(data) // 4 * 4]), st.floats(0, 100), st.text(max_size=5))
def test_whatever_was_heard_has_a_verdict(frames: bytes, lost_s: float, fault: str) -> None:
    figures = measure(frames, RATE)
    assert all(math.isfinite(value) for value in figures)
    assert SILENCE_DB <= figures.floor_db <= figures.loudest_db
    assert figures.clipped_pieces <= figures.clipped
    found = judge(figures, lost_s=lost_s, fault=fault)
    assert found.detail.strip() or fault
    assert bool(found.advice) == (found.exit is not Exit.DONE)
    assert (found.exit is Exit.DONE) == (found.name == "fine")
