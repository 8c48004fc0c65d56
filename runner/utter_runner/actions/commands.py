"""From an utterance to what was done: plan, then each step through the gate, in order.

Rules here: a router proposes and the gate decides; the trust of a command bounds the trust of its steps; after a step
that failed the rest is not run and says so. Times are seconds of trio's clock inside, milliseconds in the answer.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import msgspec
import trio

from utter_protocol.audit import AuditSource
from utter_protocol.errors import ErrorCode, RpcError
from utter_protocol.messages import encode
from utter_protocol.methods import (
    ActionResult,
    CommandResult,
    PlannedStep,
    PlanParams,
    PlanResult,
    StepResult,
    WireError,
)
from utter_runner.actions.gate import decision_name
from utter_runner.dataplane.asked import HANDLE
from utter_runner.policy import Confirm, Deny, Origin
from utter_runner.supervision.dialect import decode_answer
from utter_runner.supervision.work import Work

if TYPE_CHECKING:
    from collections.abc import Callable

    from utter_protocol.methods import Provenance
    from utter_runner.actions.gate import ActionGate
    from utter_runner.policy import Decision
    from utter_runner.policy.marks import Mark
    from utter_runner.rpc.requesters import Requester
    from utter_runner.supervision.supervisor import Supervisor

logger = logging.getLogger(__name__)

ROUTER = "router.plan@1"
MAX_UTTERANCE = 4000
MAX_STEPS = 32
_SPOKEN = AuditSource(kind="voice")


class Commands:
    """Runs commands.

    Args:
        supervisor: knows the router.
        gate: the way to actions.
        timeout: seconds for the router and for each action.
        router_wait: seconds to wait for a router that is restarting.
        emit: told of plans and results.
        mark_in: returns the lowest mark that the handles in a piece of JSON have for a plugin that holds them.
    """

    def __init__(
        self,
        supervisor: Supervisor,
        gate: ActionGate,
        *,
        timeout: float,
        router_wait: float,
        emit: Callable[[dict[str, Any]], None],
        mark_in: Callable[[bytes, str], Mark] = lambda _message, _plugin: "user",
    ) -> None:
        self._supervisor = supervisor
        self._gate = gate
        self._timeout = timeout
        self._router_wait = router_wait
        self._emit = emit
        self._mark_in = mark_in

    def reconfigure(self, *, timeout: float) -> None:
        """Have another time-out, in seconds, for commands that begin from now on."""
        self._timeout = timeout

    async def command(
        self,
        utterance: str,
        *,
        session: str,
        provenance: Provenance,
        llm: bool = False,
        on_phase: Callable[[Any], None] = lambda _phase: None,
        context: dict[str, Any] | None = None,
        timeout: float | None = None,
        requesters: frozenset[Requester] = frozenset(),
        source: AuditSource = _SPOKEN,
    ) -> CommandResult:
        """Do what an utterance asks for.

        Args:
            utterance: at most 4,000 characters.
            session: the id that events carry.
            provenance: the most trust that any step of the plan may have.
            llm: whether a language model had a part in what is given.
            on_phase: told of planning, confirming and acting.
            context: passed to the router.
            timeout: seconds for the router and for each action; None takes the configured one.
            requesters: the clients that asked for it, who may not confirm it.
            source: who asks, for the audit trail.

        Raises:
            RpcError: -32602 for an utterance that is too long; -32005, -32000 or -32001 when there is no router or it
                failed. Errors of single steps are in the result.
        """
        if len(utterance) > MAX_UTTERANCE:
            raise RpcError(
                ErrorCode.INVALID_PARAMS,
                f"the utterance has {len(utterance)} characters; at most {MAX_UTTERANCE} are taken",
                {"field": "utterance", "bound": "max_utterance", "limit": MAX_UTTERANCE},
            )
        limit = self._timeout if timeout is None else timeout
        started = trio.current_time()
        work = Work(provenance, session, llm=llm, requesters=requesters)
        plan = await self._plan(utterance, context or {}, limit, work)
        latency = {"router": _since(started)}
        self._emit({"event": "plan", "session": session, "steps": msgspec.to_builtins(plan.steps)})
        if not plan.steps:
            return CommandResult(
                results=[],
                understood=False,
                detail=plan.detail or "That was not understood as a command.",
                latency_ms=latency,
            )
        # What the router read from the screen while it planned, or had others read, taints all of its plan; so does
        # what a language model said to it.
        origin = Origin(provenance=provenance, session=session, sources=work.sources, llm=work.llm)
        results: list[StepResult] = []
        for step in plan.steps:
            if results and not results[-1].ok:
                result = StepResult(op=step.op, ok=False, detail="Not run: an earlier step failed.")
            else:
                result = await self._step(step, origin, limit, on_phase, latency, requesters=requesters, source=source)
            results.append(result)
            self._emit({"event": "result", "session": session, "result": msgspec.to_builtins(result)})
        failed = next((one for one in results if not one.ok), None)
        return CommandResult(
            results=results, understood=True, detail=(failed or results[-1]).detail, latency_ms=latency
        )

    async def _plan(self, utterance: str, context: dict[str, Any], timeout: float, work: Work) -> PlanResult:
        router = await self._supervisor.wait_provider(ROUTER, min(self._router_wait, timeout))
        params = PlanParams(utterance=utterance, context=context)
        raw = await router.call("router.plan", params, timeout=timeout, work=work.below(router.id, "router.plan"))
        plan = decode_answer(raw, PlanResult, "router.plan", router.id)
        work.receive(self._mark_in(encode(plan), router.id), HANDLE)
        if len(plan.steps) > MAX_STEPS:
            raise RpcError(
                ErrorCode.PLUGIN_FAILED,
                f"{router.id} planned {len(plan.steps)} steps; at most {MAX_STEPS} are taken",
                {"plugin": router.id, "bound": "max_steps", "limit": MAX_STEPS},
            )
        return plan

    async def _step(
        self,
        step: PlannedStep,
        origin: Origin,
        timeout: float,
        on_phase: Callable[[Any], None],
        latency: dict[str, float],
        *,
        requesters: frozenset[Requester],
        source: AuditSource,
    ) -> StepResult:
        clock = _StepClock(latency)
        decisions: list[Decision] = []
        part, plugin = "policy", ""

        def decided(decision: Decision) -> None:
            nonlocal part, plugin
            clock.mark("policy")
            decisions.append(decision)
            if isinstance(decision, Confirm):
                part = "confirm"
            if not isinstance(decision, Deny):
                plugin = decision.plugin

        def phase(name: str) -> None:
            nonlocal part
            if name == "acting":
                clock.mark(part)
                part = "action"
            on_phase(name)

        error: RpcError | None = None
        result = ActionResult(ok=False)
        try:
            raw = await self._gate.run_step(
                step,
                origin,
                timeout=timeout,
                on_phase=phase,
                on_decision=decided,
                requesters=requesters,
                source=source,
            )
            result = decode_answer(raw, ActionResult, "action.invoke", plugin)
        except RpcError as caught:
            error = caught
        decision = decisions[0]
        clock.mark(part)
        return StepResult(
            op=step.op,
            ok=result.ok,
            detail=result.detail or ("" if error is None else error.message),
            error=None if error is None else WireError(code=error.code, message=error.message, data=error.data),
            args={} if isinstance(decision, Deny) else decision.args,
            decision=decision_name(decision),
            data=result.data,
        )


class _StepClock:
    """Adds up how long each part of a step took, in milliseconds."""

    def __init__(self, latency: dict[str, float]) -> None:
        self._latency = latency
        self._last = trio.current_time()

    def mark(self, part: str) -> None:
        now = trio.current_time()
        self._latency[part] = round(self._latency.get(part, 0.0) + (now - self._last) * 1000, 3)
        self._last = now


def _since(started: float) -> float:
    return round((trio.current_time() - started) * 1000, 3)
