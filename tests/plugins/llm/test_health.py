"""A server that is away is asked whether it is back, ever more rarely, and one that answers is left alone."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from support.llm_server import Exchange, LlmServer
from utter_plugins.llm import plugin as module
from utter_plugins.llm.plugin import Llm, build
from utter_plugins.llm.settings import Settings
from utter_protocol.errors import RpcError
from utter_protocol.kinds import LlmCompleteParams
from utter_sdk import Plugin


class Health(Plugin):
    """A plugin that is not running, and says each change of its health."""

    def __init__(self) -> None:
        super().__init__("llm", version="0.1.0", kind="llm")
        self.changed = asyncio.Event()

    def health(self, status: Any, detail: str = "") -> None:
        super().health(status, detail)
        self.changed.set()

    async def wait(self, status: str) -> None:
        while self.current_health.status != status:
            self.changed.clear()
            await self.changed.wait()


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(20):
            await test()

    asyncio.run(bounded())


def answer(exchange: Exchange) -> None:
    if exchange.headers.get("authorization"):
        exchange.chat("Hi")
    else:
        exchange.json({"error": "no key"}, 401)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FIRST_PAUSE_S", 0.001)
    monkeypatch.setattr(module, "LONGEST_PAUSE_S", 0.01)


async def close(llm: Llm) -> None:
    assert llm._server is not None
    await llm._server.close()


async def started(url: str) -> tuple[Health, Llm]:
    health = Health()
    llm = Llm(health, {"KEY": "k"})
    llm.configure(Settings(base_url=url, api_key_env="KEY"))
    await llm.start()
    return health, llm


def test_it_is_well_again_when_the_server_is_back() -> None:
    async def test() -> None:
        health, llm = await started(f"http://127.0.0.1:{port}/v1")
        assert health.current_health.status == "degraded"
        with LlmServer(answer, port=port) as server:
            await health.wait("ok")
            asked = server.listed.qsize()
            # It answers, so it is left alone: nobody waits to ask it again.
            await asyncio.sleep(0)
            assert [task for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []
            assert server.listed.qsize() == asked
            await close(llm)

    # The port is kept from others all the time; nobody listens on it until the server does, which may bind it, too.
    with socket.socket() as bound:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(("127.0.0.1", 0))
        port = bound.getsockname()[1]
        run(test)


def test_a_refused_key_is_not_forgotten_because_the_server_is_there() -> None:
    async def test() -> None:
        with LlmServer(lambda exchange: exchange.json({"error": "no"}, 401)) as server:
            health, llm = await started(server.base_url)
            assert health.current_health.status == "ok"
            with pytest.raises(RpcError):
                await llm.complete(LlmCompleteParams(prompt="x"))
            assert "refuses the key" in health.current_health.detail
            assert len(asyncio.all_tasks()) == 1
            server.chat = answer
            await llm.complete(LlmCompleteParams(prompt="x"))
            assert health.current_health.status == "ok"
            await close(llm)

    run(test)


def test_building_the_plugin_asks_nobody() -> None:
    assert build({}).current_health.status == "ok"
