"""All streams of all connections, over real sockets: whose they are, and that a slow connection is slow by itself."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
from msgspec import Raw

from support.rpc_tools import Recorder, Remote, Rig
from utter_protocol.errors import ErrorCode, RpcError
from utter_protocol.framing import FrameDecoder
from utter_runner.dataplane.hub import MAX_STREAMS_PER_PEER, Hub, Topic
from utter_runner.dataplane.streams import Stream
from utter_runner.rpc.peer import Peer


@pytest.fixture
def rig() -> Iterator[Rig]:
    made = Rig()
    yield made
    made.close()


class Reader:
    """A connection to the hub, whose far end reads when it is told to."""

    def __init__(self, rig: Rig, hub: Hub, *, small: bool = False, **limits: int) -> None:
        self.rig = rig
        self.hub = hub
        self.handler = Recorder()
        self.peer: Peer
        self.remote: Remote
        self.peer, _, self.remote = rig.peer("socket", self.handler, **limits)
        if small:
            for fd in (self.peer.channel._write_fd, self.remote.read_fd):
                with socket.socket(fileno=socket.dup(fd)) as one:
                    one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
                    one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self.messages: list[dict[str, Any]] = []
        self._decoder = FrameDecoder()

    def open(self, mode: Any = "lossy", method: str = "tick") -> Stream:
        return self.hub.open(self.peer, method, mode)

    def read(self, most: int = 1 << 30) -> int:
        """Take what is there, at most so many bytes; how many it was."""
        self.rig.settle()
        data = self.remote.read(most)
        self._decoder.receive(data)
        while (body := self._decoder.next_frame()) is not None:
            self.messages.append(json.loads(body))
        return len(data)

    def read_all(self) -> None:
        while self.read():
            pass

    def seqs(self, stream: Stream) -> list[int]:
        return [
            one["params"]["seq"]
            for one in self.messages
            if one["method"] != "stream.closed" and one["params"]["stream_id"] == stream.id
        ]

    def ends(self, stream: Stream) -> list[str]:
        return [
            one["params"]["reason"]
            for one in self.messages
            if one["method"] == "stream.closed" and one["params"]["stream_id"] == stream.id
        ]


def fill(stream: Stream, count: int, size: int = 1000) -> None:
    """Offer so many items; each begins with its number."""
    for _ in range(count):
        stream.offer(json.dumps(f"{stream._offered + 1} ".ljust(size, "x")).encode())


# ---- what is written


def test_an_item_is_a_notification_with_id_number_and_data(rig: Rig) -> None:
    reader = Reader(rig, Hub(queue=8, window=8))
    stream = reader.open(method='odd "näme"')
    stream.put(0, b'{"a":[1,"\xc3\xa4"]}')
    stream.put(12_345, Raw(b"null"))
    reader.read()
    assert reader.messages == [
        {"jsonrpc": "2.0", "method": 'odd "näme"', "params": {"stream_id": stream.id, "seq": seq, "data": data}}
        for seq, data in ((0, {"a": [1, "ä"]}), (12_345, None))
    ]


def test_the_length_is_right_for_every_number(rig: Rig) -> None:
    reader = Reader(rig, Hub(queue=8, window=8))
    stream = reader.open()
    numbers = [0, 9, 10, 99, 100, 10**9, 2**63 - 2, 2**63 - 1]
    for seq in numbers:
        stream.put(seq, b"%d" % seq)
    reader.read()
    assert [(one["params"]["seq"], one["params"]["data"]) for one in reader.messages] == [(one, one) for one in numbers]


def test_an_item_may_be_as_long_as_a_frame_and_no_longer(rig: Rig) -> None:
    reader = Reader(rig, Hub(queue=8, window=8), max_frame=300)
    stream, reliable = reader.open(), reader.open("reliable")
    stream.offer(b"0")
    reader.read()
    spare = 300 - len(json.dumps(reader.messages[0], separators=(",", ":"))) + 1
    stream.offer(b"1" * spare)
    stream.offer(b"1" * (spare + 1))
    stream.offer(b"3")
    reliable.offer(b"1" * 300)
    reader.read()
    assert reader.seqs(stream) == [0, 1, 3]
    assert stream.dropped == 1
    assert reader.ends(reliable) == ["an item of 300 bytes is more than max_frame lets through"]


# ---- whose they are


def test_ids_are_long_and_different(rig: Rig) -> None:
    reader = Reader(rig, Hub(queue=8, window=8))
    ids = {reader.open().id for _ in range(MAX_STREAMS_PER_PEER)}
    assert len(ids) == MAX_STREAMS_PER_PEER
    assert {len(one) for one in ids} == {22}


def test_a_connection_has_at_most_so_many(rig: Rig) -> None:
    hub = Hub(queue=8, window=8)
    reader, other = Reader(rig, hub), Reader(rig, hub)
    streams = [reader.open() for _ in range(MAX_STREAMS_PER_PEER)]
    for attempt in (reader.open, lambda: hub.check_room(reader.peer)):
        with pytest.raises(RpcError) as error:
            attempt()
        assert error.value.code == ErrorCode.INVALID_REQUEST
        assert error.value.data == {"bound": "max_streams", "limit": MAX_STREAMS_PER_PEER}
    other.open()
    hub.check_room(other.peer)
    hub.stop(reader.peer, streams[3].id)
    reader.open()
    assert len(hub) == MAX_STREAMS_PER_PEER + 1


def test_a_stream_of_another_connection_is_like_one_that_does_not_exist(rig: Rig) -> None:
    hub = Hub(queue=8, window=2)
    owner, stranger = Reader(rig, hub), Reader(rig, hub)
    stream = owner.open("reliable")
    stranger.open()
    fill(stream, 5)
    hub.acknowledge(stranger.peer, stream.id, 1)
    hub.stop(stranger.peer, stream.id)
    hub.acknowledge(owner.peer, "no such stream", 1)
    hub.stop(owner.peer, "no such stream")
    owner.read()
    assert owner.seqs(stream) == [0, 1]
    hub.acknowledge(owner.peer, stream.id, 1)
    owner.read()
    assert owner.seqs(stream) == [0, 1, 2, 3]


def test_the_end_of_a_connection_ends_its_streams_and_tells_their_source(rig: Rig) -> None:
    hub = Hub(queue=8, window=8)
    reader, other = Reader(rig, hub), Reader(rig, hub)
    left: list[str] = []
    streams = [reader.open(), reader.open("reliable"), other.open()]
    for stream in streams:
        stream.on_over = lambda one=stream: left.append(one.id)
    reader.peer.close("gone")
    hub.forget(reader.peer)
    hub.forget(reader.peer)
    assert left == [streams[0].id, streams[1].id]
    assert [*hub._subscribers] == [other.peer]
    with pytest.raises(RpcError):
        reader.open()


def test_a_connection_that_is_found_broken_while_it_is_told_an_end_is_left_once(rig: Rig) -> None:
    """Outside of a turn the write that tells it finds out, and ends the other streams before it returns."""
    hub = Hub(queue=8, window=8)
    reader = Reader(rig, hub)

    class Client(Recorder):
        def on_closed(self, peer: Peer, reason: str) -> None:
            super().on_closed(peer, reason)
            hub.forget(peer)

    peer, handler, remote = rig.peer("socket", Client())
    left: list[str] = []
    streams = [hub.open(peer, "tick", "lossy") for _ in range(3)]
    for stream in streams:
        stream.on_over = lambda one=stream: left.append(one.id)
    remote.close()
    streams[1].finish("its source went away")
    assert len(handler.closed) == 1
    assert sorted(left) == sorted(one.id for one in streams)
    assert hub._subscribers == {}
    assert [one.state for one in streams] == ["closed"] * 3
    reader.open()
    assert [*hub._subscribers] == [reader.peer]


# ---- slow connections


def test_a_client_that_never_reads_holds_a_bound_and_nobody_up(rig: Rig) -> None:
    hub = Hub(queue=16, window=4)
    deaf, quick = Reader(rig, hub, small=True), Reader(rig, hub)
    silent, heard = deaf.open(), quick.open()
    for _ in range(400):
        fill(silent, 1)
        fill(heard, 1)
        quick.read()
    assert quick.seqs(heard) == list(range(400))
    assert silent.held == 16
    assert deaf.peer.channel.queued < 70_000
    assert silent.dropped > 200
    assert rig.settle() == 0, "the loop has something to do for somebody who does not read"


def test_a_client_that_reads_one_byte_at_a_time_gets_whole_items_with_exact_gaps(rig: Rig) -> None:
    hub = Hub(queue=4, window=4)
    slow = Reader(rig, hub, small=True)
    stream = slow.open()
    for _ in range(300):
        fill(stream, 1)
        slow.read(1)
    offered = 300
    while slow.read(1):
        pass
    seqs = slow.seqs(stream)
    assert seqs[0] == 0
    assert seqs[-1] == offered - 1
    gaps = sum(after - before - 1 for before, after in pairwise(seqs))
    assert gaps == stream.dropped == offered - len(seqs) > 0
    assert all(one["params"]["data"].startswith(f"{one['params']['seq']} ") for one in slow.messages)


def test_a_slow_reader_of_a_reliable_stream_loses_nothing(rig: Rig) -> None:
    hub = Hub(queue=1, window=1000)
    slow = Reader(rig, hub, small=True)
    stream = slow.open("reliable")
    fill(stream, 300)
    stream.finish("end")
    assert slow.ends(stream) == []
    while slow.read(700):
        pass
    assert slow.seqs(stream) == list(range(300))
    assert slow.ends(stream) == ["end"]
    assert slow.messages[-1]["method"] == "stream.closed"
    assert len(hub) == 0


def test_the_streams_of_one_connection_take_turns(rig: Rig) -> None:
    hub = Hub(queue=50, window=4)
    slow = Reader(rig, hub, small=True)
    streams = [slow.open() for _ in range(MAX_STREAMS_PER_PEER)]
    # The first fill everything there is before the others come.
    for stream in streams:
        fill(stream, 50)
    held = [stream for stream in streams if stream.held]
    assert len(held) > MAX_STREAMS_PER_PEER - 5
    while not all(slow.seqs(stream) for stream in held):
        assert slow.read(4096)
    counts = [50 - stream.held for stream in held[5:]]
    assert max(counts) - min(counts) <= 1
    slow.read_all()
    assert [len(slow.seqs(stream)) for stream in streams] == [50] * MAX_STREAMS_PER_PEER


def test_a_stream_without_credit_does_not_hold_up_the_others(rig: Rig) -> None:
    hub = Hub(queue=50, window=2)
    slow = Reader(rig, hub, small=True)
    paused, going = slow.open("reliable"), slow.open()
    fill(paused, 40)
    for _ in range(10):
        fill(going, 20)
        slow.read_all()
    assert (slow.seqs(paused), len(slow.seqs(going))) == ([0, 1], 200)
    hub.acknowledge(slow.peer, paused.id, 1)
    slow.read_all()
    assert slow.seqs(paused) == [0, 1, 2, 3]


def test_a_stream_that_is_stopped_while_it_waits_is_not_sent(rig: Rig) -> None:
    hub = Hub(queue=50, window=4)
    slow = Reader(rig, hub, small=True)
    stopped, going = slow.open(), slow.open()
    fill(stopped, 100)
    fill(going, 20)
    held = stopped.held
    assert held
    hub.stop(slow.peer, stopped.id)
    slow.read_all()
    assert slow.seqs(going) == list(range(20))
    assert len(slow.seqs(stopped)) == 100 - stopped.dropped - held
    assert slow.peer.channel.queued == 0
    assert hub._subscribers[slow.peer].held == 0


def test_bytes_are_bounded_over_all_streams_of_a_connection(rig: Rig) -> None:
    hub = Hub(queue=1000, window=1000)
    slow = Reader(rig, hub, small=True, max_queued_bytes=100_000)
    streams = [slow.open() for _ in range(8)]
    for _ in range(100):
        for stream in streams:
            fill(stream, 1)
    assert hub._subscribers[slow.peer].held <= 100_000
    assert sum(stream.dropped for stream in streams) > 400
    reliable = slow.open("reliable")
    fill(reliable, 1)
    slow.read_all()
    assert slow.ends(reliable) == ["more than max_queued_bytes (100000) waited for the subscriber"]


def test_thirty_two_clients_on_one_stream_do_not_notice_each_other(rig: Rig) -> None:
    hub = Hub(queue=8, window=4)
    topic = Topic(hub, "tick", "lossy")
    readers = [Reader(rig, hub, small=number % 2 == 1) for number in range(32)]
    streams = []
    for reader in readers:
        stream = topic.open(reader.peer, None)
        topic.begin(stream)
        streams.append(stream)
    for number in range(300):
        assert topic.send("x" * 1000 + str(number)) == 32
        for reader in readers[::2]:
            reader.read()
    for reader, stream in zip(readers[::2], streams[::2], strict=True):
        assert reader.seqs(stream) == list(range(300))
        assert stream.dropped == 0
    for stream in streams[1::2]:
        assert stream.held == 8
        assert stream.dropped > 150


# ---- the runner's own


def test_a_topic_says_when_somebody_listens(rig: Rig) -> None:
    hub = Hub(queue=8, window=8)
    active: list[bool] = []
    topic = Topic(hub, "tick", "reliable", on_active=active.append)
    reader = Reader(rig, hub)
    assert topic.send(1) == 0
    one = topic.open(reader.peer, None)
    assert (one.mode, active, topic.send(2)) == ("reliable", [], 0)
    topic.begin(one)
    other = topic.open(reader.peer, "lossy")
    topic.begin(other)
    assert (other.mode, active, topic.send(3), len(topic)) == ("lossy", [True], 2, 2)
    hub.stop(reader.peer, one.id)
    assert active == [True]
    hub.forget(reader.peer)
    assert (active, topic.send(4), len(topic)) == ([True, False], 0, 0)
    reader.read()
    assert [one["params"]["data"] for one in reader.messages] == [3, 3]


def test_a_stream_that_is_over_before_it_begins_gets_nothing(rig: Rig) -> None:
    hub = Hub(queue=8, window=8)
    active: list[bool] = []
    topic = Topic(hub, "tick", "lossy", on_active=active.append)
    reader = Reader(rig, hub)
    stream = topic.open(reader.peer, None)
    hub.forget(reader.peer)
    topic.begin(stream)
    assert (active, topic.send(1)) == ([], 0)


def test_a_topic_that_refuses_opens_nothing(rig: Rig) -> None:
    hub = Hub(queue=8, window=8)
    refusal = RpcError(ErrorCode.PLUGIN_FAILED, "there is no audio")
    topic = Topic(hub, "tick", "lossy", refusal=lambda: refusal)
    with pytest.raises(RpcError, match="there is no audio"):
        topic.open(Reader(rig, hub).peer, None)
    assert len(hub) == 0
