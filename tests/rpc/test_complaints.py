"""A log in which one connection cannot drown the others."""

from __future__ import annotations

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from utter_runner.rpc.complaints import AT_ONCE, PER_S, Complaints


@given(st.lists(st.floats(0, 5), max_size=200))
def test_every_complaint_is_said_or_counted_and_a_flood_is_thin(pauses: list[float]) -> None:
    now = [100.0]
    complaints = Complaints(lambda: now[0])
    said = counted = 0
    for pause in pauses:
        now[0] += pause
        more = complaints.heard()
        if more is not None:
            said += 1
            counted += int(more.split()[1]) if more else 0
    assert said <= AT_ONCE + (now[0] - 100.0) * PER_S + 1e-6
    now[0] += 1 / PER_S + 1e-6
    last = complaints.heard()
    assert last is not None
    assert said + counted + (int(last.split()[1]) if last else 0) == len(pauses)


def test_after_a_flood_of_any_length_it_speaks_again_within_a_second() -> None:
    now = [0.0]
    complaints = Complaints(lambda: now[0])
    for _ in range(100_000):
        complaints.heard()
    now[0] = 1 / PER_S
    assert complaints.heard() == f" (and {100_000 - AT_ONCE} more that were left out)"


def test_the_warning_has_its_arguments(caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    complaints = Complaints(lambda: now[0])
    for number in range(AT_ONCE + 5):
        complaints.warn(logging.getLogger("x"), "%s did %d", "somebody", number)
    now[0] = 2.0
    complaints.warn(logging.getLogger("x"), "100%% of %s", "it")
    assert caplog.messages[0] == "somebody did 0"
    assert len(caplog.messages) == AT_ONCE + 1
    assert caplog.messages[-1] == "100% of it (and 5 more that were left out)"
