"""Clients and confirmations: who of them is asked, what the others are told, and whose answer counts."""

from __future__ import annotations

import itertools
import os
import socket
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from support.clients import FakeVoice, House, house, settle
from support.policy import step
from support.stage import Person
from utter_protocol.errors import ErrorCode, RpcError
from utter_runner.clients import server as room
from utter_runner.rpc.credentials import peer_credentials
from utter_runner.rpc.requesters import Requester, requester_of

if TYPE_CHECKING:
    from pathlib import Path

WIPE = step("wipe", {"disk": "sda"})
INVOKE = {
    "plugin": "desktop",
    "method": "action.invoke",
    "params": {"op": "wipe", "args": {"disk": "sda"}, "provenance": "user"},
}
STEP = {"op": "wipe", "args": {"disk": "sda"}, "provenance": "user"}


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every connection is of a process of its own."""
    numbers = itertools.count(1000)
    monkeypatch.setattr(
        room, "requester_of", lambda _connection, number, _pid: Requester(number, next(numbers), started=7)
    )


async def start(made: House, how: str, asker: Any) -> int:
    """Have a client ask for something that must be confirmed."""
    if how == "runner.command":
        made.router.answers["router.plan"] = {"steps": [STEP]}
        return int(await asker.send("runner.command", {"utterance": "wipe it"}))
    return int(await asker.send("runner.invoke", INVOKE))


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize("how", ["runner.command", "runner.invoke"])
async def test_the_others_are_asked_and_whoever_asks_is_told(tmp_path: Path, how: str) -> None:
    async with house(tmp_path) as made:
        asker, first, second = [await made.client() for _ in range(3)]
        for one in (asker, first, second):
            await one.call("runner.status")
        request = await start(made, how, asker)
        await first.until(lambda: first.requests)
        await second.until(lambda: second.requests)
        await asker.until(lambda: asker.notifications)
        shown = first.requests[0]["params"]
        assert asker.notifications == [
            {
                "jsonrpc": "2.0",
                "method": "confirm.elsewhere",
                "params": {"id": shown["id"], "text": shown["text"], "timeout_ms": 30_000},
            }
        ]
        await first.reply(first.requests[0], {"approved": True, "digest": shown["digest"]})
        assert await asker.result(request)
        await second.until(lambda: second.notifications)
        assert second.notifications[0]["method"] == "$/cancel"
        assert asker.requests == []
    assert len(made.plugin.received) == 1


@pytest.mark.parametrize("how", ["runner.command", "runner.invoke"])
async def test_a_program_that_connects_twice_is_still_whoever_asked(tmp_path: Path, how: str) -> None:
    async with house(tmp_path) as made:
        asker, twin = await made.client(), await made.client()
        assert await twin.call("confirm.attend") == {"questions": []}
        request = await start(made, how, asker)
        await asker.until(lambda: request in asker.answers)
        assert "[policy] self_confirm = true" in str(asker.answers)
        assert (asker.requests, twin.requests, asker.notifications) == ([], [], [])
    assert made.plugin.received == []


async def test_self_confirm_asks_whoever_asked(tmp_path: Path) -> None:
    async with house(tmp_path) as made:
        made.confirmer._self_confirm = True
        asker = await made.client()
        request = await asker.send("runner.invoke", INVOKE)
        await asker.until(lambda: asker.requests)
        await asker.reply(asker.requests[0], {"approved": True})
        assert (await asker.result(request))["ok"]


async def test_a_recording_is_of_whoever_brings_it(tmp_path: Path) -> None:
    async with house(tmp_path) as made:
        client = await made.client()
        await client.call("runner.listen", {"wav_b64": "UklGRg=="})
        ((requester,),) = made.voice.requesters
        assert (requester.pid, requester.connection) == (os.getpid(), 1)
        assert isinstance(made.voice, FakeVoice)
        # A press of the key, over whatever it comes, is the user's.
        await client.call("ptt.press")
        assert len(made.voice.requesters) == 1


async def test_a_plugin_that_connects_as_a_client_is_asked_nothing(tmp_path: Path) -> None:
    async with house(tmp_path) as made:
        client = await made.client()
        made.confirmer._plugins = lambda: frozenset({os.getpid()})
        await client.call("confirm.attend")
        ending = made.submit(WIPE)
        await ending.wait()
        assert "nobody who is connected can ask" in ending.error.message
        assert client.requests == []


@pytest.mark.usefixtures("processes")
async def test_a_yes_to_another_digest_is_a_denial_with_its_rule(tmp_path: Path) -> None:
    async with house(tmp_path) as made:
        asker, other = await made.client(), await made.client()
        await other.call("runner.status")
        request = await asker.send("runner.invoke", INVOKE)
        await other.until(lambda: other.requests)
        await other.reply(other.requests[0], {"approved": True, "digest": "e" * 64})
        with pytest.raises(RpcError) as error:
            await asker.result(request)
        assert error.value.data == {"op": "wipe", "rule": "answer-mismatch", "confirmed": False}
    assert made.plugin.received == []


async def test_whoever_comes_late_is_asked_what_is_open(tmp_path: Path) -> None:
    person = Person()
    async with house(tmp_path, person) as made:
        ending = made.submit(WIPE)
        await settle()
        behind = made.submit(step("wipe", {"disk": "sdb"}))
        await settle()
        client = await made.client()
        questions = (await client.call("confirm.list"))["questions"]
        assert [(one["state"], one["op"], one["provenance"]) for one in questions] == [
            ("asked", "wipe", "user"),
            ("waiting", "wipe", "user"),
        ]
        assert 0 < questions[0]["left_ms"] <= 30_000
        assert questions[1]["left_ms"] is None
        assert client.requests == []
        for _ in range(2):
            attended = (await client.call("confirm.attend"))["questions"]
            assert [one["id"] for one in attended] == [one["id"] for one in questions]
        await settle()
        (asked,) = client.requests
        assert asked["params"]["id"] == questions[0]["id"]
        await client.reply(asked, {"approved": True})
        await ending.wait()
        assert ending.result["ok"]
        await client.until(lambda: len(client.requests) == 2)
        await client.reply(client.requests[1], {"approved": False})
        await behind.wait()
        assert (await client.call("confirm.list")) == {"questions": []}


async def test_one_that_could_not_ask_can_when_it_says_so(tmp_path: Path) -> None:
    person = Person()
    async with house(tmp_path, person) as made:
        client = await made.client()
        await client.call("runner.status")
        made.submit(WIPE)
        await client.until(lambda: client.requests)
        await client.reply(client.requests[0], RpcError(ErrorCode.METHOD_NOT_FOUND, "what?"))
        await settle()
        person.say(answer=False)
        await settle()
        await client.call("confirm.attend")
        ending = made.submit(WIPE)
        await client.until(lambda: len(client.requests) == 2)
        await client.reply(client.requests[1], {"approved": True})
        await ending.wait()
        assert ending.result["ok"]


# ---- who is who


def test_parties() -> None:
    one = Requester(1, 100, 5000)
    assert one.is_same_party(Requester(2, 100, 5000))
    # A pid that was used before, and one of which it is not known.
    assert not one.is_same_party(Requester(2, 100, 5001))
    assert one.is_same_party(Requester(2, 100, 0))
    assert Requester(2, 100, 0).is_same_party(one)
    assert not one.is_same_party(Requester(2, 101, 5000))
    # Of those that this pid namespace does not show, any may be any other.
    assert Requester(1, 0, 0).is_same_party(Requester(2, 0, 0))
    assert one.is_among([Requester(2, 101, 5000), Requester(3, 100, 5000)])
    assert not one.is_among([])


CONNECTS = """
import socket, sys
ones = [socket.socket(socket.AF_UNIX) for _ in range(2)]
for one in ones:
    one.connect(sys.argv[1])
sys.stdin.read()
for one in ones:
    one.close()
"""


def test_a_real_process_is_known_by_when_it_started(tmp_path: Path) -> None:
    found: list[Requester] = []
    gone: list[socket.socket] = []
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "sock"))
        listener.listen()
        listener.settimeout(60)
        for number in range(2):
            argv = [sys.executable, "-c", CONNECTS, str(tmp_path / "sock")]
            with subprocess.Popen(argv, stdin=subprocess.PIPE) as process:
                for _ in range(2):
                    gone.append(listener.accept()[0])
                    found.append(_requester(gone[-1], number))
                process.communicate()
                assert found[-1].pid == process.pid
    assert all(one.started > 0 for one in found)
    assert found[0].is_same_party(found[1])
    assert found[2].is_same_party(found[3])
    assert not found[0].is_same_party(found[2])
    # Of a process that is gone nothing is known but its pid.
    for one in gone:
        with one:
            assert _requester(one, 9).started == 0


def _requester(connection: socket.socket, number: int) -> Requester:
    return requester_of(connection, number, peer_credentials(connection).pid)
