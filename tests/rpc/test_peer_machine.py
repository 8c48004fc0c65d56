"""A peer over a real wire against a far end that says anything, in pieces of any size, and goes at any moment.

Rules here: the far end's bytes wait in `outbox` until a rule delivers some of them, so that a frame may arrive whole,
in pieces, or never to its end. What each message has to be answered with is known when it is said.
"""

from __future__ import annotations

import json
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
import trio
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from support.hand_loop import HandLoop
from support.rpc_tools import Answering, Kind, Rig
from utter_protocol.errors import RpcError
from utter_protocol.framing import encode_frame
from utter_protocol.nesting import MAX_DEPTH
from utter_runner.rpc.channel import READ_SIZE

if TYPE_CHECKING:
    from msgspec import Raw

MAX_FRAME, MAX_HEADER, MAX_JUNK, MAX_QUEUED, MAX_IN_FLIGHT = 100_000, 1_000, 500, 250_000, 4
LIMITS = {
    "max_frame": MAX_FRAME,
    "max_header": MAX_HEADER,
    "max_junk": MAX_JUNK,
    "max_queued_bytes": MAX_QUEUED,
    "max_in_flight": MAX_IN_FLIGHT,
}

IDS: list[Any] = [0, 1, 2, -1, 2**63 - 1, -(2**63), "", "0", "é", "i" * 1024]
NO_IDS = ["1.5", "true", "[]", "{}", "9223372036854775808", "1e400", json.dumps("i" * 1025)]
FATES = ["reply", "error", "raise", "twice", "later", "later", "later"]


def nested(depth: int) -> str:
    """JSON that nests as deep as said."""
    return "[" * depth + "]" * depth


# Bodies that are answered with an error under a null id; the connection goes on.
NONSENSE = [
    b"",
    b"{",
    b"nonsense",
    b"\xff\xfe",
    b'\xef\xbb\xbf{"jsonrpc":"2.0","id":1,"method":"reply"}',
    b'{"jsonrpc":"2.0","id":1,"method":"reply","params":{"n":NaN}}',
    b'{"jsonrpc":"2.0","id":1,"method":"reply"}{}',
    b"[]",
    b'[{"jsonrpc":"2.0","id":1,"method":"reply"}]',
    b"{}",
    b"null",
    b'{"jsonrpc":"2.0","result":1}',
    b'{"jsonrpc":"2.0","id":null,"method":"reply"}',
    nested(MAX_DEPTH + 1).encode(),
    nested(45_000).encode(),
    b'{"jsonrpc":"2.0","id":1,"method":"reply","params":%b}' % nested(MAX_DEPTH).encode(),
]
# What ends the connection, with one answer under a null id.
BREAKING = [
    b"Content-Length: x\r\n\r\n",
    b"Content-Length: %d\r\n\r\n" % (MAX_FRAME + 1),
    b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n",
    b"Content-Type: text; charset=latin1\r\nContent-Length: 2\r\n\r\n{}",
    b"\xef\xbb\xbfContent-Length: 2\r\n\r\n{}",
    b"Content-Length: 2\r\n" + b"x: y\r\n" * (MAX_HEADER // 6) + b"\r\n{}",
    b"j" * (MAX_JUNK + 1),
]
# What is sent and not answered.
QUIET = [
    encode_frame(b'{"jsonrpc":"2.0","method":"note","params":{}}'),
    encode_frame(b'{"jsonrpc":"2.0","id":99999,"result":"nobody asked"}'),
    encode_frame(b'{"jsonrpc":"2.0","id":null,"error":{"code":1,"message":"m"}}'),
    encode_frame(b'{"jsonrpc":"2.0","method":"$/cancel","params":[]}'),
    b"\r\n \r\n",
    b"a stray print\n",
]

RIPE = 8


class Asked:
    """A request of the peer and how often it was answered."""

    def __init__(self) -> None:
        self.answers = 0

    def __call__(self, result: Raw | None, error: RpcError | None) -> None:
        assert (result is None) != (error is None)
        self.answers += 1


class PeerMachine(RuleBasedStateMachine):
    """The peer, the far end, and what the far end expects."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = HandLoop()
        self.rig = self.loop.do(Rig)
        self.loop.start(self.rig.deadlines.run)
        self.handler = Answering()
        self.outbox = bytearray()
        # What was delivered in whole has to be answered: the end of each message in the stream, and its key.
        self.said = 0
        self.delivered = 0
        self.expected: list[tuple[int, str]] = []
        self.answers: Counter[str] = Counter()
        self.asked: list[Asked] = []
        self.calls: list[trio.CancelScope] = []
        self.calls_over = 0
        self.theirs: list[Any] = []
        self.broken = False
        self.goodbyes = 0
        self.far = "open"

    @initialize(kind=st.sampled_from(["socket", "pipes"]))
    def connect(self, kind: Kind) -> None:
        self.kind = kind
        self.peer, _, self.remote = self.loop.do(lambda: self.rig.peer(kind, self.handler, **LIMITS))

    @property
    def ripe(self) -> bool:
        """Whether enough was said for an end to be worth a look."""
        return len(self.expected) >= RIPE

    # ---- the far end says something

    def say(self, data: bytes, *keys: str) -> None:
        self.outbox += data
        self.said += len(data)
        if not self.broken:
            self.expected += [(self.said, key) for key in keys]

    @rule(request_id=st.sampled_from(IDS), fate=st.sampled_from(FATES), size=st.sampled_from([0, 0, 5, 90_000]))
    def request(self, request_id: Any, fate: str, size: int) -> None:
        """Several may have one id, and more than may be may be in flight."""
        message = {"jsonrpc": "2.0", "id": request_id, "method": fate, "params": {"p": "p" * size}}
        self.say(encode_frame(json.dumps(message, ensure_ascii=False).encode()), json.dumps(request_id))

    @rule(count=st.integers(1, 8))
    def ask_for_much(self, count: int) -> None:
        for number in range(count):
            self.request(number, "reply", 90_000)

    @rule(request_id=st.sampled_from(IDS), flaw=st.sampled_from(['"params":5', '"params":null', '"jsonrpc":"1.0"']))
    def flawed_request(self, request_id: Any, flaw: str) -> None:
        body = f'{{"jsonrpc":"2.0","id":{json.dumps(request_id)},"method":"reply",{flaw}}}'
        self.say(encode_frame(body.encode()), json.dumps(request_id))

    @rule(no_id=st.sampled_from(NO_IDS))
    def request_without_a_right_id(self, no_id: str) -> None:
        self.say(encode_frame(b'{"jsonrpc":"2.0","id":%b,"method":"reply"}' % no_id.encode()), "null")

    @rule(body=st.sampled_from(NONSENSE))
    def nonsense(self, body: bytes) -> None:
        self.say(encode_frame(body), "null")

    @rule(data=st.sampled_from(QUIET))
    def nothing_to_answer(self, data: bytes) -> None:
        self.say(data)

    @rule(request_id=st.sampled_from(IDS))
    def cancel(self, request_id: Any) -> None:
        params = json.dumps({"id": request_id}).encode()
        self.say(encode_frame(b'{"jsonrpc":"2.0","method":"$/cancel","params":%b}' % params))

    @precondition(lambda self: self.theirs)
    @rule(
        index=st.integers(0, 20),
        how=st.sampled_from(['"result":1', '"error":{"code":1,"message":"m"}', '"error":7', '"result":[],"error":{}']),
    )
    def answer_theirs(self, index: int, how: str) -> None:
        body = f'{{"jsonrpc":"2.0","id":{json.dumps(self.theirs[index % len(self.theirs)])},{how}}}'
        # An answer that is none is answered, and never under its own id: that would be an answer to a request of ours.
        self.say(encode_frame(body.encode()), *(["null"] if "[]" in how else []))

    @precondition(lambda self: self.ripe)
    @rule(data=st.sampled_from(BREAKING))
    def break_the_framing(self, data: bytes) -> None:
        # It may be found out before the last byte.
        if not self.broken:
            self.expected.append((self.said, "null"))
        self.say(data)
        self.broken = True

    @rule()
    def exchange(self) -> None:
        self.deliver(1.0)
        self.turn(2)
        self.read()

    @rule(share=st.floats(0, 1))
    def deliver(self, share: float) -> None:
        if self.far == "open":
            size = round(share * len(self.outbox))
            sent = self.remote.write(bytes(self.outbox[:size])) if not self.peer.channel.closed else size
            del self.outbox[:sent]
            self.delivered += sent

    # ---- the far end listens

    @rule()
    def read(self) -> None:
        if self.far != "gone":
            for message in self.remote.receive():
                assert not self.goodbyes
                if "method" not in message:
                    self.answers[json.dumps(message["id"])] += 1
                    self.goodbyes += "framing" in (message.get("error", {}).get("data") or {})
                elif "id" in message:
                    self.theirs.append(message["id"])

    # ---- the near end

    @rule(size=st.sampled_from([0, 0, 10, 80_000, 120_000]), timeout=st.sampled_from([1, 5, 100]))
    def ask(self, size: int, timeout: float) -> None:
        asked = Asked()
        self.asked.append(asked)
        self.loop.do(lambda: self.peer.request("x", b'"%b"' % (b"p" * size), asked, timeout=timeout))

    @rule()
    def call(self) -> None:
        scope = trio.CancelScope()
        self.calls.append(scope)
        self.loop.start(self._call, scope)

    async def _call(self, scope: trio.CancelScope) -> None:
        with scope, suppress(RpcError):
            await self.peer.call("x", timeout=50)
        self.calls_over += 1

    @precondition(lambda self: self.calls)
    @rule(index=st.integers(0, 20))
    def cancel_call(self, index: int) -> None:
        self.loop.do(self.calls[index % len(self.calls)].cancel)
        self.loop.rest()

    @rule(index=st.integers(0, 20), error=st.booleans())
    def answer_later(self, index: int, error: bool) -> None:
        self.loop.do(lambda: self.handler.answer_kept(self.peer, index, error=error))

    @rule(size=st.sampled_from([0, 90_000]))
    def notify(self, size: int) -> None:
        self.loop.do(self.peer.notify, "n", b'["%b"]' % (b"p" * size))

    @rule(count=st.integers(1, 4))
    def turn(self, count: int) -> None:
        def turns() -> None:
            for _ in range(count):
                self.rig.reactor.turn()

        self.loop.do(turns)

    @rule(seconds=st.sampled_from([0.5, 6, 70]))
    def sleep(self, seconds: float) -> None:
        self.loop.sleep(seconds)

    # ---- an end

    @precondition(lambda self: self.ripe and self.far == "open")
    @rule(how=st.sampled_from(["half", "half", "go", "close", "flush"]), share=st.sampled_from([0, 0.3, 1, 1]))
    def end(self, how: str, share: float) -> None:
        self.deliver(share)
        if how == "half" and self.kind == "socket":
            self.far = "half"
            self.remote.half_close()
        elif how in ("half", "go"):
            self.far = "gone"
            self.remote.close()
        else:
            self.close(flush=how == "flush")

    def close(self, *, flush: bool) -> None:
        self.loop.do(lambda: self.peer.close("tired", flush=flush))

    # ---- what holds

    def wanted(self) -> Counter[str]:
        """What has been said to the end, by the key of its answer."""
        return Counter(key for end, key in self.expected if end <= self.delivered)

    @invariant()
    def nothing_grows(self) -> None:
        peer = self.peer
        assert peer.in_flight <= MAX_IN_FLIGHT
        assert len(peer._incoming) <= MAX_IN_FLIGHT
        assert peer.channel.queued <= MAX_QUEUED + MAX_FRAME + 100
        assert peer._decoder.buffered <= MAX_FRAME + MAX_HEADER + READ_SIZE
        assert len(peer._decoder._junk) <= MAX_JUNK
        assert len(self.rig.deadlines) <= MAX_IN_FLIGHT + 1

    @invariant()
    def nothing_is_answered_twice(self) -> None:
        assert all(asked.answers <= 1 for asked in self.asked)
        assert set(self.handler.cancelled.values()) <= {1}
        wanted = self.wanted()
        # The end of the stream inside a frame is answered, too.
        wanted["null"] += self.far == "half"
        assert all(count <= wanted[key] for key, count in self.answers.items()), (self.answers, wanted)

    def teardown(self) -> None:
        try:
            if hasattr(self, "peer"):
                self._finish()
        finally:
            self.loop.do(self.rig.close)
            self.loop.close()

    def _finish(self) -> None:
        closed_before = self.peer.closed
        for _ in range(1000):
            self.deliver(1.0)
            self.turn(1)
            self.read()
            if self.handler.kept:
                self.answer_later(0, error=False)
            elif not self.rig.busy and not (self.far == "open" and self.outbox):
                break
        else:
            raise AssertionError("it does not come to rest")
        if self.far == "gone" or self.broken:
            assert self.peer.closed
        if self.far != "gone" and not closed_before and not self._given_up():
            ended = self.broken or self._cut_off()
            # Where the framing broke, requests in flight have their answer in the end of the connection.
            assert ended or self.answers == self.wanted()
            assert self.goodbyes == ended
            assert self.peer.closed == self.remote.ended == (ended or self.far == "half")
        # Nothing takes longer than the longest deadline, and nobody waits for the far end.
        self.sleep(70)
        self.turn(1)
        self.loop.rest()
        assert [asked.answers for asked in self.asked] == [1] * len(self.asked)
        assert self.calls_over == len(self.calls)
        self.close(flush=False)
        assert len(self.handler.closed) == 1
        assert not self.peer._incoming
        assert self.peer.channel.closed
        assert self.peer.channel.queued == 0
        # The loop has its own task and the deadlines' left, and nobody's deadline.
        assert len(self.loop.nursery.child_tasks) == 1
        assert len(self.rig.deadlines) == 0

    def _given_up(self) -> bool:
        """Whether the peer left a far end that did not read."""
        return any("max_queued_bytes" in reason for reason in self.handler.closed)

    def _cut_off(self) -> bool:
        """Whether the stream ended inside a header or a body."""
        return any("ended" in reason for reason in self.handler.closed)


@pytest.mark.timeout(400)
def test_a_peer_keeps_its_promises_whatever_happens() -> None:
    run_state_machine_as_test(  # type: ignore[no-untyped-call]  # hypothesis has no types here
        PeerMachine,
        settings=settings(
            derandomize=True,
            database=None,
            deadline=None,
            max_examples=80,
            stateful_step_count=60,
            # A step waits for another thread, which a busy machine may let wait for long.
            suppress_health_check=[HealthCheck.too_slow],
        ),
    )
