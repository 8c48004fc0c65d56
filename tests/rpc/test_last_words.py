"""What the other side had sent before it went away is read and delivered, whoever notices first that it is gone."""

from __future__ import annotations

import socket
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from support.rpc_tools import Kind, Recorder, Remote, Replies, Rig, ask, frame
from utter_protocol.framing import encode_frame
from utter_runner.rpc.channel import READ_SIZE
from utter_runner.rpc.peer import MESSAGES_PER_TURN

if TYPE_CHECKING:
    from collections.abc import Callable

    from msgspec import Raw

    from utter_protocol.errors import RpcError
    from utter_runner.rpc.peer import Peer

GONE = [-32000]


def write_outside_of_a_turn(rig: Rig, peer: Peer) -> None:
    peer.notify("n")


def write_in_a_turn(rig: Rig, peer: Peer) -> None:
    rig.reactor.again(lambda: peer.notify("n"))


def write_twice(rig: Rig, peer: Peer) -> None:
    peer.notify("n")
    rig.reactor.again(lambda: peer.notify("n"))


def give_end_of_file(rig: Rig, peer: Peer) -> None:
    peer.channel.close_writing()


def write_and_give_end_of_file(rig: Rig, peer: Peer) -> None:
    def both() -> None:
        peer.notify("n")
        peer.channel.close_writing()

    rig.reactor.again(both)


def write_nothing(rig: Rig, peer: Peer) -> None:
    pass


NOTICING = [
    write_outside_of_a_turn,
    write_in_a_turn,
    write_twice,
    give_end_of_file,
    write_and_give_end_of_file,
    write_nothing,
]


def go(remote: Remote) -> None:
    remote.close()


def stop_reading(remote: Remote) -> None:
    """Be gone for whoever writes, and still be there for whoever reads."""
    if remote.read_fd == remote.write_fd:
        with socket.socket(fileno=remote.read_fd) as half:
            half.shutdown(socket.SHUT_RD)
            half.detach()
    else:
        remote.read()
        Remote(remote.read_fd, remote.read_fd).close()
        remote.read_fd = -1


def answers(count: int, padding: int = 0) -> bytes:
    """Answers to the requests 1 to `count`."""
    body = b'{"jsonrpc":"2.0","id":%d,"result":"%b"}'
    return b"".join(encode_frame(body % (number, b"a" * padding)) for number in range(1, count + 1))


@pytest.mark.parametrize("notice", NOTICING)
@pytest.mark.parametrize(("count", "padding"), [(1, 0), (MESSAGES_PER_TURN + 1, 0), (500, 0), (1, 2 * READ_SIZE // 3)])
async def test_answers_that_were_sent_arrive(
    rig: Rig, kind: Kind, notice: Callable[[Rig, Peer], None], count: int, padding: int
) -> None:
    peer, handler, remote = rig.peer(kind)
    answered, unanswered = Replies(), Replies()
    for _ in range(count):
        peer.request("x", b"{}", answered)
    peer.request("x", b"{}", unanswered)
    data = answers(count, padding)
    assert remote.write(data) == len(data)
    go(remote)
    notice(rig, peer)
    rig.settle()
    assert answered.results == ["a" * padding] * count
    assert unanswered.codes == GONE
    assert len(handler.closed) == 1
    assert peer.channel.closed


async def test_they_arrive_while_more_waits_to_be_written_than_was_read(rig: Rig, kind: Kind) -> None:
    peer, _, remote = rig.peer(kind)
    answered, unsent = Replies(), Replies()
    peer.request("x", b"{}", answered)
    peer.request("x", b'"' + b"p" * 3_000_000 + b'"', unsent)
    assert peer.channel.queued
    rig.settle()
    remote.write(answers(1))
    go(remote)
    rig.settle()
    assert answered.results == [""]
    assert unsent.codes == GONE
    assert peer.channel.closed


@pytest.mark.parametrize("notice", [write_outside_of_a_turn, write_in_a_turn])
async def test_they_arrive_while_the_peer_is_behind(rig: Rig, kind: Kind, notice: Callable[[Rig, Peer], None]) -> None:
    """It has taken more than one turn's share of messages, and more still wait in the kernel."""
    peer, handler, remote = rig.peer(kind)
    answered = Replies()
    peer.request("x", b"{}", answered)
    note = frame('{"jsonrpc":"2.0","method":"n"}')
    count = READ_SIZE // len(note)
    assert remote.write(note * count) == len(note) * count
    rig.reactor.turn()
    assert len(handler.notifications) == MESSAGES_PER_TURN
    remote.write(answers(1))
    go(remote)
    notice(rig, peer)
    rig.settle()
    assert len(handler.notifications) == count
    assert answered.results == [""]
    assert len(handler.closed) == 1


async def test_requests_and_notifications_that_were_sent_are_handled(rig: Rig, kind: Kind) -> None:
    peer, handler, remote = rig.peer(kind)
    remote.send(*(ask(number) for number in range(100)), {"method": "last"})
    go(remote)
    peer.notify("n")
    rig.settle()
    assert [request_id for request_id, _, _ in handler.requests] == list(range(100))
    assert handler.notifications == [("last", b"{}")]


async def test_a_frame_that_was_cut_off_is_the_reason(rig: Rig, kind: Kind) -> None:
    peer, handler, remote = rig.peer(kind)
    answered, unanswered = Replies(), Replies()
    peer.request("x", b"{}", answered)
    peer.request("x", b"{}", unanswered)
    remote.write(answers(1) + b"Content-Length: 100\r\n\r\n{")
    go(remote)
    peer.notify("n")
    rig.settle()
    assert answered.results == [""]
    assert unanswered.codes == GONE
    assert handler.closed == ["the stream ended 1 bytes into a body of 100 bytes"]


async def test_who_reads_no_more_but_goes_on_sending_is_heard_up_to_then(rig: Rig, kind: Kind) -> None:
    """Somebody to whom nothing can be said any more does not keep a connection by talking on."""
    peer, handler, remote = rig.peer(kind)
    answered, unanswered = Replies(), Replies()
    for reply in (answered, unanswered):
        peer.request("x", b"{}", reply)
    remote.write(answers(1))
    stop_reading(remote)
    peer.notify("n")
    remote.send({"method": "too late"})
    for _ in range(10):
        rig.settle()
    assert answered.results == [""]
    assert unanswered.codes == GONE
    assert handler.notifications == []
    assert handler.closed == ["the other side closed the connection"]
    assert peer.channel.closed


async def test_with_nothing_left_to_read_the_end_is_noticed_at_once(rig: Rig, kind: Kind) -> None:
    peer, handler, remote = rig.peer(kind)
    stop_reading(remote)
    replies = Replies()
    peer.request("x", b"{}", replies)
    assert replies.codes == GONE
    assert handler.closed == ["the other side closed the connection"]


async def test_between_the_failed_write_and_the_end_requests_are_refused(rig: Rig, kind: Kind) -> None:
    peer, _, remote = rig.peer(kind)
    first, later = Replies(), Replies()
    peer.request("x", b"{}", first)
    remote.write(answers(1))
    go(remote)
    peer.notify("n")
    assert not peer.closed
    peer.request("x", b"{}", later)
    assert not peer.notify("n")
    assert later.codes == GONE
    rig.settle()
    assert first.results == [""]


async def test_finishing_handles_what_was_sent_and_closes(rpc_loop: Rig, kind: Kind) -> None:
    """Somebody else may hold the far end's descriptors, so that no end of file ever comes."""
    peer, handler, remote = rpc_loop.peer(kind)
    answered, unanswered = Replies(), Replies()
    for _ in range(300):
        peer.request("x", b"{}", answered)
    peer.request("x", b"{}", unanswered)
    remote.write(answers(300))
    await peer.finish("the process ended")
    assert answered.results == [""] * 300
    assert unanswered.codes == GONE
    assert handler.closed == ["the process ended"]
    await peer.finish("once more")
    assert len(handler.closed) == 1


async def test_finishing_who_has_closed_its_half_closes(rpc_loop: Rig) -> None:
    peer, handler, remote = rpc_loop.peer()
    handler.answer = lambda *_: None
    remote.send(ask(1))
    remote.half_close()
    await trio.testing.wait_all_tasks_blocked()
    assert not peer.closed
    await peer.finish("the process ended")
    assert handler.closed == ["the process ended"]


# ---- any order


class Parting:
    """A peer with requests in flight, and a far end that answers some of them and goes."""

    def __init__(self, kind: Kind) -> None:
        self.rig = Rig()
        self.handler = Recorder()
        self.peer, _, self.remote = self.rig.peer(kind, self.handler)
        self.replies: Counter[int] = Counter()
        self.results: set[int] = set()
        self.sent: list[int] = []
        self.asked = 0
        self.gone = False

    def _on_reply(self, number: int, result: Raw | None, error: RpcError | None) -> None:
        self.replies[number] += 1
        if error is None:
            assert bytes(result or b"") == b"%d" % number
            self.results.add(number)

    def request(self, size: int) -> None:
        self.asked += 1
        self.peer.request("x", b'"%b"' % (b"p" * size), partial(self._on_reply, self.asked))

    def request_in_turn(self, size: int) -> None:
        self.rig.reactor.again(lambda: self.request(size))

    def answer(self, count: int) -> None:
        """Answer what waits for an answer; whoever finds no room for a whole one goes."""
        waiting = [number for number in range(1, self.asked + 1) if number not in {*self.sent, *self.replies}]
        for number in waiting[:count]:
            body = encode_frame(b'{"jsonrpc":"2.0","id":%d,"result":%d}' % (number, number))
            if self.gone:
                return
            if self.remote.write(body) == len(body):
                self.sent.append(number)
            else:
                self.go()

    def read(self, most: int) -> None:
        if not self.gone:
            self.remote.read(most)

    def turn(self, count: int) -> None:
        for _ in range(count):
            self.rig.reactor.turn()

    def go(self) -> None:
        if not self.gone:
            self.gone = True
            self.remote.close()

    def end_of_file(self) -> None:
        self.peer.channel.close_writing()

    def check(self) -> None:
        self.go()
        self.rig.settle()
        assert set(self.sent) <= self.results
        assert self.replies == Counter(range(1, self.asked + 1))
        assert len(self.handler.closed) == 1
        self.rig.close()


SIZES = st.sampled_from([0, 0, 0, 50_000, 300_000])
STEPS = st.one_of(
    st.tuples(st.just("request"), SIZES),
    st.tuples(st.just("request_in_turn"), SIZES),
    st.tuples(st.just("answer"), st.sampled_from([1, 3, 200])),
    st.tuples(st.just("read"), st.sampled_from([100, 1 << 30])),
    st.tuples(st.just("turn"), st.integers(1, 3)),
    st.tuples(st.just("go")),
    st.tuples(st.just("end_of_file")),
)


@settings(derandomize=True, database=None, deadline=None, max_examples=300)
@given(st.sampled_from(["socket", "pipes"]), st.lists(STEPS, max_size=25))
def test_every_answer_that_was_sent_is_delivered(kind: Kind, steps: list[tuple[Any, ...]]) -> None:
    async def scenario() -> None:
        await trio.lowlevel.checkpoint()
        parting = Parting(kind)
        for name, *args in steps:
            getattr(parting, name)(*args)
        parting.check()

    trio.run(scenario)
