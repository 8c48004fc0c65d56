"""Trust only goes down."""

from __future__ import annotations

from typing import Any

import pytest

from support.policy import step
from utter_runner.policy import Origin, lower
from utter_runner.policy.provenance import effective, of_sources


@pytest.mark.parametrize(
    ("a", "b", "lowest"),
    [
        ("user", "user", "user"),
        ("user", "screen", "screen"),
        ("screen", "user", "screen"),
        ("screen", "screen", "screen"),
        ("user", "User", "screen"),
        ("", "user", "screen"),
    ],
)
def test_lower(a: Any, b: Any, lowest: str) -> None:
    assert lower(a, b) == lowest


@pytest.mark.parametrize(
    ("sources", "grade"),
    [
        ([], "user"),
        (["user", "config", "knowledge"], "user"),
        (["context.snapshot"], "screen"),
        (["context.live"], "screen"),
        (["perception.ocr"], "screen"),
        (["clipboard"], "screen"),
        (["user", "clipboard"], "screen"),
        (["something new"], "screen"),
        ([""], "screen"),
    ],
)
def test_of_sources(sources: list[str], grade: str) -> None:
    assert of_sources(sources) == grade


def test_nothing_stated_is_the_screen_s() -> None:
    assert Origin().provenance == "screen"
    assert effective(step("a", {"x": 1}), Origin()).lowest == "screen"


def test_an_argument_is_at_most_as_trusted_as_its_step() -> None:
    user = Origin(provenance="user")
    raised = effective(step("a", {"x": 1, "y": 2}, "screen", arg_provenance={"x": "user"}), user)
    assert (raised.step, raised.tainted) == ("screen", {"x", "y"})
    lowered = effective(step("a", {"x": 1, "y": 2}, "user", arg_provenance={"x": "screen", "y": "user"}), user)
    assert (lowered.step, lowered.tainted, lowered.lowest) == ("user", {"x"}, "screen")
    trusted = effective(step("a", {"x": 1}, "user", arg_provenance={"x": "user"}), user)
    assert (trusted.step, trusted.tainted, trusted.lowest) == ("user", frozenset(), "user")


def test_sources_lower_the_whole_step() -> None:
    seen = Origin(provenance="user", sources=("user", "context.snapshot"))
    assert effective(step("a", {"x": 1}), seen).tainted == {"x"}
