"""What is remembered of where content came from: three marks in one order, of which nothing raises one."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from utter_runner.policy.marks import Mark, below, lowest, provenance_of

ORDER: list[Mark] = ["screen", "llm", "user"]
MARKS = st.sampled_from(ORDER)


@given(st.lists(MARKS, min_size=1))
def test_the_lowest_of_some_marks_is_one_of_them_and_below_none(marks: list[Mark]) -> None:
    found = lowest(*marks)
    assert found in marks
    assert all(ORDER.index(found) <= ORDER.index(mark) for mark in marks)
    assert lowest(found, *reversed(marks)) == found


@pytest.mark.parametrize("unknown", ["", "USER", "user ", "config", None])
def test_what_is_no_mark_counts_as_the_screens(unknown: Any) -> None:
    assert lowest("user", unknown) == "screen"
    assert provenance_of(unknown) == "screen"


def test_a_mark_becomes_only_what_is_below_it() -> None:
    assert below("user") == ("user", "llm", "screen")
    assert below("llm") == ("llm", "screen")
    assert below("screen") == ("screen",)


def test_what_a_model_said_is_still_the_users_as_far_as_grades_go() -> None:
    assert [provenance_of(mark) for mark in ORDER] == ["screen", "user", "user"]
