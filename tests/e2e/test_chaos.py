"""Twenty plugins on every transport, killed at random under load for a minute: nobody is left without an answer."""

from __future__ import annotations

import os
import random
import signal
from collections import Counter
from contextlib import AsyncExitStack, ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from support.clients import Client
from support.daemon import Daemon, External, external, hostile
from support.supervision_tools import marked_processes
from utter_protocol.errors import ErrorCode

SECONDS = 60.0
PLUGINS = 20
CLIENTS = 4
IN_FLIGHT = 16
# Between an answer and the next request: a load of some hundred requests a second, and not all that the machine can do.
PAUSE_SECONDS = 0.2
# More than five restarts within a minute would be taken for a plugin that cannot work.
MOST_DEATHS = 4
MISDEEDS = ("hang up", "half close", "exit", "kill", "flood")
WAYS = ("stdio", "connect", "listen", "connect-external", "listen-external")
# What a request may be answered when its plugin dies or hangs.
EXPECTED = {ErrorCode.PLUGIN_FAILED, ErrorCode.TIMED_OUT}


def descriptors(pid: int) -> int:
    return len([*Path(f"/proc/{pid}/fd").iterdir()])


def resident_kib(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    raise AssertionError("no VmRSS")


class Load:
    """One client that keeps asking, and knows which incarnations are over."""

    def __init__(self, client: Client, seed: int) -> None:
        self.client = client
        self.random = random.Random(seed)
        self.asked: dict[int, str] = {}
        self.outcomes: Counter[str] = Counter()
        self.epochs: dict[str, int] = {}
        self.epoch_of: dict[int, tuple[str, int]] = {}
        self.late: list[str] = []
        self.stream = ""
        self._seen = 0

    async def subscribe(self) -> None:
        self.stream = await self.client.subscribe("reliable")

    async def run(self, until: float) -> None:
        """Ask until the time has come; then wait for every answer."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._acknowledge)
            async with trio.open_nursery() as askers:
                for _ in range(IN_FLIGHT):
                    askers.start_soon(self._ask, until)
            nursery.cancel_scope.cancel()

    async def _ask(self, until: float) -> None:
        while trio.current_time() < until:
            await trio.sleep(self.random.uniform(0, PAUSE_SECONDS))
            plugin = f"p{self.random.randrange(PLUGINS):02}"
            method = self.random.choices(["pid", "echo", "hang"], [4, 4, 1])[0]
            params = {"plugin": plugin, "method": method, "params": {}, "timeout_ms": 1500}
            request = await self.client.send("runner.invoke", params)
            self.asked[request] = plugin
            await self.client.until(partial(self.client.answers.__contains__, request))
            self._judge(plugin, self.client.answers[request])

    def _judge(self, plugin: str, answer: dict[str, Any]) -> None:
        if "error" in answer:
            assert answer["error"]["code"] in EXPECTED, answer
            self.outcomes[str(answer["error"]["code"])] += 1
            return
        self.outcomes["answered"] += 1
        pid = answer["result"].get("pid")
        owner, epoch = self.epoch_of.get(pid, ("", 0))
        if pid is not None and owner == plugin and epoch < self.epochs.get(plugin, 0):
            self.late.append(f"{plugin}: epoch {epoch} answered after epoch {self.epochs[plugin]} was up")

    async def _acknowledge(self) -> None:
        """Read the events, and say so."""
        while True:
            await self.client.until(lambda: len(self.client.notifications) > self._seen)
            news = self.client.notifications[self._seen :]
            self._seen += len(news)
            for one in news:
                assert one["method"] == "runner.events", one
                self._take(one["params"]["data"])
            params = {"stream_id": self.stream, "seq": news[-1]["params"]["seq"]}
            await self.client.notify("stream.ack", params)

    def _take(self, event: dict[str, Any]) -> None:
        plugin = event.get("plugin")
        if plugin is not None and plugin["status"] == "ready":
            self.epochs[plugin["id"]] = plugin["epoch"]
            self.epoch_of[plugin["pid"]] = (plugin["id"], plugin["epoch"])


async def plugins_of(client: Client) -> dict[str, dict[str, Any]]:
    return {one["id"]: one for one in (await client.call("runner.plugins"))["plugins"]}


async def until_all_ready(client: Client) -> dict[str, dict[str, Any]]:
    with trio.fail_after(60):
        while True:
            plugins = await plugins_of(client)
            if all(one["status"] == "ready" for one in plugins.values()):
                return plugins
            # Nobody is told that everything is well; asking is how one finds out.
            await trio.sleep(0.05)


async def kill_at_random(
    client: Client, externals: dict[str, External], chance: random.Random, until: float
) -> Counter[str]:
    """Kill, or make misbehave, a plugin every now and then; start again what the runner does not."""
    deaths: Counter[str] = Counter()
    while trio.current_time() < until:
        await trio.sleep(chance.uniform(0.3, 1.1))
        name = f"p{chance.randrange(PLUGINS):02}"
        if deaths[name] >= MOST_DEATHS:
            continue
        deaths[name] += 1
        if name in externals:
            await trio.to_thread.run_sync(externals[name].kill)
            await trio.to_thread.run_sync(externals[name].start)
        elif chance.random() < 0.5:
            pid = (await plugins_of(client))[name]["pid"]
            if pid is not None:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        else:
            params = {"plugin": name, "method": chance.choice(MISDEEDS), "params": {"code": 1}, "timeout_ms": 1500}
            await client.send("runner.invoke", params)
    return deaths


class Chaos:
    """The daemon, its plugins of every kind, and the clients."""

    def __init__(self, directory: Path, seed: int, stack: ExitStack) -> None:
        self.chance = random.Random(seed)
        config, outside = "", {}
        for number in range(PLUGINS):
            name, way = f"p{number:02}", WAYS[number % len(WAYS)]
            transport = way.partition("-")[0]
            if "external" in way:
                config += external(name, transport=transport)
                outside[name] = transport
            else:
                config += hostile(name, "hang=hang", transport=transport)
        daemon = stack.enter_context(Daemon(directory, config))
        assert daemon.process is not None
        self.pid = daemon.process.pid
        self.socket = str(daemon.socket)
        self.externals = {
            name: stack.enter_context(External(name, "hang=hang", transport=transport, env=daemon.env))
            for name, transport in outside.items()
        }
        self.memory: list[int] = []
        self.deaths: Counter[str] = Counter()
        self.loads: list[Load] = []

    async def run(self, control: Client, until: float) -> None:
        """Load and kill until the time has come; returns when every request was answered."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._kill, control, until)
            nursery.start_soon(self._watch)
            for load in self.loads:
                nursery.start_soon(load.run, until)

    async def _kill(self, control: Client, until: float) -> None:
        self.deaths = await kill_at_random(control, self.externals, self.chance, until)

    async def _watch(self) -> None:
        for _ in range(4):
            await trio.sleep(SECONDS / 4)
            self.memory.append(resident_kib(self.pid))

    async def until_descriptors(self, wanted: int) -> None:
        """Wait until the daemon has as many descriptors as `wanted`."""
        with trio.fail_after(30):
            while descriptors(self.pid) != wanted:  # noqa: ASYNC110 - another process's table tells nobody
                await trio.sleep(0.05)

    def judge(self, after: dict[str, dict[str, Any]]) -> None:
        """Every request was answered (that none was twice, the clients check), and there was chaos."""
        for load in self.loads:
            assert load.asked.keys() <= load.client.answers.keys()
            assert load.late == []
            assert load.outcomes["answered"] > 100
        total = sum((load.outcomes for load in self.loads), Counter())
        assert total[str(int(ErrorCode.PLUGIN_FAILED))] > 0
        assert total[str(int(ErrorCode.TIMED_OUT))] > 0
        killed = sum(self.deaths.values())
        assert killed > SECONDS / 2
        assert sum(one["epoch"] - 1 for one in after.values()) > killed / 2
        # The first quarter fills caches and arenas; after it nothing grows but by chance.
        assert self.memory[-1] - self.memory[0] < 4096, self.memory


@pytest.mark.timeout(240)
async def test_a_minute_of_chaos(tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")  # noqa: T201 - shown when the test fails
    with ExitStack() as stack:
        chaos = Chaos(tmp_path, seed, stack)
        async with AsyncExitStack() as connections, trio.open_nursery() as nursery:

            async def connect() -> Client:
                client = Client(await trio.open_unix_socket(chaos.socket))
                await connections.enter_async_context(client.stream)
                nursery.start_soon(client.read)
                return client

            control = await connect()
            await until_all_ready(control)
            for _ in range(CLIENTS):
                chaos.loads.append(Load(await connect(), chaos.chance.randrange(2**32)))
                await chaos.loads[-1].subscribe()
            before = descriptors(chaos.pid)
            await chaos.run(control, trio.current_time() + SECONDS)
            after = await until_all_ready(control)
            chaos.judge(after)
            await chaos.until_descriptors(before)
            nursery.cancel_scope.cancel()
    assert [pid for number in range(PLUGINS) for pid in marked_processes(f"p{number:02}")] == []
