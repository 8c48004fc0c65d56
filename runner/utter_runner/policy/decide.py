"""The decision about one step: allow, confirm or deny.

Rules here: `decide` is the only judge, a pure function of its arguments; every decision names the rule that made it;
the order of the rules is that of the code in `decide`, and its docstring states it.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import msgspec

from utter_protocol.errors import ErrorCode
from utter_protocol.json_schema import first_violation
from utter_protocol.methods import PlannedStep, Provenance

from . import render
from .builtin import BUILTIN, OFF_BY_DEFAULT, ArgumentError, niri_is_destructive, niri_runs_commands
from .chars import label
from .json_values import copy_args
from .ops import canonical_op
from .provenance import effective
from .urls import DEFAULT_SCHEMES, UrlError, check_schemes

if TYPE_CHECKING:
    from collections.abc import Callable

    from .candidates import CandidateStore, Recorded
    from .ops import OpRegistry, OpSpec
    from .provenance import Effective, Origin

Step = PlannedStep

_ENCODER = msgspec.json.Encoder(order="sorted")
_MAX_DETAIL = 400
_ALLOWED = "The op is on and its arguments are valid."


class PolicyRules(msgspec.Struct, kw_only=True, frozen=True):
    """What the user configured in `[policy]`. Op names may carry the prefix `action.`; ValueError for a bad one.

    Attributes:
        enabled_ops: ops that are off by default (`terminal`, `input`) and were switched on.
        disabled_ops: ops that are off; stronger than `enabled_ops`.
        confirm_ops: ops that always ask.
        url_schemes: what `open_url` and `ensure_url` may open.
    """

    enabled_ops: frozenset[str] = frozenset()
    disabled_ops: frozenset[str] = frozenset()
    confirm_ops: frozenset[str] = frozenset()
    url_schemes: frozenset[str] = DEFAULT_SCHEMES

    def __post_init__(self) -> None:
        """Bring names into their one spelling."""
        for field in ("enabled_ops", "disabled_ops", "confirm_ops"):
            msgspec.structs.force_setattr(self, field, frozenset(map(_configured, getattr(self, field))))
        msgspec.structs.force_setattr(self, "url_schemes", check_schemes(self.url_schemes))


def _configured(op: str) -> str:
    canonical = canonical_op(op)
    if canonical is None:
        raise ValueError(f"{op!r} is not the name of an op.")
    return canonical


class Allow(msgspec.Struct, kw_only=True, frozen=True, tag="allow"):
    """Run it now.

    Attributes:
        op: the canonical name (no prefix); `invoke_as` is the name that the plugin advertised, to send to it.
        args: canonical arguments, a new object: candidates resolved, URLs canonical. Only these may be sent.
        provenance: the lowest grade in the step, for `action.invoke`.
        plugin: who runs it.
        digest: `step_digest` of the four above, hex.
        rule: the rule that decided; `detail` says it in a sentence.
    """

    op: str
    invoke_as: str
    args: dict[str, Any]
    provenance: Provenance
    plugin: str
    digest: str
    rule: str
    detail: str


class Confirm(msgspec.Struct, kw_only=True, frozen=True, tag="confirm"):
    """Run it if a person who read `text` says yes. The other attributes are those of `Allow`.

    Attributes:
        text: what the person must read, from `render.confirmation`; harmless on every surface.
        rules: every rule that wants the confirmation; `rule` is the first of them.
    """

    op: str
    invoke_as: str
    args: dict[str, Any]
    provenance: Provenance
    plugin: str
    digest: str
    rule: str
    detail: str
    text: str
    rules: tuple[str, ...]


class Deny(msgspec.Struct, kw_only=True, frozen=True, tag="deny"):
    """Do not run it. `code`, `detail` and `data` make the wire error; `data` always has "rule" and "op"."""

    op: str
    code: int
    rule: str
    detail: str
    data: dict[str, Any]


Decision = Allow | Confirm | Deny


def step_digest(op: str, args: dict[str, Any], provenance: Provenance, plugin: str) -> str:
    """SHA-256, hex, over the canonical JSON (sorted keys, no whitespace, UTF-8) of {args, op, plugin, provenance}."""
    step = {"args": args, "op": op, "plugin": plugin, "provenance": provenance}
    return hashlib.sha256(_ENCODER.encode(step)).hexdigest()


class _Denied(Exception):
    def __init__(self, code: ErrorCode, rule: str, detail: str, **data: Any) -> None:
        super().__init__(rule)
        self.code = code
        self.rule = rule
        self.detail = detail
        self.data = data

    def decision(self, op: str) -> Deny:
        """As a decision. Names that came with the step are made fit to be shown and logged."""
        data = {key: label(value) if isinstance(value, str) else value for key, value in self.data.items()}
        detail = label(self.detail, _MAX_DETAIL)
        return Deny(
            op=op, code=int(self.code), rule=self.rule, detail=detail, data={"rule": self.rule, "op": op} | data
        )


def decide(
    step: Step,
    origin: Origin,
    registry: OpRegistry,
    rules: PolicyRules,
    candidates: CandidateStore,
    *,
    now: float,
) -> Decision:
    """Judge one step. Never raises for anything that a plugin or client can put into `step`.

    The rules, in order; the first that denies decides:

    1. `op-name`, `arg-provenance` (-32602): the name is no op's; a grade is stated for an argument that is not there.
    2. `command-from-screen` (-32006): an op that runs commands or types, with anything in it from the screen.
    3. `screen-authored-argument`, `screen-undeclared-argument`, `unknown-candidate` (-32006): an argument that is
       `screen` is not exactly `{"select": id}`, is not one that the op declares, or names no candidate recorded for
       this session.
    4. `op-disabled`, `op-not-enabled` (-32003): the configuration, with `terminal` and `input` off until enabled.
    5. `no-provider` (-32005): no plugin, or not the one that was named, runs the op.
    6. `arguments`, `schema` (-32602): values that JSON or the op does not take. `url` (-32003): an address that is not
       opened. Candidates are in place by now, so their values pass everything that the user's own would.
    7. `command-from-screen`, `op-not-enabled`: 2 and 4 again for niri actions that start programs.
    8. Confirmations, which only add up: `always-confirm`, `destructive`, `screen-without-arguments` (choosing an op
       that takes nothing is all that there is to author), `configured-confirm`, `plugin-asks`, `plan-asks`.
       `confirm-too-long` (-32003): there is more to show than a person would read.
    9. `allowed`.

    Args:
        step: what is proposed.
        origin: what the runner knows about where it came from.
        registry: the ops there are.
        rules: the user's configuration.
        candidates: what may be picked under `screen`.
        now: monotonic seconds, on the clock that `candidates` was filled by.
    """
    try:
        op = _named_op(step)
        grades = effective(step, origin)
        if op in OFF_BY_DEFAULT and grades.lowest != "user":
            raise _command_from_screen(op)
        spec = registry.find(op, origin.plugin)
        args = step.args
        if grades.tainted:

            def resolve(candidate_id: str) -> Recorded | None:
                return candidates.resolve(candidate_id, origin.session, now)

            args = _picked(args, grades.tainted, _declared(op, spec), resolve)
        _check_enabled(op, rules)
        if spec is None:
            raise _no_provider(op, origin.plugin)
        args = _canonical_args(args, spec, rules)
        return _granted(spec, args, grades.lowest, _confirmations(step, args, grades, spec, rules))
    except _Denied as denied:
        return denied.decision(canonical_op(step.op) or label(step.op))


def _named_op(step: Step) -> str:
    op = canonical_op(step.op)
    if op is None:
        raise _Denied(ErrorCode.INVALID_PARAMS, "op-name", "The step's op is not the name of an op.", field="op")
    for name in step.arg_provenance:
        if name not in step.args:
            detail = f"The step states where the argument '{name}' comes from, but has no such argument."
            raise _Denied(ErrorCode.INVALID_PARAMS, "arg-provenance", detail, field=name)
    return op


def _command_from_screen(op: str) -> _Denied:
    detail = f"'{op}' runs commands or types text, so nothing on the screen may have a part in it."
    return _Denied(ErrorCode.UNTRUSTED_PROVENANCE, "command-from-screen", detail)


def _no_provider(op: str, named: str | None) -> _Denied:
    if named is None:
        return _Denied(ErrorCode.CAPABILITY_MISSING, "no-provider", f"No running plugin offers the op '{op}'.")
    detail = f"The plugin '{named}' does not offer the op '{op}', or is not running."
    return _Denied(ErrorCode.CAPABILITY_MISSING, "no-provider", detail, plugin=named)


def _declared(op: str, spec: OpSpec | None) -> frozenset[str] | None:
    """The arguments known to exist, or None for an op that nobody offers."""
    if spec is not None:
        return spec.declared
    return BUILTIN[op].arguments if op in BUILTIN else None


def _picked(
    args: dict[str, Any],
    tainted: frozenset[str],
    declared: frozenset[str] | None,
    resolve: Callable[[str], Recorded | None],
) -> dict[str, Any]:
    """The arguments with every tainted one replaced by the value that it picks."""
    picked = dict(args)
    for name in (name for name in args if name in tainted):
        value = args[name]
        chosen = value.get("select") if isinstance(value, dict) and len(value) == 1 else None
        if not isinstance(chosen, str):
            detail = f"The argument '{name}' comes from the screen, so it may only pick a candidate by its id."
            raise _Denied(ErrorCode.UNTRUSTED_PROVENANCE, "screen-authored-argument", detail, field=name)
        if declared is not None and name not in declared:
            detail = f"The argument '{name}' comes from the screen and is not one that the op declares."
            raise _Denied(ErrorCode.UNTRUSTED_PROVENANCE, "screen-undeclared-argument", detail, field=name)
        candidate = resolve(chosen)
        if candidate is None:
            detail = f"The argument '{name}' picks a candidate that was not recorded in this session or has expired."
            raise _Denied(ErrorCode.UNTRUSTED_PROVENANCE, "unknown-candidate", detail, field=name)
        picked[name] = candidate.value
    return picked


def _check_enabled(op: str, rules: PolicyRules) -> None:
    if op in rules.disabled_ops:
        detail = f"'{op}' is switched off by [policy] disabled_ops."
        raise _Denied(ErrorCode.NOT_PERMITTED, "op-disabled", detail)
    if op in OFF_BY_DEFAULT and op not in rules.enabled_ops:
        detail = f"'{op}' is off until [policy] enabled_ops names it."
        raise _Denied(ErrorCode.NOT_PERMITTED, "op-not-enabled", detail)


def _canonical_args(args: dict[str, Any], spec: OpSpec, rules: PolicyRules) -> dict[str, Any]:
    """A checked copy of the arguments in canonical form."""
    try:
        args = copy_args(args)
        if spec.builtin is not None:
            args = spec.builtin.check(args, rules.url_schemes)
    except ArgumentError as error:
        raise _Denied(ErrorCode.INVALID_PARAMS, "arguments", str(error), field=error.field) from None
    except UrlError as error:
        raise _Denied(ErrorCode.NOT_PERMITTED, "url", str(error), field="url", reason=error.reason) from None
    if spec.validator is not None and (violation := first_violation(spec.validator, args)) is not None:
        field, problem = violation
        subject = f"The argument '{field}' does" if field else "The arguments do"
        detail = f"{subject} not fit the op's schema: {problem}."
        raise _Denied(ErrorCode.INVALID_PARAMS, "schema", detail, field=field)
    return args


def _confirmations(
    step: Step, args: dict[str, Any], grades: Effective, spec: OpSpec, rules: PolicyRules
) -> tuple[str, ...]:
    """The names of all rules that want a person's yes."""
    op = spec.op
    starts_programs = op == "niri" and niri_runs_commands(args)
    if starts_programs:
        if grades.lowest != "user":
            raise _command_from_screen("niri")
        if "terminal" not in rules.enabled_ops or "terminal" in rules.disabled_ops:
            detail = "This niri action starts programs, which is off until [policy] enabled_ops names 'terminal'."
            raise _Denied(ErrorCode.NOT_PERMITTED, "op-not-enabled", detail, field="action")
    conditions = (
        ("always-confirm", starts_programs or op in OFF_BY_DEFAULT),
        ("destructive", spec.side_effect == "destructive" or (op == "niri" and niri_is_destructive(args))),
        ("screen-without-arguments", not args and grades.step != "user"),
        ("configured-confirm", op in rules.confirm_ops),
        ("plugin-asks", spec.needs_confirm),
        ("plan-asks", step.confirm),
    )
    return tuple(rule for rule, wanted in conditions if wanted)


_WHY = {
    "always-confirm": "It runs a command or types text, which always asks first.",
    "destructive": "What it does cannot be undone.",
    "screen-without-arguments": "Something on the screen chose it.",
    "configured-confirm": "[policy] confirm_ops names it.",
    "plugin-asks": "The plugin that runs it asks for a confirmation.",
    "plan-asks": "The plan asks for a confirmation.",
}


def _granted(spec: OpSpec, args: dict[str, Any], provenance: Provenance, wanted: tuple[str, ...]) -> Allow | Confirm:
    digest = step_digest(spec.op, args, provenance, spec.plugin)
    if not wanted:
        return Allow(
            op=spec.op,
            invoke_as=spec.invoke_as,
            args=args,
            provenance=provenance,
            plugin=spec.plugin,
            digest=digest,
            rule="allowed",
            detail=_ALLOWED,
        )
    text, shown = render.confirmation(spec.op, args, provenance)
    if shown > render.MAX_SHOWN:
        detail = f"The arguments take {shown} characters to show, and a confirmation shows at most {render.MAX_SHOWN}."
        raise _Denied(ErrorCode.NOT_PERMITTED, "confirm-too-long", detail, bound=render.MAX_SHOWN, length=shown)
    return Confirm(
        op=spec.op,
        invoke_as=spec.invoke_as,
        args=args,
        provenance=provenance,
        plugin=spec.plugin,
        digest=digest,
        rule=wanted[0],
        detail=_WHY[wanted[0]],
        text=text,
        rules=wanted,
    )
