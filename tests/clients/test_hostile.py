"""Clients that mean harm, or are broken: each loses its own connection at most, and an honest one is served."""

from __future__ import annotations

import json
import os
import socket
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.clients import Client, House, house, settle
from utter_protocol.errors import ErrorCode
from utter_protocol.framing import encode_frame
from utter_protocol.messages import decode_message
from utter_runner.clients.server import ACCEPTS_PER_S, AUTH_BYTES, AUTH_MESSAGES, AUTH_SECONDS, AUTH_TRIES
from utter_runner.config import SocketConfig

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from trio.testing import MockClock

TOKEN = "correct horse battery staple"  # noqa: S105 - a test's token
LOCKED = SocketConfig(token=TOKEN)
REQUEST = encode_frame(b'{"jsonrpc":"2.0","id":1,"method":"runner.status"}')


@asynccontextmanager
async def serving(directory: Path, **options: Any) -> AsyncIterator[tuple[House, Client]]:
    """A locked house, and an honest client that is served in the end as in the beginning."""
    async with house(directory, socket=LOCKED, **options) as made:
        honest = await made.client()
        await honest.call("runner.auth", {"token": TOKEN})
        before = descriptors()
        yield made, honest
        assert (await honest.call("runner.status"))["state"] == "ready"
        await settle()
        assert made.server.count == 1
        assert descriptors() == before
    assert made.plugin.received == []


def descriptors() -> int:
    """How many sockets and pipes this process has open; the data plane opens its files when it gets to it."""
    links = [os.path.realpath(path) for path in Path("/proc/self/fd").iterdir()]
    return sum(":[" in link for link in links)


# ---- slow, half, and none


async def test_a_header_that_comes_byte_by_byte_does_not_win_time(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with serving(tmp_path) as (_, honest):
        slow = await _client(tmp_path)
        started = trio.current_time()
        with suppress(trio.BrokenResourceError):
            for byte in b"Content-Length: 100\r\n\r\n" + b" " * 100:
                await slow.send_all(bytes([byte]))
                await trio.sleep(1)
        assert trio.current_time() - started <= AUTH_SECONDS + 1
        await slow.aclose()
        assert (await honest.call("runner.status"))["state"] == "ready"


@pytest.mark.parametrize("cut", [1, 10, len(REQUEST) - 30, len(REQUEST) - 1])
@pytest.mark.parametrize("leaves", [False, True])
async def test_half_a_frame_and_then_silence_or_nobody(
    tmp_path: Path, autojump_clock: MockClock, cut: int, leaves: bool
) -> None:
    async with serving(tmp_path) as (made, _):
        half = await _client(tmp_path)
        await half.send_all(REQUEST[:cut])
        await settle()
        assert made.server.count == 2
        if leaves:
            await half.aclose()
            await settle()
            assert made.server.count == 1
        await trio.sleep(AUTH_SECONDS + 0.1)
        await half.aclose()


async def _client(directory: Path) -> trio.SocketStream:
    """A connection that nobody reads."""
    sock = trio.socket.socket(trio.socket.AF_UNIX)
    await sock.connect(str(directory / "run" / "runner.sock"))
    return trio.SocketStream(sock)


# ---- floods


async def test_ten_thousand_connections_that_come_and_go(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with serving(tmp_path) as (made, honest):
        started = trio.current_time()
        for number in range(10_000):
            sock = socket.socket(socket.AF_UNIX)
            sock.settimeout(0)
            try:
                sock.connect(str(made.endpoint.path))
            except BlockingIOError:
                # The kernel's queue is full, and the runner takes no more than its share.
                await trio.sleep(0.05)
            finally:
                sock.close()
            if number % 500 == 0:
                await settle()
                assert (await honest.call("runner.status"))["state"] == "ready"
        await trio.sleep(AUTH_SECONDS + 1)
        # What was accepted at all was accepted at no higher rate.
        assert trio.current_time() - started > 1
        assert len(made.refused) <= 2 * AUTH_SECONDS + 40


async def test_accepting_waits_beyond_its_rate(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with serving(tmp_path) as (made, _):
        accepted = 0
        plain = made.server._admit

        def counting(connection: socket.socket) -> None:
            nonlocal accepted
            accepted += 1
            plain(connection)

        made.server._admit = counting  # type: ignore[method-assign]  # it is counted and nothing else
        started = trio.current_time()
        while trio.current_time() - started < 3:
            for _ in range(100):
                with socket.socket(socket.AF_UNIX) as sock:
                    sock.settimeout(0)
                    try:
                        sock.connect(str(made.endpoint.path))
                    except BlockingIOError:
                        break
            await trio.sleep(0.01)
        assert ACCEPTS_PER_S <= accepted <= ACCEPTS_PER_S * (1 + trio.current_time() - started) + 128
        await trio.sleep(AUTH_SECONDS + 1)


async def test_those_who_hold_their_connections_take_no_honest_ones_place(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with serving(tmp_path, max_clients=16) as (made, honest):
        held = [await _client(tmp_path) for _ in range(200)]
        await settle()
        assert made.server.count == 16
        newcomer = await made.client()
        assert await newcomer.call("runner.auth", {"token": TOKEN}) == {"ok": True}
        assert (await honest.call("runner.status"))["state"] == "ready"
        await newcomer.stream.aclose()
        for one in held:
            await one.aclose()
        await settle()


async def test_a_flood_of_requests_is_answered_no_faster_than_its_bound_and_another_client_at_once(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    bounded = SocketConfig(allow_same_uid=True, max_requests_per_s=100)
    async with house(tmp_path, socket=bounded) as made:
        flood, honest = await made.client(), await made.client()
        started = trio.current_time()
        last = 0
        for _ in range(600):
            last = await flood.send("runner.status")
        assert (await honest.call("runner.status"))["state"] == "ready"
        early = trio.current_time() - started
        assert (await flood.result(last))["state"] == "ready"
        assert len(flood.answers) == 600
        # 200 at once, and 100 in each second that follows; one turn may overdraw.
        assert early < 1
        assert trio.current_time() - started >= 3


# ---- before runner.auth


async def test_a_stranger_may_send_few_messages(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with serving(tmp_path) as (made, _):
        chatty = await made.client()
        for _ in range(AUTH_MESSAGES):
            assert (await chatty.error("runner.status")).code == ErrorCode.NOT_PERMITTED
        # Notifications and what is no message count too.
        await chatty.notify("stream.ack", {})
        await chatty.closed.wait()
        (said,) = chatty.unasked
        assert said["error"]["data"] == {"bound": "max_unauthenticated_messages", "limit": AUTH_MESSAGES}


@pytest.mark.parametrize(
    "data",
    [
        b"Content-Length: 10000000\r\n\r\n" + b"[" * (AUTH_BYTES + 200_000),
        encode_frame(b'{"jsonrpc":"2.0","id":1,"method":"runner.auth","params":' + b" " * (AUTH_BYTES + 10) + b"{}}"),
        b"\r\n" * AUTH_BYTES,
    ],
    ids=["unfinished", "padded", "blank"],
)
async def test_a_stranger_may_send_few_bytes(tmp_path: Path, autojump_clock: MockClock, data: bytes) -> None:
    async with serving(tmp_path) as (made, _):
        large = await made.client()
        started = trio.current_time()
        with suppress(trio.BrokenResourceError):
            await large.stream.send_all(data)
        await large.closed.wait()
        assert trio.current_time() - started < AUTH_SECONDS


async def test_an_authenticated_one_may_send_more(tmp_path: Path) -> None:
    async with serving(tmp_path) as (_, honest):
        for _ in range(AUTH_MESSAGES + 10):
            await honest.call("runner.status", {"pad": "x" * 10_000})


async def test_a_flood_of_tokens(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with serving(tmp_path) as (made, _):
        for number in range(100):
            guessing = await made.client()
            for guess in range(AUTH_TRIES):
                await guessing.send("runner.auth", {"token": f"{number} {guess}"})
            await guessing.closed.wait()
            assert {one["error"]["message"] for one in guessing.answers.values()} == {"the token is not right"}
        # A log that anybody can fill is none.
        assert 1 <= len(made.refused) <= 25
        assert "too many wrong tokens, and it showed no token" in made.refused[0]


@pytest.mark.parametrize(
    "data",
    [
        os.urandom(4000),
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"Content-Length: " + b"9" * 5000 + b"\r\n\r\n",
        b"Content-Length: -1\r\n\r\n",
        b"Content-Length: 99999999999\r\n\r\n",
        encode_frame(b"[" * 50_000),
        encode_frame(b'{"a":' * 5_000),
        encode_frame(b'{"jsonrpc":"2.0","id":1,"method":"runner.auth","params":{"token":' + b"[" * 40_000),
        encode_frame(b"\xff\xfe"),
    ],
)
async def test_junk(tmp_path: Path, autojump_clock: MockClock, data: bytes) -> None:
    async with serving(tmp_path) as (made, _):
        client = await made.client()
        with suppress(trio.BrokenResourceError):
            await client.stream.send_all(data)
        await settle()
        await trio.sleep(AUTH_SECONDS + 0.1)
        await client.closed.wait()
        assert client.answers == {}


# ---- descriptors


@pytest.mark.parametrize("count", [1, 2, 200])
@pytest.mark.parametrize(
    "data",
    [REQUEST, REQUEST[:20], b"\n", encode_frame(b"{"), REQUEST * 20],
    ids=["frame", "half", "none", "bad", "many"],
)
async def test_descriptors_that_nobody_asked_for_are_closed(
    tmp_path: Path, autojump_clock: MockClock, data: bytes, count: int
) -> None:
    async with serving(tmp_path) as (_, honest):
        reading, writing = os.pipe()
        with socket.socket(socket.AF_UNIX) as sock:
            sock.connect(str(tmp_path / "run" / "runner.sock"))
            socket.send_fds(sock, [data], [writing] * count)
            os.close(writing)
            await settle()
            await trio.sleep(AUTH_SECONDS + 0.1)
        await settle()
        # Nobody holds the writing end any more, so that the pipe is at its end.
        assert os.read(reading, 1) == b""
        os.close(reading)
        assert (await honest.call("runner.status"))["state"] == "ready"


async def test_thousands_of_descriptors(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with serving(tmp_path) as (_, honest):
        null = os.open(os.devnull, os.O_RDONLY)
        for _ in range(20):
            with socket.socket(socket.AF_UNIX) as sock:
                sock.connect(str(tmp_path / "run" / "runner.sock"))
                for _ in range(10):
                    try:
                        socket.send_fds(sock, [REQUEST], [null] * 200)
                    except OSError:
                        # It was closed, or too many are on their way.
                        break
                    await settle()
        os.close(null)
        assert (await honest.call("runner.status"))["state"] == "ready"


# ---- what a stranger learns

METHODS = sorted(
    {
        *("runner.status", "runner.plugins", "runner.command", "runner.invoke", "runner.validate_plugin"),
        *("runner.listen", "ptt.press", "ptt.release", "ptt.toggle", "ptt.cancel", "policy.explain", "hotkeys.bind"),
        *("context.snapshot", "runner.speak", "runner.hush", "audio.devices", "audio.open", "audio.close"),
        *("stream.subscribe", "stream.ack", "stream.stop", "handle.create", "handle.fetch", "fd.pass"),
        *("host.confirm", "plugin.describe", "action.invoke", "$/cancel", "", "runner.Auth", "runner.auth "),
    }
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
PARAMS = st.dictionaries(st.text(max_size=8) | st.just("plugin"), JSON, max_size=4) | st.lists(JSON, max_size=3)


@settings(
    derandomize=True,
    database=None,
    deadline=None,
    max_examples=200,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(method=st.sampled_from(METHODS) | st.text(max_size=40).filter(lambda name: name != "runner.auth"), params=PARAMS)
def test_every_method_is_answered_byte_for_byte_alike(tmp_path: Path, method: str, params: Any) -> None:
    # One loop for each pair: the answer to this request, and to one that is known.
    directory = tmp_path / "once"
    directory.mkdir(exist_ok=True)

    async def compare() -> tuple[bytes, bytes]:
        async with house(directory, socket=LOCKED) as made:
            answers = [await ask(made, method, params), await ask(made, "runner.status", {})]
            await settle()
        return answers[0], answers[1]

    async def ask(made: House, name: str, content: Any) -> bytes:
        stream = await _client(directory)
        async with stream:
            body = json.dumps({"jsonrpc": "2.0", "id": 7, "method": name, "params": content}).encode()
            decode_message(body)
            await stream.send_all(encode_frame(body))
            return bytes(await stream.receive_some(65536))

    different, known = trio.run(compare)
    assert different == known
    assert b"-32003" in known


# ---- complaints about them


ACK = b'{"jsonrpc":"2.0","method":"stream.ack","params":{"stream":1}}'
UNKNOWN = b'{"jsonrpc":"2.0","method":"nothing.at_all"}'


@pytest.mark.parametrize("data", [encode_frame(ACK), b"junk\r\n" + encode_frame(UNKNOWN)], ids=["ack", "junk"])
async def test_what_it_does_wrong_a_thousand_times_is_not_said_a_thousand_times(
    tmp_path: Path, data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with house(tmp_path) as made:
        client = await made.client()
        for _ in range(100):
            await client.stream.send_all(data * 10)
            await client.call("runner.status")
        said = [one for one in caplog.messages if "stream.ack" in one or "no frame" in one]
        assert 1 <= len(said) <= 60
