"""All plugins: start side by side, admit in dependency order, restart with back-off, stop dependents first.

Rules here: one task per plugin, and nothing that happens to one plugin raises in another's task or in the daemon; only
this file decides whether a plugin runs; requires are judged against what is admitted and running at that moment. What
runs may change at any time (`apply`, `start`, `restart`, `hold`): that is decided in one turn and waits for nothing;
each plugin's task brings its own part about. The epochs of an id only grow, also when it was gone meanwhile.
"""

from __future__ import annotations

import logging
import math
import random
from functools import partial
from typing import TYPE_CHECKING

import trio

from utter_protocol.errors import ErrorCode, RpcError
from utter_runner.config.log_fields import about
from utter_runner.rpc.interface import guarded
from utter_runner.supervision.admission import Offer, stop_waves
from utter_runner.supervision.admitting import Admitting
from utter_runner.supervision.ending import describe_end, why_final
from utter_runner.supervision.health import HealthWatch
from utter_runner.supervision.instance import Instance
from utter_runner.supervision.launch import SpawnError
from utter_runner.supervision.life import Changes, Life
from utter_runner.supervision.spec import same
from utter_runner.supervision.states import RUNNING, is_gone, readiness

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
        on_gone: called when a plugin that is no longer configured has ended.
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
        on_gone: Callable[[Instance], None] = lambda _instance: None,
        launched: Mapping[str, Launched] | None = None,
        inherit: Callable[[], Inherited] | None = None,
        allow: Callable[[PluginSpec], Awaitable[None]] = _anything,
    ) -> None:
        self._allow = allow
        self._registry = registry
        self._timing = timing
        self._prepare = prepare
        self._limits = limits
        self._on_gone = on_gone
        self._random = random.Random()  # noqa: S311 - jitter, not a secret
        self._stopping = False
        self._settled = trio.Event()
        self._change = trio.Event()
        self._lives: dict[str, Life] = {}
        self._admitting = Admitting(self._lives, registry, settle=self._settle, signal=self._signal)
        # The last epochs of those that are gone.
        self._epochs: dict[str, int] = {}
        self._nursery: trio.Nursery | None = None
        self._stopped = trio.Event()
        self.health = HealthWatch(self._lives, timing, on_health=self._admitting.review)
        # What timing and limits are, an instance is told when it is made.
        self._instance_of = partial(
            Instance,
            reactor=reactor,
            deadlines=deadlines,
            dialect=dialect,
            environ=environ,
            requests=requests,
            on_change=on_change,
            inherit=inherit,
        )
        for spec in specs:
            self._lives[spec.id] = self._life_of(spec, (launched or {}).get(spec.id))

    def _life_of(self, spec: PluginSpec, launched: Launched | None = None) -> Life:
        return Life(spec, self._make(spec, self._epochs.get(spec.id, 0), launched), self._timing)

    def _make(self, spec: PluginSpec, epoch: int, launched: Launched | None = None) -> Instance:
        instance = self._instance_of(spec, timing=self._timing, limits=self._limits, launched=launched)
        instance.epoch = epoch
        return instance

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
            while instance is not None and not instance.running and not is_gone(instance):
                await self._change.wait()
                instance = self.provider(capability)
        if instance is None:
            raise RpcError(ErrorCode.CAPABILITY_MISSING, f"no plugin provides {capability}", {"capability": capability})
        if not instance.running:
            raise instance.unavailable()
        return instance

    def missing(self, instance: Instance) -> list[str]:
        """The requires of a plugin that nobody covers now."""
        return self._admitting.missing(instance)

    def note_health(self, instance: Instance, health: HealthResult) -> None:
        """A plugin said how it is, asked or by itself."""
        self.health.note(instance, health)

    # ---- changing what runs

    def apply(self, specs: Iterable[PluginSpec]) -> Changes:
        """Run these plugins from now on, in this order, and no others; return at once what that changes.

        One whose spec is the `same` goes on as it is. Those that go, or change, are stopped as at the end: dependents
        first, and what they are at may be finished. One that a person has stopped stays so.
        """
        wanted = {spec.id: spec for spec in specs}
        removed = [plugin for plugin, life in self._lives.items() if plugin not in wanted and not life.removed]
        added, restarted = [], []
        for plugin in removed:
            self._lives[plugin].removed = True
        for plugin, spec in wanted.items():
            life = self._lives.get(plugin)
            if life is None:
                added.append(plugin)
                self._lives[plugin] = self._life_of(spec)
                if self._nursery is not None:
                    self._nursery.start_soon(self._live, self._lives[plugin])
            elif life.removed:
                # It is back before it was gone: another epoch nevertheless, as whoever was told that it goes expects.
                added.append(plugin)
                life.removed, life.held = False, ""
                life.spec, life.again, life.changed = spec, True, True
                life.forgive()
            elif not same(spec, life.spec):
                life.spec, life.changed = spec, True
                life.forgive()
                if not life.held:
                    restarted.append(plugin)
            else:
                life.spec = spec
                life.instance.warn_of(spec.warnings)
        in_order = {plugin: self._lives[plugin] for plugin in (*wanted, *self._lives)}
        self._lives.clear()
        self._lives.update(in_order)
        ending = [plugin for plugin, life in self._lives.items() if life.ending]
        if ending and self._nursery is not None:
            self._nursery.start_soon(self._end_in_order, self._waves(ending))
        return Changes(added=tuple(added), removed=tuple(removed), restarted=tuple(restarted))

    async def _end_in_order(self, waves: list[list[str]]) -> None:
        for wave in waves:
            # By the time it is their turn, something else may be wanted of them.
            lives = [life for plugin in wave if (life := self._lives.get(plugin)) is not None and life.ending]
            for over in [life.end() for life in lives]:
                await over.wait()

    def reconfigure(self, timing: Timing, limits: Limits) -> None:
        """Have other bounds: for what begins from now on, and the limits for the next connection of each plugin."""
        self._timing, self._limits = timing, limits
        for life in self._lives.values():
            life.instance.reconfigure(timing, limits)
        self.health.reconfigure(timing)

    def start(self, plugin: str) -> bool:
        """Start a plugin that was stopped or has failed, or end its back-off; whether there was anything to do.

        Raises:
            RpcError: -32005, there is none of that id.
        """
        life = self._existing(plugin)
        if not life.held and life.instance.status not in {"failed", "backoff"}:
            # Of one that runs, it would cut short the pause after its end.
            return False
        life.held = ""
        life.instance.returning = True
        life.forgive()
        life.wake.set()
        return True

    def restart(self, plugin: str) -> None:
        """Have a plugin in a new epoch, whatever it is doing. Raises RpcError as `start`."""
        life = self._existing(plugin)
        life.held = ""
        life.again = True
        life.forgive()
        life.end()

    def hold(self, plugin: str, who: str) -> bool:
        """Stop a plugin until it is started, restarted, or configured anew; whether it was not stopped already.

        Args:
            plugin: its id.
            who: who stops it, for its status: "it was stopped by ...".

        Raises:
            RpcError: -32005, there is none of that id.
        """
        life = self._existing(plugin)
        if life.held:
            return False
        life.held = f"it was stopped by {who}, until `utter plugins start {plugin}`"
        life.end()
        return True

    async def until_at_rest(self, plugin: str, timeout: float) -> Instance:
        """Wait until what was last wanted of a plugin has come about: it is up, has failed, is waited for, or stopped.

        Args:
            plugin: its id.
            timeout: seconds.

        Raises:
            RpcError: -32001, it took longer; -32005, there is none of that id, or no longer.
        """
        with trio.move_on_after(timeout):
            while not self._existing(plugin).at_rest:
                await self._change.wait()
            return self._lives[plugin].instance
        instance = self.get(plugin)
        milliseconds = round(timeout * 1000)
        detail = f" ({instance.detail})" if instance.detail else ""
        raise RpcError(
            ErrorCode.TIMED_OUT,
            f"{plugin} is {instance.status} after {milliseconds} ms{detail}; the runner goes on with it",
            {"plugin": plugin, "status": instance.status, "timeout_ms": milliseconds},
        )

    def _existing(self, plugin: str) -> Life:
        self.get(plugin)
        return self._lives[plugin]

    # ---- running

    async def run(self, started: trio.Event) -> None:
        """Run all plugins until `stop`; sets `started` when each is admitted or has failed for the first time."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            for life in self._lives.values():
                nursery.start_soon(self._live, life)
            nursery.start_soon(self.health.run)
            if self._lives:
                await self._settled.wait()
            started.set()
            await self._stopped.wait()
            self._nursery = None
            nursery.cancel_scope.cancel()

    async def stop(self) -> None:
        """Stop every plugin: dependents before those they depend on, side by side otherwise."""
        self._stopping = True
        with trio.CancelScope(shield=True):
            for wave in self._waves(self._lives):
                lives = [life for plugin in wave if (life := self._lives.get(plugin)) is not None]
                for life in lives:
                    life.scope.cancel()
                for life in lives:
                    if self._nursery is not None:
                        await life.done.wait()
            self._stopped.set()

    def _waves(self, plugins: Iterable[str]) -> list[list[str]]:
        offers = {plugin: Offer(life.instance.provides, life.instance.requires) for plugin, life in self._lives.items()}
        rank = {plugin: number for number, plugin in enumerate(self._admitting.order)}
        newest_first = sorted(plugins, key=lambda plugin: rank.get(plugin, math.inf), reverse=True)
        return stop_waves(newest_first, offers, self._registry)

    async def _live(self, life: Life) -> None:
        try:
            while not self._stopping and not life.removed:
                if life.changed:
                    life.instance = self._make(life.spec, life.instance.epoch)
                life.begin()
                try:
                    with life.scope:
                        await self._wait_while_held(life)
                        await self._run_epochs(life)
                finally:
                    await self._end(life)
        finally:
            life.over.set()
            life.done.set()
            self._settle(life)
            if life.removed and not self._stopping:
                self._forget(life)

    async def _wait_while_held(self, life: Life) -> None:
        if life.held:
            life.instance.detail = life.held
        while life.held:
            await life.wake.wait()
        life.wake = trio.Event()

    async def _run_epochs(self, life: Life) -> None:
        instance = life.instance
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

    async def _end(self, life: Life) -> None:
        """Stop what runs, whatever state it is in."""
        instance = life.instance
        with trio.CancelScope(shield=True):
            instance.admitted = False
            instance.move("stop", life.held)
            # Dependents are told before the slow part.
            self._changed()
            try:
                await instance.tear_down("the runner stops it")
                instance.close()
            except Exception:
                logger.exception("stopping %s failed", instance.id, extra=about(instance))
            finally:
                # Whoever stops the runner waits for this.
                instance.move("stopped", life.held)
                life.over.set()
                self._settle(life)
                self._changed()

    def _forget(self, life: Life) -> None:
        instance = life.instance
        self._epochs[instance.id] = instance.epoch
        del self._lives[instance.id]
        self._admitting.forget(instance.id)
        self._changed()
        guarded(self._on_gone, instance)

    async def _epoch(self, life: Life) -> float:
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

    async def _wait_other(self, life: Life) -> socket.socket:
        """Wait for a plugin that somebody else starts. Nobody waits for it: the start is over, and dependents fail."""
        life.instance.move("await", life.instance.detail)
        self._settle(life)
        self._changed()
        return await life.instance.wait_other()

    async def _may_start(self, life: Life, connection: socket.socket | None) -> None:
        """Return if it may be started now. Raises SpawnError, and then nobody has the connection any more."""
        try:
            await self._allow(life.instance.spec)
        except BaseException:
            if connection is not None:
                connection.close()
            raise

    async def _watch_end(self, life: Life, scope: trio.CancelScope) -> None:
        await life.instance.wait_end()
        scope.cancel()

    async def _become_ready(self, life: Life) -> RpcError | None:
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
            self._admitting.admit()
            while not instance.admitted:
                if life.instance.refusal is not None:
                    return life.instance.refusal
                await self._change.wait()
        finally:
            life.waiting = False
        return None

    # ---- restarts

    def _after_end(self, life: Life, exit_code: int | None, reason: str, lived: float) -> float:
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

    def _fail(self, life: Life, reason: str) -> float:
        logger.error("%s#%d failed: %s", life.instance.id, life.instance.epoch, reason, extra=about(life.instance))
        life.instance.close()
        life.instance.move("give_up", reason)
        self._changed()
        return math.inf

    def _changed(self) -> None:
        if not self._stopping:
            self._admitting.admit()
        self._signal()

    def _signal(self) -> None:
        """Wake whoever waits for a change of any plugin."""
        self._change.set()
        self._change = trio.Event()

    def _settle(self, life: Life) -> None:
        life.settled = True
        if all(other.settled for other in self._lives.values()):
            self._settled.set()
