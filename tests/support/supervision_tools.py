"""A supervisor over real processes, with bounds short enough for tests."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal, TypeAlias

import msgspec
import trio

from support.daemon import hostile_argv
from utter_protocol.capabilities import load_registry
from utter_runner.host.callbacks import HostCallbacks
from utter_runner.rpc.deadlines import Deadlines
from utter_runner.rpc.interface import Limits
from utter_runner.rpc.reactor import Reactor
from utter_runner.supervision.dialect import UtterDialect
from utter_runner.supervision.instance import Instance
from utter_runner.supervision.launch import INSTANCE_VARIABLE, Inherited
from utter_runner.supervision.spec import PluginSpec, Timing
from utter_runner.supervision.supervisor import Supervisor

Transport: TypeAlias = Literal["stdio", "connect", "listen"]
QUICK = Timing(handshake=5.0, health_interval=60.0, health_timeout=1.0, stop=1.0, backoff_first=0.02, backoff_most=0.1)


def plugin(
    name: str, *behaviour: str, transport: Transport = "stdio", directory: Path | None = None, **fields: Any
) -> PluginSpec:
    """A spec that runs the hostile plugin; over a socket, which lies in `directory`."""
    path = "" if directory is None or transport == "stdio" else str(directory / f"{name}.sock")
    argv = tuple(hostile_argv(name, *behaviour, transport=transport))
    return PluginSpec(id=name, argv=argv, transport=transport, socket_path=path, **fields)


# The marks of all instances that were seen here: other test runs on this machine have plugins of the same names.
_marks: set[str] = set()


def marked_processes(name: str) -> list[int]:
    """Processes that descend from an instance of the plugin `name` that this test run started."""
    wanted = {f"{INSTANCE_VARIABLE}={mark}".encode() for mark in _marks if mark.startswith(f"{name}/")}
    found = []
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            try:
                if not wanted.isdisjoint(Path(entry.path, "environ").read_bytes().split(b"\0")):
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


async def call(house: House, name: str, method: str, params: object = None, timeout: float = 10) -> Any:
    """Ask a plugin, and return what it answered."""
    return msgspec.json.decode(await house.supervisor.get(name).call(method, params, timeout=timeout))


class House:
    """The supervisor under test and what it reported."""

    def __init__(self, supervisor: Supervisor, history: list[tuple[str, int, str]], changed: list[trio.Event]) -> None:
        self.supervisor = supervisor
        self.history = history
        self._changed = changed

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for a change of any plugin after which `condition` holds."""
        with trio.fail_after(20):
            while not condition():
                event = trio.Event()
                self._changed.append(event)
                await event.wait()


@asynccontextmanager
async def house(
    *specs: PluginSpec,
    timing: Timing = QUICK,
    limits: Limits | None = None,
    wait: bool = True,
    inherit: Callable[[], Inherited] | None = None,
) -> AsyncIterator[House]:
    """A running supervisor; with `wait`, the start is over."""
    reactor, deadlines = Reactor(), Deadlines()
    history: list[tuple[str, int, str]] = []
    waiting: list[trio.Event] = []

    def changed(instance: Instance) -> None:
        history.append((instance.id, instance.epoch, instance.status))
        if instance.process is not None:
            _marks.add(instance.process.mark)
        events, waiting[:] = list(waiting), []
        for event in events:
            event.set()

    async def prepare(_instance: Instance) -> None:
        await trio.lowlevel.checkpoint()

    supervisor = Supervisor(
        specs,
        reactor=reactor,
        deadlines=deadlines,
        registry=load_registry(),
        dialect=UtterDialect("test"),
        timing=timing,
        limits=limits or Limits(),
        environ=os.environ,
        requests=HostCallbacks(),
        prepare=prepare,
        on_change=changed,
        inherit=inherit,
    )
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(reactor.run)
            nursery.start_soon(deadlines.run)
            started = trio.Event()
            nursery.start_soon(supervisor.run, started)
            if wait:
                with trio.fail_after(30):
                    await started.wait()
            try:
                yield House(supervisor, history, waiting)
            finally:
                with trio.CancelScope(shield=True):
                    await supervisor.stop()
            nursery.cancel_scope.cancel()
    finally:
        reactor.close()
