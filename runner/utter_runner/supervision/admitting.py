"""Who is admitted and who is refused, among the plugins that are there at this moment.

Rules here: nothing waits; each change of a plugin is followed by `admit`, which moves everybody whom it concerns. What
may be admitted is decided by the pure functions of `admission.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from utter_protocol.errors import ErrorCode, RpcError
from utter_runner.supervision.admission import Offer, admissible, explain_gap

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from utter_protocol.capabilities import Registry
    from utter_runner.supervision.instance import Instance
    from utter_runner.supervision.life import Life


class Admitting:
    """Admits plugins.

    Args:
        lives: all plugins, by id; the supervisor's own table.
        registry: the capability registry.
        settle: told when a plugin is admitted.
        signal: wakes whoever waits for a change of any plugin.

    Attributes:
        order: the ids of those that were admitted, in the order in which they were.
    """

    def __init__(
        self,
        lives: Mapping[str, Life],
        registry: Registry,
        *,
        settle: Callable[[Life], None],
        signal: Callable[[], None],
    ) -> None:
        self.order: list[str] = []
        self._lives = lives
        self._registry = registry
        self._settle = settle
        self._signal = signal

    def missing(self, instance: Instance) -> list[str]:
        """The requires of a plugin that nobody covers now."""
        provided = {
            one
            for other, life in self._lives.items()
            if other != instance.id and life.instance.admitted
            for one in life.instance.provides
        }
        return self._registry.missing(instance.requires, instance.provides, provided)

    def forget(self, plugin: str) -> None:
        """A plugin is gone."""
        if plugin in self.order:
            self.order.remove(plugin)

    def _offers(self, *, admitted: bool) -> dict[str, Offer]:
        return {
            plugin: Offer(life.instance.provides, life.instance.requires)
            for plugin, life in self._lives.items()
            if (life.instance.admitted if admitted else life.waiting and not life.instance.admitted)
        }

    def admit(self) -> None:
        """Admit whoever can be; refuse those who wait for something that cannot come any more."""
        for plugin in admissible(self._offers(admitted=False), self._offers(admitted=True), self._registry):
            life = self._lives[plugin]
            life.instance.admitted = True
            self.forget(plugin)
            self.order.append(plugin)
            life.unwell = ""
            trouble, detail = self._condition(life.instance)
            life.instance.move("admit", detail)
            if trouble:
                life.instance.move("degrade", detail)
            self._settle(life)
            self._signal()
            self._retry_refused()
        self._refuse_hopeless()
        self.review()

    def _refuse_hopeless(self) -> None:
        if any(life.coming for life in self._lives.values()):
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

    def review(self) -> None:
        """Let each that runs be as it says it is, or degraded while what it requires is down."""
        for life in self._lives.values():
            instance = life.instance
            if not instance.running:
                continue
            instance.missing = tuple(self.missing(instance))
            trouble, detail = self._condition(instance)
            if (instance.status, instance.detail) != ("degraded" if trouble else "ready", detail):
                instance.move("degrade" if trouble else "recover", detail)

    def _condition(self, instance: Instance) -> tuple[bool, str]:
        """Whether something is wrong with one that runs, and what is to be said of it."""
        if instance.missing:
            return True, f"missing: {', '.join(instance.missing)}"
        health = instance.handshake.health if instance.handshake else None
        if health is None:
            return False, ""
        if health.status == "degraded":
            return True, health.detail or "the plugin reports that it is degraded"
        return False, health.detail
