"""From the configuration's `[policy]` to the rules by which steps are judged.

Rules here: nothing is decided and nothing is left out; the configuration has been checked, so nothing fails.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from utter_runner.policy import OpRule, PolicyRules, parse_rate

if TYPE_CHECKING:
    from utter_runner.config import OpConfig, PolicyConfig


def policy_rules(config: PolicyConfig) -> PolicyRules:
    """Return the rules that a checked `[policy]` means."""
    return PolicyRules(
        enabled_ops=frozenset(config.enabled_ops),
        disabled_ops=frozenset(config.disabled_ops),
        confirm_ops=frozenset(config.confirm_ops),
        url_schemes=frozenset(config.url_schemes),
        ops={name: _op_rule(op) for name, op in config.ops.items()},
    )


def _op_rule(op: OpConfig) -> OpRule:
    return OpRule(
        enabled=op.enabled,
        confirm=op.confirm,
        schemes=None if op.schemes is None else frozenset(op.schemes),
        schema=op.schema,
        rate=None if op.rate is None else parse_rate(op.rate),
        from_llm=op.from_llm,
        spoken=op.spoken,
    )
