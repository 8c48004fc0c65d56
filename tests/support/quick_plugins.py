"""The real supervisor over plugins without processes, for which time may be virtual.

What happens to them, and how long it takes, is the test's to say; states, admission and restarts are the real ones.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

import pytest
import trio

from utter_protocol import ABI, PROTOCOL
from utter_protocol.capabilities import load_registry
from utter_protocol.methods import HealthResult
from utter_protocol.versions import Negotiated
from utter_runner.rpc.interface import Limits
from utter_runner.supervision import supervisor as supervisor_module
from utter_runner.supervision.dialect import Handshake
from utter_runner.supervision.instance import Instance
from utter_runner.supervision.memory import Memory
from utter_runner.supervision.spec import PluginSpec, Timing
from utter_runner.supervision.supervisor import Supervisor

PATIENT = Timing(restarts_in_window=10_000)
"""Crashes are no reason to give a plugin up."""

_pids = count(1000)


class QuickPeer:
    closed = False
    late_replies = 0


class QuickInstance(Instance):
    """A plugin that is up half a second after it was started, and gone half a second after it was told to go."""

    def start(self, connection: Any = None) -> None:  # noqa: ARG002 - the interface of an instance
        self.epoch += 1
        self.admitted = self.returning = False
        self.handshake = None
        self.missing = ()
        self.memory = Memory(self.id)
        self.ended = trio.Event()
        self.started_at = trio.current_time()
        self.peer: Any = QuickPeer()
        self._other_pid = next(_pids)

    async def connect(self) -> None:
        await trio.sleep(0.5)

    async def greet(self) -> None:
        await trio.lowlevel.checkpoint()
        self.handshake = Handshake(
            version="1",
            kind="",
            negotiated=Negotiated(PROTOCOL, ABI, ()),
            provides=self.spec.provides,
            requires=self.spec.requires,
            permissions=(),
            methods=(),
            streams=(),
            health=HealthResult(),
            warnings=(),
        )

    async def health(self) -> HealthResult:
        await trio.lowlevel.checkpoint()
        return HealthResult()

    async def tear_down(self, reason: str) -> int | None:  # noqa: ARG002 - the interface of an instance
        if self.peer is not None:
            with trio.CancelScope(shield=True):
                await trio.sleep(0.5)
        self.peer = self._other_pid = None
        return None

    def crash(self) -> None:
        if self.peer is not None:
            self.peer.closed = True
            self.ended.set()


def quick(name: str, version: str = "1", *, provides: Sequence[str] = (), requires: Sequence[str] = ()) -> PluginSpec:
    return PluginSpec(id=name, argv=("quick",), version=version, provides=tuple(provides), requires=tuple(requires))


class QuickHouse:
    """A running supervisor and what was told of its plugins."""

    def __init__(self) -> None:
        self.supervisor: Supervisor
        self.history: list[tuple[str, int, str]] = []
        self.gone: list[tuple[str, int]] = []

    def changed(self, instance: Instance) -> None:
        self.history.append((instance.id, instance.epoch, instance.status))

    def left(self, instance: Instance) -> None:
        self.gone.append((instance.id, instance.epoch))

    def incarnations(self) -> dict[str, tuple[int, int | None]]:
        """Epoch and pid of those that run."""
        return {one.id: (one.epoch, one.pid) for one in self.supervisor.instances if one.running}

    def statuses(self) -> dict[str, str]:
        return {one.id: one.status for one in self.supervisor.instances}


@asynccontextmanager
async def quick_house(*specs: PluginSpec, timing: Timing = PATIENT) -> AsyncIterator[QuickHouse]:
    """A house whose start is over."""
    house = QuickHouse()

    async def prepare(_instance: Instance) -> None:
        await trio.lowlevel.checkpoint()

    nothing: Any = None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(supervisor_module, "Instance", QuickInstance)
        house.supervisor = Supervisor(
            specs,
            reactor=nothing,
            deadlines=nothing,
            registry=load_registry(),
            dialect=nothing,
            timing=timing,
            limits=Limits(),
            environ={},
            requests=nothing,
            prepare=prepare,
            on_change=house.changed,
            on_gone=house.left,
        )
    async with trio.open_nursery() as nursery:
        started = trio.Event()
        nursery.start_soon(house.supervisor.run, started)
        await started.wait()
        try:
            yield house
        finally:
            with trio.CancelScope(shield=True):
                await house.supervisor.stop()
