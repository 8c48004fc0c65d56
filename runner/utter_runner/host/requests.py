"""`host.*`: what plugins may ask of the runner (PROTOCOL.md, "Host callbacks").

Rules here: every answer is given on behalf of a `Work`, which the plugin names and the runner knows; it bounds trust,
depth and life of what is asked. A plugin reaches another one only through a capability that it requires; actions go
through the gate or not at all; whoever reads the screen, or is handed content that came from there, is tainted by it,
and so is everybody who waits for them.
"""

from __future__ import annotations

import hashlib
import logging
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from utter_protocol.contracts import FOR_THE_RUNNER, METHODS, is_reserved, methods_of
from utter_protocol.errors import ErrorCode, RpcError
from utter_protocol.host import (
    HostActionParams,
    HostConfirmParams,
    HostContextParams,
    HostEmitParams,
    HostInvokeParams,
    HostPerceiveParams,
)
from utter_protocol.messages import encode
from utter_protocol.methods import PlannedStep
from utter_runner.confirm.confirmer import Question
from utter_runner.dataplane.asked import HANDLE
from utter_runner.policy import Origin
from utter_runner.policy.chars import visible
from utter_runner.rpc.params import decode_params, relay, require_structured, seconds_of
from utter_runner.rpc.tasks import RequestTasks
from utter_runner.supervision.work import SCREEN

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    import trio
    from msgspec import Raw

    from utter_protocol.messages import RequestId
    from utter_runner.actions.gate import ActionGate
    from utter_runner.confirm.confirmer import Confirmer
    from utter_runner.host.callbacks import HostCallbacks
    from utter_runner.host.context import ContextCache
    from utter_runner.policy.marks import Mark
    from utter_runner.rpc.interface import OnReply
    from utter_runner.rpc.peer import Peer
    from utter_runner.supervision.instance import Instance
    from utter_runner.supervision.supervisor import Supervisor
    from utter_runner.supervision.work import Work

logger = logging.getLogger(__name__)

PERCEPTION = "perception."


class Emitter(Protocol):
    """Who carries a plugin's items to those who subscribed."""

    def emit(self, instance: Instance, method: str, data: Raw) -> int:
        """Offer an item; return to how many. Raises RpcError: the plugin has no such stream."""


class Handles(Protocol):
    """Who knows which handles stand in a message (dataplane.service.DataPlane)."""

    def carry(self, message: Raw, sender: str, receiver: str, mark: Mark) -> Mark:
        """Let the plugin `receiver` hold those that the plugin `sender` does; return their lowest mark."""

    def mark_in(self, message: bytes | Raw, holder: str) -> Mark:
        """Return the lowest mark that those have which the plugin `holder` holds."""


class HostRequests:
    """Serves `host.*`; `attach` puts it behind the door, `run` must be running.

    Args:
        supervisor: knows the plugins.
        gate: the way to actions.
        confirmer: asks a person.
        context: the desktop's state.
        emitter: carries `host.emit`.
        handles: knows which handles stand in messages.
        instead: by method: what is done instead of passing a `host.invoke` on; given the provider, the params, the
            work and the seconds that it may take.
        timeout: seconds, where a request names none.
    """

    def __init__(
        self,
        supervisor: Supervisor,
        *,
        gate: ActionGate,
        confirmer: Confirmer,
        context: ContextCache,
        emitter: Emitter,
        handles: Handles,
        instead: Mapping[str, Callable[[Instance, Raw, Work, float], Awaitable[object]]],
        timeout: float,
    ) -> None:
        self._supervisor = supervisor
        self._gate = gate
        self._confirmer = confirmer
        self._context = context
        self._emitter = emitter
        self._handles = handles
        self._instead = instead
        self._timeout = timeout
        self._tasks = RequestTasks()
        self._asking: set[str] = set()

    def reconfigure(self, *, timeout: float) -> None:
        """Have another time-out, in seconds, for requests that name none, from now on."""
        self._timeout = timeout

    def attach(self, host: HostCallbacks) -> None:
        """Serve plugins' requests that come in at `host`."""
        host.serve("host.context", self._on_context)
        host.serve("host.perceive", self._on_perceive)
        host.serve("host.action", self._on_action)
        host.serve("host.confirm", self._on_confirm)
        host.serve("host.emit", self._on_emit)
        host.serve("host.invoke", self._on_invoke)

    async def run(self, task_status: trio.TaskStatus[None]) -> None:
        """Hold the tasks of requests that wait."""
        await self._tasks.run(task_status)

    # ---- the desktop's state

    def _on_context(self, instance: Instance, peer: Peer, request_id: RequestId, raw: Raw) -> None:
        params = decode_params(raw, HostContextParams)
        work = instance.work_of(params.request)

        async def answer() -> object:
            snapshot = await self._context.snapshot(params.sources)
            work.taint("context.snapshot")
            return snapshot

        self._wait(peer, request_id, "host.context", work, answer)

    # ---- other plugins

    def _on_perceive(self, instance: Instance, peer: Peer, request_id: RequestId, raw: Raw) -> None:
        params = decode_params(raw, HostPerceiveParams)
        method = f"{PERCEPTION}{params.what}"
        work = instance.work_of(params.request)
        self._pass_on(instance, peer, request_id, f"{method}@1", method, params.params, params.timeout_ms, work)

    def _on_invoke(self, instance: Instance, peer: Peer, request_id: RequestId, raw: Raw) -> None:
        params = decode_params(raw, HostInvokeParams)
        work = instance.work_of(params.request)
        self._pass_on(
            instance, peer, request_id, params.capability, params.method, params.params, params.timeout_ms, work
        )

    def _pass_on(  # noqa: PLR0917 - what two kinds of params have in common
        self,
        instance: Instance,
        peer: Peer,
        request_id: RequestId,
        capability: str,
        method: str,
        params: Raw,
        timeout_ms: int | None,
        work: Work,
    ) -> None:
        timeout = seconds_of(timeout_ms, self._timeout)
        require_structured(params)
        provider = self._provider(instance, capability, method)
        part = work.below(provider.id, method)
        instead = self._instead.get(method)
        if instead is not None:
            self._wait(peer, request_id, method, work, partial(instead, provider, params, part, timeout))
            return

        def note(result: Raw | None, error: RpcError | None) -> None:
            # In an error a plugin can say whatever it can in a result.
            if (error is None or error.answered) and method.startswith(SCREEN):
                work.taint(method)
            if result is not None:
                work.receive(self._handles.carry(result, provider.id, instance.id, part.mark), HANDLE)

        def start(on_reply: OnReply) -> Callable[[], None] | None:
            sent = provider.request(method, params, on_reply, timeout=timeout, work=part)
            return None if sent is None else partial(_cancel_in, provider, provider.epoch, sent)

        part.receive(self._handles.carry(params, instance.id, provider.id, work.mark), HANDLE)
        _answer_with(peer, request_id, work, start, note)

    def _provider(self, instance: Instance, capability: str, method: str) -> Instance:
        """Return who answers `method` for a plugin. Raises RpcError."""
        if capability not in instance.requires:
            raise RpcError(
                ErrorCode.NOT_PERMITTED,
                f"{instance.id} does not require {capability}: a plugin reaches only what it names in its requires",
                {"capability": capability, "requires": list(instance.requires)},
            )
        contract = METHODS.get(method)
        if method.startswith(FOR_THE_RUNNER) or (contract is not None and contract.capability == "action.invoke@1"):
            raise RpcError(ErrorCode.NOT_PERMITTED, f"{method} is not for plugins; host.action is", {"method": method})
        provider = self._supervisor.provider(capability, besides=instance.id)
        if provider is None:
            raise RpcError(
                ErrorCode.CAPABILITY_MISSING,
                f"no other plugin provides {capability}",
                {"capability": capability, "missing": [capability]},
            )
        if not provider.running:
            raise provider.unavailable()
        # A capability that the protocol does not define has the methods that its provider says, as long as their
        # names are not the protocol's.
        defined = methods_of(capability)
        offered = provider.handshake.methods if provider.handshake else ()
        if not (method in defined if defined else method in offered and not is_reserved(method)):
            raise RpcError(
                ErrorCode.METHOD_NOT_FOUND,
                f"{capability} has no method {method!r}",
                {"method": method, "capability": capability},
            )
        return provider

    # ---- doing something

    def _on_action(self, instance: Instance, peer: Peer, request_id: RequestId, raw: Raw) -> None:
        params = decode_params(raw, HostActionParams)
        timeout = seconds_of(params.timeout_ms, self._timeout)
        # Without a request there is nothing that the user is known to have asked for.
        work = instance.work_of(params.request)
        step = PlannedStep(
            op=params.op, args=params.args, provenance=params.provenance, arg_provenance=params.arg_provenance
        )
        # What it stored on an earlier occasion, it need not have read on this one.
        work.receive(self._handles.mark_in(encode(params.args), instance.id), HANDLE)
        origin = Origin(provenance=work.provenance, session=work.session, sources=work.sources, llm=work.llm)

        def start(on_reply: OnReply) -> Callable[[], None]:
            return self._gate.submit(step, origin, on_reply, timeout=timeout, work=work).cancel

        _answer_with(peer, request_id, work, start)

    def _on_confirm(self, instance: Instance, peer: Peer, request_id: RequestId, raw: Raw) -> None:
        params = decode_params(raw, HostConfirmParams)
        work = instance.work_of(params.request)
        if instance.id in self._asking:
            raise RpcError(
                ErrorCode.INVALID_REQUEST,
                f"{instance.id} is asking a question already; one at a time",
                {"bound": "max_plugin_questions", "limit": 1},
            )

        async def answer() -> object:
            try:
                verdict = await self._confirmer.ask(_question(instance.id, params.text, work))
            finally:
                self._asking.discard(instance.id)
            return {"approved": verdict.approved}

        self._wait(peer, request_id, "host.confirm", work, answer)
        # From now on, and not from when the task begins: the next question may stand in the same read.
        self._asking.add(instance.id)

    def _on_emit(self, instance: Instance, peer: Peer, request_id: RequestId, raw: Raw) -> None:
        params = decode_params(raw, HostEmitParams)
        peer.reply_object(request_id, {"subscribers": self._emitter.emit(instance, params.method, params.data)})

    def _wait(
        self, peer: Peer, request_id: RequestId, method: str, work: Work, answer: Callable[[], Awaitable[object]]
    ) -> None:
        async def answer_once() -> object:
            try:
                return await answer()
            finally:
                work.remove_child(cancel)

        cancel = self._tasks.start(peer, request_id, method, answer_once).cancel
        work.add_child(cancel)


def _answer_with(
    peer: Peer,
    request_id: RequestId,
    work: Work,
    start: Callable[[OnReply], Callable[[], None] | None],
    note: OnReply = lambda _result, _error: None,
) -> None:
    """Answer a request with the reply to another one, which ends with it and with the work that it is for.

    Args:
        peer: whose request it is.
        request_id: which one.
        work: what it is for.
        start: sends the other one; returns what cancels it, or None where it could not be sent.
        note: told of the reply before it is passed on.
    """
    cancel: Callable[[], None] | None = None
    ended = False

    def on_reply(result: Raw | None, error: RpcError | None) -> None:
        nonlocal ended
        ended = True
        if cancel is not None:
            work.remove_child(cancel)
        note(result, error)
        relay(peer, request_id, result, error)

    cancel = start(on_reply)
    if cancel is not None and not ended:
        peer.on_cancel(request_id, cancel)
        work.add_child(cancel)


def _cancel_in(provider: Instance, epoch: int, request_id: RequestId) -> None:
    """Cancel a request of one epoch; every epoch numbers its requests anew."""
    if provider.epoch == epoch:
        provider.cancel(request_id)


def _question(plugin: str, text: str, work: Work) -> Question:
    """Word a plugin's own question so that nobody takes it for the runner's."""
    shown = f'The plugin {plugin} asks: "{visible(text, quoted=True)}"'
    args: dict[str, Any] = {"plugin": plugin, "text": text}
    return Question(
        text=shown,
        op="host.confirm",
        args=args,
        provenance=work.provenance,
        digest=hashlib.sha256(shown.encode()).hexdigest(),
        session=work.session,
    )
