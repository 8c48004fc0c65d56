from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from utter_plugins.whisper.bias import MAX_HINT_CHARS, SHOWN, Hints, alike, as_long_as, prompt, without_repeats

PHRASES = [f"turn on lamp {number}" for number in range(40)] + ["cancel all timers", "lock the Front Door", " next "]


def test_the_nearest_phrases_are_shown_and_the_nearest_first() -> None:
    hints = Hints(PHRASES)
    shown = hints.near(["Cancel all tires.", "Can sell all tires"])
    assert shown[0] == "cancel all timers"
    assert len(hints.near(["turn on lamp 3"])) == SHOWN
    assert hints.near(["turn on lamp 3"])[0] == "turn on lamp 3"
    assert hints.near(["Next!"], most=1) == ["next"]
    assert hints.near(["xyz"]) == []
    assert hints.near(["", "..."]) == []


def test_phrases_that_are_no_use_are_left_out() -> None:
    assert len(Hints(["", "  ", "a" * (MAX_HINT_CHARS + 1), "stop", "stop", "go  on"])) == 2


def test_a_phrase_that_was_heard_letter_by_letter_is_known() -> None:
    hints = Hints(PHRASES)
    assert hints.written("Lock the front door.") == "lock the Front Door"
    assert hints.written("Lock the front doors.") is None
    assert Hints([]).written("x") is None


def test_the_prompt_is_sentences_with_the_nearest_last() -> None:
    assert prompt(["near", "far?"]) == "far. near."
    assert prompt([]) == ""


@pytest.mark.parametrize(
    ("text", "once"),
    [
        ("Stop. Stop. Stop.", "Stop."),
        (" set lights to red. set lights to", "set lights to red."),
        ("next, next", "next,"),
        ("Stop. Go.", "Stop. Go."),
        ("set it to 5.5 minutes.", "set it to 5.5 minutes."),
        ("wait 5.5 minutes. wait 5.5 minutes.", "wait 5.5 minutes."),
        ("...", "..."),
        ("", ""),
    ],
)
def test_repeats_are_reduced_to_one(text: str, once: str) -> None:
    assert without_repeats(text) == once


@pytest.mark.parametrize(
    ("text", "plain", "kept"),
    [
        ("timer status. set a timer. set a timer.", "Time for status.", "timer status."),
        (
            "set a timer for 5 minutes. set a timer for 15 minutes.",
            "Set timer for 5 minutes",
            "set a timer for 5 minutes.",
        ),
        (
            "open the door. turn on the lights.",
            "Open the door, turn on the lights.",
            "open the door. turn on the lights.",
        ),
        ("stop", "", "stop"),
        ("", "stop", ""),
    ],
)
def test_what_a_prompt_adds_is_cut(text: str, plain: str, kept: str) -> None:
    assert as_long_as(text, plain) == kept


@given(st.text(max_size=40), st.text(max_size=40))
def test_any_text_is_taken(one: str, other: str) -> None:
    assert 0.0 <= alike(one, other) <= 1.0
    assert alike(one, other) == alike(other, one)
    assert len(without_repeats(one)) <= len(one)
    assert len(as_long_as(one, other)) <= len(one)
    assert len(Hints([one, other]).near([one])) <= 2
