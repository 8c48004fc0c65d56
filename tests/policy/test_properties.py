"""What no step, however made, gets out of the policy."""

from __future__ import annotations

from typing import Any

import msgspec
from ada_url import URL
from hypothesis import given

from support.policy import (
    CANDIDATES,
    NOW,
    PROPERTY,
    REGISTRY,
    SESSION,
    candidates,
    copy_of,
    judge,
    origins,
    rule_sets,
    steps,
)
from utter_protocol.methods import PlannedStep
from utter_runner.policy import Allow, Confirm, Deny, Origin, PolicyRules, canonical_op, decide, step_digest
from utter_runner.policy.builtin import OFF_BY_DEFAULT, niri_runs_commands
from utter_runner.policy.provenance import effective, lower, of_sources

RECORDED = [candidate.value for candidate in CANDIDATES] + ["https://mine.example/"]


def tainted(step: PlannedStep, origin: Origin) -> set[str]:
    """The arguments that are the screen's, worked out without the policy's own code."""
    whole = "screen" in {step.provenance, origin.provenance} or bool(
        {"context.snapshot", "clipboard"}.intersection(origin.sources)
    )
    return {name for name in step.args if whole or step.arg_provenance.get(name) == "screen"}


@PROPERTY
@given(step=steps(), origin=origins, rules=rule_sets)
def test_nothing_from_the_screen_passes_unless_it_was_recorded(
    step: PlannedStep, origin: Origin, rules: PolicyRules
) -> None:
    decision = judge(step, origin, rules)
    if isinstance(decision, Deny):
        return
    for name in tainted(step, origin):
        assert set(step.args[name]) == {"select"}
        assert decision.args[name] in RECORDED
        assert decision.provenance == "screen"


@PROPERTY
@given(step=steps(), origin=origins, rules=rule_sets)
def test_what_is_off_does_not_run_and_commands_never_run_unasked(
    step: PlannedStep, origin: Origin, rules: PolicyRules
) -> None:
    decision = judge(step, origin, rules)
    if isinstance(decision, Deny):
        return
    assert decision.op not in rules.disabled_ops
    commands = decision.op in OFF_BY_DEFAULT or (decision.op == "niri" and niri_runs_commands(decision.args))
    if commands:
        assert isinstance(decision, Confirm)
        assert decision.provenance == "user"
        assert ("terminal" if decision.op == "niri" else decision.op) in rules.enabled_ops - rules.disabled_ops
    if decision.op in rules.confirm_ops or step.confirm or decision.op in {"wipe", "asks"}:
        assert isinstance(decision, Confirm)


@PROPERTY
@given(step=steps(), origin=origins, rules=rule_sets)
def test_addresses_that_pass_are_canonical_and_of_an_allowed_scheme(
    step: PlannedStep, origin: Origin, rules: PolicyRules
) -> None:
    decision = judge(step, origin, rules)
    if not isinstance(decision, Deny) and decision.op in {"open_url", "ensure_url"}:
        href = decision.args["url"]
        assert URL(href).href == href
        assert URL(href).protocol.removesuffix(":") in rules.url_schemes


@PROPERTY
@given(step=steps(), origin=origins, rules=rule_sets)
def test_a_decision_is_complete_and_shares_nothing_with_the_step(
    step: PlannedStep, origin: Origin, rules: PolicyRules
) -> None:
    before = msgspec.json.encode(step)
    decision = judge(step, origin, rules)
    assert msgspec.json.encode(step) == before
    assert decision.rule
    if isinstance(decision, Deny):
        assert decision.data["rule"] == decision.rule
        assert decision.code in {-32602, -32003, -32005, -32006}
        assert msgspec.json.encode(decision.data)
        return
    assert decision.digest == step_digest(decision.op, copy_of(decision.args), decision.provenance, decision.plugin)
    assert decision.op == canonical_op(step.op)
    assert REGISTRY.find(decision.op) is not None
    for mutable in _mutable(decision.args):
        assert all(mutable is not theirs for theirs in _mutable(step.args))


@PROPERTY
@given(step=steps(), origin=origins, rules=rule_sets)
def test_judging_canonical_arguments_again_changes_nothing(
    step: PlannedStep, origin: Origin, rules: PolicyRules
) -> None:
    decision = judge(step, origin, rules)
    if isinstance(decision, Deny) or decision.provenance == "screen":
        return
    again = judge(msgspec.structs.replace(step, args=decision.args), origin, rules)
    assert type(again) is type(decision)
    assert again == decision


@PROPERTY
@given(step=steps(), origin=origins, rules=rule_sets)
def test_lowering_trust_never_opens_a_door(step: PlannedStep, origin: Origin, rules: PolicyRules) -> None:
    lowered = judge(msgspec.structs.replace(step, provenance="screen"), origin, rules)
    raised = judge(msgspec.structs.replace(step, provenance="user"), origin, rules)
    if not isinstance(lowered, Deny) and all(not isinstance(value, dict) for value in step.args.values()):
        assert not isinstance(raised, Deny)
    if effective(step, origin).step == "screen":
        assert judge(step, origin, rules) == lowered


@PROPERTY
@given(step=steps(), origin=origins)
def test_what_is_stated_never_raises(step: PlannedStep, origin: Origin) -> None:
    grades = effective(step, origin)
    assert lower(grades.step, origin.provenance) == grades.step
    assert lower(grades.step, of_sources(origin.sources)) == grades.step
    assert grades.tainted >= tainted(step, origin)
    if grades.lowest == "user":
        assert origin.provenance == step.provenance == "user"


@PROPERTY
@given(step=steps(), rules=rule_sets)
def test_nothing_is_picked_that_was_forgotten_or_expired(step: PlannedStep, rules: PolicyRules) -> None:
    store = candidates()
    store.forget("commands")
    origin = Origin(provenance="screen", session=SESSION)
    decision = decide(step, origin, REGISTRY, rules, store, now=NOW + 1000)
    if not isinstance(decision, Deny):
        assert decision.args == {}
        assert isinstance(decision, Confirm)


def _mutable(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [value, *(part for child in value.values() for part in _mutable(child))]
    if isinstance(value, list):
        return [value, *(part for child in value for part in _mutable(child))]
    return []


def test_the_generators_reach_every_kind_of_decision() -> None:
    seen: set[tuple[str, str]] = set()
    picked: set[str] = set()

    @PROPERTY
    @given(step=steps(), origin=origins, rules=rule_sets)
    def collect(step: PlannedStep, origin: Origin, rules: PolicyRules) -> None:
        decision = judge(step, origin, rules)
        seen.add((type(decision).__name__, decision.rule))
        if not isinstance(decision, Deny) and tainted(step, origin):
            picked.add(decision.op)

    collect()
    assert {kind for kind, _ in seen} == {Allow.__name__, Confirm.__name__, Deny.__name__}
    assert {"command-from-screen", "screen-authored-argument", "unknown-candidate"} <= {rule for _, rule in seen}
    assert picked
