"""Asking the running plugins how they are.

Rules here: all are asked in one go, so that an idle runner wakes once per interval and not once per plugin; one that
does not answer is ended, and its task sees to the rest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from utter_protocol.errors import RpcError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from utter_protocol.methods import HealthResult
    from utter_runner.supervision.instance import Instance
    from utter_runner.supervision.life import Life
    from utter_runner.supervision.spec import Timing


class HealthWatch:
    """Polls `plugin.health`.

    Args:
        lives: all plugins, by id; the supervisor's own table.
        timing: the interval.
        on_health: called when a plugin has said how it is.
    """

    def __init__(self, lives: Mapping[str, Life], timing: Timing, *, on_health: Callable[[], None]) -> None:
        self._lives = lives
        self._timing = timing
        self._on_health = on_health
        self._retimed = trio.Event()

    def reconfigure(self, timing: Timing) -> None:
        """Have another interval; one begins now."""
        self._timing = timing
        self._retimed.set()
        self._retimed = trio.Event()

    async def run(self) -> None:
        """Ask once per interval until cancelled."""
        while True:
            with trio.move_on_after(self._timing.health_interval) as interval:
                await self._retimed.wait()
            if not interval.cancelled_caught:
                continue
            async with trio.open_nursery() as nursery:
                for life in self._lives.values():
                    if life.instance.running:
                        nursery.start_soon(self.check, life)

    async def check(self, life: Life) -> None:
        """Ask one plugin, and end it if it does not answer."""
        instance, epoch, said = life.instance, life.instance.epoch, life.instance.said
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
        # What it says by itself while it is asked is at least as new as its answer.
        if instance.epoch == epoch and instance.said is said:
            self.note(instance, health)

    def note(self, instance: Instance, health: HealthResult) -> None:
        """A plugin said how it is, asked or by itself."""
        instance.note_health(health)
        self._on_health()
