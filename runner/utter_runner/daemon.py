"""The composition root: builds the rooms and ties them together.

Rules here: nothing but this file knows all rooms; stopping is the reverse of starting and always completes.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import time
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import trio

from utter_protocol import ABI, PROTOCOL
from utter_protocol.capabilities import load_registry
from utter_protocol.contracts import RUNNER_STREAMS
from utter_protocol.drift import Announced, tool_of
from utter_protocol.errors import ErrorCode, RpcError
from utter_protocol.inherited import RING_VARIABLE, WAKE_VARIABLE
from utter_protocol.kinds import SttResult
from utter_protocol.methods import CapabilitiesResult, CatalogResult, HealthResult, HintsResult, Op
from utter_protocol.state import state_directory
from utter_runner import __version__
from utter_runner.actions.audit import AuditTrail
from utter_runner.actions.audit_file import AuditFile
from utter_runner.actions.commands import Commands
from utter_runner.actions.gate import ActionGate
from utter_runner.actions.rules import policy_rules
from utter_runner.clients.api import ClientApi
from utter_runner.clients.auth import Admission
from utter_runner.clients.events import EventBus
from utter_runner.clients.server import ClientServer
from utter_runner.clients.tokens import TokenStore
from utter_runner.config import SocketConfig
from utter_runner.config.log_fields import about
from utter_runner.config.tokens import tokens_path
from utter_runner.confirm.confirmer import Confirmer
from utter_runner.confirm.notifications import Notifications
from utter_runner.confirm.spoken import SpokenAnswers
from utter_runner.dataplane.build import build_data_plane, handle_root
from utter_runner.dataplane.hub import Hub, Topic
from utter_runner.host.callbacks import HostCallbacks
from utter_runner.host.context import ContextCache
from utter_runner.host.own_streams import OwnStreams
from utter_runner.host.relay import Relay
from utter_runner.host.requests import HostRequests
from utter_runner.host.subscriptions import Subscriptions
from utter_runner.operate.watching import MAX_SAID, DriftError, DriftWatch
from utter_runner.policy import AdvertiseError, CandidateLimitError, CandidateStore, OpRegistry, canonical_op
from utter_runner.rpc.deadlines import Deadlines
from utter_runner.rpc.interface import Limits
from utter_runner.rpc.reactor import Reactor
from utter_runner.supervision.dialect import UtterDialect, decode_answer
from utter_runner.supervision.launch import Inherited, SpawnError
from utter_runner.supervision.sandbox.assurance import Assurance
from utter_runner.supervision.spec import Timing
from utter_runner.supervision.supervisor import Supervisor
from utter_runner.voice.build import Voice, VoiceError, build_voice
from utter_runner.voice.media import CALL_SECONDS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from msgspec import Raw

    from utter_protocol.drift import DriftResult
    from utter_protocol.messages import RequestId
    from utter_protocol.methods import AudioLevel, Transcript
    from utter_runner.config import Config
    from utter_runner.confirm.surfaces import Surface
    from utter_runner.policy.marks import Mark
    from utter_runner.rpc.endpoint import Endpoint
    from utter_runner.rpc.peer import Peer
    from utter_runner.supervision.instance import Instance
    from utter_runner.supervision.launch import Launched
    from utter_runner.supervision.spec import PluginSpec

logger = logging.getLogger("utter_runner")

_PREPARE_SECONDS = 10.0
_CONTENT_EVENTS = frozenset({"heard", "plan", "confirm", "result"})
_STOP = (signal.SIGTERM, signal.SIGINT)
# How long a command waits for a router that is being restarted.
_ROUTER_WAIT = 10.0
# A hold that was just sent, and the releases of two sessions.
_QUIET_SECONDS = 3 * CALL_SECONDS


class Daemon:
    """Everything that runs; see `serve`.

    Raises:
        VoiceError: a hotkey or an audio setting is wrong.
    """

    def __init__(
        self,
        config: Config,
        environ: Mapping[str, str],
        endpoint: Endpoint,
        *,
        specs: Sequence[PluginSpec],
        launched: Mapping[str, Launched],
        problems: Sequence[str],
    ) -> None:
        self._config = config
        self._endpoint = endpoint
        self._started = time.monotonic()
        self._state = "starting"
        self._warnings: list[str] = []
        self._hints: dict[str, list[str]] = {}
        # The epochs that have been up, by plugin: an epoch is up again after it was degraded.
        self._met: dict[str, int] = {}
        for problem in problems:
            self._warn(problem)
        self._build(environ, specs, launched)

    def _build(self, environ: Mapping[str, str], specs: Sequence[PluginSpec], launched: Mapping[str, Launched]) -> None:
        config, runner = self._config, self._config.runner
        timeout = runner.rpc_timeout_ms / 1000
        limits = Limits(
            max_frame=runner.max_frame, max_in_flight=runner.max_in_flight, max_queued_bytes=runner.max_queued_bytes
        )
        self._reactor = Reactor()
        self._deadlines = Deadlines()
        self._registry = load_registry()
        self._drift = DriftWatch(lambda: self._config, environ, self._state_changed)
        self._ops = OpRegistry()
        self._candidates = CandidateStore()
        hub = Hub(queue=runner.lossy_queue, window=runner.credit_window)
        self._events = EventBus(hub, self.status)
        emit = self._emit_and_log if config.log.content else self._events.emit
        host = HostCallbacks()
        host.listen("router.hints_changed", self._hints_changed)
        host.listen("stt.partial", self._partial)
        host.listen("plugin.health_changed", self._health_changed)
        self._host = host
        self._supervisor = Supervisor(
            specs,
            reactor=self._reactor,
            deadlines=self._deadlines,
            registry=self._registry,
            dialect=UtterDialect(f"utter-runner {__version__}"),
            timing=Timing(
                handshake=runner.handshake_timeout_ms / 1000,
                health_interval=runner.health_interval_ms / 1000,
                health_timeout=runner.health_timeout_ms / 1000,
            ),
            limits=limits,
            environ=environ,
            requests=host,
            prepare=self._prepare,
            on_change=self._plugin_changed,
            launched=launched,
            inherit=self._inherit,
            allow=self._allow,
        )
        self._notifications = Notifications(environ) if config.policy.notify else None
        voice = config.voice
        spoken = SpokenAnswers(voice.yes_words, voice.no_words) if voice.spoken_confirm else None
        confirmer = Confirmer(
            self._surfaces,
            timeout=runner.confirm_timeout_ms / 1000,
            emit=emit,
            self_confirm=config.policy.self_confirm,
            plugins=lambda: frozenset(one.pid for one in self._supervisor.instances if one.pid),
            spoken=spoken,
        )
        self._context = ContextCache(self._supervisor)
        self._audit: AuditTrail | None = None
        if config.log.audit != "off":
            self._audit = AuditTrail(
                AuditFile(state_directory(environ), config.log.audit_bytes),
                required=config.log.audit == "required",
                content=config.log.content,
                warn=self._warn_now,
            )
        self._gate = ActionGate(
            self._supervisor,
            ops=self._ops,
            rules=policy_rules(config.policy),
            candidates=self._candidates,
            confirmer=confirmer,
            emit=emit,
            mark_in=self._mark_in,
            window=self._context.window,
            audit=self._audit,
        )
        relay = Relay(self._supervisor, window=hub.window, timeout=timeout)
        commands = Commands(
            self._supervisor,
            self._gate,
            timeout=timeout,
            router_wait=_ROUTER_WAIT,
            emit=emit,
            mark_in=self._mark_in,
        )
        self._voice: Voice = build_voice(
            config,
            supervisor=self._supervisor,
            commands=commands,
            hints=self.hints,
            emit=emit,
            on_transcript=self._final,
            on_level=self._on_level,
            open_stream=OwnStreams(relay).open,
            timeout=timeout,
            answers=spoken,
        )
        host.listen("stt.final", self._voice.recogniser.on_final)
        self._build_streams(hub, relay, host)
        self._data = build_data_plane(
            runner,
            handle_root(runner, environ, self._endpoint.path),
            ring=self._voice.ring,
            reactor=self._reactor,
            deadlines=self._deadlines,
            plugin_known=self._supervisor.get,
            on_broken=self._warn,
        )
        for method in self._data.methods:
            host.serve(method, partial(self._on_data, method), before_admission=True)
        host.listen("context.changed", self._context.changed)
        self._host_requests = HostRequests(
            self._supervisor,
            gate=self._gate,
            confirmer=confirmer,
            context=self._context,
            emitter=relay,
            handles=self._data,
            instead={"tts.speak": self._voice.speak_for},
            timeout=timeout,
        )
        self._host_requests.attach(host)
        self._assurance = Assurance(specs, environ, str(self._endpoint.path), self._state_changed)
        self._api = ClientApi(
            supervisor=self._supervisor,
            registry=self._registry,
            gate=self._gate,
            commands=commands,
            confirmer=confirmer,
            voice=self._voice.controller,
            speaker=self._voice.speaker,
            microphone=self._voice.microphone,
            devices=self._voice.devices,
            context=self._context.snapshot,
            streams=self._streams,
            data=self._data,
            status=self.status,
            drift=self._look_for_drift,
            sandbox=self._assurance.describe,
            wav_to_pcm=self._voice.wav_to_pcm,
            timeout=timeout,
        )
        self._tokens = TokenStore(tokens_path(environ), logger.warning)
        socket = config.socket or SocketConfig()
        self._server = ClientServer(
            self._endpoint,
            reactor=self._reactor,
            deadlines=self._deadlines,
            admission=Admission(config.socket, self._tokens),
            api=self._api,
            limits=limits,
            max_clients=runner.max_clients,
            max_requests_per_s=socket.max_requests_per_s,
            max_bytes_per_s=socket.max_bytes_per_s,
            on_refused=logger.warning,
        )
        if config.socket is None:
            self._warn("There is no [socket] section, so every program of this user may use the runner.")
        if config.log.content:
            self._warn("[log] content is on: what is said and shown is logged.")

    def _build_streams(self, hub: Hub, relay: Relay, host: HostCallbacks) -> None:
        level = self._voice.level
        self._level = Topic(
            hub, "audio.level", RUNNER_STREAMS["audio.level"], refusal=level.refusal, on_active=level.want
        )
        self._partials = Topic(hub, "stt.partial", RUNNER_STREAMS["stt.partial"])
        self._finals = Topic(hub, "stt.final", RUNNER_STREAMS["stt.final"])
        self._streams = Subscriptions(hub, relay, self._registry)
        for topic in (self._events, self._level, self._partials, self._finals):
            self._streams.offer(topic.method, topic)
        self._streams.attach(host)

    def _state_changed(self) -> None:
        self._events.emit({"event": "state", "status": self.status()})

    def _warn(self, text: str) -> None:
        logger.warning("%s", text)
        self._warnings.append(text)

    def _warn_now(self, text: str) -> None:
        """Warn of what may pass, and is no part of the status for ever."""
        logger.warning("%s", text)
        self._events.emit({"event": "warning", "text": text})

    def _emit_and_log(self, event: dict[str, Any]) -> None:
        self._events.emit(event)
        if event["event"] in _CONTENT_EVENTS:
            # JSON with escapes: what was heard or planned cannot forge a line of the log.
            logger.info("content: %s", json.dumps(msgspec.to_builtins(event)))

    # ---- running

    async def run(self) -> None:
        """Serve until SIGTERM or SIGINT."""
        try:
            async with trio.open_nursery() as base:
                base.start_soon(self._reactor.run)
                base.start_soon(self._deadlines.run)
                if self._audit is not None:
                    # It outlives the gate, so that what is cancelled at the end is recorded, too.
                    await base.start(self._audit.run)
                with _stop_signals() as signals:
                    await self._serve(signals)
                base.cancel_scope.cancel()
        finally:
            self._data.close()
            self._voice.close()
            self._reactor.close()

    async def _serve(self, signals: Any) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._stop_on_signal, signals, nursery.cancel_scope)
            await nursery.start(self._gate.run)
            await nursery.start(self._host_requests.run)
            await nursery.start(self._data.run)
            await nursery.start(self._api.run)
            self._server.start()
            try:
                await self._start(nursery)
                await trio.sleep_forever()
            finally:
                with trio.CancelScope(shield=True):
                    self._state = "stopping"
                    self._server.stop()
                    # What was paused while somebody spoke is to play again, which takes a plugin.
                    with trio.move_on_after(_QUIET_SECONDS):
                        await self._voice.controller.ended.wait()
                    await self._supervisor.stop()

    async def _start(self, nursery: trio.Nursery) -> None:
        # The plugins outlive the cancellation of everything else: they are stopped in order, in `_serve`.
        nursery.start_soon(self._voice.run)
        started = trio.Event()

        async def supervise() -> None:
            with trio.CancelScope(shield=True):
                await self._supervisor.run(started)

        nursery.start_soon(supervise)
        await started.wait()
        self._state = "ready"
        self._state_changed()
        # Not before: it would take the time of plugins that start.
        nursery.start_soon(self._assurance.run)
        nursery.start_soon(self._drift.run)
        failed = [one.id for one in self._supervisor.instances if not one.running]
        logger.info(
            "ready on %s with %d of %d plugins%s",
            self._endpoint.path,
            len(self._supervisor.instances) - len(failed),
            len(self._supervisor.instances),
            f" (not running: {', '.join(failed)})" if failed else "",
        )

    @staticmethod
    async def _stop_on_signal(signals: Any, scope: trio.CancelScope) -> None:
        async for number in signals:
            logger.info("%s: stopping", signal.Signals(number).name)
            scope.cancel()

    # ---- plugins come and go

    async def _allow(self, spec: PluginSpec) -> None:
        """Let a plugin be started, unless it has drifted and that matters. Raises SpawnError."""
        try:
            await self._drift.check(spec.id, spec.made_of)
        except DriftError as error:
            raise SpawnError(str(error)) from None

    async def _meet(self, instance: Instance, ops: Sequence[Op]) -> None:
        """Hold what a plugin says of itself, and what it is by now, against the record. Raises RpcError."""
        handshake = instance.handshake
        if handshake is None:
            return
        spec = instance.spec
        announced = Announced(
            version=handshake.version[:MAX_SAID],
            protocol=handshake.protocol,
            abi=handshake.negotiated.abi,
            permissions=[one[:MAX_SAID] for one in handshake.permissions if one not in spec.permissions],
            tools={canonical_op(op.op) or op.op: tool_of(op) for op in ops},
        )
        try:
            self._drift.meet(instance.id, announced)
            await self._drift.check_again(instance.id, spec.made_of)
        except DriftError as error:
            data = {"axis": "lockfile", **msgspec.to_builtins(error.drift)}
            raise RpcError(ErrorCode.INCOMPATIBLE, str(error), data) from None

    async def _look_for_drift(self, _params: Raw) -> DriftResult:
        await self._drift.look()
        return self._drift.result()

    async def _prepare(self, instance: Instance) -> None:
        """Learn what a plugin offers before it is admitted. Raises RpcError."""
        peer = instance.peer
        if peer is None or instance.handshake is None:
            return
        offered = instance.handshake.methods
        ops: list[Op] = []
        if "action.capabilities" in offered:
            raw = await peer.call("action.capabilities", timeout=_PREPARE_SECONDS)
            ops = decode_answer(raw, CapabilitiesResult, "action.capabilities", instance.id).ops
            try:
                self._ops.advertise(instance.id, ops)
            except AdvertiseError as error:
                raise RpcError(ErrorCode.PLUGIN_FAILED, str(error), {"plugin": instance.id, "op": error.op}) from None
        elif "input.inject" in offered:
            ops = [Op(op="input", side_effect="destructive")]
            self._ops.advertise(instance.id, ops)
        await self._meet(instance, ops)
        if "knowledge.catalog" in offered:
            raw = await peer.call("knowledge.catalog", timeout=_PREPARE_SECONDS)
            catalog = decode_answer(raw, CatalogResult, "knowledge.catalog", instance.id)
            self._candidates.forget(instance.id)
            if instance.memory.screen:
                # It was handed something before it answered.
                logger.warning(
                    "%s: its catalog is not taken: it has read something from the screen, and what may be picked must "
                    "not come from there",
                    instance.id,
                    extra=about(instance),
                )
                catalog.candidates = []
            try:
                self._candidates.record(
                    catalog.candidates, source="knowledge", owner=instance.id, now=trio.current_time()
                )
            except CandidateLimitError as error:
                logger.warning("%s: %s", instance.id, error, extra=about(instance))
        if "router.hints" in offered:
            raw = await peer.call("router.hints", timeout=_PREPARE_SECONDS)
            self._hints[instance.id] = decode_answer(raw, HintsResult, "router.hints", instance.id).phrases

    def _plugin_changed(self, instance: Instance) -> None:
        self._streams.plugin_changed(instance)
        if instance.status in {"backoff", "failed", "stopped"}:
            self._ops.withdraw(instance.id)
            self._candidates.forget(instance.id)
            self._context.forget(instance)
        elif instance.running and instance.epoch != self._met.get(instance.id):
            self._met[instance.id] = instance.epoch
            self._host.admitted(instance)
            self._context.admitted(instance)
            self._voice.admitted(instance)
        self._events.emit({"event": "plugin", "plugin": self._plugin_status(instance)})

    def _inherit(self) -> Inherited:
        """What a process inherits that hears the microphone. Raises OSError."""
        ring = self._data.open_ring()
        return Inherited({RING_VARIABLE: ring.ring, WAKE_VARIABLE: ring.wake}, ring.end)

    def _on_data(self, method: str, instance: Instance, peer: Peer, request_id: RequestId, params: Raw) -> None:
        may_hear = "microphone" in instance.permissions
        caller = self._data.plugin(instance.id, may_hear=may_hear, purpose=instance.work_of)
        self._data.request(caller, peer, request_id, method, params)

    def _mark_in(self, message: bytes | Raw, plugin: str) -> Mark:
        # The data plane is built after the gate, since the ring is the voice's.
        return self._data.mark_in(message, plugin)

    def _hints_changed(self, instance: Instance, _params: Raw) -> None:
        def on_reply(result: Raw | None, error: RpcError | None) -> None:
            if error is not None:
                logger.warning("%s: router.hints: %s", instance.id, error, extra=about(instance))
            elif result is not None:
                self._hints[instance.id] = decode_answer(result, HintsResult, "router.hints", instance.id).phrases

        instance.request("router.hints", b"{}", on_reply, timeout=_PREPARE_SECONDS)

    def _health_changed(self, instance: Instance, params: Raw) -> None:
        health = decode_answer(params, HealthResult, "plugin.health_changed", instance.id)
        self._supervisor.note_health(instance, health)

    def _partial(self, instance: Instance, params: Raw) -> None:
        partial = self._voice.recogniser.on_partial(instance, params)
        if partial is not None:
            self._events.emit({"event": "partial", "session": partial.session, "text": partial.text})
            self._partials.send(partial)

    def _final(self, session: str, transcript: Transcript) -> None:
        self._finals.send(SttResult(session=session, text=transcript.text.strip(), confidence=transcript.confidence))

    def _on_level(self, level: AudioLevel) -> None:
        self._level.send(level)

    def hints(self) -> list[str]:
        """The phrases of every running router."""
        return [
            phrase
            for instance in self._supervisor.instances
            if instance.running
            for phrase in self._hints.get(instance.id, ())
        ]

    def _surfaces(self) -> list[Surface]:
        # The server is built after the confirmer, which it needs.
        surfaces = self._server.surfaces()
        return surfaces if self._notifications is None else [self._notifications, *surfaces]

    # ---- status

    def _socket_warnings(self) -> Iterator[str]:
        if self._tokens.problem is not None:
            yield self._tokens.problem
        if not self._endpoint.in_place():
            yield f"The socket file {self._endpoint.path} is gone or another one lies there: restart the runner."

    def _plugin_status(self, instance: Instance) -> dict[str, Any]:
        sandbox = self._assurance.describe(instance.id, instance.permissions)
        return {**instance.status_report(), "ops": list(self._ops.ops(instance.id)), "sandbox": sandbox}

    def status(self) -> dict[str, Any]:
        """Return what `runner.status` answers."""
        return {
            "version": __version__,
            "protocol": PROTOCOL,
            "abi": ABI,
            "pid": os.getpid(),
            "uptime_s": round(time.monotonic() - self._started, 3),
            "state": self._state,
            "socket_path": str(self._endpoint.path),
            "plugins": [self._plugin_status(instance) for instance in self._supervisor.instances],
            **self._voice.status(),
            "clients": self._server.count,
            "content_logging": self._config.log.content,
            "audit": {"mode": self._config.log.audit, **(self._audit.status() if self._audit is not None else {})},
            "locked": self._drift.locked,
            "drift": msgspec.to_builtins(self._drift.drift),
            "warnings": [*self._warnings, *self._socket_warnings(), *self._drift.warnings()],
        }


@contextmanager
def _stop_signals() -> Iterator[Any]:
    """Receive SIGTERM and SIGINT. None is lost on the way in; on the way out a second one must not disturb."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _STOP)
    for number in _STOP:
        # What came in too late is delivered again to this, the handler that is restored.
        signal.signal(number, lambda _number, _frame: None)
    with trio.open_signal_receiver(*_STOP) as signals:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOP)
        yield signals


def serve(
    config: Config,
    endpoint: Endpoint,
    specs: Sequence[PluginSpec],
    launched: Mapping[str, Launched],
    problems: Sequence[str],
) -> int:
    """Run the daemon until it is told to stop; return its exit code.

    Args:
        config: the checked configuration.
        endpoint: where clients connect; the caller closes it.
        specs: the plugins.
        launched: processes of them that run already.
        problems: sentences for the user about what could not be set up.
    """
    try:
        daemon = Daemon(config, os.environ, endpoint, specs=specs, launched=launched, problems=problems)
    except VoiceError as error:
        logger.error("%s", error)  # noqa: TRY400 - the message says all there is
        return 2
    trio.run(daemon.run)
    return 0
