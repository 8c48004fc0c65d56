"""Whatever happens on a wire, each request is answered once: at both ends of one, and as seen from outside."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any

import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from support.rpc_tools import Answering, Kind, Rig, shut
from utter_protocol.framing import encode_frame

if TYPE_CHECKING:
    from msgspec import Raw

    from utter_protocol.errors import RpcError
    from utter_protocol.messages import RequestId

EXAMPLES = settings(derandomize=True, database=None, deadline=None, max_examples=300)
KINDS: st.SearchStrategy[Kind] = st.sampled_from(["socket", "pipes"])
LIMITS = {"max_in_flight": 5, "max_queued_bytes": 300_000, "max_frame": 200_000, "max_junk": 500}


class Sent:
    """A request and how often it was answered."""

    def __init__(self) -> None:
        self.answers = 0

    def __call__(self, result: Raw | None, error: RpcError | None) -> None:
        assert (result is None) != (error is None)
        self.answers += 1


class BothEnds:
    """Two peers on one wire, both with requests of their own. Its methods are the steps of a scenario."""

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self.rig = Rig()
        self.handlers = (Answering(), Answering())
        self.sent: list[tuple[RequestId, Sent]] = []
        one, _, other, _ = self.rig.pair(kind, self.handlers, **LIMITS)
        self.peers = (one, other)

    def request(self, side: int, fate: str, size: int, timeout: float) -> None:
        sent = Sent()
        params = b'{"p":"%b"}' % (b"p" * size)
        self.sent.append((self.peers[side].request(fate, params, sent, timeout=timeout), sent))

    def answer(self, side: int, index: int, error: int) -> None:
        self.handlers[side].answer_kept(self.peers[side], index, error=bool(error))

    def cancel(self, side: int, index: int) -> None:
        if self.sent:
            self.peers[side].cancel(self.sent[index % len(self.sent)][0])

    def notify(self, side: int, size: int) -> None:
        self.peers[side].notify("n", b'["%b"]' % (b"p" * size))

    def write(self, side: int, data: bytes) -> None:
        self.peers[side].channel.write(data)

    def turn(self, count: int) -> None:
        for _ in range(count):
            self.rig.reactor.turn()

    def settle(self) -> None:
        self.rig.settle()

    def close(self, side: int, flush: int) -> None:
        self.peers[side].close("the scenario says so", flush=bool(flush))

    def end_of_file(self, side: int) -> None:
        self.peers[side].channel.close_writing()

    def half_close(self, side: int) -> None:
        if self.kind == "socket" and not self.peers[side].channel.closed:
            shut(self.peers[side].channel._write_fd)

    def check(self) -> None:
        """What holds at any time."""
        assert all(sent.answers <= 1 for _, sent in self.sent)
        for peer in self.peers:
            assert peer.in_flight <= LIMITS["max_in_flight"]
            assert len(peer._incoming) <= LIMITS["max_in_flight"]
            assert peer.channel.queued <= LIMITS["max_queued_bytes"] + 2 * LIMITS["max_frame"]

    def check_end(self) -> None:
        """What holds when all is over."""
        assert [sent.answers for _, sent in self.sent] == [1] * len(self.sent)
        assert len(self.rig.deadlines) == 0
        for peer, handler in zip(self.peers, self.handlers, strict=True):
            assert len(handler.closed) == 1
            assert not peer._incoming
            assert peer.channel.closed
            assert set(handler.cancelled.values()) <= {1}
        self.rig.close()


FATES = st.sampled_from(["reply", "error", "raise", "twice", "close", "later", "later", "later"])
SIZES = st.sampled_from([0, 0, 0, 10, 60_000, 250_000])
SIDES = st.integers(0, 1)
INDEXES = st.integers(0, 20)
RAW = st.sampled_from(
    [
        encode_frame(b'{"jsonrpc":"2.0","id":9999,"result":1}'),
        encode_frame(b'{"jsonrpc":"2.0","id":1,"result":1,"error":{}}'),
        encode_frame(b'{"jsonrpc":"2.0","id":2,"result":"forged"}'),
        encode_frame(b'{"jsonrpc":"2.0","id":1,"method":"later"}'),
        encode_frame(b'{"jsonrpc":"2.0","method":"$/cancel","params":{"id":1}}'),
        encode_frame(b"nonsense"),
        b"a stray print\n",
        b"Content-Length: x\r\n\r\n",
        b"Content-Length: 100\r\n\r\n{",
        b"j" * 400,
    ]
)
STEPS = st.one_of(
    st.tuples(st.just("request"), SIDES, FATES, SIZES, st.sampled_from([1, 5, 100])),
    st.tuples(st.just("request"), SIDES, FATES, SIZES, st.sampled_from([1, 5, 100])),
    st.tuples(st.just("answer"), SIDES, INDEXES, SIDES),
    st.tuples(st.just("cancel"), SIDES, INDEXES),
    st.tuples(st.just("notify"), SIDES, SIZES),
    st.tuples(st.just("write"), SIDES, RAW),
    st.tuples(st.just("turn"), st.integers(1, 5)),
    st.tuples(st.just("settle")),
    st.tuples(st.just("sleep"), st.sampled_from([0.5, 6, 70])),
    st.tuples(st.just("close"), SIDES, SIDES),
    st.tuples(st.just("end_of_file"), SIDES),
    st.tuples(st.just("half_close"), SIDES),
)


@EXAMPLES
@given(KINDS, st.lists(STEPS, max_size=30))
def test_each_request_is_answered_once_at_both_ends(kind: Kind, steps: list[tuple[Any, ...]]) -> None:
    async def scenario() -> None:
        ends = BothEnds(kind)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ends.rig.deadlines.run)
            for name, *args in steps:
                if name == "sleep":
                    await trio.sleep(*args)
                else:
                    getattr(ends, name)(*args)
                ends.check()
            ends.settle()
            # Nothing takes longer than the longest deadline and a flush.
            await trio.sleep(110)
            ends.settle()
            assert all(sent.answers == 1 for _, sent in ends.sent)
            for peer in ends.peers:
                peer.close("the scenario is over")
            ends.settle()
            nursery.cancel_scope.cancel()
        ends.check_end()

    trio.run(scenario, clock=trio.testing.MockClock(autojump_threshold=0))


class Outside:
    """A peer whose far end is in the test's hand: how often each id was asked with, and how often answered."""

    def __init__(self, kind: Kind) -> None:
        self.rig = Rig()
        self.handler = Answering()
        self.peer, _, self.remote = self.rig.peer(kind, self.handler, max_in_flight=2)
        self.asked: Counter[str] = Counter()
        self.answers: Counter[str] = Counter()

    def ask(self, request_id: int | str, fate: str) -> None:
        self.asked[json.dumps(request_id)] += 1
        self.remote.send({"id": request_id, "method": fate, "params": {}})

    def ask_badly(self, request_id: int | str) -> None:
        self.asked[json.dumps(request_id)] += 1
        self.remote.send({"id": request_id, "method": "reply", "params": 5})

    def cancel(self, request_id: int | str) -> None:
        self.remote.send({"method": "$/cancel", "params": {"id": request_id}})

    def answer(self, index: int, error: int) -> None:
        self.handler.answer_kept(self.peer, index, error=bool(error))

    def answer_twice(self, index: int) -> None:
        if self.handler.kept:
            request_id = self.handler.kept[index % len(self.handler.kept)]
            self.handler.answer_kept(self.peer, index)
            self.peer.reply(request_id, b"2")

    def nonsense(self, body: str) -> None:
        self.asked["null"] += 1
        self.remote.write(encode_frame(body.encode()))

    def junk(self, data: bytes) -> None:
        self.remote.write(data)

    def turn(self, count: int) -> None:
        for _ in range(count):
            self.rig.reactor.turn()

    def read(self) -> None:
        self.answers.update(json.dumps(message["id"]) for message in self.remote.receive())


IDS = st.sampled_from([0, 1, 2, "0", "a", -1])
OUTSIDE = st.one_of(
    st.tuples(st.just("ask"), IDS, FATES.filter(lambda fate: fate != "close")),
    st.tuples(st.just("ask"), IDS, FATES.filter(lambda fate: fate != "close")),
    st.tuples(st.just("ask_badly"), IDS),
    st.tuples(st.just("cancel"), IDS),
    st.tuples(st.just("answer"), INDEXES, SIDES),
    st.tuples(st.just("answer_twice"), INDEXES),
    st.tuples(st.just("nonsense"), st.sampled_from(["[]", "{}", '{"jsonrpc":"2.0","result":1}', "}{"])),
    st.tuples(st.just("junk"), st.sampled_from([b"\n", b"print", b"content-"])),
    st.tuples(st.just("turn"), st.integers(1, 3)),
    st.tuples(st.just("read")),
)


@EXAMPLES
@given(KINDS, st.lists(OUTSIDE, max_size=40), st.booleans())
def test_as_seen_from_outside_each_request_gets_one_answer(
    kind: Kind, steps: list[tuple[Any, ...]], half_close: bool
) -> None:
    async def scenario() -> None:
        await trio.lowlevel.checkpoint()
        wire = Outside(kind)
        ends = half_close and kind == "socket"
        for name, *args in steps:
            getattr(wire, name)(*args)
            assert len(wire.peer._incoming) <= 2
        if ends:
            wire.remote.half_close()
        wire.rig.settle()
        assert wire.peer.closed == (ends and not wire.handler.kept)
        while wire.handler.kept:
            wire.answer(0, 0)
        wire.rig.settle()
        wire.read()
        assert wire.answers == wire.asked
        assert wire.remote.ended == wire.peer.closed == ends
        wire.rig.close()
        assert len(wire.handler.closed) == 1

    trio.run(scenario)
