"""The composition root: builds the rooms and ties them together.

Rules here: nothing but this file knows all rooms; stopping is the reverse of starting and always completes.
"""

from __future__ import annotations

import logging
import os
from functools import partial
from typing import TYPE_CHECKING, Any

import trio

from utter_protocol.capabilities import load_registry
from utter_protocol.inherited import RING_VARIABLE, WAKE_VARIABLE
from utter_protocol.methods import HealthResult
from utter_protocol.state import state_directory
from utter_runner import __version__
from utter_runner.actions.auditing import Auditing
from utter_runner.actions.commands import Commands
from utter_runner.actions.gate import ActionGate
from utter_runner.actions.rules import policy_rules
from utter_runner.announcer import Announcer
from utter_runner.clients.api import ClientApi
from utter_runner.clients.auth import Admission
from utter_runner.clients.logs import LogBacklog
from utter_runner.clients.server import ClientServer
from utter_runner.clients.tokens import TokenStore
from utter_runner.config import SocketConfig
from utter_runner.config.tokens import tokens_path
from utter_runner.confirm.confirmer import Confirmer
from utter_runner.confirm.notifications import Notifications
from utter_runner.confirm.spoken import SpokenAnswers
from utter_runner.dataplane.build import build_data_plane, handle_root, quotas_of
from utter_runner.dataplane.hub import Hub
from utter_runner.host.callbacks import HostCallbacks
from utter_runner.host.context import ContextCache
from utter_runner.host.offers import Offers
from utter_runner.host.own_streams import OwnStreams
from utter_runner.host.relay import Relay
from utter_runner.host.requests import HostRequests
from utter_runner.host.subscriptions import Subscriptions
from utter_runner.operate.notify import status_text
from utter_runner.operate.reporting import Reporter
from utter_runner.policy import CandidateStore, OpRegistry
from utter_runner.recorded import Recorded
from utter_runner.reload import Reloads
from utter_runner.rpc.deadlines import Deadlines
from utter_runner.rpc.interface import Limits
from utter_runner.rpc.reactor import Reactor
from utter_runner.signals import cancel_on_stop, reload_on_hang_up, stop_signals
from utter_runner.status import Status
from utter_runner.supervision.dialect import UtterDialect, decode_answer
from utter_runner.supervision.launch import Inherited
from utter_runner.supervision.sandbox.assurance import Assurance
from utter_runner.supervision.scratch import remove_abandoned
from utter_runner.supervision.spec import Timing
from utter_runner.supervision.supervisor import Supervisor
from utter_runner.voice.build import Voice, VoiceError, build_voice
from utter_runner.voice.media import CALL_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from msgspec import Raw

    from utter_protocol.messages import RequestId
    from utter_runner.config import Config, RunnerConfig
    from utter_runner.confirm.surfaces import Surface
    from utter_runner.operate.notify import ServiceManager
    from utter_runner.policy.marks import Mark
    from utter_runner.reload import Found, Read
    from utter_runner.rpc.endpoint import Endpoint
    from utter_runner.rpc.peer import Peer
    from utter_runner.setup import Setup
    from utter_runner.supervision.instance import Instance
    from utter_runner.supervision.launch import Launched
    from utter_runner.supervision.life import Changes
    from utter_runner.supervision.spec import PluginSpec

logger = logging.getLogger("utter_runner")

# How long a command waits for a router that is being restarted.
_ROUTER_WAIT = 10.0
# A hold that was just sent, and the releases of two sessions.
_QUIET_SECONDS = 3 * CALL_SECONDS
# What the service manager is told beforehand: end of input, SIGTERM and SIGKILL of one plugin, and the audit trail.
_STOP_SECONDS, _FLUSH_SECONDS = 3 * Timing().stop, 10.0


class Daemon:
    """Everything that runs; see `serve`.

    Raises:
        VoiceError: a hotkey or an audio setting is wrong.
    """

    def __init__(
        self,
        setup: Setup,
        environ: Mapping[str, str],
        endpoint: Endpoint,
        *,
        launched: Mapping[str, Launched],
        read: Read,
        manager: ServiceManager,
        log: LogBacklog,
        level_is_given: bool = False,
        hung_up: Callable[[], bool] = lambda: False,
    ) -> None:
        self._config = setup.config
        self._environ = environ
        self._log = log
        self._endpoint = endpoint
        self._level_is_given = level_is_given
        self._hung_up = hung_up
        self._manager = manager
        self._hub = Hub(queue=setup.config.runner.lossy_queue, window=setup.config.runner.credit_window)
        self._announcer = Announcer(self._hub, lambda: self._config, self.status)
        self._reporter = Reporter(manager, self._status_text, self._pulse)
        self._reloads = Reloads(
            setup,
            read,
            take_over=self._take_over,
            on_over=self._announcer.state_changed,
            around=self._reporter.reloading,
        )
        self._state = "starting"
        # The epochs that have been up, by plugin: an epoch is up again after it was degraded.
        self._met: dict[str, int] = {}
        self._build(environ, setup.specs, launched)
        self._announcer.warn_of(setup)

    def _build(self, environ: Mapping[str, str], specs: Sequence[PluginSpec], launched: Mapping[str, Launched]) -> None:
        config, runner = self._config, self._config.runner
        timeout = runner.rpc_timeout_ms / 1000
        limits = _limits(runner)
        self._reactor = Reactor()
        self._deadlines = Deadlines()
        self._registry = load_registry()
        hub, announcer, emit = self._hub, self._announcer, self._announcer.emit
        self._recorded = Recorded(lambda: self._config, environ, announcer.state_changed)
        self._ops = OpRegistry()
        candidates = CandidateStore()
        self._offers = Offers(
            self._ops,
            candidates,
            self._recorded.meet,
            timeout=lambda: self._config.runner.handshake_timeout_ms / 1000,
        )
        host = HostCallbacks()
        host.listen("router.hints_changed", self._offers.hints_changed)
        host.listen("stt.partial", self._partial)
        host.listen("plugin.health_changed", self._health_changed)
        self._host = host
        self._supervisor = Supervisor(
            specs,
            reactor=self._reactor,
            deadlines=self._deadlines,
            registry=self._registry,
            dialect=UtterDialect(f"utter-runner {__version__}"),
            timing=_timing(runner),
            limits=limits,
            environ=environ,
            requests=host,
            prepare=self._offers.learn,
            on_change=self._plugin_changed,
            on_gone=self._plugin_gone,
            launched=launched,
            inherit=self._inherit,
            allow=self._recorded.allow,
        )
        self._notifications = Notifications(environ) if config.policy.notify else None
        spoken = _spoken(config)
        confirmer = self._confirmer = Confirmer(
            self._surfaces,
            timeout=runner.confirm_timeout_ms / 1000,
            emit=emit,
            self_confirm=config.policy.self_confirm,
            plugins=lambda: frozenset(one.pid for one in self._supervisor.instances if one.pid),
            spoken=spoken,
        )
        self._context = ContextCache(self._supervisor)
        self._auditing = Auditing(state_directory(environ), config.log, announcer.warn_now)
        self._gate = ActionGate(
            self._supervisor,
            ops=self._ops,
            rules=policy_rules(config.policy),
            candidates=candidates,
            confirmer=confirmer,
            emit=emit,
            mark_in=self._mark_in,
            window=self._context.window,
            audit=self._auditing.auditor,
        )
        relay = self._relay = Relay(self._supervisor, window=hub.window, timeout=timeout)
        commands = self._commands = Commands(
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
            hints=lambda: self._offers.hints(self._supervisor.instances),
            emit=emit,
            on_transcript=announcer.final,
            on_level=announcer.level,
            open_stream=OwnStreams(relay).open,
            timeout=timeout,
            environ=environ,
            answers=spoken,
        )
        host.listen("stt.final", self._voice.recogniser.on_final)
        self._streams = Subscriptions(hub, relay, self._registry)
        for topic in announcer.topics(self._voice.level, self._log):
            self._streams.offer(topic.method, topic)
        self._streams.attach(host)
        self._data = build_data_plane(
            runner,
            handle_root(runner, environ, self._endpoint.path),
            ring=self._voice.ring,
            reactor=self._reactor,
            deadlines=self._deadlines,
            plugin_known=self._supervisor.get,
            on_broken=announcer.warn,
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
        self._assurance = Assurance(specs, environ, str(self._endpoint.path), announcer.state_changed)
        self._api = ClientApi(
            supervisor=self._supervisor,
            registry=self._registry,
            gate=self._gate,
            commands=commands,
            confirmer=confirmer,
            voice=self._voice.controller,
            speaker=self._voice.speaker,
            ask_desktop=self._voice.ask_desktop,
            microphone=self._voice.microphone,
            devices=self._voice.devices,
            context=self._context.snapshot,
            streams=self._streams,
            data=self._data,
            status=self.status,
            drift=self._recorded.look,
            reload=self._reloads.reload,
            sandbox=self._assurance.describe,
            log=self._log,
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
        self._status = Status(
            config=lambda: self._config,
            endpoint=self._endpoint,
            manager=self._manager,
            supervisor=self._supervisor,
            ops=self._ops,
            assurance=self._assurance,
            voice=self._voice,
            api=self._api,
            server=self._server,
            tokens=self._tokens,
            auditing=self._auditing,
            recorded=self._recorded,
            warnings=lambda: [*announcer.warnings(), *self._reloads.warnings()],
        )

    # ---- running

    async def run(self) -> None:
        """Serve until SIGTERM or SIGINT."""
        try:
            async with trio.open_nursery() as base:
                base.start_soon(self._reactor.run)
                base.start_soon(self._deadlines.run)
                base.start_soon(self._reporter.run)
                # The audit trail outlives the gate, so that what is cancelled at the end is recorded, too.
                await self._auditing.begin(base)
                with stop_signals() as signals:
                    await self._serve(signals)
                base.cancel_scope.cancel()
        finally:
            self._data.close()
            self._voice.close()
            self._reactor.close()

    async def _serve(self, signals: Any) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(cancel_on_stop, signals, nursery.cancel_scope)
            await nursery.start(reload_on_hang_up, self._reloads.reload, self._hung_up)
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
                    self._manager.stopping(self._status_text(), self._stop_seconds())
                    self._server.stop()
                    # What was paused while somebody spoke is to play again, which takes a plugin.
                    with trio.move_on_after(_QUIET_SECONDS):
                        await self._voice.controller.ended.wait()
                    await self._supervisor.stop()

    async def _start(self, nursery: trio.Nursery) -> None:
        # The plugins outlive the cancellation of everything else: they are stopped in order, in `_serve`.
        nursery.start_soon(self._voice.run)
        # The handshake, what a plugin is asked before it is admitted, and then an early end.
        self._manager.extend(2 * self._config.runner.handshake_timeout_ms / 1000 + self._stop_seconds())
        started = trio.Event()

        async def supervise() -> None:
            with trio.CancelScope(shield=True):
                await self._supervisor.run(started)

        nursery.start_soon(supervise)
        await started.wait()
        self._reloads.begin()
        self._state = "ready"
        self._reporter.ready()
        self._announcer.state_changed()
        # Not before: it would take the time of plugins that start.
        nursery.start_soon(self._assurance.watch)
        nursery.start_soon(self._recorded.run)
        nursery.start_soon(self._remove_abandoned)
        failed = [one.id for one in self._supervisor.instances if not one.running]
        logger.info(
            "ready on %s with %d of %d plugins%s",
            self._endpoint.path,
            len(self._supervisor.instances) - len(failed),
            len(self._supervisor.instances),
            f" (not running: {', '.join(failed)})" if failed else "",
        )

    async def _remove_abandoned(self) -> None:
        """Take away what the plugins of runners that were killed have left."""
        for path in await trio.to_thread.run_sync(remove_abandoned, self._environ, abandon_on_cancel=True):
            logger.info("removed the temporary directory %s, which a runner that was killed has left", path)

    # ---- what the service manager is told

    def _status_text(self) -> str:
        return status_text(self._supervisor.instances, self._state)

    async def _pulse(self) -> None:
        """Return when reactor and deadlines have had their turn: without them nothing is answered or given up."""
        done = trio.Event()

        def turned() -> None:
            self._deadlines.add(trio.current_time(), done.set)

        self._reactor.again(turned)
        await done.wait()

    def _stop_seconds(self) -> float:
        """How long stopping may take: one plugin after the other if each depends on the next (`Instance.tear_down`)."""
        return _QUIET_SECONDS + len(self._supervisor.instances) * _STOP_SECONDS + _FLUSH_SECONDS

    # ---- the configuration changes

    def _take_over(self, found: Found) -> Changes:
        """Have everything go by another configuration, in this turn. What can fail has been tried before."""
        config = found.setup.config
        runner, socket, timeout = config.runner, config.socket or SocketConfig(), config.runner.rpc_timeout_ms / 1000
        spoken = _spoken(config)
        admission = Admission(config.socket, self._tokens)
        # The only one that may raise; nothing has changed by then.
        self._voice.reconfigure(config, timeout=timeout, answers=spoken)
        self._config = config
        if not self._level_is_given:
            logging.getLogger().setLevel(config.log.level.upper())
        self._gate.reconfigure(found.rules, self._auditing.reconfigure(config.log))
        self._confirmer.reconfigure(
            timeout=runner.confirm_timeout_ms / 1000, self_confirm=config.policy.self_confirm, spoken=spoken
        )
        if config.policy.notify != (self._notifications is not None):
            self._notifications = Notifications(self._environ) if config.policy.notify else None
        for room in (self._commands, self._relay, self._host_requests, self._api):
            room.reconfigure(timeout=timeout)
        self._hub.reconfigure(queue=runner.lossy_queue)
        self._data.reconfigure(quotas_of(runner))
        self._server.reconfigure(
            admission,
            _limits(runner),
            max_clients=runner.max_clients,
            max_requests_per_s=socket.max_requests_per_s,
            max_bytes_per_s=socket.max_bytes_per_s,
        )
        # Whoever asked for this gets the answer before it may have to go.
        self._deadlines.add(trio.current_time(), self._server.review)
        self._supervisor.reconfigure(_timing(runner), _limits(runner))
        self._assurance.reconfigure(found.setup.specs)
        changes = self._supervisor.apply(found.setup.specs)
        for plugin in (*changes.removed, *changes.restarted):
            self._recorded.ended(plugin)
        self._recorded.look_soon()
        self._announcer.warn_of(found.setup)
        return changes

    # ---- plugins come and go

    def _plugin_changed(self, instance: Instance) -> None:
        self._streams.plugin_changed(instance)
        if instance.status in {"backoff", "failed", "stopped"}:
            self._offers.withdraw(instance.id)
            if instance.status != "backoff":
                self._recorded.ended(instance.id)
            self._context.forget(instance)
        elif instance.running and instance.epoch != self._met.get(instance.id):
            self._met[instance.id] = instance.epoch
            self._host.admitted(instance)
            self._context.admitted(instance)
            self._voice.admitted(instance)
        self._announcer.emit({"event": "plugin", "plugin": self._status.plugin(instance)})
        self._reporter.changed()

    def _plugin_gone(self, instance: Instance) -> None:
        """A plugin is no longer configured."""
        self._offers.forget(instance.id)
        self._met.pop(instance.id, None)
        self._data.forget_plugin(instance.id)
        self._announcer.state_changed()

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

    def _health_changed(self, instance: Instance, params: Raw) -> None:
        health = decode_answer(params, HealthResult, "plugin.health_changed", instance.id)
        self._supervisor.note_health(instance, health)

    def _partial(self, instance: Instance, params: Raw) -> None:
        partial = self._voice.recogniser.on_partial(instance, params)
        if partial is not None:
            self._announcer.partial(partial)

    def _surfaces(self) -> list[Surface]:
        # The server is built after the confirmer, which it needs.
        surfaces = self._server.surfaces()
        return surfaces if self._notifications is None else [self._notifications, *surfaces]

    def status(self) -> dict[str, Any]:
        """Return what `runner.status` answers."""
        return self._status.runner(self._state)


def _limits(runner: RunnerConfig) -> Limits:
    return Limits(
        max_frame=runner.max_frame, max_in_flight=runner.max_in_flight, max_queued_bytes=runner.max_queued_bytes
    )


def _timing(runner: RunnerConfig) -> Timing:
    return Timing(
        handshake=runner.handshake_timeout_ms / 1000,
        health_interval=runner.health_interval_ms / 1000,
        health_timeout=runner.health_timeout_ms / 1000,
    )


def _spoken(config: Config) -> SpokenAnswers | None:
    voice = config.voice
    return SpokenAnswers(voice.yes_words, voice.no_words) if voice.spoken_confirm else None


def serve(
    setup: Setup,
    endpoint: Endpoint,
    launched: Mapping[str, Launched],
    *,
    read: Read,
    level_is_given: bool,
    hung_up: Callable[[], bool],
    manager: ServiceManager,
) -> int:
    """Run the daemon until it is told to stop; return its exit code.

    Args:
        setup: the checked configuration, the plugins, and sentences for the user about what could not be set up.
        endpoint: where clients connect; the caller closes it.
        launched: processes of plugins that run already.
        read: reads the configuration again.
        level_is_given: whether the command line has set the log's level, whatever the configuration says.
        hung_up: whether SIGHUP has come before there was a loop.
        manager: the service manager, if there is one.
    """
    log = LogBacklog()
    logging.getLogger().addHandler(log)
    try:
        daemon = Daemon(
            setup,
            os.environ,
            endpoint,
            launched=launched,
            read=read,
            level_is_given=level_is_given,
            hung_up=hung_up,
            manager=manager,
            log=log,
        )
        trio.run(daemon.run)
    except VoiceError as error:
        logger.error("%s", error)  # noqa: TRY400 - the message says all there is
        manager.status(str(error))
        return 2
    finally:
        logging.getLogger().removeHandler(log)
    return 0
