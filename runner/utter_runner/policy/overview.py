"""The state of every op, for a person who wants to see what is on.

Rules here: it tells what `decide` does with a step of the user's own, by the same predicates, and judges nothing; a
property in the tests holds the two together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from utter_protocol.methods import OpState

from .builtin import BUILTIN, OFF_BY_DEFAULT
from .confirmations import standing

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .ops import OpRegistry, OpSpec
    from .rules import PolicyRules

_NOBODYS: tuple[None] = (None,)


def overview(registry: OpRegistry, rules: PolicyRules) -> list[OpState]:
    """List every op that a plugin offers, that is built in, or that the configuration names; sorted by name."""
    offered: dict[str, list[OpSpec]] = {}
    for spec in registry.specs():
        offered.setdefault(spec.op, []).append(spec)
    configured = {*rules.enabled_ops, *rules.disabled_ops, *rules.confirm_ops, *rules.ops}
    found: list[OpState] = []
    for op in sorted({*offered, *BUILTIN, *configured}):
        specs: Sequence[OpSpec | None] = offered.get(op, _NOBODYS)
        found += [_state(op, spec, rules, provider=at == 0 and spec is not None) for at, spec in enumerate(specs)]
    return found


def _state(op: str, spec: OpSpec | None, rules: PolicyRules, *, provider: bool) -> OpState:
    builtin = BUILTIN.get(op)
    rate = rules.of(op).rate
    made = OpState(
        op=op,
        plugin=None if spec is None else spec.plugin,
        provider=provider,
        side_effect=spec.side_effect if spec is not None else None if builtin is None else builtin.side_effect,
        state="on",
        rule="allowed",
        rate=None if rate is None else str(rate),
    )
    off, on = rules.switched_off(op), rules.switched_on(op)
    if off is not None:
        made.state, made.rule, made.key = "off", "op-disabled", off
    elif op in OFF_BY_DEFAULT and on is None:
        made.state, made.rule = "off", "op-not-enabled"
    elif spec is None:
        made.state, made.rule = "off", "no-provider"
    elif wanted := standing(spec, rules):
        made.state, made.rule = "asks", wanted[0]
        made.key = (on or "") if op in OFF_BY_DEFAULT else _asking_key(wanted[0], op, rules)
    elif rules.of(op).confirm == "untrusted" or spec.needs_confirm:
        made.key = f"[policy.ops.{op}] confirm"
    elif rules.of(op).enabled:
        made.key = f"[policy.ops.{op}] enabled"
    return made


def _asking_key(rule: str, op: str, rules: PolicyRules) -> str:
    return (rules.always_asks(op) or "") if rule == "configured-confirm" else ""
