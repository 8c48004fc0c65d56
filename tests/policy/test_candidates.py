"""What can be picked, by whom and for how long."""

from __future__ import annotations

from typing import Any

import pytest

from utter_protocol.methods import Candidate
from utter_runner.policy import CandidateLimitError, CandidateStore
from utter_runner.policy.candidates import MAX_ID, MAX_VALUE_BYTES

GLOBAL: dict[str, Any] = {"source": "knowledge", "owner": "commands", "now": 0.0}
MINE: dict[str, Any] = {"source": "user", "owner": "mine", "session": "s1", "ttl_s": 10.0, "now": 0.0, "plugin": "p"}


def one(name: str, value: Any = "value") -> list[Candidate]:
    return [Candidate(id=name, value=value)]


def value(store: CandidateStore, name: str, session: str = "s1", now: float = 1.0, plugin: str | None = "p") -> Any:
    found = store.resolve(name, session, now, plugin=plugin)
    return None if found is None else found.value


def test_global_ones_serve_every_session_and_those_of_a_session_only_it() -> None:
    store = CandidateStore()
    store.record(one("a", 1), **GLOBAL)
    store.record(one("b", 2), **MINE)
    assert [value(store, "a", session) for session in ("s1", "s2", "")] == [1, 1, 1]
    assert [value(store, "b", session) for session in ("s1", "s2", "")] == [2, None, None]
    assert store.resolve("c", "s1", 1.0, plugin="p") is None


def test_a_session_s_own_comes_first() -> None:
    store = CandidateStore()
    store.record(one("a", 1), **GLOBAL)
    store.record(one("a", 2), **MINE)
    assert value(store, "a", "s1") == 2
    assert value(store, "a", "s2") == 1
    found = store.resolve("a", "s1", 1.0, plugin="p")
    assert found is not None
    assert found.source == "user"


def test_they_expire_when_their_time_is_over() -> None:
    store = CandidateStore()
    store.record(one("a"), **MINE)
    assert value(store, "a", now=9.999) == "value"
    assert value(store, "a", now=10.0) is None
    store.record([], **{**GLOBAL, "now": 10.0})
    assert len(store) == 0


def test_an_expired_one_of_the_session_does_not_hide_the_global_one() -> None:
    store = CandidateStore()
    store.record(one("a", 1), **GLOBAL)
    store.record(one("a", 2), **MINE)
    assert value(store, "a", now=10.0) == 1


@pytest.mark.parametrize("source", ["screen", "context.snapshot", "perception.ocr", "clipboard", "llm", "", "User"])
def test_no_other_source_records(source: Any) -> None:
    store = CandidateStore()
    with pytest.raises(ValueError, match="Candidates may come from config, knowledge, user, not from"):
        store.record(one("a"), **{**MINE, "source": source})
    assert len(store) == 0


def test_scopes_that_a_source_may_not_have() -> None:
    store = CandidateStore()
    with pytest.raises(ValueError, match="belong to a session"):
        store.record(one("a"), source="user", owner="mine", now=0.0, ttl_s=1.0)
    with pytest.raises(ValueError, match="need a time to live"):
        store.record(one("a"), source="user", owner="mine", now=0.0, session="s1")
    with pytest.raises(ValueError, match="need the plugin whose ops may be given them"):
        store.record(one("a"), source="user", owner="mine", now=0.0, session="s1", ttl_s=1.0)
    assert len(store) == 0


def test_what_was_recorded_for_a_plugin_is_for_no_other() -> None:
    store = CandidateStore()
    store.record(one("mine", 1), **MINE)
    store.record([*one("any", 2), Candidate(id="named", value=3, plugin="q")], **GLOBAL)
    for plugin, found in (("p", [1, 2, None]), ("q", [None, 2, 3]), ("", [None, 2, None]), (None, [None, 2, None])):
        assert [value(store, name, plugin=plugin) for name in ("mine", "any", "named")] == found


def test_who_records_a_session_s_own_says_for_whom_and_not_the_candidate() -> None:
    store = CandidateStore()
    store.record([Candidate(id="a", value=1, plugin="q")], **MINE)
    assert (value(store, "a", plugin="p"), value(store, "a", plugin="q")) == (1, None)


def test_one_of_the_session_for_another_plugin_does_not_hide_the_global_one() -> None:
    store = CandidateStore()
    store.record(one("a", 1), **GLOBAL)
    store.record(one("a", 2), **MINE)
    assert (value(store, "a", plugin="p"), value(store, "a", plugin="q")) == (2, 1)


def test_an_id_stays_with_its_first_owner_until_that_forgets_it() -> None:
    store = CandidateStore()
    assert store.record(one("a", 1), **GLOBAL) == ()
    assert store.record(one("a", 2) + one("b", 3), **{**GLOBAL, "owner": "other"}) == ("a",)
    assert (value(store, "a"), value(store, "b")) == (1, 3)
    assert store.record(one("a", 4), **GLOBAL) == ()
    assert value(store, "a") == 4
    store.forget("commands")
    assert (value(store, "a"), value(store, "b")) == (None, 3)
    assert store.record(one("a", 5), **{**GLOBAL, "owner": "other"}) == ()
    assert value(store, "a") == 5


def test_an_id_is_free_again_when_it_has_expired() -> None:
    store = CandidateStore()
    store.record(one("a", 1), **MINE)
    assert store.record(one("a", 2), **{**MINE, "owner": "other", "now": 10.0}) == ()
    assert value(store, "a", now=11.0) == 2


def test_a_session_that_ends_takes_its_own_along() -> None:
    store = CandidateStore()
    store.record(one("a"), **GLOBAL)
    store.record(one("b"), **MINE)
    store.record(one("b"), **{**MINE, "session": "s2"})
    store.end_session("s1")
    assert [value(store, "a"), value(store, "b"), value(store, "b", "s2")] == ["value", None, "value"]


def test_nobody_holds_a_reference_into_the_store() -> None:
    store = CandidateStore()
    original = {"list": [1]}
    store.record(one("a", original), **GLOBAL)
    original["list"].append(2)
    value(store, "a")["list"].append(3)
    assert value(store, "a") == {"list": [1]}


def test_the_count_is_bounded_and_nothing_is_recorded_in_part() -> None:
    store = CandidateStore(limit=2)
    store.record(one("a") + one("b"), **{**GLOBAL, "ttl_s": 10.0})
    with pytest.raises(CandidateLimitError, match="More than 2 candidates"):
        store.record(one("a", "new") + one("c"), **GLOBAL)
    assert (value(store, "a"), value(store, "c")) == ("value", None)
    store.record(one("a", "new"), **GLOBAL)
    assert value(store, "a") == "new"
    store.record(one("c") + one("a"), **{**GLOBAL, "now": 10.0})
    assert len(store) == 2


@pytest.mark.parametrize(
    ("candidate", "problem"),
    [
        (Candidate(id="", value=1), "id has 1 to"),
        (Candidate(id="x" * (MAX_ID + 1), value=1), "id has 1 to"),
        (Candidate(id="a", value="x" * MAX_VALUE_BYTES), "is longer than"),
        (Candidate(id="a", value=object()), "is not JSON"),
        (Candidate(id="a", value="\ud800"), "is not JSON"),
    ],
)
def test_bounds_of_one_candidate(candidate: Candidate, problem: str) -> None:
    store = CandidateStore()
    with pytest.raises(CandidateLimitError, match=problem):
        store.record([*one("ok"), candidate], **GLOBAL)
    assert len(store) == 0
