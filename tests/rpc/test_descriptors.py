"""Descriptors that ride on frames: whose they are, in both directions, and that none is left anywhere."""

from __future__ import annotations

import errno
import os
import socket
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.descriptors import content, memfd, no_room
from support.rpc_tools import Recorder, Remote, Rig, ask, codes, echo, frame
from utter_protocol.errors import ErrorCode, RpcError
from utter_runner.rpc import descriptors
from utter_runner.rpc.descriptors import MAX_UNREAD_FDS, Parcel, check_passing

if TYPE_CHECKING:
    from msgspec import Raw

    from support.rpc_tools import Kind
    from utter_protocol.messages import RequestId
    from utter_runner.rpc.peer import Peer

CREATE = '{"jsonrpc":"2.0","id":%d,"method":"take","params":{}}'


class Taker(Recorder):
    """A handler that takes the descriptor of each request `take` and answers with its content."""

    def __init__(self) -> None:
        super().__init__()
        self.taken: list[str | None] = []
        self.answer = self.take

    def take(self, peer: Peer, request_id: RequestId, method: str, params: Raw) -> None:
        if method == "refuse":
            raise RpcError(ErrorCode.INVALID_REQUEST, "a bound", {"bound": "x", "limit": 1})
        if method != "take":
            echo(peer, request_id, method, params)
            return
        fd = peer.take_descriptor()
        self.taken.append(None if fd is None else content(fd).decode())
        peer.reply_object(request_id, self.taken[-1])


def lend(remote: Remote, data: bytes, *contents: str) -> None:
    """Send bytes with a descriptor for each content."""
    fds = [memfd(text.encode()) for text in contents]
    remote.pass_on(data, *fds)
    for fd in fds:
        os.close(fd)


def ending(remote: Remote) -> dict[str, Any]:
    """The error without id that comes last on a connection that ends."""
    last = remote.receive()[-1]
    assert remote.ended
    assert (last["id"], last["error"]["code"]) == (None, ErrorCode.INVALID_REQUEST)
    return dict(last["error"])


# ---- arriving


async def test_a_request_takes_what_rides_on_it(rig: Rig) -> None:
    _, taker, remote = rig.peer(handler=Taker())
    lend(remote, frame(CREATE % 1), "one")
    rig.settle()
    remote.send(ask(2, "other"))
    lend(remote, frame(CREATE % 3), "three")
    lend(remote, frame(CREATE % 4), "four")
    remote.send(ask(5, "other"))
    rig.settle()
    assert taker.taken == ["one", "three", "four"]
    assert [message["id"] for message in remote.receive()] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("size", [1, 2, 3, 7])
async def test_a_frame_in_pieces_keeps_its_descriptor(rig: Rig, size: int) -> None:
    _, taker, remote = rig.peer(handler=Taker())
    for number in range(3):
        data = frame(CREATE % number)
        lend(remote, data[:size], str(number))
        for start in range(size, len(data), size):
            rig.settle()
            remote.write(data[start : start + size])
    rig.settle()
    assert taker.taken == ["0", "1", "2"]


async def test_every_way_to_cut_a_frame_in_two(rig: Rig) -> None:
    _, taker, remote = rig.peer(handler=Taker())
    data = frame(CREATE % 1) + frame(CREATE.replace("take", "other") % 2)
    for cut in range(1, len(frame(CREATE % 1))):
        lend(remote, data[:cut], str(cut))
        rig.settle()
        assert taker.taken == [str(number) for number in range(1, cut)]
        remote.write(data[cut:])
        rig.settle()
    assert not remote.ended


async def test_a_descriptor_may_come_with_a_later_byte_of_its_frame(rig: Rig) -> None:
    _, taker, remote = rig.peer(handler=Taker())
    header, body = frame(CREATE % 1).split(b"\r\n\r\n")
    remote.write(header + b"\r\n\r\n")
    rig.settle()
    lend(remote, body, "late")
    rig.settle()
    assert taker.taken == ["late"]


async def test_without_a_descriptor_there_is_none_to_take(rig: Rig) -> None:
    _, taker, remote = rig.peer(handler=Taker())
    remote.send(ask(1, "take"))
    rig.settle()
    assert taker.taken == [None]
    assert not remote.ended


async def test_what_no_message_announced_ends_the_connection(rig: Rig) -> None:
    peer, taker, remote = rig.peer(handler=Taker())
    lend(remote, frame(CREATE.replace("take", "other") % 1) + frame(CREATE % 2)[:20], "whose?")
    rig.settle()
    # The frame that is incomplete may announce it yet.
    assert not peer.closed
    remote.write(frame(CREATE.replace("take", "other") % 2)[20:])
    rig.settle()
    assert ending(remote)["data"] == {"descriptors": "surplus"}
    assert taker.closed == ["a descriptor arrived that no message announced"]
    assert taker.taken == []


@pytest.mark.parametrize(
    "data",
    [
        frame(CREATE.replace("take", "other") % 1),
        frame('{"jsonrpc":"2.0","method":"note"}'),
        frame("{"),
        b"\n",
        b"print was here\n",
    ],
)
async def test_nothing_but_an_announcement_may_carry_one(rig: Rig, data: bytes) -> None:
    _, _, remote = rig.peer(handler=Taker())
    lend(remote, data, "whose?")
    rig.settle()
    assert ending(remote)["data"] == {"descriptors": "surplus"}


@pytest.mark.parametrize("count", [2, 3, 200])
async def test_more_than_one_end_the_connection(rig: Rig, count: int) -> None:
    _, taker, remote = rig.peer(handler=Taker())
    lend(remote, frame(CREATE % 1), *map(str, range(count)))
    rig.settle()
    assert ending(remote)["data"] == {"descriptors": "too_many", "bound": "max_fds_per_message", "limit": 1}
    assert taker.taken == []


async def test_one_for_which_there_is_no_room_ends_the_connection(rig: Rig) -> None:
    _, taker, remote = rig.peer(handler=Taker())
    lend(remote, frame(CREATE % 1), "lost")
    with no_room():
        rig.settle()
    error = ending(remote)
    assert error["data"] == {"descriptors": "truncated"}
    assert "no room for more open files" in error["message"]
    assert taker.taken == []


async def test_a_request_that_is_refused_for_a_bound_takes_its_descriptor_with_it(rig: Rig) -> None:
    peer, taker, remote = rig.peer(handler=Taker(), max_in_flight=1)
    lend(remote, frame(CREATE.replace("take", "refuse") % 1), "refused")
    rig.settle()
    taker.answer = lambda *_: None
    remote.send(ask(2, "later"))
    lend(remote, frame(CREATE % 2), "an id that is in flight")
    lend(remote, frame(CREATE % 3), "one too many")
    rig.settle()
    assert codes(remote.receive()) == [(1, -32600), (2, -32600), (3, -32600)]
    assert not remote.ended
    taker.answer = taker.take
    peer.reply(2, b"{}")
    lend(remote, frame(CREATE % 4), "still here")
    rig.settle()
    assert taker.taken == ["still here"]


async def test_a_connection_that_ends_leaves_none(rig: Rig) -> None:
    peer, _, remote = rig.peer(handler=Taker())
    lend(remote, frame(CREATE % 1)[:30], "incomplete")
    rig.settle()
    assert peer.descriptors_waiting
    remote.close()
    rig.settle()
    assert peer.closed

    peer, _, remote = rig.peer(handler=Taker())
    lend(remote, frame(CREATE % 1)[:30], "incomplete")
    rig.settle()
    peer.close("enough")


async def test_a_handler_that_closes_the_peer_leaves_none(rig: Rig) -> None:
    peer, taker, remote = rig.peer(handler=Taker())
    taker.answer = lambda peer, *_: peer.close("enough")
    lend(remote, frame(CREATE % 1), "untaken")
    rig.settle()
    assert peer.closed


async def test_pipes_pass_none(rig: Rig) -> None:
    peer, taker, remote = rig.peer("pipes", handler=Taker())
    remote.send(ask(1, "take"))
    rig.settle()
    assert taker.taken == [None]
    with pytest.raises(RpcError) as error:
        check_passing(peer, "fd.pass", 1)
    assert (error.value.code, error.value.data) == (
        ErrorCode.NOT_PERMITTED,
        {"method": "fd.pass", "transport": "stdio"},
    )
    fds = [memfd(b"never sent")]
    peer.channel.write_parcel(b"x", fds, b"")
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(fds[0])


# ---- leaving


class Giver(Recorder):
    """A handler that answers each request with a descriptor whose content is the request's id."""

    def __init__(self) -> None:
        super().__init__()
        self.given: list[int] = []
        self.answer = self.give

    def give(self, peer: Peer, request_id: RequestId, _method: str, params: Raw) -> None:
        fd = memfd(str(request_id).encode())
        self.given.append(fd)
        peer.reply_with(request_id, params, [fd])


def closed(fds: list[int]) -> bool:
    for fd in fds:
        try:
            os.fstat(fd)
        except OSError:
            continue
        return False
    return True


async def test_an_answer_brings_its_descriptor(rig: Rig) -> None:
    _, giver, remote = rig.peer(handler=Giver())
    remote.send(ask(1))
    rig.settle()
    data, fds = remote.take_in()
    assert data == frame('{"jsonrpc":"2.0","id":1,"result":{}}')
    assert [content(fd) for fd in fds] == [b"1"]
    assert closed(giver.given)


async def test_a_second_answer_is_dropped_with_its_descriptor(rig: Rig) -> None:
    peer, giver, remote = rig.peer(handler=Giver())
    remote.send(ask(1))
    rig.settle()
    giver.give(peer, 1, "", b"{}")  # type: ignore[arg-type]  # JSON is JSON
    giver.give(peer, 99, "", b"{}")  # type: ignore[arg-type]  # likewise
    assert closed(giver.given)
    _, fds = remote.take_in()
    assert [content(fd) for fd in fds] == [b"1"]
    assert remote.take_in() == (b"", [])


async def test_each_leaves_with_the_first_byte_of_its_frame_and_in_its_place(rig: Rig) -> None:
    """Others write before and after it, and the kernel takes only a part of what is there."""
    peer, giver, remote = rig.peer(handler=Giver())
    expected: dict[int, bytes] = {}
    position = 0
    filler = frame('{"jsonrpc":"2.0","method":"n","params":{"x":"' + "y" * 50_000 + '"}}')
    for number in range(1, 25):
        peer.channel.write(filler)
        remote.send(ask(number))
        rig.settle()
        position += len(filler)
        expected[position] = str(number).encode()
        position += len(frame(f'{{"jsonrpc":"2.0","id":{number},"result":{{}}}}'))
    assert peer.channel.queued
    assert not closed(giver.given)
    received = 0
    while received < position:
        data, fds = remote.take_in(10_000)
        ends = received + len(data)
        for fd in fds:
            start = next(iter(expected))
            assert received <= start < ends
            assert content(fd) == expected.pop(start)
        received = ends
        rig.settle()
    assert not expected
    assert closed(giver.given)


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    writes=st.lists(st.tuples(st.sampled_from([1, 10, 3_000, 150_000, 400_000]), st.booleans()), max_size=12),
    reads=st.lists(st.sampled_from([1, 100, 5_000, 100_000]), max_size=60),
)
def test_bytes_and_descriptors_keep_their_order(writes: list[tuple[int, bool]], reads: list[int]) -> None:
    rig = Rig()
    try:
        peer, _, remote = rig.peer()
        sent, expected, made = b"", {}, []
        sizes = iter(reads)
        received, position = b"", 0
        for number, (size, carries) in enumerate(writes):
            data = bytes([65 + number]) * size
            if carries:
                expected[len(sent)] = b"%d" % number
                made.append(memfd(b"%d" % number))
                peer.channel.write_parcel(data, [made[-1]], b"instead")
            else:
                peer.channel.write(data)
            sent += data
        while position < len(sent):
            data, fds = remote.take_in(next(sizes, 1 << 16))
            for fd in fds:
                start = next(iter(expected))
                assert position <= start < position + len(data)
                assert content(fd) == expected.pop(start)
            received += data
            position += len(data)
            rig.settle()
        assert received == sent
        assert not expected
        assert closed(made)
        assert peer.channel.queued == 0
    finally:
        rig.close()


async def test_what_is_still_queued_is_closed_with_the_connection(rig: Rig) -> None:
    for end in (
        lambda peer, _remote: peer.close("enough"),
        lambda _peer, remote: remote.close(),
        lambda peer, remote: (peer.close("enough", flush=True), remote.close()),
    ):
        peer, giver, remote = rig.peer(handler=Giver())
        peer.channel.write(b"x" * 3_000_000)
        remote.send(ask(1), ask(2))
        rig.settle()
        assert not closed(giver.given)
        end(peer, remote)
        rig.settle()
        assert peer.closed
        assert closed(giver.given)


async def test_flushing_lets_them_leave(rig: Rig) -> None:
    peer, giver, remote = rig.peer(handler=Giver())
    peer.channel.write(b"x" * 1_000_000)
    remote.send(ask(1))
    rig.settle()
    peer.close("enough", flush=True)
    found: list[bytes] = []
    while not remote.ended:
        _, fds = remote.take_in()
        found += map(content, fds)
        rig.settle()
    assert found == [b"1"]
    assert closed(giver.given)


async def test_a_peer_that_does_not_take_them_in_gets_no_more(rig: Rig) -> None:
    peer, giver, remote = rig.peer(handler=Giver())

    def give(peer: Peer, request_id: RequestId, method: str, params: Raw) -> None:
        check_passing(peer, "fd.pass", 1)
        Giver.give(giver, peer, request_id, method, params)

    giver.answer = give
    remote.send(*map(ask, range(MAX_UNREAD_FDS + 1)))
    rig.settle()
    taken = 0
    messages = b""
    while True:
        data, fds = remote.take_in(100)
        if not data:
            break
        messages += data
        taken += len([content(fd) for fd in fds])
    assert taken == MAX_UNREAD_FDS
    assert b'"bound":"max_unread_fds","limit":%d' % MAX_UNREAD_FDS in messages
    # It has read everything, so there is room again.
    assert peer.channel.unread_descriptors == 0
    remote.send(ask(99))
    rig.settle()
    _, fds = remote.take_in()
    assert [content(fd) for fd in fds] == [b"99"]


class Crowded(socket.socket):
    """A socket of a user who has too many descriptors under way."""

    refusals = 0

    def sendmsg(self, *_arguments: Any) -> int:  # type: ignore[override]  # raises in any case
        Crowded.refusals += 1
        raise OSError(errno.ETOOMANYREFS, "Too many references: cannot splice")


async def test_where_too_many_are_under_way_an_error_takes_the_answers_place(rig: Rig) -> None:
    peer, giver, remote = rig.peer(handler=Giver())
    real = peer.channel._socket
    assert real is not None
    peer.channel._socket = Crowded(fileno=real.detach())
    remote.send(ask(1), ask(2))
    rig.settle()
    messages = remote.receive()
    assert codes(messages) == [(1, ErrorCode.PLUGIN_FAILED), (2, ErrorCode.PLUGIN_FAILED)]
    assert messages[0]["error"]["data"] == {"reason": "ETOOMANYREFS"}
    assert Crowded.refusals == 2
    assert closed(giver.given)
    assert peer.channel.queued == 0


def test_a_parcel_is_its_bytes() -> None:
    parcel = Parcel.of(b"abc", [], b"instead")
    assert (parcel, parcel.instead) == (b"abc", b"instead")
    parcel.close()
    assert parcel.fds == ()


def test_only_unix_sockets_pass_descriptors() -> None:
    reading, writing = os.pipe()
    with socket.socket(socket.AF_INET) as tcp:
        assert descriptors.unix_socket(tcp.fileno()) is None
        assert descriptors.unix_socket(reading) is None
        tcp.getsockname()
    os.close(reading)
    os.close(writing)
    assert descriptors.unix_socket(-1) is None


async def test_both_ends_pass_at_once(rig: Rig, kind: Kind) -> None:
    """Peers on pipes refuse; on a socket both directions work side by side."""
    if kind == "pipes":
        near, _, _, _ = rig.pair(kind)
        assert not near.channel.passes_descriptors
        return
    near, _, far, taker = rig.pair(kind, (Taker(), Taker()))
    assert isinstance(taker, Taker)
    for number in range(20):
        for peer in (near, far):
            fd = memfd(b"%d" % number)
            data = frame(CREATE % (1000 + number))
            peer.channel.write_parcel(data, [fd], b"")
        rig.settle()
    assert taker.taken == [str(number) for number in range(20)]
