"""`runner.events`: the state, every change, and a gap for each one that was lost."""

from __future__ import annotations

import gc
import json
import socket
import weakref
from typing import TYPE_CHECKING, Any

import pytest
import trio

from support.clients import house, settle
from utter_protocol.errors import ErrorCode
from utter_protocol.framing import FrameDecoder
from utter_runner.clients.events import EventBus
from utter_runner.dataplane.hub import MAX_STREAMS_PER_PEER, Hub
from utter_runner.dataplane.streams import RELIABLE_HOLD
from utter_runner.rpc.deadlines import Deadlines
from utter_runner.rpc.peer import Peer
from utter_runner.rpc.reactor import Reactor

if TYPE_CHECKING:
    from pathlib import Path


async def test_the_state_comes_first_then_every_change(tmp_path: Path) -> None:
    async with house(tmp_path) as made:
        client = await made.client()
        made.emit({"event": "warning", "text": "before"})
        stream_id = await client.subscribe()
        for number in range(3):
            made.emit({"event": "warning", "text": f"{number}"})
        await client.until(lambda: len(client.items(stream_id)) == 4)
    assert client.items(stream_id) == [
        (0, {"event": "state", "status": made.status()}),
        *[(n + 1, {"event": "warning", "text": f"{n}"}) for n in range(3)],
    ]


async def test_the_answer_comes_before_the_state(tmp_path: Path) -> None:
    async with house(tmp_path) as made:
        client = await made.client()
        seen: list[str] = []
        take = client._take

        def note(message: dict[str, Any]) -> None:
            seen.append(message.get("method", "answer"))
            take(message)

        client._take = note
        await client.subscribe()
        await settle()
    assert seen == ["answer", "runner.events"]


async def test_each_stream_counts_for_itself(tmp_path: Path) -> None:
    async with house(tmp_path) as made:
        client, other = await made.client(), await made.client()
        first = await client.subscribe()
        made.emit({"event": "warning", "text": "1"})
        second, third = await client.subscribe(), await other.subscribe("reliable")
        made.emit({"event": "warning", "text": "2"})
        await settle()
        assert len({first, second, third}) == 3
        assert [seq for seq, _ in client.items(first)] == [0, 1, 2]
        assert [seq for seq, _ in client.items(second)] == [0, 1]
        assert [seq for seq, _ in other.items(third)] == [0, 1]
        assert [data["event"] for _, data in client.items(second)] == ["state", "warning"]


async def test_nothing_is_encoded_when_nobody_listens() -> None:
    bus = EventBus(Hub(queue=1, window=1), dict)
    bus.emit({"event": object()})


async def test_an_event_is_encoded_once_however_many_listen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from utter_runner.dataplane import hub  # noqa: PLC0415 - patched here

    async with house(tmp_path) as made:
        client = await made.client()
        for _ in range(5):
            await client.subscribe()
        encoded: list[Any] = []
        plain = hub.encode

        def counting(value: Any) -> bytes:
            encoded.append(value)
            return plain(value)

        monkeypatch.setattr(hub, "encode", counting)
        event = {"event": "warning", "text": "x"}
        made.emit(event)
    assert encoded.count(event) == 1


# ---- stopping


async def test_stop_is_idempotent_and_stops(tmp_path: Path) -> None:
    async with house(tmp_path) as made:
        client = await made.client()
        stopped, going = await client.subscribe(), await client.subscribe()
        for _ in range(2):
            assert await client.call("stream.stop", {"stream_id": stopped}) == {}
        assert await client.call("stream.stop", {"stream_id": "never was"}) == {}
        made.emit({"event": "warning", "text": "x"})
        await settle()
        assert [seq for seq, _ in client.items(stopped)] == [0]
        assert [seq for seq, _ in client.items(going)] == [0, 1]
        assert await client.call("stream.stop", {"stream_id": going}) == {}
        assert len(made.hub) == len(made.bus) == 0


@pytest.mark.parametrize("how", ["close", "stop"])
async def test_the_streams_of_a_connection_end_with_it(tmp_path: Path, how: str) -> None:
    async with house(tmp_path) as made:
        client = await made.client()
        await client.subscribe("reliable")
        await client.subscribe()
        held = [weakref.ref(stream) for stream in made.bus._streams]
        if how == "close":
            await client.stream.aclose()
        else:
            made.server.stop()
        await settle()
        assert len(made.hub) == len(made.bus) == 0
        made.emit({"event": "warning", "text": "x"})
        gc.collect()
        assert [ref() for ref in held] == [None, None]


async def test_a_connection_may_have_64_streams(tmp_path: Path) -> None:
    async with house(tmp_path) as made:
        client, other = await made.client(), await made.client()
        streams = [await client.subscribe() for _ in range(MAX_STREAMS_PER_PEER)]
        error = await client.error("stream.subscribe", {"method": "runner.events"})
        assert error.code == ErrorCode.INVALID_REQUEST
        assert error.data == {"bound": "max_streams", "limit": MAX_STREAMS_PER_PEER}
        await other.subscribe()
        await client.call("stream.stop", {"stream_id": streams[0]})
        await client.subscribe()


async def test_ids_cannot_be_guessed(tmp_path: Path) -> None:
    async with house(tmp_path) as made:
        client = await made.client()
        ids = [await client.subscribe() for _ in range(MAX_STREAMS_PER_PEER)]
    # 16 random bytes, as base64.
    assert {len(one) for one in ids} == {22}
    assert len(set(ids)) == len(ids)
    assert len({one[:4] for one in ids}) > len(ids) / 2


async def test_the_stream_of_another_connection_is_like_one_that_does_not_exist(tmp_path: Path) -> None:
    async with house(tmp_path, window=2) as made:
        owner, stranger = await made.client(), await made.client()
        mine = await owner.subscribe("reliable")
        for number in range(5):
            made.emit({"event": "warning", "text": f"{number}"})
        await settle()
        assert len(owner.items(mine)) == 2
        assert await stranger.call("stream.ack", {"stream_id": mine, "seq": 1}) == {}
        await stranger.notify("stream.ack", {"stream_id": mine, "seq": 1})
        assert await stranger.call("stream.stop", {"stream_id": mine}) == {}
        await settle()
        assert len(owner.items(mine)) == 2
        assert await owner.call("stream.ack", {"stream_id": mine, "seq": 1}) == {}
        await settle()
        assert [seq for seq, _ in owner.items(mine)] == [0, 1, 2, 3]
        assert stranger.notifications == []


# ---- reliable


async def test_a_reliable_stream_goes_as_far_as_it_is_acknowledged(tmp_path: Path) -> None:
    async with house(tmp_path, window=4) as made:
        client = await made.client()
        stream_id = await client.subscribe("reliable")
        for number in range(20):
            made.emit({"event": "warning", "text": f"{number}"})
        await settle()
        assert [seq for seq, _ in client.items(stream_id)] == [0, 1, 2, 3]
        await client.notify("stream.ack", {"stream_id": stream_id, "seq": 3})
        await settle()
        assert [seq for seq, _ in client.items(stream_id)] == list(range(8))
        # What was never sent is not acknowledged, whoever says so.
        for seq in (8, 10**6, -1):
            await client.call("stream.ack", {"stream_id": stream_id, "seq": seq})
        assert len(client.items(stream_id)) == 8
        seq = 7
        while seq < 20:
            await client.call("stream.ack", {"stream_id": stream_id, "seq": seq})
            seq = client.items(stream_id)[-1][0]
        assert [one for one, _ in client.items(stream_id)] == list(range(21))
        assert [data["text"] for _, data in client.items(stream_id)[1:]] == [f"{n}" for n in range(20)]


async def test_a_reliable_stream_that_nobody_acknowledges_is_closed_with_a_reason(tmp_path: Path) -> None:
    async with house(tmp_path, window=2) as made:
        client = await made.client()
        given_up, lossy = await client.subscribe("reliable"), await client.subscribe()
        for _ in range(RELIABLE_HOLD + 2):
            made.emit({"event": "warning", "text": "x"})
        await settle()
        closed = [one["params"] for one in client.notifications if one["method"] == "stream.closed"]
        assert closed == [
            {"stream_id": given_up, "reason": f"the subscriber acknowledged nothing while {RELIABLE_HOLD} items waited"}
        ]
        assert [seq for seq, _ in client.items(given_up)] == [0, 1]
        assert await client.call("stream.ack", {"stream_id": given_up, "seq": 1}) == {}
        assert await client.call("stream.stop", {"stream_id": given_up}) == {}
        before = len(client.items(lossy))
        made.emit({"event": "warning", "text": "last"})
        await settle()
        assert len(client.items(lossy)) == before + 1
        assert len(client.items(given_up)) == 2


# ---- slow subscribers


class Slow:
    """A peer over a socket pair with small buffers, whose other end reads when it is told to."""

    def __init__(self, reactor: Reactor, deadlines: Deadlines) -> None:
        ours, self.theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        for end in (ours, self.theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
            end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self.theirs.settimeout(0)
        fd = ours.detach()
        self.peer = Peer(reactor, deadlines, fd, fd, Nobody(), name="slow")
        self.decoder = FrameDecoder()
        self.messages: list[dict[str, Any]] = []

    def read(self) -> int:
        """Take what is there; how many bytes it was."""
        total = 0
        while True:
            try:
                data = self.theirs.recv(65536)
            except BlockingIOError:
                break
            if not data:
                break
            total += len(data)
            self.decoder.receive(data)
        while (body := self.decoder.next_frame()) is not None:
            self.messages.append(json.loads(body))
        return total

    @property
    def seqs(self) -> list[int]:
        return [message["params"]["seq"] for message in self.messages]

    def close(self) -> None:
        self.peer.close("the test is over")
        self.theirs.close()


class Nobody:
    """A handler that nobody needs."""

    def on_request(self, *_: object) -> None: ...

    def on_notification(self, *_: object) -> None: ...

    def on_junk(self, *_: object) -> None: ...

    def on_closed(self, *_: object) -> None: ...


async def test_a_lossy_reader_that_is_slow_sees_by_the_gap_how_many_it_lost() -> None:
    reactor, deadlines = Reactor(), Deadlines()
    slow, quick = Slow(reactor, deadlines), Slow(reactor, deadlines)
    bus = EventBus(Hub(queue=10, window=4), lambda: {"big": "x" * 1000})
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(reactor.run)
            lossy = bus.open(slow.peer, "lossy")
            other = bus.open(quick.peer, "lossy")
            bus.begin(lossy)
            bus.begin(other)
            for number in range(500):
                bus.emit({"event": "warning", "text": f"{number} ".ljust(1000, "x")})
                # The other one reads, and loses nothing to the slow one.
                quick.read()
                await settle()
                quick.read()
            assert quick.seqs == list(range(501))
            assert other.dropped == 0
            assert lossy.held == 10
            assert lossy.dropped > 100
            # It is not the peer's queue that grows in its place.
            assert slow.peer.channel.queued < 80_000
            while slow.read():
                await settle()
            assert slow.messages[0]["params"]["data"]["event"] == "state"
            assert slow.seqs == sorted(set(slow.seqs))
            assert slow.seqs[-10:] == list(range(491, 501))
            lost = sum(after - before - 1 for before, after in zip(slow.seqs, slow.seqs[1:], strict=False))
            assert (slow.seqs[0], lost) == (0, lossy.dropped)
            # What it gets says which it is: nothing was put in another's place.
            for message in slow.messages[1:]:
                assert message["params"]["data"]["text"].startswith(f"{message['params']['seq'] - 1} ")
            bus.emit({"event": "warning", "text": "caught up"})
            await settle()
            slow.read()
            assert slow.seqs[-1] == 501
            nursery.cancel_scope.cancel()
    finally:
        slow.close()
        quick.close()
        reactor.close()


async def test_a_reliable_reader_that_is_slow_loses_nothing() -> None:
    reactor, deadlines = Reactor(), Deadlines()
    slow = Slow(reactor, deadlines)
    bus = EventBus(Hub(queue=1, window=1000), dict)
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(reactor.run)
            stream = bus.open(slow.peer, "reliable")
            bus.begin(stream)
            for _ in range(300):
                bus.emit({"event": "warning", "text": "x" * 1000})
            while slow.read():
                await settle()
            assert slow.seqs == list(range(301))
            nursery.cancel_scope.cancel()
    finally:
        slow.close()
        reactor.close()
