"""Words in sound: when they count as said, and where they end."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.audio import babble
from support.microphone import SPEECH, WORDS, pause, recording
from utter_plugins.wake.detector import Detector, Heard
from utter_plugins.wake.models import STEP, Frontend, load_words

if TYPE_CHECKING:
    from support.audio import Samples
    from utter_plugins.wake.models import Features

CUTOFF = 0.9


class FakeEar:
    """Features that say how loud a step is."""

    def __init__(self) -> None:
        self.resets = 0

    def hear(self, samples: bytes) -> list[Features]:
        assert len(samples) == 2 * STEP
        return [np.array([np.abs(np.frombuffer(samples, "<i2")).mean() / 32_767])]

    def reset(self) -> None:
        self.resets += 1


class FakeWord:
    """A word that is as likely as the step is loud."""

    span = 5 * STEP

    def __init__(self, name: str = "word") -> None:
        self.name = name
        self.cutoff = CUTOFF
        self.resets = 0

    def probability(self, features: Features) -> float:
        return float(features[0])

    def reset(self) -> None:
        self.resets += 1


def steps(*loud: float) -> bytes:
    """One step of sound for each loudness."""
    return b"".join(struct.pack("<f", value) * STEP for value in loud)


def detector(*words: FakeWord, refractory: int = 0) -> Detector:
    return Detector(words or (FakeWord(),), FakeEar(), refractory)


def heard(found: list[Heard]) -> list[tuple[str, int]]:
    return [(one.word, one.noticed // STEP) for one in found]


def test_a_word_is_said_once_for_as_long_as_it_is_likely() -> None:
    found = list(detector().take(steps(0, 1, 1, 1, 0.5, 1, 0)))
    assert heard(found) == [("word", 2), ("word", 6)]
    assert found[0].probability == pytest.approx(1.0)


def test_a_probability_at_the_cutoff_is_none() -> None:
    word = FakeWord()
    word.cutoff = 1.0
    assert list(detector(word).take(steps(1.0))) == []


@pytest.mark.parametrize(("refractory", "expected"), [(2, [2, 4, 6]), (3, [2, 6]), (5, [2])])
def test_after_a_word_none_is_heard_for_a_while(refractory: int, expected: list[int]) -> None:
    found = list(detector(refractory=refractory * STEP).take(steps(0, 1, 0, 1, 0, 1)))
    assert [number for _, number in heard(found)] == expected


def test_a_word_that_began_while_deaf_is_not_said_when_hearing_returns() -> None:
    assert heard(list(detector(refractory=3 * STEP).take(steps(1, 0, 1, 1, 1, 1)))) == [("word", 1)]


def test_a_word_keeps_the_others_from_being_heard() -> None:
    found = list(detector(FakeWord("one"), FakeWord("two"), refractory=STEP).take(steps(1)))
    assert heard(found) == [("one", 1)]


def test_a_restart_forgets_and_counts_from_there() -> None:
    ear, word = FakeEar(), FakeWord()
    one = Detector([word], ear, 0)
    assert len(list(one.take(steps(1)))) == 1
    one.restart(10 * STEP)
    assert (ear.resets, word.resets) == (1, 1)
    # It is said again, for what was heard before does not count.
    (again,) = one.take(steps(1))
    assert again.noticed == 11 * STEP
    assert 0 <= again.ended <= again.noticed


def test_what_is_no_number_is_silence() -> None:
    numbers = [float("nan"), float("inf"), float("-inf"), 1e30, -1e30]
    sound = b"".join(struct.pack("<f", number) * STEP for number in numbers)
    # What is too loud is as loud as can be.
    assert heard(list(detector().take(sound))) == [("word", 4)]


@pytest.mark.parametrize("quiet_from", [96, 98, 100, 103])
def test_a_word_ends_where_it_becomes_quiet(quiet_from: int) -> None:
    loud = [0.5] * 110
    loud[quiet_from : quiet_from + 5] = [0.001] * 5
    loud.append(1.0)
    (found,) = detector().take(steps(*loud))
    # The delay of the model points at step 106; of the quiet places before it, this is the last.
    assert quiet_from <= found.ended // STEP <= quiet_from + 2


def test_without_a_quiet_place_it_ends_near_where_the_delay_says() -> None:
    (found,) = detector().take(steps(*[0.5] * 100, 1.0))
    assert abs(found.ended - (101 * STEP - FakeWord.span)) <= 15 * STEP


def test_a_word_in_the_first_moment_ends_at_the_earliest_at_the_beginning() -> None:
    one = detector()
    one.restart(0)
    (found,) = one.take(steps(1))
    assert 0 <= found.ended <= STEP


@given(st.lists(st.sampled_from([0.0, 0.3, 1.0]), min_size=1, max_size=60), st.lists(st.integers(1, 20), max_size=20))
@settings(deadline=None, derandomize=True, database=None)
def test_it_does_not_matter_in_which_pieces_sound_comes(loud: list[float], pieces: list[int]) -> None:
    whole = list(detector(refractory=4 * STEP).take(steps(*loud)))
    one, at, found = detector(refractory=4 * STEP), 0, []
    for piece in [*pieces, len(loud)]:
        found += one.take(steps(*loud[at : at + piece]))
        at += piece
    assert found == whole


# The models that ship.


def real(*names: str, refractory: int = 32_000) -> Detector:
    return Detector(load_words(names, None), Frontend(), refractory)


def listened(one: Detector, *sound: Samples) -> list[Heard]:
    one.restart(0)
    joined = np.concatenate(sound)
    return list(one.take(joined[: len(joined) // STEP * STEP].tobytes()))


@pytest.mark.parametrize("name", ["okay_nabu", "alexa", "hey_mycroft", "hey_jarvis"])
def test_each_word_is_heard_and_no_other(name: str) -> None:
    said = recording(WORDS / f"{name}.wav")
    one = real("okay_nabu", "alexa", "hey_mycroft", "hey_jarvis")
    found = listened(one, pause(1), said, pause(1))
    assert [one.word for one in found] == [name]
    assert abs(found[0].noticed - 16_000 - len(said)) < 8_000


@pytest.mark.parametrize("gap", [0.1, 0.3, 1.0])
@pytest.mark.parametrize("name", ["okay_nabu", "alexa"])
def test_the_end_of_a_word_lies_between_it_and_what_follows(name: str, gap: float) -> None:
    said, then = recording(WORDS / f"{name}.wav"), recording(SPEECH / "recorded_next.wav")
    (found,) = listened(real(name), pause(1), said, pause(gap), then, pause(1))
    ended = 16_000 + len(said)
    assert ended - 800 <= found.ended <= ended + gap * 16_000 + 800


def test_every_time_it_is_said() -> None:
    said = recording(WORDS / "okay_nabu.wav")
    found = listened(real("okay_nabu", refractory=16_000), *[pause(1.5), said] * 4, pause(1))
    assert len(found) == 4
    assert np.diff([one.ended for one in found]) == pytest.approx(24_000 + len(said), abs=3_200)


def test_no_other_speech_is_taken_for_the_word_that_is_listened_for_by_default() -> None:
    one = real("okay_nabu")
    files = sorted(SPEECH.glob("*.wav"))
    assert len(files) > 30
    assert listened(one, *(part for file in files for part in (recording(file), pause(0.3)))) == []
    assert listened(one, babble(10)) == []
