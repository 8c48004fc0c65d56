"""The decision about one step: allow, confirm or deny.

Rules here: `decide` is the only judge, a pure function of its arguments; every decision names the rule that made it;
the order of the rules is that of the code in `decide`, and its docstring states it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from utter_protocol.errors import ErrorCode
from utter_protocol.json_schema import first_violation
from utter_protocol.methods import PlannedStep

from . import render
from .builtin import BUILTIN, OFF_BY_DEFAULT, ArgumentError, niri_is_destructive, niri_runs_commands
from .chars import label
from .confirmations import Circumstances, wanted_by, why
from .decisions import Allow, Confirm, Decision, Deny, step_digest
from .json_values import copy_args
from .ops import canonical_op
from .provenance import effective
from .rates import NEVER_RAN
from .urls import UrlError

if TYPE_CHECKING:
    from collections.abc import Callable

    from utter_protocol.methods import Provenance

    from .candidates import CandidateStore, Recorded
    from .ops import OpRegistry, OpSpec
    from .provenance import Effective, Origin
    from .rates import Runs
    from .rules import PolicyRules

Step = PlannedStep

_MAX_DETAIL = 400
_ALLOWED = "The op is on and its arguments are valid."


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
    runs: Runs = NEVER_RAN,
) -> Decision:
    """Judge one step. Never raises for anything that a plugin or client can put into `step`.

    The rules, in order; the first that denies decides:

    1. `op-name`, `arg-provenance` (-32602): the name is no op's; a grade is stated for an argument that is not there.
    2. `command-from-screen` (-32006): an op that runs commands or types, with anything in it from the screen.
       `command-from-llm` (-32006): such an op, in a step that a language model had a part in, unless its `from_llm`.
    3. `screen-authored-argument`, `screen-undeclared-argument`, `unknown-candidate` (-32006): an argument that is
       `screen` is not exactly `{"select": id}`, is not one that the op declares, or names no candidate that was
       recorded for this session and for the plugin that runs the op.
    4. `op-disabled`, `op-not-enabled` (-32003): the configuration, with `terminal` and `input` off until enabled.
    5. `no-provider` (-32005): no plugin, or not the one that was named, runs the op.
    6. `arguments`, `schema` (-32602): values that JSON or the op does not take. `url` (-32003): an address that is not
       opened. `configured-schema` (-32003): the user's own schema for the op. Candidates are in place by now, so their
       values pass everything that the user's own would.
    7. `command-from-screen`, `command-from-llm`, `op-not-enabled`: 2 and 4 again for niri actions that start programs,
       as for `terminal`.
    8. `rate` (-32003): the op has run as often as it may. It comes last, so that only what would run is counted.
    9. Confirmations, which only add up: `always-confirm`, `destructive`, `screen-without-arguments` (choosing an op
       that takes nothing is all that there is to author), `configured-confirm`, `untrusted-confirm`, `plugin-asks`,
       `plan-asks`. `confirm-too-long` (-32003): there is more to show than a person would read.
    10. `allowed`.

    Args:
        step: what is proposed.
        origin: what the runner knows about where it came from.
        registry: the ops there are.
        rules: the user's configuration.
        candidates: what may be picked under `screen`.
        now: monotonic seconds, on the clock that `candidates` and `runs` were filled by.
        runs: when ops with a rate last ran.
    """
    try:
        op = _named_op(step)
        grades = effective(step, origin)
        if op in OFF_BY_DEFAULT:
            _check_command(op, op, grades, origin, rules)
        spec = registry.find(op, origin.plugin)
        args = step.args
        if grades.tainted:
            plugin = None if spec is None else spec.plugin

            def resolve(candidate_id: str) -> Recorded | None:
                return candidates.resolve(candidate_id, origin.session, now, plugin=plugin)

            args = _picked(args, grades.tainted, _declared(op, spec), resolve)
        _check_enabled(op, rules)
        if spec is None:
            raise _no_provider(op, origin.plugin)
        args = _canonical_args(args, spec, rules)
        starts_programs = op == "niri" and niri_runs_commands(args)
        if starts_programs:
            _check_command(op, "terminal", grades, origin, rules)
            _check_enabled_as_terminal(rules)
        _check_rate(op, rules, runs, now)
        circumstances = Circumstances(
            screen_step=grades.step != "user",
            screen=grades.lowest != "user",
            llm=origin.llm,
            no_args=not args,
            starts_programs=starts_programs,
            ends_session=op == "niri" and niri_is_destructive(args),
            plan_asks=step.confirm,
        )
        return _granted(spec, args, grades.lowest, circumstances, rules)
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


def _check_command(op: str, configured_as: str, grades: Effective, origin: Origin, rules: PolicyRules) -> None:
    """Hold an op that runs commands or types to the user's own words."""
    if grades.lowest != "user":
        detail = f"'{op}' runs commands or types text, so nothing on the screen may have a part in it."
        raise _Denied(ErrorCode.UNTRUSTED_PROVENANCE, "command-from-screen", detail)
    if origin.llm and not rules.of(configured_as).from_llm:
        key = f"[policy.ops.{configured_as}] from_llm"
        detail = f"'{op}' runs commands or types text, so no language model may have a part in it unless {key} says so."
        raise _Denied(ErrorCode.UNTRUSTED_PROVENANCE, "command-from-llm", detail)


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
            detail = (
                f"The argument '{name}' picks a candidate that was not recorded in this session for this op's plugin, "
                "or has expired."
            )
            raise _Denied(ErrorCode.UNTRUSTED_PROVENANCE, "unknown-candidate", detail, field=name)
        picked[name] = candidate.value
    return picked


def _check_enabled(op: str, rules: PolicyRules) -> None:
    if (key := rules.switched_off(op)) is not None:
        raise _Denied(ErrorCode.NOT_PERMITTED, "op-disabled", f"'{op}' is switched off by {key}.")
    if op in OFF_BY_DEFAULT and rules.switched_on(op) is None:
        detail = f"'{op}' is off until [policy] enabled_ops names it."
        raise _Denied(ErrorCode.NOT_PERMITTED, "op-not-enabled", detail)


def _check_enabled_as_terminal(rules: PolicyRules) -> None:
    if rules.switched_on("terminal") is None:
        detail = "This niri action starts programs, which is off until [policy] enabled_ops names 'terminal'."
        raise _Denied(ErrorCode.NOT_PERMITTED, "op-not-enabled", detail, field="action")


def _check_rate(op: str, rules: PolicyRules, runs: Runs, now: float) -> None:
    rate = rules.of(op).rate
    if rate is None or (wait := runs.wait_ms(op, rate, now)) == 0:
        return
    detail = f"'{op}' has run as often as [policy.ops.{op}] rate allows, which is {rate}; it may again in {wait} ms."
    data = {"bound": "rate", "limit": rate.count, "per": rate.per, "retry_after_ms": wait}
    raise _Denied(ErrorCode.NOT_PERMITTED, "rate", detail, **data)


def _canonical_args(args: dict[str, Any], spec: OpSpec, rules: PolicyRules) -> dict[str, Any]:
    """A checked copy of the arguments in canonical form."""
    try:
        args = copy_args(args)
        if spec.builtin is not None:
            args = spec.builtin.check(args, rules.schemes(spec.op))
    except ArgumentError as error:
        raise _Denied(ErrorCode.INVALID_PARAMS, "arguments", str(error), field=error.field) from None
    except UrlError as error:
        raise _Denied(ErrorCode.NOT_PERMITTED, "url", str(error), field="url", reason=error.reason) from None
    if spec.validator is not None and (violation := first_violation(spec.validator, args)) is not None:
        detail = _unfit(violation, "the op's schema")
        raise _Denied(ErrorCode.INVALID_PARAMS, "schema", detail, field=violation[0])
    configured = rules.of(spec.op).validator
    if configured is not None and (violation := first_violation(configured, args)) is not None:
        detail = _unfit(violation, f"[policy.ops.{spec.op}] schema")
        raise _Denied(ErrorCode.NOT_PERMITTED, "configured-schema", detail, field=violation[0])
    return args


def _unfit(violation: tuple[str, str], schema: str) -> str:
    field, problem = violation
    subject = f"The argument '{field}' does" if field else "The arguments do"
    return f"{subject} not fit {schema}: {problem}."


def _granted(
    spec: OpSpec, args: dict[str, Any], provenance: Provenance, circumstances: Circumstances, rules: PolicyRules
) -> Allow | Confirm:
    wanted = wanted_by(spec, rules, circumstances)
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
    text, shown = render.confirmation(spec.op, args, provenance, llm=circumstances.llm)
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
        detail=why(wanted[0], spec.op, rules),
        text=text,
        rules=wanted,
    )
