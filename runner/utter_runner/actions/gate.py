"""The gate that every action passes, whoever asked for it.

Rules here: nothing else in the runner sends `action.invoke`; what a plugin receives are the canonical arguments of a
decision, never the proposed ones; after a confirmation the step is judged again and must come out the same, for the
same epoch of the same plugin. Allowed steps pass without a task of their own. Who submits a step is told its end
exactly once, and no callback's exception reaches another step.
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
from utter_runner.actions.audit import Record, Unaudited
from utter_runner.confirm.confirmer import Question
from utter_runner.policy import Allow, Confirm, Deny, decide
from utter_runner.rpc.interface import guarded, internal_error
from utter_runner.rpc.replies import wait_reply
from utter_runner.supervision.work import Work

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from msgspec import Raw

    from utter_protocol.messages import RequestId
    from utter_protocol.methods import PlannedStep
    from utter_runner.actions.audit import Auditor
    from utter_runner.confirm.confirmer import Confirmer
    from utter_runner.policy import CandidateStore, Decision, OpRegistry, Origin, PolicyRules
    from utter_runner.rpc.interface import OnReply
    from utter_runner.supervision.instance import Instance
    from utter_runner.supervision.supervisor import Supervisor

logger = logging.getLogger(__name__)

GatePhase = Literal["confirming", "acting"]

INJECT = "input.inject"
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
        audit: Auditor | None = None,
    ) -> None:
        self._supervisor = supervisor
        self._ops = ops
        self._rules = rules
        self._candidates = candidates
        self._confirmer = confirmer
        self._emit = emit
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

    def explain(self, step: PlannedStep, origin: Origin) -> Decision:
        """Return the decision about a step, from the same function that `submit` acts on."""
        decision = decide(step, origin, self._ops, self._rules, self._candidates, now=trio.current_time())
        why = "" if isinstance(decision, Deny) else self._audit.refusal()
        return _unaudited(decision.op, why) if why else decision

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
            source: who asks; None for the plugin that `work` is of, or nobody in particular.
        """
        submission = Submission()
        work = work or Work(origin.provenance, origin.session)
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
                on_phase=on_phase,
            )
            invoke = partial(
                self._invoke, submission, decision, reply, work, record, timeout=timeout, on_phase=on_phase
            )
            self._nursery.start_soon(self._confirm, submission, reply, ask, invoke)
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
    ) -> None:
        error: RpcError | None = _cancelled()
        try:
            error = await ask()
        except Exception as caught:
            logger.exception("a confirmation failed")
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
                logger.exception("a confirmed step could not be sent")
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
        )
        with scope:
            if on_phase is not None:
                guarded(on_phase, "confirming")
            record.asked()
            verdict = await self._confirmer.ask(question)
            record.asked("timed_out" if verdict.timed_out else _STATES[verdict.approved], verdict.surface)
            if not verdict.approved:
                return _not_confirmed(decision, verdict.why)
            return self._changed_meanwhile(decision, judge_again(), epoch)
        return _cancelled()

    def _changed_meanwhile(self, decision: Confirm, again: Decision, epoch: int | None) -> RpcError | None:
        if isinstance(again, Deny):
            return denial(again)
        if again != decision or self._epoch(decision.plugin) != epoch:
            return _not_confirmed(decision, "it changed while it was being confirmed")
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
        record.sent(instance.id, instance.epoch)
        if _injects(instance, decision.op):
            injected = partial(_injected, reply)
            submission.request = instance.request(INJECT, encode(decision.args), injected, timeout=timeout, work=part)
            return
        params = encode({"op": decision.invoke_as, "args": decision.args, "provenance": decision.provenance})
        submission.request = instance.request("action.invoke", params, reply, timeout=timeout, work=part)

    async def run_step(
        self,
        step: PlannedStep,
        origin: Origin,
        *,
        timeout: float,
        on_phase: Callable[[GatePhase], None] | None = None,
        on_decision: Callable[[Decision], None] | None = None,
        work: Work | None = None,
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


def decision_name(decision: Decision) -> str:
    """Return allow, confirm or deny."""
    if isinstance(decision, Deny):
        return "deny"
    return "confirm" if isinstance(decision, Confirm) else "allow"


def denial(decision: Deny) -> RpcError:
    """Return a denial as the error that the asker gets."""
    return RpcError(decision.code, decision.detail, decision.data)


def _not_confirmed(decision: Confirm, why: str) -> RpcError:
    return RpcError(
        ErrorCode.NOT_PERMITTED,
        f"{decision.op} was not confirmed: {why}",
        {"op": decision.op, "rule": decision.rule, "confirmed": False},
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
