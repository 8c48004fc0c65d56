"""How often an op may run: what a rate means, and what its refusal says."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.policy import CANDIDATE_STORE, PROPERTY, REGISTRY, USER, judge, step
from utter_runner.policy import Allow, Confirm, Decision, Deny, OpRule, PolicyRules, Rate, Runs, decide, parse_rate
from utter_runner.policy.rates import NEVER_RAN

TWICE = Rate(2, "minute")
MUTE = step("mute")


def judged(runs: Runs, now: float, rules: PolicyRules) -> Decision:
    return decide(MUTE, USER, REGISTRY, rules, CANDIDATE_STORE, now=now, runs=runs)


@pytest.mark.parametrize("text", ["1/second", "10/minute", "9999/hour"])
def test_a_rate_is_read_and_written(text: str) -> None:
    assert str(parse_rate(text)) == text


@pytest.mark.parametrize(
    "text", ["", "0/second", "10000/hour", "1/day", "1 / minute", "1/minutes", "-1/hour", "01/hour"]
)
def test_what_is_no_rate(text: str) -> None:
    with pytest.raises(ValueError, match="is not a rate such as 10/minute"):
        parse_rate(text)


def test_after_as_many_runs_as_it_allows_it_refuses_until_the_oldest_is_long_enough_ago() -> None:
    runs = Runs()
    assert runs.wait_ms("mute", TWICE, 0.0) == 0
    runs.note("mute", TWICE, 0.0)
    assert runs.wait_ms("mute", TWICE, 10.0) == 0
    runs.note("mute", TWICE, 10.0)
    assert runs.wait_ms("mute", TWICE, 10.0) == 50_000
    assert runs.wait_ms("mute", TWICE, 59.9995) == 1
    assert runs.wait_ms("mute", TWICE, 60.0) == 0
    runs.note("mute", TWICE, 60.0)
    assert runs.wait_ms("mute", TWICE, 60.0) == 10_000
    assert runs.wait_ms("media", TWICE, 60.0) == 0


def test_another_rate_counts_the_runs_that_are_remembered() -> None:
    runs = Runs()
    for at in (0.0, 1.0, 2.0):
        runs.note("mute", Rate(3, "minute"), at)
    assert runs.wait_ms("mute", Rate(1, "minute"), 2.0) == 60_000
    runs.note("mute", Rate(1, "minute"), 70.0)
    assert runs.wait_ms("mute", Rate(1, "minute"), 70.0) == 60_000


@PROPERTY
@given(
    rate=st.builds(Rate, st.integers(1, 5), st.sampled_from(["second", "minute"])),
    steps=st.lists(st.floats(0, 40), max_size=40),
)
def test_no_stretch_of_time_ever_holds_more_runs_than_the_rate(rate: Rate, steps: list[float]) -> None:
    runs, ran, now = Runs(), list[float](), 0.0
    for pause in steps:
        now += pause
        if runs.wait_ms("x", rate, now) == 0:
            # No more than needed is refused, either: fewer than `count` lie in the stretch that ends now.
            assert sum(at + rate.seconds > now for at in ran) < rate.count
            runs.note("x", rate, now)
            ran.append(now)
        else:
            assert sum(at + rate.seconds > now for at in ran) == rate.count


def test_the_refusal_names_the_bound_and_when_to_try_again() -> None:
    rules = PolicyRules(ops={"mute": OpRule(rate=TWICE)})
    runs = Runs()
    assert isinstance(judged(runs, 0.0, rules), Allow)
    for at in (0.0, 30.0):
        runs.note("mute", TWICE, at)
    refused = judged(runs, 30.0, rules)
    assert isinstance(refused, Deny)
    assert (refused.code, refused.rule) == (-32003, "rate")
    assert refused.data == {
        "rule": "rate",
        "op": "mute",
        "bound": "rate",
        "limit": 2,
        "per": "minute",
        "retry_after_ms": 30_000,
    }
    assert refused.detail == (
        "'mute' has run as often as [policy.ops.mute] rate allows, which is 2/minute; it may again in 30000 ms."
    )
    assert isinstance(judged(runs, 60.0, rules), Allow)


def test_the_rate_comes_before_a_confirmation_and_after_all_other_denials() -> None:
    runs = Runs()
    rate = Rate(1, "hour")
    for op in ("wipe", "open_url"):
        runs.note(op, rate, 0.0)
    rules = PolicyRules(ops={op: OpRule(rate=rate) for op in ("wipe", "open_url")})
    asking = step("wipe", {"disk": "sda"})
    wrong = step("open_url", {"url": "javascript:x"})
    for proposed, fresh, rule in ((asking, Confirm, "rate"), (wrong, Deny, "url")):
        assert isinstance(judge(proposed, USER, rules), fresh)
        late = decide(proposed, USER, REGISTRY, rules, CANDIDATE_STORE, now=1.0, runs=runs)
        assert isinstance(late, Deny)
        assert late.rule == rule


def test_judging_without_a_history_notes_nothing() -> None:
    rules = PolicyRules(ops={"mute": OpRule(rate=Rate(1, "hour"))})
    for _ in range(3):
        assert isinstance(judge(MUTE, USER, rules), Allow)
    assert NEVER_RAN.wait_ms("mute", Rate(1, "hour"), 0.0) == 0
