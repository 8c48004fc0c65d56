"""Which rules want a person's yes, and in which words each says why.

Rules here: rules only add up; `confirm = "never"` silences what a plugin or a plan asks for, and nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from .builtin import OFF_BY_DEFAULT

if TYPE_CHECKING:
    from .ops import OpSpec
    from .rules import PolicyRules


class Circumstances(msgspec.Struct, frozen=True, kw_only=True):
    """What a confirmation may depend on besides the op. The defaults are those of a step of the user's own.

    Attributes:
        screen_step: the step as a whole is the screen's.
        screen: anything in it is.
        llm: a language model had a part in it.
        no_args: it has no arguments.
        starts_programs: it is a niri action that starts a program.
        ends_session: it is a niri action that ends the session.
        plan_asks: the plan wants a confirmation.
    """

    screen_step: bool = False
    screen: bool = False
    llm: bool = False
    no_args: bool = False
    starts_programs: bool = False
    ends_session: bool = False
    plan_asks: bool = False


_THE_USERS = Circumstances()

_WHY = {
    "always-confirm": "It runs a command or types text, which always asks first.",
    "destructive": "What it does cannot be undone.",
    "screen-without-arguments": "Something on the screen chose it.",
    "untrusted-confirm": "Something on the screen or a language model had a part in it.",
    "plugin-asks": "The plugin that runs it asks for a confirmation.",
    "plan-asks": "The plan asks for a confirmation.",
}


def wanted_by(spec: OpSpec, rules: PolicyRules, step: Circumstances) -> tuple[str, ...]:
    """The names of all rules that want a confirmation, in their order."""
    runs_commands = spec.op in OFF_BY_DEFAULT or step.starts_programs
    destructive = spec.side_effect == "destructive" or step.ends_session
    harmless = spec.side_effect in {"none", "local"} and not (runs_commands or destructive)
    configured = rules.of(spec.op).confirm
    silenced = configured == "never" and harmless and not step.screen
    conditions = (
        ("always-confirm", runs_commands),
        ("destructive", destructive),
        ("screen-without-arguments", step.no_args and step.screen_step),
        ("configured-confirm", rules.always_asks(spec.op) is not None),
        ("untrusted-confirm", configured == "untrusted" and (step.screen or step.llm)),
        ("plugin-asks", spec.needs_confirm and not silenced),
        ("plan-asks", step.plan_asks and not silenced),
    )
    return tuple(rule for rule, wanted in conditions if wanted)


def standing(spec: OpSpec, rules: PolicyRules) -> tuple[str, ...]:
    """The rules that want a confirmation of every step of an op, even of the user's own."""
    return wanted_by(spec, rules, _THE_USERS)


def why(rule: str, op: str, rules: PolicyRules) -> str:
    """Say in a sentence why a rule wants a confirmation."""
    if rule != "configured-confirm":
        return _WHY[rule]
    return f"{rules.always_asks(op)} {'names it' if op in rules.confirm_ops else 'says so'}."
