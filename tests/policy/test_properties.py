"""What no step, however made, gets out of the policy."""

from __future__ import annotations

from typing import Any

import msgspec
from ada_url import URL
from hypothesis import given, settings
from hypothesis import strategies as st

from support.policy import (
    CANDIDATE_STORE,
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
    steps_and_what_is_said,
)
from utter_protocol.methods import PlannedStep
from utter_runner.policy import (
    Allow,
    Confirm,
    Deny,
    OpRule,
    Origin,
    PolicyRules,
    Runs,
    canonical_op,
    decide,
    overview,
    step_digest,
)
from utter_runner.policy.builtin import OFF_BY_DEFAULT, niri_runs_commands
from utter_runner.policy.provenance import effective, lower, of_sources

# By op: arguments that it takes.
FITTING_ARGS: dict[str, dict[str, Any]] = {
    "open_url": {"url": "https://a.org/"},
    "terminal": {"command": "ls"},
    "input": {"text": "x"},
    "niri": {"action": "close-window"},
    "launch_app": {"app": "gimp"},
    "media": {"command": "play"},
    "mute": {},
    "note": {"text": "x"},
    "wipe": {"disk": "sda"},
    "asks": {},
}
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
    assert rules.of(decision.op).enabled is not False
    commands = decision.op in OFF_BY_DEFAULT or (decision.op == "niri" and niri_runs_commands(decision.args))
    if commands:
        assert isinstance(decision, Confirm)
        assert decision.provenance == "user"
        configured_as = "terminal" if decision.op == "niri" else decision.op
        on = rules.enabled_ops | {op for op, rule in rules.ops.items() if rule.enabled}
        off = rules.disabled_ops | {op for op, rule in rules.ops.items() if rule.enabled is False}
        assert configured_as in on - off
        assert rules.of(configured_as).from_llm or not origin.llm
        assert ("A language model had a part in this." in decision.text) == origin.llm
    never = rules.of(decision.op).confirm == "never"
    if decision.op in rules.confirm_ops or decision.op == "wipe" or rules.of(decision.op).confirm == "always":
        assert isinstance(decision, Confirm)
    if (step.confirm or decision.op == "asks") and not (never and decision.provenance == "user"):
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


SEVERITY = {Allow: 0, Confirm: 1, Deny: 2}
MILDER = {
    # What may become milder, by the rule that decided before.
    "op-not-enabled": lambda rule: rule.enabled is True,
    "command-from-llm": lambda rule: rule.from_llm,
    "plugin-asks": lambda rule: rule.confirm == "never",
    "plan-asks": lambda rule: rule.confirm == "never",
}


@PROPERTY
@given(said=steps_and_what_is_said(), origin=origins, rules=rule_sets)
def test_what_is_said_of_an_op_makes_it_stricter_but_for_what_is_named(
    said: tuple[PlannedStep, dict[str, OpRule]], origin: Origin, rules: PolicyRules
) -> None:
    step, more = said
    plain = msgspec.structs.replace(rules, ops={})
    before, after = judge(step, origin, plain), judge(step, origin, msgspec.structs.replace(plain, ops=more))
    if SEVERITY[type(after)] < SEVERITY[type(before)]:
        # A niri action that starts a program is ruled by what is said of `terminal`, too.
        assert before.rule in MILDER
        assert any(MILDER[before.rule](more[op]) for op in (before.op, "terminal") if op in more)
        spec = REGISTRY.find(before.op)
        assert spec is not None
        if isinstance(before, Confirm):
            assert set(before.rules) <= {"plugin-asks", "plan-asks"}
            assert spec.side_effect in {"none", "local"}
            assert before.provenance == "user"
        else:
            assert not isinstance(after, Allow)
    elif isinstance(before, Confirm) and isinstance(after, Confirm):
        assert set(before.rules) - set(after.rules) <= {"plugin-asks", "plan-asks"}
        assert (after.args, after.provenance, after.plugin) == (before.args, before.provenance, before.plugin)
    elif isinstance(before, Allow) and isinstance(after, Allow):
        assert after == before


@PROPERTY
@given(step=steps(), origin=origins, rules=rule_sets)
def test_a_model_s_part_never_opens_a_door(step: PlannedStep, origin: Origin, rules: PolicyRules) -> None:
    without = judge(step, msgspec.structs.replace(origin, llm=False), rules)
    with_it = judge(step, msgspec.structs.replace(origin, llm=True), rules)
    assert SEVERITY[type(with_it)] >= SEVERITY[type(without)]


@PROPERTY
@given(step=steps(), origin=origins, rules=rule_sets, ran=st.lists(st.floats(0, NOW), max_size=4).map(sorted))
def test_a_rate_only_ever_denies_and_only_where_there_is_one(
    step: PlannedStep, origin: Origin, rules: PolicyRules, ran: list[float]
) -> None:
    runs = Runs()
    for op, rule in rules.ops.items():
        for at in ran if rule.rate is not None else ():
            runs.note(op, rule.rate, at)
    fresh = judge(step, origin, rules)
    judged = decide(step, origin, REGISTRY, rules, CANDIDATE_STORE, now=NOW, runs=runs)
    if judged != fresh:
        rate = rules.of(fresh.op).rate
        assert rate is not None
        assert isinstance(judged, Deny)
        assert judged.rule == "rate"
        assert sum(at + rate.seconds > NOW for at in ran) >= rate.count
        # Only what would have gone further is refused for its rate, or what is too long to ask about.
        assert not isinstance(fresh, Deny) or fresh.rule == "confirm-too-long"


@PROPERTY
@given(rules=rule_sets)
def test_the_overview_tells_what_is_decided(rules: PolicyRules) -> None:
    found = {one.op: one for one in overview(REGISTRY, rules) if one.plugin is not None}
    for op, args in FITTING_ARGS.items():
        decision = judge(PlannedStep(op=op, args=args, provenance="user"), Origin(provenance="user"), rules)
        state = found[op]
        if isinstance(decision, Deny) and decision.rule not in {"op-disabled", "op-not-enabled"}:
            continue
        assert state.state == {Allow: "on", Confirm: "asks", Deny: "off"}[type(decision)]
        assert state.rule == decision.rule
        if state.key and isinstance(decision, Deny):
            assert state.key in decision.detail


def _mutable(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [value, *(part for child in value.values() for part in _mutable(child))]
    if isinstance(value, list):
        return [value, *(part for child in value for part in _mutable(child))]
    return []


def test_the_generators_reach_every_kind_of_decision() -> None:
    seen: set[tuple[str, str]] = set()
    picked: set[str] = set()

    # More than the others, because here the rare ones count.
    @settings(PROPERTY, max_examples=600)
    @given(step=steps(), origin=origins, rules=rule_sets, said=steps_and_what_is_said())
    def collect(
        step: PlannedStep, origin: Origin, rules: PolicyRules, said: tuple[PlannedStep, dict[str, OpRule]]
    ) -> None:
        about, ops = said
        for proposed, ruled in ((step, rules), (about, msgspec.structs.replace(rules, ops=ops))):
            decision = judge(proposed, origin, ruled)
            seen.add((type(decision).__name__, decision.rule))
            if not isinstance(decision, Deny) and tainted(proposed, origin):
                picked.add(decision.op)

    collect()
    assert {kind for kind, _ in seen} == {Allow.__name__, Confirm.__name__, Deny.__name__}
    assert {
        "command-from-screen",
        "command-from-llm",
        "screen-authored-argument",
        "unknown-candidate",
        "configured-schema",
    } <= {rule for _, rule in seen}
    assert picked
