"""One plugin as the supervisor keeps it: the instance that runs, what it is to be, and what is to happen to it.

Rules here: only the supervisor changes a `Life`, and every change of what is wanted is followed by `end` or by a
wake-up, so that nothing that is wanted waits for something else to happen. What is wanted may change at any time, also
while the plugin is being stopped: the last word counts.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import msgspec
import trio

from utter_runner.supervision.states import RUNNING

if TYPE_CHECKING:
    from utter_runner.supervision.instance import Instance
    from utter_runner.supervision.spec import PluginSpec, Timing


class Changes(msgspec.Struct, frozen=True, kw_only=True):
    """The ids of plugins that `Supervisor.apply` has had started, stopped for good, and started anew."""

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    restarted: tuple[str, ...] = ()


class Life:
    """What the supervisor keeps about one plugin.

    Attributes:
        spec: what the plugin is to be; the instance's is what it is.
        scope: around what runs now; `end` cancels it.
        over: what runs now has ended, and its processes are gone.
        done: nothing runs any more, nor will.
        wake: ends a wait.
        waiting: it waits to be admitted.
        removed: it is no longer configured.
        held: who stopped it, in words; empty when it is to run.
        again: it is to be started anew.
        changed: `spec` is another than the instance's.
    """

    def __init__(self, spec: PluginSpec, instance: Instance, timing: Timing) -> None:
        self.spec = spec
        self.instance = instance
        self.scope = trio.CancelScope()
        self.over = trio.Event()
        self.done = trio.Event()
        self.wake = trio.Event()
        self.waiting = False
        self.settled = False
        self.unwell = ""
        self.restarts: deque[float] = deque(maxlen=timing.restarts_in_window)
        self.failures = 0
        self.removed = False
        self.held = ""
        self.again = False
        self.changed = False

    @property
    def ending(self) -> bool:
        """Whether what runs now is to end."""
        return self.removed or bool(self.held) or self.again or self.changed

    def end(self) -> trio.Event:
        """Have what runs now stopped; return what is set when it is."""
        self.instance.returning = not (self.removed or self.held)
        self.scope.cancel()
        return self.over

    def begin(self) -> None:
        """Something runs from now on, or waits to."""
        self.scope = trio.CancelScope()
        # Whoever had it ended before it ran at all waits for this.
        self.over.set()
        self.over = trio.Event()
        self.wake = trio.Event()
        self.again = self.changed = False
        self.unwell = ""
        self.instance.returning = not self.held

    def forgive(self) -> None:
        """Forget how often it has failed: somebody says that it is to run."""
        self.restarts.clear()
        self.failures = 0

    @property
    def coming(self) -> bool:
        """Whether it will come up, or fail, without anybody's doing, and is not there yet."""
        if self.removed or self.held:
            return False
        status = self.instance.status
        return status in {"backoff", "stopping", "stopped"} or (status == "starting" and not self.waiting)

    @property
    def at_rest(self) -> bool:
        """Whether what is wanted of it has come about, or cannot: it is up, has failed, is waited for, or stopped."""
        status = self.instance.status
        if self.removed or self.held:
            return status == "stopped"
        if self.again or self.changed or self.wake.is_set():
            return False
        return status in RUNNING or status in {"failed", "waiting"}
