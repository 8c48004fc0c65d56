"""The nearest phrase on text that a recogniser writes, without one."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from utter_plugins.commands.align import Aligner, NumberSlot
from utter_plugins.commands.nearest import Entry, NearestPhrases
from utter_plugins.commands.sound import likeness
from utter_plugins.commands.spoken import normalise

if TYPE_CHECKING:
    from utter_plugins.commands.nearest import Verdict

PHRASES = (
    "activate mood lighting",
    "cancel all timers",
    "is the front door locked",
    "is the front door unlocked",
    "lock the front door",
    "next",
    "pause",
    "resume",
    "set bed light brightness to 50 percent",
    "set a timer for 3 hours and 10 minutes",
    "set a timer for 5 minutes",
    "timer status",
    "turn off lights in the office",
    "turn on lights in the office",
    "turn on lights in the kitchen",
    "turn on the lights",
    "turn the lights on",
    "what is the value of outdoor humidity",
    "what's the temp of the ecobee",
    "stop my timer",
    "turn off the fan",
    "open the garage door",
)
INDEX = NearestPhrases([Entry(tuple(normalise(say).tokens), say) for say in PHRASES])


def find(heard: str) -> Verdict:
    return INDEX.find(normalise(heard).tokens)


@pytest.mark.parametrize(
    ("heard", "meant"),
    [
        ("Activate wood lighting.", "activate mood lighting"),
        ("Cancel all tires.", "cancel all timers"),
        ("locked the front door,", "lock the front door"),
        ("is the front door lock", "is the front door locked"),
        ("Resumed?", "resume"),
        ("paws", "pause"),
        ("said bed light brightness 50%", "set bed light brightness to 50 percent"),
        ("Set of time for 3 hours in 10 minutes.", "set a timer for 3 hours and 10 minutes"),
        ("We'll set a timer for five minutes.", "set a timer for 5 minutes"),
        ("Time for status.", "timer status"),
        ("turn of the fan", "turn off the fan"),
        ("What is the value about door humidity?", "what is the value of outdoor humidity"),
        ("What's the temp of the eco bee?", "what is the temp of the ecobee"),
        ("Stuff my timer.", "stop my timer"),
        ("turn on the light", "turn on the lights"),
        ("is the front door un locked", "is the front door unlocked"),
    ],
)
def test_what_was_misheard_is_found(heard: str, meant: str) -> None:
    verdict = find(heard)
    assert verdict.best is not None, verdict.why
    assert verdict.best.entry.text == meant


@pytest.mark.parametrize(
    "heard",
    [
        # Another number, place or direction is another command.
        "set a timer for 15 minutes",
        "set a timer for 5 hours",
        "set a timer for 3 hours and 20 minutes",
        "turn off lights in the kitchen",
        "turn on lights in the garden",
        "turn on the fan",
        "turn the fan",
        "unlock the front door",
        "close the garage door",
        "do not turn on the lights",
        # It may have been "unlock".
        "in lock the front door",
        "is the front door on locked",
        # Too little, too much.
        "the front",
        "lights",
        "open the garage",
        "turn on the lights and call my mother",
        # Something else.
        "play the beatles",
        "i am peppa pig",
        "text",
        "thanks for watching",
        "what's for dinner",
        "the kitchen smells nice",
        "turn off the highway at exit nine",
        "I unlocked my phone with my face",
        "a timer would be useful for that",
        "pause for a moment and think",
        "next week I'm on vacation",
    ],
)
def test_what_is_no_phrase_is_rejected(heard: str) -> None:
    verdict = find(heard)
    assert verdict.best is None, verdict.best
    assert verdict.why


def test_two_phrases_that_are_as_near_are_not_guessed_between() -> None:
    index = NearestPhrases([Entry(("open", "the", "bar"), 1), Entry(("open", "the", "car"), 2)])
    verdict = index.find(["open", "the", "far"])
    assert verdict.best is None
    assert "It could be" in verdict.why


def test_two_phrases_that_do_the_same_do_not_compete() -> None:
    index = NearestPhrases([Entry(("open", "the", "bar"), 1), Entry(("open", "the", "car"), 1)])
    assert index.find(["open", "the", "far"]).best is not None


def test_a_users_phrase_goes_before_a_shipped_one_that_is_as_near() -> None:
    own = Entry(("skip", "this", "song"), 1)
    shipped = Entry(("skip", "the", "song"), 2, preferred=False)
    best = NearestPhrases([shipped, own]).find(["skip", "the", "song"]).best
    assert best is not None
    assert best.entry is own


def test_numbers_are_taken_from_their_slots() -> None:
    index = NearestPhrases([Entry(("set", "volume", "to", NumberSlot("level", 0, 100), "percent"), 1)])
    best = index.find(["set", "volume", "2", "50", "percent"]).best
    assert best is not None
    assert best.numbers == {"level": "50"}
    assert index.find(["set", "volume", "to", "500", "percent"]).best is None
    assert index.find(["set", "volume", "to", "percent"]).best is None


@given(st.text(max_size=12), st.text(max_size=12))
def test_likeness_is_symmetric_and_bounded(one: str, other: str) -> None:
    for a in normalise(one).tokens:
        for b in normalise(other).tokens:
            assert 0.0 <= likeness(a, b) <= 1.0
            assert likeness(a, b) == pytest.approx(likeness(b, a))


@given(st.sampled_from(PHRASES), st.sampled_from(PHRASES))
def test_a_phrase_is_only_ever_itself(said: str, other: str) -> None:
    words, others = normalise(said).tokens, normalise(other).tokens
    alignment = Aligner(words, set(words) | set(others)).align(others)
    assert (alignment is not None and alignment.score == 1.0) == (words == others)


@given(st.randoms(use_true_random=False))
def test_words_in_another_order_are_never_certain(shuffler: random.Random) -> None:
    words = normalise("turn off lights in the office").tokens
    shuffled = shuffler.sample(words, len(words))
    best = INDEX.find(shuffled).best
    assert best is None or shuffled == words or best.score < 1.0


VOCABULARY = sorted({word for say in PHRASES for word in normalise(say).tokens})
_OTHER = (
    "river",
    "yellow",
    "thinking",
    "because",
    "mountain",
    "sandwich",
    "quickly",
    "professor",
    "umbrella",
    "elephant",
)


@given(st.lists(st.sampled_from(_OTHER), min_size=1, max_size=8))
def test_other_words_are_rejected(words: list[str]) -> None:
    assert INDEX.find(words).best is None


@given(st.lists(st.sampled_from([*VOCABULARY, *_OTHER]), max_size=9))
def test_no_mixture_crashes_and_opposites_are_never_bridged(words: list[str]) -> None:
    best = INDEX.find(words).best
    if best is not None:
        meant = set(best.entry.words)
        for one, other in (("on", "off"), ("locked", "unlocked"), ("5", "3")):
            assert not (one in words and other not in words and other in meant and one not in meant)
