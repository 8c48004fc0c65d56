"""What the user configured, in the form in which steps are judged by it.

Rules here: names of ops are canonical; where two keys speak of the same op the stricter one counts; an entry of `ops`
makes an op stricter, but for what its docstring names. Every answer to "may it?" comes with the key of the
configuration that gave it, so that a person can find it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec

from utter_protocol.json_schema import compile_schema

from .builtin import OFF_BY_DEFAULT, URL_OPS
from .ops import canonical_op
from .rates import Rate  # noqa: TC001 - the annotations below resolve to it
from .urls import DEFAULT_SCHEMES, check_schemes

if TYPE_CHECKING:
    from typing import Any

    from jsonschema_rs import Validator

Confirming = Literal["always", "untrusted", "never"]


class OpRule(msgspec.Struct, kw_only=True, frozen=True):
    """What `[policy.ops.NAME]` says of one op. None means that it says nothing.

    Three of the keys can make decisions milder, each in its own narrow place: `enabled` for an op that is off by
    default, `confirm = "never"` for questions that only the plugin or the plan wants, `from_llm`.

    Attributes:
        enabled: switches the op on or off.
        confirm: "always" asks every time; "untrusted" asks when something on the screen or a language model had a part
            in the step; "never" drops `plugin-asks` and `plan-asks`, where the op does nothing or something local, and
            the step is the user's own.
        schemes: the only schemes of addresses that the op opens, among those of `url_schemes`.
        schema: a JSON Schema that the arguments must fit besides the plugin's.
        rate: how often the op may run.
        spoken: a question about the op may be answered by voice, unless a built-in rule wants it.
        from_llm: a language model may have a part in a step of an op that runs commands or types.
        validator: the schema, compiled; it follows from `schema` and is not for callers to give.
    """

    enabled: bool | None = None
    confirm: Confirming | None = None
    schemes: frozenset[str] | None = None
    schema: dict[str, Any] | None = None
    rate: Rate | None = None
    from_llm: bool = False
    spoken: bool = False
    validator: Validator | None = None

    def __post_init__(self) -> None:
        """Compile the schema. Raises SchemaError: it is none that is enforced."""
        if self.schema is not None:
            msgspec.structs.force_setattr(self, "validator", compile_schema(self.schema))


_NOTHING_SAID = OpRule()


class PolicyRules(msgspec.Struct, kw_only=True, frozen=True):
    """What the user configured in `[policy]`. Op names may carry the prefix `action.`; ValueError for a bad one.

    Attributes:
        enabled_ops: ops that are off by default (`terminal`, `input`) and were switched on.
        disabled_ops: ops that are off; stronger than `enabled_ops`.
        confirm_ops: ops that always ask.
        url_schemes: what `open_url` and `ensure_url` may open.
        ops: single ops, by name.
    """

    enabled_ops: frozenset[str] = frozenset()
    disabled_ops: frozenset[str] = frozenset()
    confirm_ops: frozenset[str] = frozenset()
    url_schemes: frozenset[str] = DEFAULT_SCHEMES
    ops: dict[str, OpRule] = {}

    def __post_init__(self) -> None:
        """Bring names into their one spelling."""
        for field in ("enabled_ops", "disabled_ops", "confirm_ops"):
            msgspec.structs.force_setattr(self, field, frozenset(map(_configured, getattr(self, field))))
        msgspec.structs.force_setattr(self, "url_schemes", check_schemes(self.url_schemes))
        ops = {_configured(name): rule for name, rule in self.ops.items()}
        if len(ops) != len(self.ops):
            raise ValueError("ops: an op is named twice, with and without 'action.'.")
        for op, rule in ops.items():
            if rule.schemes is not None:
                if op not in URL_OPS:
                    raise ValueError(f"ops: '{op}' opens no addresses, so it has no schemes.")
                check_schemes(rule.schemes)
            if rule.from_llm and op not in OFF_BY_DEFAULT:
                raise ValueError(f"ops: from_llm is for {' and '.join(sorted(OFF_BY_DEFAULT))}, not for '{op}'.")
        msgspec.structs.force_setattr(self, "ops", ops)

    def of(self, op: str) -> OpRule:
        """What is said of one op."""
        return self.ops.get(op, _NOTHING_SAID)

    def schemes(self, op: str) -> frozenset[str]:
        """The schemes that an op may open."""
        own = self.of(op).schemes
        return self.url_schemes if own is None else self.url_schemes & own

    def switched_off(self, op: str) -> str | None:
        """The key that switches an op off, or None."""
        if op in self.disabled_ops:
            return "[policy] disabled_ops"
        return f"[policy.ops.{op}] enabled" if self.of(op).enabled is False else None

    def switched_on(self, op: str) -> str | None:
        """The key that switches an op on, or None; without one an op that is off by default stays off."""
        if self.switched_off(op) is not None:
            return None
        if op in self.enabled_ops:
            return "[policy] enabled_ops"
        return f"[policy.ops.{op}] enabled" if self.of(op).enabled else None

    def always_asks(self, op: str) -> str | None:
        """The key that has an op ask every time, or None."""
        if op in self.confirm_ops:
            return "[policy] confirm_ops"
        return f"[policy.ops.{op}] confirm" if self.of(op).confirm == "always" else None


def _configured(op: str) -> str:
    canonical = canonical_op(op)
    if canonical is None:
        raise ValueError(f"{op!r} is not the name of an op.")
    return canonical
