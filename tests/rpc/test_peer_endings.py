from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio
import trio.testing

from support.rpc_tools import Replies, ask, frame, later
from utter_protocol.errors import RpcError
from utter_runner.rpc import channel as channel_module
from utter_runner.rpc.peer import FLUSH_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable

    from msgspec import Raw
    from trio.testing import MockClock

    from support.rpc_tools import Kind, Remote, Rig
    from utter_runner.rpc.peer import Peer


def remote_closes(rig: Rig, peer: Peer, remote: Remote) -> None:
    remote.close()


def remote_half_closes(rig: Rig, peer: Peer, remote: Remote) -> None:
    remote.half_close()
    rig.settle()
    # On a socket it may wait for its answers; then it goes.
    remote.close()


def this_end_closes(rig: Rig, peer: Peer, remote: Remote) -> None:
    peer.close("tired")


def this_end_flushes(rig: Rig, peer: Peer, remote: Remote) -> None:
    peer.close("tired", flush=True)


def flushing_is_cut_short(rig: Rig, peer: Peer, remote: Remote) -> None:
    peer.notify("n", b'"' + b"x" * 3_000_000 + b'"')
    peer.close("tired", flush=True)
    assert not peer.channel.closed
    peer.close("very tired")
    assert peer.channel.closed


def framing_breaks(rig: Rig, peer: Peer, remote: Remote) -> None:
    remote.write(b"Content-Length: x\r\n\r\n")


def frame_is_cut_off(rig: Rig, peer: Peer, remote: Remote) -> None:
    remote.write(b"Content-Length: 10\r\n\r\n")
    remote.close()


def junk_is_too_much(rig: Rig, peer: Peer, remote: Remote) -> None:
    for _ in range(3):
        remote.write(b"j" * 30_000)
        rig.settle()


def nobody_reads(rig: Rig, peer: Peer, remote: Remote) -> None:
    peer.channel.write(b"x" * 40_000_000)
    remote.write(frame("[]"))


def blocked_writer_meets_a_close(rig: Rig, peer: Peer, remote: Remote) -> None:
    peer.notify("n", b'"' + b"x" * 3_000_000 + b'"')
    assert peer.channel.queued
    remote.close()


def writer_meets_a_close(rig: Rig, peer: Peer, remote: Remote) -> None:
    remote.close()
    peer.notify("n")


def end_of_file_is_given_first(rig: Rig, peer: Peer, remote: Remote) -> None:
    peer.channel.close_writing()
    remote.close()


def end_of_file_is_given_to_nobody(rig: Rig, peer: Peer, remote: Remote) -> None:
    remote.close()

    def in_a_turn() -> None:
        peer.notify("n")
        peer.channel.close_writing()

    rig.reactor.again(in_a_turn)


ENDINGS = [
    remote_closes,
    remote_half_closes,
    this_end_closes,
    this_end_flushes,
    flushing_is_cut_short,
    framing_breaks,
    frame_is_cut_off,
    junk_is_too_much,
    nobody_reads,
    blocked_writer_meets_a_close,
    writer_meets_a_close,
    end_of_file_is_given_first,
    end_of_file_is_given_to_nobody,
]


@pytest.mark.parametrize("end", ENDINGS)
async def test_every_ending_settles_everything_once(
    rig: Rig, kind: Kind, monkeypatch: pytest.MonkeyPatch, end: Callable[[Rig, Peer, Remote], None]
) -> None:
    peer, handler, remote = rig.peer(kind)
    handler.answer = later
    own = {peer.channel._read_fd, peer.channel._write_fd}
    closed: list[int] = []
    close = channel_module.os.close

    def closing(fd: int) -> None:
        if fd in own:
            closed.append(fd)
        close(fd)

    monkeypatch.setattr(channel_module.os, "close", closing)
    order: list[str] = []
    replies = [Replies() for _ in range(3)]
    for reply in replies:
        peer.request("x", b"{}", reply)
    remote.send(ask(1), ask(2))
    rig.settle()
    peer.on_cancel(1, lambda: order.append("cancelled"))
    on_closed = handler.on_closed

    def note_closed(peer: Peer, reason: str) -> None:
        order.append("closed")
        on_closed(peer, reason)

    handler.on_closed = note_closed
    end(rig, peer, remote)
    rig.settle()
    assert peer.closed
    assert [reply.codes for reply in replies] == [[-32000]] * 3
    assert order == ["cancelled", "closed"]
    assert len(handler.closed) == 1
    assert sorted(closed) == sorted(own)
    assert peer.channel.queued == 0
    assert peer.in_flight == 0
    assert not peer.notify("n")
    late = Replies()
    peer.request("x", b"{}", late)
    assert late.codes == [-32000]
    peer.reply(1, b"1")
    peer.close("again")
    peer.close("again", flush=True)
    rig.settle()
    assert sorted(closed) == sorted(own)
    assert len(handler.closed) == 1


async def test_flushing_waits_at_most_five_seconds(rig: Rig, kind: Kind, autojump_clock: MockClock) -> None:
    peer, handler, _ = rig.peer(kind)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(rig.deadlines.run)
        peer.notify("n", b'"' + b"x" * 3_000_000 + b'"')
        peer.close("tired", flush=True)
        assert handler.closed == ["tired"]
        await trio.sleep(FLUSH_SECONDS - 0.1)
        assert not peer.channel.closed
        await trio.sleep(0.2)
        assert peer.channel.closed
        nursery.cancel_scope.cancel()


async def test_callbacks_of_the_end_see_a_peer_that_is_closed(rig: Rig) -> None:
    peer, handler, remote = rig.peer()
    handler.answer = later
    seen: list[bool] = []
    nested = Replies()

    def on_reply(result: Raw | None, error: RpcError | None) -> None:
        seen.append(peer.closed)
        peer.request("x", b"{}", nested)
        peer.close("once more")

    peer.request("x", b"{}", on_reply)
    remote.send(ask(1))
    rig.settle()
    peer.on_cancel(1, lambda: seen.append(peer.closed))
    peer.close("over")
    assert seen == [True, True]
    assert nested.codes == [-32000]
    assert handler.closed == ["over"]


async def test_callbacks_of_the_end_that_raise_break_nothing(rig: Rig) -> None:
    rig.errors_expected = 3
    peer, handler, remote = rig.peer()
    handler.answer = later
    remote.send(ask(1))
    rig.settle()
    peer.on_cancel(1, lambda: 1 / 0)
    handler.on_closed = lambda *_: 1 / 0
    peer.request("x", b"{}", lambda *_: 1 / 0)
    peer.close("over")
    assert peer.channel.closed
