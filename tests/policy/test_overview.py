"""The state of every op as a person is told it."""

from __future__ import annotations

from typing import Any

import pytest

from support.policy import EVERYTHING_ON, REGISTRY, SPECIAL
from utter_protocol.methods import Op, OpState
from utter_runner.policy import OpRegistry, OpRule, PolicyRules, Rate, overview


def state(op: str, rules: PolicyRules, registry: OpRegistry = REGISTRY) -> OpState:
    (found,) = (one for one in overview(registry, rules) if one.op == op)
    return found


def of(op: str, **said: Any) -> PolicyRules:
    return PolicyRules(ops={op: OpRule(**said)})


# op, rules, state, rule, key
STATES: list[tuple[str, PolicyRules, str, str, str]] = [
    ("mute", PolicyRules(), "on", "allowed", ""),
    ("open_url", PolicyRules(), "on", "allowed", ""),
    ("terminal", PolicyRules(), "off", "op-not-enabled", ""),
    ("terminal", EVERYTHING_ON, "asks", "always-confirm", "[policy] enabled_ops"),
    ("terminal", of("terminal", enabled=True), "asks", "always-confirm", "[policy.ops.terminal] enabled"),
    ("terminal", of("terminal", enabled=False), "off", "op-disabled", "[policy.ops.terminal] enabled"),
    ("mute", PolicyRules(disabled_ops=frozenset({"mute"})), "off", "op-disabled", "[policy] disabled_ops"),
    ("mute", of("mute", enabled=False), "off", "op-disabled", "[policy.ops.mute] enabled"),
    ("mute", of("mute", enabled=True), "on", "allowed", "[policy.ops.mute] enabled"),
    ("mute", PolicyRules(confirm_ops=frozenset({"mute"})), "asks", "configured-confirm", "[policy] confirm_ops"),
    ("mute", of("mute", confirm="always"), "asks", "configured-confirm", "[policy.ops.mute] confirm"),
    ("mute", of("mute", confirm="untrusted"), "on", "allowed", "[policy.ops.mute] confirm"),
    ("asks", PolicyRules(), "asks", "plugin-asks", ""),
    ("asks", of("asks", confirm="never"), "on", "allowed", "[policy.ops.asks] confirm"),
    ("wipe", of("wipe", confirm="never"), "asks", "destructive", ""),
]


@pytest.mark.parametrize(("op", "rules", "is_now", "rule", "key"), STATES)
def test_state(op: str, rules: PolicyRules, is_now: str, rule: str, key: str) -> None:
    found = state(op, rules)
    assert (found.state, found.rule, found.key) == (is_now, rule, key)
    assert (found.plugin, found.provider) == ("desktop", True)


def test_side_effects_and_rates() -> None:
    rules = of("open_url", rate=Rate(10, "minute"))
    assert (state("open_url", rules).rate, state("open_url", rules).side_effect) == ("10/minute", "external")
    assert (state("mute", rules).rate, state("mute", rules).side_effect) == (None, "local")


def test_every_op_is_there_once_for_each_plugin_with_the_provider_first() -> None:
    registry = OpRegistry()
    registry.advertise("second", [Op(op="mute"), Op(op="alone")])
    registry.advertise("first", [Op(op="action.mute", side_effect="destructive")])
    found = [(one.op, one.plugin, one.provider) for one in overview(registry, of("configured", rate=Rate(1, "hour")))]
    assert found == sorted(found, key=lambda one: one[0])
    assert [one for one in found if one[1] is not None] == [
        ("alone", "second", True),
        ("mute", "second", True),
        ("mute", "first", False),
    ]
    assert {one[0] for one in found if one[1] is None} == {*SPECIAL, "configured"}


def test_an_op_that_nobody_offers() -> None:
    rules = PolicyRules(confirm_ops=frozenset({"nobodys"}), ops={"input": OpRule(enabled=True)})
    for op, side_effect in (("nobodys", None), ("input", "destructive"), ("launch_app", "local")):
        found = state(op, rules, OpRegistry())
        assert (found.state, found.rule, found.plugin, found.side_effect) == ("off", "no-provider", None, side_effect)
        assert not found.provider
