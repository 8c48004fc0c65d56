"""The ways in which a plugin can be connected, for tests that must hold for each of them."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import msgspec
import trio

from support.daemon import HOSTILE, External
from support.supervision_tools import House, Transport, house, plugin
from utter_runner.supervision.instance import Instance
from utter_runner.supervision.sandbox.wrappers import find_sandbox
from utter_runner.supervision.spec import PluginSpec, Timing

WayName: TypeAlias = Literal[
    "stdio",
    "connect",
    "listen",
    "connect-external",
    "listen-external",
    "stdio-sandboxed",
    "connect-sandboxed",
    "listen-sandboxed",
]
WAYS: tuple[WayName, ...] = get_args(WayName)

# Bounds short enough for tests, and pauses between tries that do not show.
QUICK = Timing(
    handshake=5.0,
    health_interval=60.0,
    health_timeout=1.0,
    stop=1.0,
    backoff_first=0.02,
    backoff_most=0.1,
    absent_most=0.05,
)


def quick(**changes: float) -> Timing:
    """Bounds short enough for tests, with some of them others."""
    return msgspec.structs.replace(QUICK, **changes)


class Way:
    """One way: which specs it takes, and who starts the processes.

    Args:
        name: the transport, and `-external` where somebody else starts the plugin, `-sandboxed` where it is confined.
        directory: where sockets lie.
    """

    def __init__(self, name: WayName, directory: Path) -> None:
        self.name = name
        transport, _, who = name.partition("-")
        self.transport: Transport = transport  # type: ignore[assignment]  # the part of a WayName before the dash
        self.external = who == "external"
        self.sandbox = find_sandbox(None, os.environ) if who == "sandboxed" else None
        self.directory = directory
        self.externals: dict[str, External] = {}

    def plugin(self, name: str, *behaviour: str, **fields: Any) -> PluginSpec:
        """A spec of the hostile plugin; one that somebody else starts is started by `house`, or by `begin`."""
        if self.external:
            path = self.directory / f"{name}.sock"
            env = {**os.environ, "UTTER_PLUGIN_SOCKET": str(path)}
            self.externals[name] = External(name, *behaviour, transport=self.transport, env=env)
            fields = {"spawn": False, **fields}
        if self.sandbox is not None:
            paths = {"visible": (str(HOSTILE),), "write_paths": (str(self.directory),)}
            fields = {"sandbox": self.sandbox, **paths, **fields}
        return plugin(name, *behaviour, transport=self.transport, directory=self.directory, **fields)

    @asynccontextmanager
    async def house(self, *specs: PluginSpec, timing: Timing = QUICK, **options: Any) -> AsyncIterator[House]:
        """A supervisor over these plugins; whoever can be running is when this is entered."""
        with ExitStack() as stack:
            for one in self.externals.values():
                stack.enter_context(one)
            async with house(*specs, timing=timing, **options) as running:
                await running.until(lambda: all(one.status != "waiting" for one in running.supervisor.instances))
                await running.until(lambda: all(one.status != "starting" for one in running.supervisor.instances))
                yield running

    def kill(self, instance: Instance) -> None:
        """Kill a plugin's process."""
        os.kill(pid_of(instance), signal.SIGKILL)
        if self.external:
            self.externals[instance.id].kill()

    def suspend(self, instance: Instance) -> None:
        """Stop a plugin's process, with all that is around it."""
        if self.external:
            os.kill(pid_of(instance), signal.SIGSTOP)
        else:
            os.killpg(pid_of(instance), signal.SIGSTOP)

    def begin(self, instance: Instance) -> None:
        """Whoever starts the plugin starts it again, unless it is the runner."""
        if self.external:
            self.externals[instance.id].start()


def pid_of(instance: Instance) -> int:
    """The process of a running plugin."""
    pid = instance.status_report()["pid"]
    assert isinstance(pid, int)
    return pid


async def wait_gone(pidfd: int) -> None:
    """Wait until the process of a pidfd has ended, and close the pidfd."""
    try:
        with trio.fail_after(20):
            await trio.lowlevel.wait_readable(pidfd)
    finally:
        os.close(pidfd)
