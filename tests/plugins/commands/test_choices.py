"""Which phrases a model may choose among: what was taught, and never the opposite or another number."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from utter_plugins.commands.choices import MAX_CHOICES
from utter_plugins.commands.router import Router

HOUSE = (
    "turn on the heating",
    "turn off the heating",
    "lock the front door",
    "unlock the front door",
    "heat the room to {percent:level} percent",
    "play radio [number] 5",
    "do not disturb me",
    "dim (the lamp|the light)",
    "note {text:note}",
)


def texts(router: Router, utterance: str) -> list[str]:
    return [choice.text for choice in router.choices(utterance)]


def test_every_choice_is_a_taught_sentence_with_the_plan_that_was_taught(teach: Callable[..., Router]) -> None:
    router = teach(*HOUSE)
    for choice in router.choices("I am freezing here"):
        again = router.plan(choice.text)
        assert [step.args for step in choice.plan.steps] == [step.args for step in again.steps]
        assert all(step.provenance == "user" for step in choice.plan.steps)
        assert choice.plan.matched == choice.text


def test_what_is_fixed_is_always_offered_the_users_own_first(teach: Callable[..., Router]) -> None:
    found = texts(teach(*HOUSE), "I am freezing here")
    assert found[:4] == ["turn on the heating", "turn off the heating", "lock the front door", "unlock the front door"]
    assert "dim the lamp" in found
    # The same in other words, and what shipped.
    assert "dim the light" not in found
    assert "mute" in found


def test_what_sounds_like_it_is_offered_too(teach: Callable[..., Router]) -> None:
    assert any("firefox" in text for text in texts(teach(), "bring up that fire fox thing"))


@pytest.mark.parametrize(
    ("utterance", "wanted", "unwanted"),
    [
        ("shut the heating off", "turn off the heating", "turn on the heating"),
        ("get the front door locked", "lock the front door", "unlock the front door"),
        ("please leave me alone and do not ring", "do not disturb me", "turn on the heating"),
        ("it is too loud", "mute", "do not disturb me"),
    ],
)
def test_the_opposite_is_never_offered(
    teach: Callable[..., Router], utterance: str, wanted: str, unwanted: str
) -> None:
    found = texts(teach(*HOUSE), utterance)
    assert wanted in found
    assert unwanted not in found


@pytest.mark.parametrize(
    ("utterance", "expected"),
    [
        ("get it warm in here, say 40 percent", {"level": 40}),
        ("get it warm in here, say forty percent", {"level": 40}),
        ("get it warm in here, say 400 percent", None),
        ("get it warm in here, say 40 to 50 percent", None),
        ("get it warm in here, some percent", None),
    ],
)
def test_numbers_are_those_that_were_said(
    teach: Callable[..., Router], utterance: str, expected: dict[str, Any] | None
) -> None:
    phrase = {"say": HOUSE[4], "op": "heat", "args": {"level": "{level}"}}
    router = teach(phrase=[phrase])
    heats = [choice for choice in router.choices(utterance) if choice.plan.steps[0].op == "heat"]
    assert [choice.plan.steps[0].args for choice in heats] == ([expected] if expected else [])
    assert [choice.text for choice in heats] == (["heat the room to 40 percent"] if expected else [])


def test_a_number_in_a_phrase_must_have_been_said(teach: Callable[..., Router]) -> None:
    router = teach(*HOUSE)
    assert not any("5" in text for text in texts(router, "put some radio on"))
    assert any("radio" in text and "5" in text for text in texts(router, "put radio 5 on"))
    assert not any("5" in text for text in texts(router, "put radio 6 on"))


def test_one_is_not_always_a_number(teach: Callable[..., Router]) -> None:
    assert "next song" in texts(teach(), "I want to hear another one")


def test_free_text_is_never_filled_in(teach: Callable[..., Router]) -> None:
    assert not any(text.startswith("note") for text in texts(teach(*HOUSE), "write down to buy some milk"))


def test_there_are_never_too_many(teach: Callable[..., Router]) -> None:
    words = [
        f"{one} {other} thing" for one in ("red", "blue", "warm", "long", "hard") for other in "abcdefghijklmnopqrst"
    ]
    assert len(texts(teach(*words), "some strange thing")) == MAX_CHOICES


@pytest.mark.parametrize("utterance", ["", "...", "please", "x" * 5000, "word " * 100])
def test_what_cannot_be_planned_for_has_no_choices(teach: Callable[..., Router], utterance: str) -> None:
    assert texts(teach(*HOUSE), utterance) == []
