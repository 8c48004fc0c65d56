"""The gate that every action passes, whoever asked for it.

Rules here: nothing else in the runner sends `action.invoke`; what a plugin receives are the canonical arguments of a
decision, never the proposed ones; after a confirmation the step is judged again and must come out the same, for the
same epoch of the same plugin and, where it goes to the window in front, for the same window. What was sent counts
towards the op's rate, and nothing else does. Allowed steps pass without a task of their own. Who submits a step is told
its end exactly once, and no callback's exception reaches another step.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import trio

from utter_protocol.audit import AuditSource
from utter_protocol.errors import ErrorCode, RpcError
from utter_protocol.messages import encode
from utter_protocol.methods import Explanation
from utter_runner.actions.audit import Record, Unaudited
from utter_runner.confirm.confirmer import Question
from utter_runner.dataplane.asked import HANDLE
from utter_runner.policy import Allow, Confirm, Deny, Runs, canonical_op, decide, overview
from utter_runner.policy.builtin import acts_on_window
from utter_runner.rpc.interface import guarded, internal_error
from utter_runner.rpc.replies import wait_reply
from utter_runner.supervision.work import Work

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from msgspec import Raw

    from utter_protocol.messages import RequestId
    from utter_protocol.methods import OpState, PlannedStep
    from utter_runner.actions.audit import Auditor
    from utter_runner.confirm.confirmer import Confirmer
    from utter_runner.policy import CandidateStore, Decision, OpRegistry, Origin, PolicyRules
    from utter_runner.policy.marks import Mark
    from utter_runner.rpc.interface import OnReply
    from utter_runner.rpc.requesters import Requester
    from utter_runner.supervision.instance import Instance
    from utter_runner.supervision.supervisor import Supervisor

logger = logging.getLogger(__name__)

GatePhase = Literal["confirming", "acting"]

INJECT = "input.inject"
_NEVER_SPOKEN = frozenset({"always-confirm", "destructive", "screen-without-arguments", "untrusted-confirm"})
_STATES: dict[bool, Literal["approved", "denied"]] = {True: "approved", False: "denied"}


class Submission:
    """A step on its way through the gate, filled in by the gate alone.

    `cancel` withdraws it: a pending question is denied, a running op cancelled.
    """

    __slots__ = ("cancelled", "epoch", "instance", "request", "scope")

    def __init__(self) -> None:
        self.cancelled = False
        self.scope: trio.CancelScope | None = None
        self.instance: Instance | None = None
        self.epoch = 0
        self.request: RequestId | None = None

    def cancel(self) -> None:
        """Withdraw the step; its `on_reply` gets -32002 unless it has ended."""
        self.cancelled = True
        if self.scope is not None:
            self.scope.cancel()
        # Every epoch numbers its requests anew: a late cancellation must not meet somebody else's.
        if self.instance is not None and self.request is not None and self.instance.epoch == self.epoch:
            self.instance.cancel(self.request)


class ActionGate:
    """Judges steps and runs those that may run.

    Args:
        supervisor: knows the plugins.
        ops: the table of ops.
        rules: what the user configured.
        candidates: what may be picked under `screen`.
        confirmer: asks a person.
        emit: told of every decision.
        mark_in: returns the lowest mark that the handles in a piece of JSON have for a plugin that holds them.
        window: returns what tells the window in front from others; empty where nobody knows.
        audit: told of every step when it is over; may have steps refused.
    """

    def __init__(
        self,
        supervisor: Supervisor,
        *,
        ops: OpRegistry,
        rules: PolicyRules,
        candidates: CandidateStore,
        confirmer: Confirmer,
        emit: Callable[[dict[str, Any]], None],
        mark_in: Callable[[bytes, str], Mark] = lambda _message, _plugin: "user",
        window: Callable[[], Awaitable[str]] | None = None,
        audit: Auditor | None = None,
    ) -> None:
        self._window = window
        self._supervisor = supervisor
        self._ops = ops
        self._mark_in = mark_in
        self._rules = rules
        self._candidates = candidates
        self._confirmer = confirmer
        self._emit = emit
        self._runs = Runs()
        self._audit = audit or Unaudited()
        self._nursery: trio.Nursery | None = None

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Hold the tasks of steps that wait for a confirmation."""
        try:
            async with trio.open_nursery() as self._nursery:
                task_status.started()
                await trio.sleep_forever()
        finally:
            self._nursery = None

    def reconfigure(self, rules: PolicyRules, audit: Auditor | None) -> None:
        """Judge by other rules from now on, also what is being confirmed; what ran counts for the rates as before."""
        self._rules = rules
        self._audit = audit or Unaudited()

    def explain(self, step: PlannedStep, origin: Origin) -> Decision:
        """Return the decision about a step, from the same function that `submit` acts on."""
        origin = self._with_handles(step, origin)
        now = trio.current_time()
        decision = decide(step, origin, self._ops, self._rules, self._candidates, now=now, runs=self._runs)
        why = "" if isinstance(decision, Deny) else self._audit.refusal()
        return _unaudited(decision.op, why) if why else decision

    def overview(self) -> list[OpState]:
        """Return the state of every op."""
        return overview(self._ops, self._rules)

    def _with_handles(self, step: PlannedStep, origin: Origin) -> Origin:
        """Whoever runs a step may hold what its arguments name as the screen's, whoever wrote them now."""
        op = canonical_op(step.op)
        spec = None if op is None else self._ops.find(op, origin.plugin)
        try:
            mark = "user" if spec is None else self._mark_in(encode(step.args), spec.plugin)
        except (TypeError, ValueError, OverflowError, RecursionError):
            # What is no JSON is refused by the policy, whoever wrote it.
            return origin
        if mark == "user":
            return origin
        if mark == "llm":
            return msgspec.structs.replace(origin, llm=True)
        return msgspec.structs.replace(origin, sources=(*origin.sources, HANDLE))

    def submit(
        self,
        step: PlannedStep,
        origin: Origin,
        on_reply: OnReply,
        *,
        timeout: float,
        on_phase: Callable[[GatePhase], None] | None = None,
        on_decision: Callable[[Decision], None] | None = None,
        work: Work | None = None,
        requesters: frozenset[Requester] = frozenset(),
        source: AuditSource | None = None,
    ) -> Submission:
        """Judge a step and run it if it may run.

        Args:
            step: what is proposed.
            origin: what the runner knows about where it came from.
            on_reply: called exactly once with the plugin's ActionResult as JSON, or an error.
            timeout: seconds for the plugin to answer; a confirmation has its own.
            on_phase: told when a person is asked and when the plugin is.
            on_decision: told what was decided.
            work: what the step is part of; None when it is the beginning.
            requesters: when it is: the clients that asked for it, who may not confirm it.
            source: who asks; None for the plugin that `work` is of, or nobody in particular.
        """
        submission = Submission()
        work = work or Work(origin.provenance, origin.session, llm=origin.llm, requesters=requesters)
        decision = self.explain(step, origin)
        record = Record(step, origin, decision, source or _source_of(work))
        reply = partial(self._reply, record, on_reply)
        self._tell(decision, origin.session)
        if on_decision is not None:
            guarded(on_decision, decision)
        if isinstance(decision, Deny):
            reply(None, denial(decision))
        elif isinstance(decision, Allow):
            self._invoke(submission, decision, reply, work, record, timeout=timeout, on_phase=on_phase)
        elif self._nursery is None:
            reply(None, RpcError(ErrorCode.NOT_PERMITTED, "the runner is not ready to ask for a confirmation"))
        else:
            submission.scope = trio.CancelScope()
            ask = partial(
                self._ask,
                submission.scope,
                decision,
                record,
                judge_again=partial(self.explain, step, origin),
                epoch=self._epoch(decision.plugin),
                session=origin.session,
                requesters=work.requesters,
                on_phase=on_phase,
            )
            invoke = partial(
                self._invoke, submission, decision, reply, work, record, timeout=timeout, on_phase=on_phase
            )
            self._nursery.start_soon(self._confirm, submission, reply, ask, invoke, record.log_fields)
        return submission

    def _reply(self, record: Record, on_reply: OnReply, result: Raw | None, error: RpcError | None) -> None:
        record.end(result, error)
        self._audit.take(record)
        guarded(on_reply, result, error)

    @staticmethod
    async def _confirm(
        submission: Submission,
        reply: OnReply,
        ask: Callable[[], Awaitable[RpcError | None]],
        invoke: Callable[[], None],
        log_fields: Mapping[str, object],
    ) -> None:
        error: RpcError | None = _cancelled()
        try:
            error = await ask()
        except Exception as caught:
            logger.exception("a confirmation failed", extra=log_fields)
            error = internal_error(caught)
        except BaseException:
            # The runner stops; whoever submitted the step is told even so.
            reply(None, error)
            raise
        submission.scope = None
        if submission.cancelled:
            error = _cancelled()
        if error is None:
            try:
                invoke()
            except Exception as caught:
                # All who wait for a confirmation share one nursery.
                logger.exception("a confirmed step could not be sent", extra=log_fields)
                error = internal_error(caught)
        if error is not None:
            reply(None, error)

    async def _ask(
        self,
        scope: trio.CancelScope,
        decision: Confirm,
        record: Record,
        *,
        judge_again: Callable[[], Decision],
        epoch: int | None,
        session: str,
        requesters: frozenset[Requester],
        on_phase: Callable[[GatePhase], None] | None,
    ) -> RpcError | None:
        """Return why the step may not run, or None."""
        question = Question(
            text=decision.text,
            op=decision.op,
            args=decision.args,
            provenance=decision.provenance,
            digest=decision.digest,
            session=session,
            requesters=requesters,
            spoken=self._may_be_spoken(decision),
        )
        with scope:
            if on_phase is not None:
                guarded(on_phase, "confirming")
            window = await self._target(decision)
            record.asked()
            verdict = await self._confirmer.ask(question)
            record.asked("timed_out" if verdict.timed_out else _STATES[verdict.approved], verdict.surface)
            if not verdict.approved:
                return _not_confirmed(decision, verdict.why, verdict.rule)
            if window and window != await self._target(decision):
                return _not_confirmed(
                    decision, "the window in front is another one than when it was asked", "window-changed"
                )
            return self._changed_meanwhile(decision, judge_again(), epoch)
        return _cancelled()

    def _may_be_spoken(self, decision: Confirm) -> bool:
        """Whether a voice may answer: never what the runner itself asks about, and nothing that is the screen's."""
        mine = not _NEVER_SPOKEN.isdisjoint(decision.rules)
        return self._rules.of(decision.op).spoken and not mine and decision.provenance == "user"

    async def _target(self, decision: Confirm) -> str:
        if self._window is None or not acts_on_window(decision.op, decision.args):
            return ""
        return await self._window()

    def _changed_meanwhile(self, decision: Confirm, again: Decision, epoch: int | None) -> RpcError | None:
        if isinstance(again, Deny):
            return denial(again)
        if self._epoch(decision.plugin) != epoch:
            return _not_confirmed(decision, f"{decision.plugin} was restarted meanwhile", "plugin-changed")
        if again != decision:
            return _not_confirmed(decision, "it changed while it was being confirmed", "step-changed")
        return None

    def _epoch(self, plugin: str) -> int | None:
        try:
            return self._supervisor.get(plugin).epoch
        except RpcError:
            return None

    def _invoke(
        self,
        submission: Submission,
        decision: Allow | Confirm,
        reply: OnReply,
        work: Work,
        record: Record,
        *,
        timeout: float,
        on_phase: Callable[[GatePhase], None] | None,
    ) -> None:
        try:
            instance = self._supervisor.get(decision.plugin)
            part = work.below(instance.id, f"action.invoke {decision.op}", decision.provenance)
        except RpcError as error:
            reply(None, error)
            return
        if on_phase is not None:
            guarded(on_phase, "acting")
            if submission.cancelled:
                reply(None, _cancelled())
                return
        submission.instance = instance
        submission.epoch = instance.epoch
        answer: OnReply = reply
        record.sent(instance.id, instance.epoch)
        if _injects(instance, decision.op):
            method, params, answer = INJECT, encode(decision.args), partial(_injected, reply)
        else:
            method = "action.invoke"
            params = encode({"op": decision.invoke_as, "args": decision.args, "provenance": decision.provenance})
        submission.request = instance.request(method, params, answer, timeout=timeout, work=part)
        rate = self._rules.of(decision.op).rate
        if rate is not None and submission.request is not None:
            self._runs.note(decision.op, rate, trio.current_time())

    async def run_step(
        self,
        step: PlannedStep,
        origin: Origin,
        *,
        timeout: float,
        on_phase: Callable[[GatePhase], None] | None = None,
        on_decision: Callable[[Decision], None] | None = None,
        work: Work | None = None,
        requesters: frozenset[Requester] = frozenset(),
        source: AuditSource | None = None,
    ) -> Raw:
        """Submit a step and wait; cancelling the wait withdraws it. Raises RpcError."""

        def start(on_reply: OnReply) -> Callable[[], object]:
            return self.submit(
                step,
                origin,
                on_reply,
                timeout=timeout,
                on_phase=on_phase,
                on_decision=on_decision,
                work=work,
                requesters=requesters,
                source=source,
            ).cancel

        return await wait_reply(start)

    def _tell(self, decision: Decision, session: str) -> None:
        guarded(
            self._emit,
            {
                "event": "decision",
                "session": session,
                "op": decision.op,
                "decision": decision_name(decision),
                "rule": decision.rule,
                "detail": decision.detail,
                "args": {} if isinstance(decision, Deny) else decision.args,
            },
        )


def _source_of(work: Work) -> AuditSource:
    """Who asks for a step that is part of a plugin's work."""
    plugin = work.step[0]
    return AuditSource(kind="plugin", plugin=plugin) if plugin else AuditSource(kind="runner")


def _unaudited(op: str, why: str) -> Deny:
    return Deny(op=op, code=ErrorCode.NOT_PERMITTED, rule="audit", detail=why, data={"op": op, "rule": "audit"})


def decision_name(decision: Decision) -> Literal["allow", "confirm", "deny"]:
    """Return allow, confirm or deny."""
    if isinstance(decision, Deny):
        return "deny"
    return "confirm" if isinstance(decision, Confirm) else "allow"


def explained(decision: Decision) -> Explanation:
    """Return a decision as `policy.explain` answers it."""
    told = Explanation(
        op=decision.op,
        decision=decision_name(decision),
        rule=decision.rule,
        detail=decision.detail,
        args={},
        rules=[decision.rule],
    )
    if isinstance(decision, Deny):
        told.data = decision.data
        return told
    told.args, told.plugin = decision.args, decision.plugin
    if isinstance(decision, Confirm):
        told.rules, told.text = [*decision.rules], decision.text
    return told


def denial(decision: Deny) -> RpcError:
    """Return a denial as the error that the asker gets."""
    return RpcError(decision.code, decision.detail, decision.data)


def _not_confirmed(decision: Confirm, why: str, rule: str = "") -> RpcError:
    """Return the error of a step without a yes; `rule` is what undid one, else the rule that wanted it is named."""
    return RpcError(
        ErrorCode.NOT_PERMITTED,
        f"{decision.op} was not confirmed: {why}",
        {"op": decision.op, "rule": rule or decision.rule, "confirmed": False},
    )


def _injects(instance: Instance, op: str) -> bool:
    """Whether the op is carried out by `input.inject`: the plugin has no ops, it types."""
    handshake = instance.handshake
    return op == "input" and handshake is not None and "action.invoke" not in handshake.methods


def _injected(reply: OnReply, _result: Raw | None, error: RpcError | None) -> None:
    """Answer for an `input` plugin, which says nothing when it has typed, as an op is answered."""
    if error is not None:
        reply(None, error)
    else:
        reply(msgspec.Raw(b'{"ok":true,"detail":"Typed."}'), None)


def _cancelled() -> RpcError:
    return RpcError(ErrorCode.CANCELLED, "the step was cancelled")
