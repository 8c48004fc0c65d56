"""All plugins: start side by side, admit in dependency order, restart with back-off, stop dependents first.

Rules here: one task per plugin, and nothing that happens to one plugin raises in another's task or in the daemon; only
this file decides whether a plugin runs; requires are judged against what is admitted and running at that moment.
"""

from __future__ import annotations

import logging
import math
import random
from collections import deque
from typing import TYPE_CHECKING

import trio

from utter_protocol.errors import ErrorCode, RpcError
from utter_runner.config.log_fields import about
from utter_runner.supervision.admission import Offer, admissible, explain_gap, stop_waves
from utter_runner.supervision.ending import describe_end, why_final
from utter_runner.supervision.instance import Instance
from utter_runner.supervision.launch import SpawnError
from utter_runner.supervision.states import GONE, RUNNING, readiness

if TYPE_CHECKING:
    import socket
    from collections.abc import Awaitable, Callable, Iterable, Mapping

    from utter_protocol.capabilities import Registry
    from utter_protocol.methods import HealthResult
    from utter_runner.rpc.deadlines import Deadlines
    from utter_runner.rpc.interface import Limits
    from utter_runner.rpc.reactor import Reactor
    from utter_runner.supervision.dialect import Dialect
    from utter_runner.supervision.instance import PluginRequests
    from utter_runner.supervision.launch import Inherited, Launched
    from utter_runner.supervision.spec import PluginSpec, Timing

logger = logging.getLogger(__name__)


async def _anything(_spec: PluginSpec) -> None:
    """Let every plugin be started."""


class _Life:
    """What the supervisor keeps about one instance."""

    def __init__(self, instance: Instance, timing: Timing) -> None:
        self.instance = instance
        self.scope = trio.CancelScope()
        self.done = trio.Event()
        self.wake = trio.Event()
        self.waiting = False
        self.settled = False
        self.unwell = ""
        self.restarts: deque[float] = deque(maxlen=timing.restarts_in_window)
        self.failures = 0


class Supervisor:
    """Runs plugins.

    Args:
        specs: the plugins, in the order of the config.
        registry: the capability registry.
        dialect: what the plugins speak.
        timing: bounds in seconds.
        limits: bounds of each plugin's peer.
        environ: the runner's environment.
        requests: who answers what plugins ask.
        prepare: awaited after the handshake and before admission; what it raises as RpcError fails the epoch.
        on_change: called after every change of a plugin's status.
        launched: processes of first epochs that run already, by plugin id.
        inherit: makes the descriptors for one process that inherits the audio ring.
        allow: awaited before each epoch; what it raises as SpawnError keeps the plugin from being started.
    """

    def __init__(
        self,
        specs: Iterable[PluginSpec],
        *,
        reactor: Reactor,
        deadlines: Deadlines,
        registry: Registry,
        dialect: Dialect,
        timing: Timing,
        limits: Limits,
        environ: Mapping[str, str],
        requests: PluginRequests,
        prepare: Callable[[Instance], Awaitable[None]],
        on_change: Callable[[Instance], None],
        launched: Mapping[str, Launched] | None = None,
        inherit: Callable[[], Inherited] | None = None,
        allow: Callable[[PluginSpec], Awaitable[None]] = _anything,
    ) -> None:
        self._allow = allow
        self._registry = registry
        self._timing = timing
        self._prepare = prepare
        self._on_change = on_change
        self._random = random.Random()  # noqa: S311 - jitter, not a secret
        self._stopping = False
        self._settled = trio.Event()
        self._change = trio.Event()
        self._lives: dict[str, _Life] = {}
        self._admitted_order: list[str] = []
        for spec in specs:
            instance = Instance(
                spec,
                reactor=reactor,
                deadlines=deadlines,
                dialect=dialect,
                timing=timing,
                limits=limits,
                environ=environ,
                requests=requests,
                on_change=on_change,
                launched=(launched or {}).get(spec.id),
                inherit=inherit,
            )
            self._lives[spec.id] = _Life(instance, timing)

    # ---- looking at plugins

    @property
    def instances(self) -> list[Instance]:
        """All plugins in the order of the config."""
        return [life.instance for life in self._lives.values()]

    def get(self, plugin: str) -> Instance:
        """Return a plugin by id.

        Raises:
            RpcError: -32005, there is none of that id.
        """
        life = self._lives.get(plugin)
        if life is None:
            raise RpcError(
                ErrorCode.CAPABILITY_MISSING,
                f"there is no plugin {plugin!r}",
                {"plugin": plugin, "known": [*self._lives]},
            )
        return life.instance

    def provider(self, capability: str, *, besides: str = "") -> Instance | None:
        """Return who provides `capability`: a running plugin, else one that is coming up, else any, else None.

        `besides` is the id of a plugin that does not count.
        """
        providers = [
            life.instance
            for life in self._lives.values()
            if life.instance.id != besides
            and any(self._registry.satisfies(one, capability) for one in life.instance.provides)
        ]
        return min(providers, key=readiness, default=None)

    async def wait_provider(self, capability: str, timeout: float) -> Instance:
        """Return a running plugin that provides `capability`, waiting while one is starting or restarting.

        Raises:
            RpcError: -32005 when nobody provides it, -32000 when its providers failed or did not come up in time.
        """
        instance = self.provider(capability)
        with trio.move_on_after(timeout):
            while instance is not None and not instance.running and instance.status not in GONE:
                await self._change.wait()
                instance = self.provider(capability)
        if instance is None:
            raise RpcError(ErrorCode.CAPABILITY_MISSING, f"no plugin provides {capability}", {"capability": capability})
        if not instance.running:
            raise instance.unavailable()
        return instance

    def missing(self, instance: Instance) -> list[str]:
        """The requires of a plugin that nobody covers now."""
        return self._registry.missing(instance.requires, instance.provides, self._provided_except(instance.id))

    def _provided_except(self, plugin: str) -> set[str]:
        return {
            one
            for other, life in self._lives.items()
            if other != plugin and life.instance.admitted
            for one in life.instance.provides
        }

    # ---- running

    def restart(self, plugin: str) -> None:
        """Start a plugin that has failed, or end its back-off; one that runs is left alone.

        Raises:
            RpcError: -32005, there is none of that id.
        """
        self.get(plugin)
        life = self._lives[plugin]
        life.restarts.clear()
        life.failures = 0
        if life.instance.status in ("failed", "backoff"):
            # Of one that runs, it would cut short the pause after its end.
            life.wake.set()

    async def run(self, started: trio.Event) -> None:
        """Run all plugins until `stop`; sets `started` when each is admitted or has failed for the first time."""
        async with trio.open_nursery() as nursery:
            for life in self._lives.values():
                nursery.start_soon(self._live, life)
            nursery.start_soon(self._poll_health)
            if self._lives:
                await self._settled.wait()
            started.set()
            for life in self._lives.values():
                await life.done.wait()
            nursery.cancel_scope.cancel()

    async def stop(self) -> None:
        """Stop every plugin: dependents before those they depend on, side by side otherwise."""
        self._stopping = True
        offers = {plugin: Offer(life.instance.provides, life.instance.requires) for plugin, life in self._lives.items()}
        rank = {plugin: number for number, plugin in enumerate(self._admitted_order)}
        newest_first = sorted(self._lives, key=lambda plugin: rank.get(plugin, math.inf), reverse=True)
        with trio.CancelScope(shield=True):
            for wave in stop_waves(newest_first, offers, self._registry):
                for plugin in wave:
                    self._lives[plugin].scope.cancel()
                for plugin in wave:
                    await self._lives[plugin].done.wait()

    async def _live(self, life: _Life) -> None:
        instance = life.instance
        try:
            with life.scope:
                while True:
                    try:
                        delay = await self._epoch(life)
                    except Exception as error:
                        logger.exception("supervising %s failed", instance.id, extra=about(instance))
                        instance.admitted = False
                        if instance.status in RUNNING:
                            instance.move("die", "internal error")
                        await instance.tear_down("internal error")
                        delay = self._fail(life, f"internal error: {error}")
                    self._settle(life)
                    with trio.move_on_after(delay):
                        await life.wake.wait()
                    life.wake = trio.Event()
        finally:
            with trio.CancelScope(shield=True):
                instance.move("stop")
                try:
                    await instance.tear_down("the runner stops it")
                    instance.close()
                except Exception:
                    logger.exception("stopping %s failed", instance.id, extra=about(instance))
                finally:
                    # Whoever stops the runner waits for this.
                    instance.move("stopped")
                    life.done.set()
                    self._settle(life)
                    self._changed()

    async def _epoch(self, life: _Life) -> float:
        """Live through one epoch; return the seconds to wait before the next."""
        instance = life.instance
        life.instance.refusal = None
        life.unwell = ""
        connection = None if instance.spec.spawn else await self._wait_other(life)
        instance.move("spawn")
        try:
            await self._may_start(life, connection)
            instance.start(connection)
        except SpawnError as error:
            return self._fail(life, str(error))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch_end, life, nursery.cancel_scope)
            life.instance.refusal = await self._become_ready(life)
            if life.instance.refusal is None:
                await trio.sleep_forever()
            nursery.cancel_scope.cancel()
        lived = trio.current_time() - instance.started_at
        process = instance.process
        reason = life.unwell or (life.instance.refusal.message if life.instance.refusal else instance.detail)
        instance.admitted = False
        # Said before the slow part, so that nobody takes it for running meanwhile.
        instance.move("die", reason or "it ended")
        self._signal()
        exit_code = await instance.tear_down(reason or "it ended")
        last_words = process.stderr_tail.rpartition("\n")[2] if process else ""
        return self._after_end(life, exit_code, describe_end(exit_code, reason, last_words), lived)

    async def _wait_other(self, life: _Life) -> socket.socket:
        """Wait for a plugin that somebody else starts. Nobody waits for it: the start is over, and dependents fail."""
        life.instance.move("await", life.instance.detail)
        self._settle(life)
        self._changed()
        return await life.instance.wait_other()

    async def _may_start(self, life: _Life, connection: socket.socket | None) -> None:
        """Return if it may be started now. Raises SpawnError, and then nobody has the connection any more."""
        try:
            await self._allow(life.instance.spec)
        except BaseException:
            if connection is not None:
                connection.close()
            raise

    async def _watch_end(self, life: _Life, scope: trio.CancelScope) -> None:
        await life.instance.wait_end()
        scope.cancel()

    async def _become_ready(self, life: _Life) -> RpcError | None:
        """Connect, greet, prepare, wait for admission; return why it is refused, if it is."""
        instance = life.instance
        try:
            await instance.connect()
            await instance.greet()
            await self._prepare(instance)
        except RpcError as error:
            return error
        life.waiting = True
        try:
            self._admit()
            while not instance.admitted:
                if life.instance.refusal is not None:
                    return life.instance.refusal
                await self._change.wait()
        finally:
            life.waiting = False
        return None

    # ---- admission

    def _offers(self, *, admitted: bool) -> dict[str, Offer]:
        return {
            plugin: Offer(life.instance.provides, life.instance.requires)
            for plugin, life in self._lives.items()
            if (life.instance.admitted if admitted else life.waiting and not life.instance.admitted)
        }

    def _admit(self) -> None:
        """Admit whoever can be; refuse those who wait for something that cannot come any more."""
        for plugin in admissible(self._offers(admitted=False), self._offers(admitted=True), self._registry):
            life = self._lives[plugin]
            life.instance.admitted = True
            if plugin in self._admitted_order:
                self._admitted_order.remove(plugin)
            self._admitted_order.append(plugin)
            health = life.instance.handshake.health if life.instance.handshake else None
            life.unwell = ""
            life.instance.move("admit", health.detail if health else "")
            if health and health.status == "degraded":
                life.instance.move("degrade", health.detail)
            self._settle(life)
            self._signal()
            self._retry_refused()
        self._refuse_hopeless()
        self._review_running()

    def _refuse_hopeless(self) -> None:
        unsettled = any(
            life.instance.status == "backoff" or (life.instance.status == "starting" and not life.waiting)
            for life in self._lives.values()
        )
        if unsettled:
            return
        offers = {plugin: Offer(life.instance.provides, life.instance.requires) for plugin, life in self._lives.items()}
        for plugin, life in self._lives.items():
            if not life.waiting or life.instance.admitted:
                continue
            missing = self.missing(life.instance)
            life.instance.missing = tuple(missing)
            life.instance.refusal = RpcError(
                ErrorCode.CAPABILITY_MISSING,
                explain_gap(plugin, offers, missing, self._registry),
                {"plugin": plugin, "missing": missing},
            )
            self._signal()

    def _retry_refused(self) -> None:
        """Start again those that failed for want of what has just been admitted."""
        for life in self._lives.values():
            if life.instance.status == "failed" and life.instance.missing and not self.missing(life.instance):
                life.wake.set()

    def _review_running(self) -> None:
        """Degrade the dependents of what went down, and bring them back."""
        for life in self._lives.values():
            instance = life.instance
            if not instance.running:
                continue
            instance.missing = tuple(self.missing(instance))
            health = instance.handshake.health if instance.handshake else None
            trouble = f"missing: {', '.join(instance.missing)}" if instance.missing else ""
            if not trouble and health and health.status == "degraded":
                trouble = health.detail or "the plugin reports that it is degraded"
            if trouble and instance.status == "ready":
                instance.move("degrade", trouble)
            elif not trouble and instance.status == "degraded":
                instance.move("recover", health.detail if health else "")

    # ---- restarts

    def _after_end(self, life: _Life, exit_code: int | None, reason: str, lived: float) -> float:
        instance = life.instance
        now = trio.current_time()
        if lived >= self._timing.healthy_after or (life.instance.refusal is None and not instance.spec.spawn):
            life.failures = 0
        recent = [at for at in life.restarts if now - at < self._timing.restart_window]
        final = why_final(
            reason,
            instance.spec,
            self._timing,
            exit_code=exit_code,
            refused=life.instance.refusal,
            unwell=bool(life.unwell),
            recent=len(recent),
        )
        if final is not None:
            return self._fail(life, final)
        life.restarts.append(now)
        instance.restarts += 1
        delay = min(self._timing.backoff_first * 2.0 ** min(life.failures, 16), self._timing.backoff_most)
        life.failures += 1
        delay *= 1 + self._random.random() / 4
        what = "it starts again" if instance.spec.spawn else "it is waited for again"
        logger.warning(
            "%s#%d: %s; %s in %.1f s", instance.id, instance.epoch, reason, what, delay, extra=about(instance)
        )
        instance.detail = reason
        self._changed()
        return delay

    def _fail(self, life: _Life, reason: str) -> float:
        instance = life.instance
        logger.error("%s#%d failed: %s", instance.id, instance.epoch, reason, extra=about(instance))
        life.instance.close()
        life.instance.move("give_up", reason)
        self._changed()
        return math.inf

    def _changed(self) -> None:
        if not self._stopping:
            self._admit()
        self._signal()

    def _signal(self) -> None:
        """Wake whoever waits for a change of any plugin."""
        self._change.set()
        self._change = trio.Event()

    def _settle(self, life: _Life) -> None:
        life.settled = True
        if all(other.settled for other in self._lives.values()):
            self._settled.set()

    # ---- health

    async def _poll_health(self) -> None:
        """Ask all running plugins in one go, so that an idle runner wakes once per interval and not once per plugin."""
        while True:
            await trio.sleep(self._timing.health_interval)
            async with trio.open_nursery() as nursery:
                for life in self._lives.values():
                    if life.instance.running:
                        nursery.start_soon(self._check_health, life, life.instance.epoch)

    async def _check_health(self, life: _Life, epoch: int) -> None:
        instance = life.instance
        try:
            health = await instance.health()
        except RpcError as error:
            if error.data is not None and error.data.get("bound") == "max_in_flight":
                # It was not asked: others wait for it already, and their time-outs say whether it answers.
                return
            if instance.epoch == epoch and instance.running:
                life.unwell = f"it does not answer plugin.health: {error.message}"
                instance.kill(life.unwell)
            return
        if instance.epoch == epoch:
            self.note_health(instance, health)

    def note_health(self, instance: Instance, health: HealthResult) -> None:
        """A plugin said how it is, asked or by itself."""
        instance.note_health(health)
        self._review_running()
