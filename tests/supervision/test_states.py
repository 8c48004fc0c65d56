"""The life of an instance as a table that knows every case."""

from __future__ import annotations

from itertools import product
from typing import get_args

import pytest

from utter_runner.supervision.states import RUNNING, TRANSITIONS, Event, Status, diagram, next_status

STATUSES: tuple[Status, ...] = get_args(Status)
EVENTS: tuple[Event, ...] = get_args(Event)


@pytest.mark.parametrize(("status", "event"), list(product(STATUSES, EVENTS)))
def test_every_event_in_every_status_has_a_target_or_is_refused(status: Status, event: Event) -> None:
    if (status, event) in TRANSITIONS:
        assert next_status(status, event) == TRANSITIONS[status, event]
        assert TRANSITIONS[status, event] in STATUSES
    else:
        with pytest.raises(ValueError, match=f"a plugin that is {status} cannot {event}"):
            next_status(status, event)


def test_the_table_names_nothing_else() -> None:
    assert {status for status, _ in TRANSITIONS} | set(TRANSITIONS.values()) == set(STATUSES)
    assert {event for _, event in TRANSITIONS} == set(EVENTS)
    assert set(STATUSES) > RUNNING


def test_what_may_run_is_reached_by_admission_only_and_may_always_die() -> None:
    for (status, event), target in TRANSITIONS.items():
        if target in RUNNING and status not in RUNNING:
            assert (status, event) == ("starting", "admit")
    for status in RUNNING:
        assert next_status(status, "die") == "backoff"


def test_every_life_can_be_stopped_and_begun_again() -> None:
    for status in set(STATUSES) - {"stopping"}:
        assert next_status(next_status(status, "stop"), "stopped") == "stopped"
    assert [status for (status, event) in TRANSITIONS if event == "spawn"] == [
        "stopped",
        "backoff",
        "failed",
        "waiting",
    ]
    # Once it is being stopped, nothing else happens to it.
    assert [event for (status, event) in TRANSITIONS if status == "stopping"] == ["stopped"]


def test_every_status_can_be_reached() -> None:
    reached: set[Status] = {"stopped"}
    for _ in STATUSES:
        reached |= {target for (status, _), target in TRANSITIONS.items() if status in reached}
    assert reached == set(STATUSES)


def test_the_diagram_shows_the_whole_table() -> None:
    first, second, *lines = diagram().splitlines()
    assert (first, second.strip()) == ("stateDiagram-v2", "[*] --> stopped")
    shown = [tuple(line.strip().replace(" --> ", ":").replace(": ", ":").split(":")) for line in lines]
    assert shown == [(status, target, event) for (status, event), target in TRANSITIONS.items()]
