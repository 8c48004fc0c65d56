"""Accepting: who is told what before they have authenticated, and who takes whose place."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import trio

import support
from support.clients import house, settle
from support.policy import USER, step
from support.stage import assert_paired
from utter_protocol.errors import ErrorCode, RpcError
from utter_protocol.framing import encode_frame
from utter_runner.clients import server as room
from utter_runner.clients.auth import Credentials
from utter_runner.clients.server import AUTH_SECONDS, AUTH_TRIES
from utter_runner.config import SocketConfig
from utter_runner.rpc.interface import Limits

if TYPE_CHECKING:
    from trio.testing import MockClock

TOKEN = "correct horse battery staple"  # noqa: S105 - a test's token
LOCKED = SocketConfig(token=TOKEN)
WIPE = step("wipe", {"disk": "sda"})


def descriptors() -> int:
    """How many sockets and pipes this process has open; the data plane opens its files when it gets to it."""
    return sum(":[" in os.path.realpath(path) for path in Path("/proc/self/fd").iterdir())


# ---- before runner.auth


async def test_nothing_is_learnt_before_authenticating(tmp_path: Path) -> None:
    async with house(tmp_path, socket=LOCKED) as made:
        client = await made.client()
        methods = [
            "runner.status",
            "no.such.method",
            "runner.invoke",
            "stream.subscribe",
            "stream.ack",
            "ptt.press",
            "",
        ]
        errors = [await client.error(method, {"plugin": "desktop", "method": "x"}) for method in methods]
        assert {(one.code, one.message, json.dumps(one.data)) for one in errors} == {
            (ErrorCode.NOT_PERMITTED, "runner.auth comes first", '{"method": "runner.auth"}')
        }
        await client.notify("stream.ack", {"nonsense": True})
        await client.notify("$/cancel", {"id": 1})
        made.emit({"event": "warning", "text": "a secret"})
        await settle()
        assert client.notifications == []
        assert made.server.surfaces() == []
    assert made.plugin.received == []
    assert made.voice.called == []


async def test_the_right_token_opens(tmp_path: Path) -> None:
    async with house(tmp_path, socket=LOCKED) as made:
        client = await made.client()
        assert await client.call("runner.auth", {"token": TOKEN}) == {"ok": True}
        assert (await client.call("runner.status"))["state"] == "ready"
        # Again, and then any token is right.
        assert await client.call("runner.auth", {"token": "x"}) == {"ok": True}
        other = await made.client()
        assert (await other.error("runner.status")).code == ErrorCode.NOT_PERMITTED


async def test_who_needs_no_token_may_offer_any(tmp_path: Path) -> None:
    async with house(tmp_path) as made:
        client = await made.client()
        assert await client.call("runner.auth", {"token": "whatever"}) == {"ok": True}
        assert await client.call("runner.auth", {}) == {"ok": True}


WRONG: list[Any] = [{"token": "wrong"}, {"token": TOKEN[:-1]}, {"token": 7}, {}, {"token": None}, [TOKEN]]


@pytest.mark.parametrize("params", WRONG)
async def test_five_wrong_tokens_close_the_connection(tmp_path: Path, params: Any) -> None:
    async with house(tmp_path, socket=LOCKED) as made:
        client = await made.client()
        ids = [await client.send("runner.auth", params) for _ in range(AUTH_TRIES)]
        await client.closed.wait()
        # Every try was answered, also the last.
        answers = [client.answers[one]["error"] for one in ids]
        assert answers == [{"code": ErrorCode.NOT_PERMITTED, "message": "the token is not right"}] * AUTH_TRIES
        assert made.server.count == 0


async def test_what_comes_behind_the_last_wrong_token_is_not_looked_at(tmp_path: Path) -> None:
    def auth(number: int, token: str) -> bytes:
        body = {"jsonrpc": "2.0", "id": number, "method": "runner.auth", "params": {"token": token}}
        return encode_frame(json.dumps(body).encode())

    async with house(tmp_path, socket=LOCKED) as made:
        client = await made.client()
        tries = b"".join(auth(number, "wrong") for number in range(AUTH_TRIES))
        await client.stream.send_all(tries + auth(98, TOKEN) + auth(99, TOKEN))
        await client.closed.wait()
        assert sorted(client.answers) == list(range(AUTH_TRIES))


async def test_four_wrong_tokens_and_a_right_one_are_well(tmp_path: Path) -> None:
    async with house(tmp_path, socket=LOCKED) as made:
        client = await made.client()
        for _ in range(AUTH_TRIES - 1):
            assert (await client.error("runner.auth", {"token": "wrong"})).code == ErrorCode.NOT_PERMITTED
        assert await client.call("runner.auth", {"token": TOKEN}) == {"ok": True}


async def test_who_does_not_authenticate_in_time_is_sent_away(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with house(tmp_path, socket=LOCKED) as made:
        silent, busy, known = await made.client(), await made.client(), await made.client()
        await known.call("runner.auth", {"token": TOKEN})
        await trio.sleep(AUTH_SECONDS - 0.1)
        assert (await busy.error("runner.status")).code == ErrorCode.NOT_PERMITTED
        assert made.server.count == 3
        await trio.sleep(0.2)
        await settle()
        assert silent.closed.is_set()
        assert busy.closed.is_set()
        await trio.sleep(1000)
        assert (await known.call("runner.status"))["state"] == "ready"
        assert made.server.count == 1


async def test_another_uid_is_turned_away_and_told_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stranger = Credentials(4711, os.getuid() + 1, 0)
    monkeypatch.setattr(room, "peer_credentials", lambda _connection: stranger)
    async with house(tmp_path) as made:
        client = await made.client()
        await client.closed.wait()
        assert made.server.count == 0
        assert made.refused == [
            f"A connection of pid 4711 was refused: uid {os.getuid() + 1} is not the user of this runner."
        ]
        assert (client.answers, client.unasked, client.notifications) == ({}, [], [])


# ---- how many


async def test_more_than_max_clients_are_turned_away_and_room_is_made_by_leaving(tmp_path: Path) -> None:
    async with house(tmp_path, max_clients=2) as made:
        first, second = await made.client(), await made.client()
        await first.call("runner.status")
        await second.call("runner.status")
        third = await made.client()
        await third.closed.wait()
        (said,) = made.refused
        assert "max_clients (2)" in said
        await first.stream.aclose()
        await settle()
        fourth = await made.client()
        assert (await fourth.call("runner.status"))["state"] == "ready"
        assert made.server.count == 2


async def test_those_who_do_not_authenticate_shut_nobody_out(tmp_path: Path) -> None:
    async with house(tmp_path, socket=LOCKED, max_clients=4) as made:
        known = await made.client()
        await known.call("runner.auth", {"token": TOKEN})
        silent = [await made.client() for _ in range(20)]
        await settle()
        assert made.server.count == 4
        # The oldest of them went first, and nobody who is known.
        assert [one.closed.is_set() for one in silent] == [True] * 17 + [False] * 3
        late = await made.client()
        assert await late.call("runner.auth", {"token": TOKEN}) == {"ok": True}
        assert (await known.call("runner.status"))["state"] == "ready"
        rest = [await made.client() for _ in range(2)]
        for one in rest:
            await one.call("runner.auth", {"token": TOKEN})
        # Now all places are those of known ones.
        refused = await made.client()
        await refused.closed.wait()
        assert "max_clients (4)" in made.refused[-1]


async def test_many_connections_that_say_nothing_are_harmless(tmp_path: Path) -> None:
    async with house(tmp_path, max_clients=200) as made:
        silent = [await made.client() for _ in range(150)]
        client = await made.client()
        assert (await client.call("runner.status"))["state"] == "ready"
        assert made.server.count == 151
        for one in silent:
            await one.stream.aclose()
        await settle()
        assert made.server.count == 1
        for _ in range(100):
            sock = trio.socket.socket(trio.socket.AF_UNIX)
            await sock.connect(str(made.endpoint.path))
            sock.close()
        await settle()
        assert made.server.count == 1
        assert (await client.call("runner.status"))["state"] == "ready"


def test_without_descriptors_it_waits_and_goes_on(tmp_path: Path) -> None:
    script = Path(support.__path__[0], "starved_server.py")
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert 0 < report["admitted"] <= report["free"]
    assert report["answered"] == report["admitted"]
    # A listener that is readable all the time would turn the loop thousands of times.
    assert report["turns"] < 60
    assert report["in_the_end"] == 17
    assert report["after_stop"] == 0
    assert report["log"] == ["no client can be accepted: Too many open files"]


async def test_a_client_that_cannot_be_watched_is_turned_away_without_a_leak(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with house(tmp_path) as made:
        before = descriptors()
        with monkeypatch.context() as patch:

            def full(*_: object) -> None:
                raise OSError(28, "No space left on device")

            patch.setattr(made.reactor, "register", full)
            client = await made.client()
            await client.closed.wait()
        await settle()
        assert made.server.count == 0
        assert "No space left" in made.refused[0]
        assert descriptors() == before


# ---- the end


async def test_stopping_lets_what_is_queued_leave(tmp_path: Path) -> None:
    # More than the kernel takes at once.
    big = {"blob": "x" * 3_000_000}
    async with house(tmp_path) as made:
        made.plugin.answers["big"] = big
        client = await made.client(deaf=True)
        request = await client.send("runner.invoke", {"plugin": "desktop", "method": "big"})
        await settle()
        (connection,) = made.server._connections
        assert connection.peer.channel.queued > 0
        made.server.stop()
        made.listen_to(client)
        await client.closed.wait()
        assert client.answers[request]["result"] == big
        assert made.server.count == 0


async def test_whoever_does_not_read_is_not_waited_for(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with house(tmp_path) as made:
        made.plugin.answers["big"] = {"blob": "x" * 3_000_000}
        deaf = await made.client(deaf=True)
        await deaf.send("runner.invoke", {"plugin": "desktop", "method": "big"})
        await settle()
        (connection,) = made.server._connections
        assert connection.peer.channel.queued > 0
        made.server.stop()
        await trio.sleep(6)
        assert connection.peer.channel.closed
        await deaf.stream.aclose()


async def test_after_stop_nobody_is_accepted(tmp_path: Path) -> None:
    async with house(tmp_path) as made:
        made.server.stop()
        await made.client()
        await settle()
        assert made.server.count == 0


async def test_a_client_that_closed_its_sending_half_gets_its_answers(tmp_path: Path) -> None:
    async with house(tmp_path) as made:
        made.plugin.answers["x"] = {"n": 1}
        client = await made.client()
        requests = [await client.send("runner.invoke", {"plugin": "desktop", "method": "x"}) for _ in range(3)]
        await client.stream.send_eof()
        await client.closed.wait()
        assert [client.answers[one]["result"] for one in requests] == [{"n": 1}] * 3
        assert made.server.count == 0


async def test_junk_and_floods_end_that_connection_only(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with house(tmp_path, limits=Limits(max_frame=10_000, max_junk=1000)) as made:
        well = await made.client()
        junk, large, odd = [await made.client() for _ in range(3)]
        await junk.stream.send_all(b"?" * 2000)
        await large.stream.send_all(b"Content-Length: 10001\r\n\r\n")
        await odd.stream.send_all(b"a stray line\n" + encode_frame(b"[]"))
        await junk.closed.wait()
        await large.closed.wait()
        await settle()
        assert "max_junk" in junk.unasked[0]["error"]["message"]
        assert large.unasked[0]["error"]["code"] == ErrorCode.INVALID_REQUEST
        assert odd.unasked[0]["error"]["code"] == ErrorCode.INVALID_REQUEST
        assert (await odd.call("runner.status"))["state"] == "ready"
        assert (await well.call("runner.status"))["state"] == "ready"
    assert any("bytes that are no frame" in record.getMessage() for record in caplog.records)


# ---- clients as surfaces


async def test_a_client_is_asked_and_its_answer_counts(tmp_path: Path) -> None:
    async with house(tmp_path) as made:
        client = await made.client()
        await client.call("runner.status")
        ending = made.submit(WIPE)
        await client.until(lambda: client.requests)
        (asked,) = client.requests
        assert asked["method"] == "host.confirm"
        decision = ending.decisions[0]
        shown = asked["params"]
        assert (shown["text"], shown["digest"], shown["args"]) == (decision.text, decision.digest, {"disk": "sda"})
        assert (shown["op"], shown["provenance"], shown["timeout_ms"]) == ("wipe", "user", 30_000)
        await client.reply(asked, {"approved": True})
        await ending.wait()
        assert ending.result["ok"]


@pytest.mark.parametrize(
    "answer", [{"approved": False}, {}, {"approved": "yes"}, {"approved": 1}, [], None, "yes", {"approved": None}]
)
async def test_only_true_is_a_yes(tmp_path: Path, answer: Any, caplog: pytest.LogCaptureFixture) -> None:
    async with house(tmp_path) as made:
        client = await made.client()
        await client.call("runner.status")
        ending = made.submit(WIPE)
        await client.until(lambda: client.requests)
        await client.reply(client.requests[0], answer)
        await ending.wait()
        assert ending.error.data == {"op": "wipe", "rule": "destructive", "confirmed": False}
    assert made.plugin.received == []


async def test_one_that_cannot_ask_is_not_asked_again(tmp_path: Path) -> None:
    async with house(tmp_path) as made:
        unable, able = await made.client(), await made.client()
        await unable.call("runner.status")
        await able.call("runner.status")
        first = made.submit(WIPE)
        await unable.until(lambda: unable.requests)
        await unable.reply(unable.requests[0], RpcError(ErrorCode.METHOD_NOT_FOUND, "what?"))
        await settle()
        assert first.replies == []
        await able.reply(able.requests[0], {"approved": True})
        await first.wait()
        second = made.submit(WIPE)
        await able.until(lambda: len(able.requests) == 2)
        # Another error is no such thing: it is asked the next time.
        await able.reply(able.requests[1], RpcError(ErrorCode.INTERNAL_ERROR, "the screen is locked"))
        await second.wait()
        assert "nobody" in second.error.message
        third = made.submit(WIPE)
        await able.until(lambda: len(able.requests) == 3)
        await able.reply(able.requests[2], {"approved": True})
        await third.wait()
        assert (first.result["ok"], third.result["ok"]) == (True, True)
        assert len(unable.requests) == 1


async def test_the_others_are_told_when_one_has_answered(tmp_path: Path) -> None:
    async with house(tmp_path) as made:
        quick, slow = await made.client(), await made.client()
        await quick.call("runner.status")
        await slow.call("runner.status")
        ending = made.submit(WIPE)
        await quick.until(lambda: quick.requests)
        await slow.until(lambda: slow.requests)
        await quick.reply(quick.requests[0], {"approved": False})
        await slow.until(lambda: slow.notifications)
        assert slow.notifications == [
            {"jsonrpc": "2.0", "method": "$/cancel", "params": {"id": slow.requests[0]["id"]}}
        ]
        # Too late.
        await slow.reply(slow.requests[0], {"approved": True})
        await ending.wait()
        assert ending.error.code == ErrorCode.NOT_PERMITTED
        assert quick.notifications == []


async def test_a_client_that_leaves_while_it_is_asked_abstains(tmp_path: Path) -> None:
    async with house(tmp_path) as made:
        client = await made.client()
        await client.call("runner.status")
        ending = made.submit(WIPE)
        await client.until(lambda: client.requests)
        await client.stream.aclose()
        await ending.wait()
        assert "nobody" in ending.error.message
    assert_paired(made.questions)


async def test_silence_of_clients_is_a_time_out(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with house(tmp_path) as made:
        client = await made.client()
        await client.call("runner.status")
        ending = made.submit(WIPE)
        await ending.wait()
        assert "nobody answered within 30 s" in ending.error.message
        assert [state for _, state in made.questions] == ["asked", "timed_out"]
        await client.until(lambda: client.notifications)


async def test_those_who_have_not_authenticated_are_not_asked(tmp_path: Path) -> None:
    async with house(tmp_path, socket=LOCKED) as made:
        stranger = await made.client()
        await settle()
        ending = made.submit(WIPE, USER)
        await ending.wait()
        assert "nobody is there" in ending.error.message
        assert stranger.requests == []
        # Nor does an answer that nobody asked for do anything.
        await stranger.reply({"id": 1}, {"approved": True})
        await settle()
    assert made.plugin.received == []
