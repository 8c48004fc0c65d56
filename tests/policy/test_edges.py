"""Edges of the rules, at the very value where each begins: what `make mutants` found that nothing else noticed."""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any

import msgspec
import pytest

from support.policy import CANDIDATE_STORE, EVERYTHING_ON, NOW, SCREEN, SESSION, USER, judge, step
from utter_protocol.methods import Candidate, Op
from utter_runner import policy
from utter_runner.policy import (
    Allow,
    CandidateLimitError,
    CandidateStore,
    Confirm,
    Decision,
    Deny,
    OpRegistry,
    OpRule,
    Origin,
    PolicyRules,
    Rate,
    Runs,
    UrlError,
    canonical_url,
    decide,
)
from utter_runner.policy.candidates import MAX_ID, MAX_VALUE_BYTES
from utter_runner.policy.confirmations import Circumstances
from utter_runner.policy.render import MAX_SHOWN, confirmation


def record(store: CandidateStore, *candidates: Candidate) -> None:
    store.record(candidates, source="knowledge", owner="commands", now=0.0)


# ---- candidates


def test_the_longest_id_and_the_longest_value_are_taken_and_longer_ones_are_not() -> None:
    store = CandidateStore()
    longest = "x" * (MAX_VALUE_BYTES - 2)  # two quotation marks
    record(store, Candidate(id="i" * MAX_ID, value=longest))
    found = store.resolve("i" * MAX_ID, SESSION, NOW, plugin=None)
    assert found is not None
    assert found.value == longest
    with pytest.raises(CandidateLimitError, match="1 to 256"):
        record(store, Candidate(id="i" * (MAX_ID + 1), value=""))
    with pytest.raises(CandidateLimitError, match="longer than 8192"):
        record(store, Candidate(id="i", value=longest + "x"))


def test_a_value_that_is_nested_without_end_is_refused() -> None:
    deep: list[Any] = []
    for _ in range(200_000):
        deep = [deep]
    with pytest.raises(CandidateLimitError, match="not JSON"):
        record(CandidateStore(), Candidate(id="deep", value=deep))
    while deep:  # one by one, because a list of that depth is not freed at once
        deep = deep.pop()


def test_as_many_candidates_as_the_bound_are_held_and_not_one_more() -> None:
    store = CandidateStore()
    record(store, *(Candidate(id=str(number), value=number) for number in range(4096)))
    assert len(store) == 4096
    with pytest.raises(CandidateLimitError, match="More than 4096"):
        record(store, Candidate(id="more", value=0))


# ---- where nothing is stated


def test_what_is_not_stated_is_not_trusted() -> None:
    assert Origin() == Origin(provenance="screen", session="", sources=(), plugin=None, llm=False)
    assert Circumstances() == Circumstances(
        screen_step=False,
        screen=False,
        llm=False,
        no_args=False,
        starts_programs=False,
        ends_session=False,
        plan_asks=False,
    )


def test_everything_that_is_judged_or_judged_by_stays_as_it_is() -> None:
    for found in pkgutil.iter_modules(policy.__path__):
        module = importlib.import_module(f"{policy.__name__}.{found.name}")
        for thing in vars(module).values():
            if isinstance(thing, type) and issubclass(thing, msgspec.Struct) and thing.__module__ == module.__name__:
                assert thing.__struct_config__.frozen, thing


# ---- niri actions


@pytest.mark.parametrize("action", ["spawn", "quit"])
def test_words_that_mean_something_to_niri_mean_nothing_to_other_ops(action: str) -> None:
    assert isinstance(judge(step("free", {"action": action})), Allow)


@pytest.mark.parametrize("action", ["spawn", "quit"])
def test_never_silences_nothing_of_an_action_that_starts_programs_or_ends_the_session(action: str) -> None:
    rules = msgspec.structs.replace(EVERYTHING_ON, ops={"niri": OpRule(confirm="never")})
    registry = OpRegistry()
    registry.advertise("desktop", [Op(op="niri", side_effect="local")])

    def judged(action: str) -> Decision:
        proposed = step("niri", {"action": action}, confirm=True)
        return decide(proposed, USER, registry, rules, CANDIDATE_STORE, now=NOW)

    decision = judged(action)
    assert isinstance(decision, Confirm)
    assert "plan-asks" in decision.rules
    assert isinstance(judged("close-window"), Allow)


# ---- what is told


def test_an_argument_that_a_known_op_has_not_is_not_picked_even_where_nobody_runs_the_op() -> None:
    proposed = step("open_url", {"x": {"select": "youtube"}}, "screen")
    decision = decide(proposed, SCREEN, OpRegistry(), PolicyRules(), CANDIDATE_STORE, now=NOW)
    assert decision.rule == "screen-undeclared-argument"


def test_who_is_missing_is_told() -> None:
    assert judge(step("nobody")).detail == "No running plugin offers the op 'nobody'."
    named = judge(step("mute"), msgspec.structs.replace(USER, plugin="other"))
    assert named.detail == "The plugin 'other' does not offer the op 'mute', or is not running."


def test_what_does_not_fit_a_schema_is_told_by_its_field_or_as_a_whole() -> None:
    assert judge(step("media", {"command": "dance"})).detail.startswith("The argument 'command' does not fit the op's")
    rules = PolicyRules(ops={"free": OpRule(schema={"maxProperties": 0})})
    whole = judge(step("free", {"x": 1}), USER, rules)
    assert (whole.rule, whole.detail[:27]) == ("configured-schema", "The arguments do not fit [p")


def test_each_confirmation_says_why() -> None:
    assert judge(step("wipe", {"disk": "a"})).detail == "What it does cannot be undone."
    assert judge(step("asks")).detail == "The plugin that runs it asks for a confirmation."
    listed = judge(step("mute"), USER, PolicyRules(confirm_ops=frozenset({"mute"})))
    assert listed.detail == "[policy] confirm_ops names it."
    ruled = judge(step("mute"), USER, PolicyRules(ops={"mute": OpRule(confirm="always")}))
    assert ruled.detail == "[policy.ops.mute] confirm says so."


def test_as_much_as_a_person_reads_is_shown_and_not_one_character_more() -> None:
    empty = confirmation("wipe", {"disk": ""}, "user")[1]
    fits = "x" * (MAX_SHOWN - empty)
    assert isinstance(judge(step("wipe", {"disk": fits})), Confirm)
    longer = judge(step("wipe", {"disk": fits + "x"}))
    assert isinstance(longer, Deny)
    assert longer.rule == "confirm-too-long"


# ---- the user's own rules


def test_a_schema_of_the_user_s_is_compiled_with_its_rule() -> None:
    rule = OpRule(schema={"maxProperties": 0})
    assert rule.validator is not None
    assert not rule.validator.is_valid({"x": 1})


def test_what_ran_is_remembered_where_the_rate_is_another_now() -> None:
    runs = Runs()
    for at in (1.0, 2.0):
        runs.note("mute", Rate(2, "hour"), at)
    runs.note("mute", Rate(3, "hour"), 3.0)
    assert runs.wait_ms("mute", Rate(3, "hour"), 4.0) == 3_597_000
    for at in range(10):
        runs.note("mute", Rate(3, "hour"), 10.0 + at)
    assert len(runs._times["mute"]) == 3


# ---- addresses


@pytest.mark.parametrize("host", ["xn--a", "xn--", "a.xn--abc-", "xn--a-.org", "xn--a:8080"])
def test_a_label_that_only_looks_like_punycode_is_refused(host: str) -> None:
    with pytest.raises(UrlError) as caught:
        canonical_url(f"https://{host}/")
    assert caught.value.reason in {"ambiguous", "not-a-url"}


@pytest.mark.parametrize("host", ["xn--bcher-kva.example", "xn--n3h.net:8443", "a.xn--p1ai", "axn--b.org"])
def test_punycode_that_is_some_passes(host: str) -> None:
    assert canonical_url(f"https://{host}/").host == host
