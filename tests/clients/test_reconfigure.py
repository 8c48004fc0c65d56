"""Who may connect, and how much they may send, while they are connected."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import trio

from support.clients import House, house, settle
from utter_runner.clients.auth import Admission
from utter_runner.config import SocketConfig
from utter_runner.rpc.interface import Limits
from utter_runner.rpc.rate import RateLimit

if TYPE_CHECKING:
    from pathlib import Path

TOKEN = "correct horse battery"  # noqa: S105 - a test's token
OPEN = SocketConfig(allow_same_uid=True)


def adopt(made: House, socket: SocketConfig | None, *, max_clients: int = 64, requests: int = 0) -> None:
    made.server.reconfigure(
        Admission(socket), Limits(), max_clients=max_clients, max_requests_per_s=requests, max_bytes_per_s=0
    )
    made.server.review()


async def stays(made: House, client: Any) -> bool:
    answer = await client.call("runner.status")
    return bool(answer) and made.server.count == 1


async def test_whoever_would_be_let_in_stays(tmp_path: Path) -> None:
    async with house(tmp_path, socket=OPEN) as made:
        client = await made.client()
        for socket in (None, OPEN, SocketConfig(allow_binaries=[sys.executable])):
            adopt(made, socket)
            assert await stays(made, client)


async def test_whoever_would_need_a_token_goes(tmp_path: Path) -> None:
    async with house(tmp_path, socket=OPEN) as made:
        await made.client()
        await settle()
        adopt(made, SocketConfig(token=TOKEN))
        await settle()
        assert made.server.count == 0
        assert "the configuration has changed, and it showed no token" in made.refused[-1]


async def test_a_token_holds_for_as_long_as_it_is_right(tmp_path: Path) -> None:
    async with house(tmp_path, socket=SocketConfig(token=TOKEN)) as made:
        client = await made.client()
        await client.call("runner.auth", {"token": TOKEN})
        adopt(made, SocketConfig(token=TOKEN, allow_binaries=["/nowhere"]))
        assert await stays(made, client)
        # Nobody needs one any more.
        adopt(made, OPEN)
        assert await stays(made, client)
        adopt(made, SocketConfig(token=TOKEN + " staple"))
        await settle()
        assert made.server.count == 0
        assert "its token is not right any more" in made.refused[-1]


async def test_one_that_has_not_authenticated_still_may(tmp_path: Path) -> None:
    async with house(tmp_path, socket=SocketConfig(token=TOKEN)) as made:
        client = await made.client()
        await settle()
        adopt(made, SocketConfig(token=TOKEN + " staple"))
        await client.call("runner.auth", {"token": TOKEN + " staple"})
        assert await client.call("runner.status")


async def test_bounds_hold_for_those_who_are_there(tmp_path: Path) -> None:
    async with house(tmp_path, socket=OPEN) as made:
        client = await made.client()
        await settle()
        (connection,) = made.server._connections
        assert connection.peer is not None
        before = connection.peer.meter
        adopt(made, OPEN, requests=3)
        meter = connection.peer.meter
        assert isinstance(meter, RateLimit)
        assert meter is not before
        adopt(made, OPEN, requests=3, max_clients=1)
        # What it has used up of the same bound stays used up.
        assert connection.peer.meter is meter
        assert await client.call("runner.status")
        with trio.fail_after(30):
            refused = await made.client()
            await settle()
        assert made.server.count == 1
        assert "max_clients (1)" in made.refused[-1]
        del refused
