from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from support.rpc_tools import Replies, ask, codes, frame, later
from utter_protocol.errors import RpcError

if TYPE_CHECKING:
    from msgspec import Raw

    from support.rpc_tools import Kind, Rig
    from utter_protocol.messages import RequestId, StreamItem
    from utter_runner.rpc.peer import Peer


# ---- the far end goes


async def test_a_bare_connect_and_close_is_harmless(rig: Rig, kind: Kind) -> None:
    peer, handler, remote = rig.peer(kind)
    remote.close()
    rig.settle()
    assert peer.closed
    assert handler.closed == ["end of file"]
    assert handler.requests == handler.junk == []


async def test_a_bare_connect_and_half_close_is_closed_too(rig: Rig, kind: Kind) -> None:
    _, handler, remote = rig.peer(kind)
    remote.half_close()
    rig.settle()
    assert handler.closed == ["end of file"]
    assert remote.read() == b""
    assert remote.ended


async def test_answers_reach_a_client_that_closed_its_sending_half(rig: Rig) -> None:
    peer, handler, remote = rig.peer()
    handler.answer = later
    remote.send(ask(1), ask(2))
    remote.half_close()
    rig.settle()
    assert not peer.closed
    peer.reply(1, b"1")
    rig.settle()
    assert not peer.closed
    assert peer.notify("n")
    peer.reply_error(2, RpcError(1, "m"))
    rig.settle()
    assert [message.get("id", "n") for message in remote.receive()] == [1, "n", 2]
    assert remote.ended
    assert handler.closed == ["end of file"]


async def test_everything_sent_before_a_half_close_is_answered(rig: Rig) -> None:
    _, handler, remote = rig.peer()
    remote.send(*(ask(number) for number in range(500)))
    remote.half_close()
    rig.settle()
    assert [message["id"] for message in remote.receive()] == list(range(500))
    assert remote.ended
    assert len(handler.requests) == 500


async def test_everything_sent_before_a_close_is_handled(rig: Rig, kind: Kind) -> None:
    _, handler, remote = rig.peer(kind)
    remote.send(*({"method": f"n{number}"} for number in range(500)))
    remote.close()
    rig.settle()
    assert [method for method, _ in handler.notifications] == [f"n{number}" for number in range(500)]
    assert handler.closed == ["end of file"]


async def test_who_closed_the_sending_half_will_answer_nothing(rig: Rig) -> None:
    peer, handler, remote = rig.peer()
    handler.answer = later
    replies = Replies()
    peer.request("x", b"{}", replies)
    remote.send(ask(1))
    remote.half_close()
    rig.settle()
    assert replies.codes == [-32000]
    assert not peer.closed
    peer.request("x", b"{}", replies)
    assert replies.codes == [-32000, -32000]
    peer.reply(1, b"1")
    assert [message.get("result") for message in remote.receive()] == [None, 1]


async def test_a_half_closed_client_that_goes_cancels_what_it_asked_for(rig: Rig) -> None:
    peer, handler, remote = rig.peer()
    handler.answer = later
    remote.send(ask(1))
    remote.half_close()
    rig.settle()
    cancelled: list[int] = []
    peer.on_cancel(1, lambda: cancelled.append(1))
    remote.close()
    rig.settle()
    assert cancelled == [1]
    assert handler.closed == ["the other side closed the connection"]
    peer.reply(1, b"1")


async def test_a_handler_may_close_the_peer_and_the_rest_is_not_handled(rig: Rig) -> None:
    _, handler, remote = rig.peer()

    def leave(peer: Peer, request_id: RequestId, method: str, params: Raw) -> None:
        peer.reply(request_id, b"1")
        peer.close("enough", flush=True)

    handler.answer = leave
    remote.send(ask(1), ask(2), {"method": "n"})
    rig.settle()
    assert len(handler.requests) == 1
    assert handler.notifications == []
    assert [message["id"] for message in remote.receive()] == [1]
    assert handler.closed == ["enough"]


# ---- junk and broken framing


async def test_junk_is_reported_and_counted(rig: Rig, kind: Kind) -> None:
    peer, handler, remote = rig.peer(kind)
    remote.write(b"Loading...\n" + frame('{"jsonrpc":"2.0","method":"n"}') + b"\x1b[0m")
    rig.settle()
    remote.write(b"\r\n\r\n \n")
    rig.settle()
    remote.send(ask(1))
    rig.settle()
    assert handler.junk == [b"Loading...\n\x1b[0m"]
    assert peer.junk_bytes == 15
    assert [message["id"] for message in remote.receive()] == [1]


async def test_the_last_words_of_a_program_that_dies_are_reported(rig: Rig, kind: Kind) -> None:
    peer, handler, remote = rig.peer(kind)
    remote.write(b"Traceback: c")
    remote.close()
    rig.settle()
    assert b"".join(handler.junk) == b"Traceback: c"
    assert peer.junk_bytes == 12
    assert handler.closed == ["end of file"]


async def test_a_handler_that_fails_over_junk_breaks_nothing(rig: Rig) -> None:
    rig.errors_expected = 1
    peer, handler, remote = rig.peer()

    class Raising(list[bytes]):
        def append(self, item: bytes) -> None:
            raise ValueError(item)

    handler.junk = Raising()
    remote.write(b"junk" + frame('{"jsonrpc":"2.0","id":1,"method":"x"}'))
    rig.settle()
    assert [message["id"] for message in remote.receive()] == [1]
    assert peer.junk_bytes == 4


async def test_junk_at_the_bound_is_skipped_and_beyond_it_ends_the_peer(rig: Rig, kind: Kind) -> None:
    peer, handler, remote = rig.peer(kind, max_junk=1000)
    remote.write(b"j" * 1000 + frame('{"jsonrpc":"2.0","id":1,"method":"x"}'))
    rig.settle()
    assert len(remote.receive()) == 1
    for _ in range(1000):
        remote.write(b"j")
        rig.settle()
    assert not peer.closed
    remote.write(b"j")
    rig.settle()
    (answer,) = remote.receive()
    assert (answer["id"], answer["error"]["data"]) == (None, {"framing": "junk_too_large"})
    assert remote.ended
    assert handler.closed[0].endswith("stdout is for frames, log to stderr")
    assert peer.junk_bytes == 2000


async def test_junk_before_broken_framing_is_reported_too(rig: Rig, kind: Kind) -> None:
    _, handler, remote = rig.peer(kind)
    remote.write(b"Usage: ...\n" + b"Content-Length: x\r\n\r\n")
    rig.settle()
    assert handler.junk == [b"Usage: ...\n"]
    assert len(handler.closed) == 1


@pytest.mark.parametrize(
    ("broken", "kind_of_error"),
    [(b"Content-Length: -1\r\n\r\n", "bad_length"), (b"\xef\xbb\xbfContent-Length: 2\r\n\r\n{}", "bom")],
)
async def test_broken_framing_is_answered_and_ends_the_peer(
    rig: Rig, kind: Kind, broken: bytes, kind_of_error: str
) -> None:
    peer, handler, remote = rig.peer(kind)
    replies = Replies()
    peer.request("x", b"{}", replies)
    remote.receive()
    handler.answer = later
    remote.send(ask(1))
    remote.write(broken + frame('{"jsonrpc":"2.0","id":2,"method":"x"}'))
    rig.settle()
    assert codes(answers := remote.receive()) == [(None, -32600)]
    assert answers[0]["error"]["data"] == {"framing": kind_of_error}
    assert remote.ended
    assert [request_id for request_id, _, _ in handler.requests] == [1]
    assert handler.closed == [answers[0]["error"]["message"]]
    assert replies.codes == [-32000]
    assert peer.channel.closed


async def test_after_broken_framing_nothing_is_read_while_the_answer_waits(rig: Rig, kind: Kind) -> None:
    peer, handler, remote = rig.peer(kind)
    # More than the kernel takes is queued, so that the peer cannot close yet.
    while not peer.channel.queued:
        peer.notify("n", b'"' + b"x" * 100_000 + b'"')
    remote.write(b"Content-Length: x\r\n\r\n")
    rig.settle()
    assert peer.closed
    assert not peer.channel.closed
    remote.send(ask(1), {"method": "m"})
    rig.settle()
    assert handler.requests == handler.notifications == []
    messages = []
    while not remote.ended:
        messages += remote.receive()
        rig.settle()
    assert codes(messages) == [(None, -32600)]
    assert peer.channel.closed
    assert len(handler.closed) == 1


async def test_an_end_inside_a_frame_is_answered_where_somebody_still_reads(rig: Rig) -> None:
    _, handler, remote = rig.peer()
    handler.answer = later
    remote.send(ask(1))
    remote.write(b"Content-Length: 100\r\n\r\n{")
    remote.half_close()
    rig.settle()
    (answer,) = remote.receive()
    assert answer["error"]["data"] == {"framing": "truncated"}
    assert remote.ended
    assert handler.closed == [answer["error"]["message"]]


async def test_an_end_inside_a_frame_is_the_reason_where_nobody_does(rig: Rig, kind: Kind) -> None:
    _, handler, remote = rig.peer(kind)
    remote.write(b"hm\nContent-Length: 100\r\n\r\n{")
    remote.close()
    rig.settle()
    assert handler.closed == ["the stream ended 1 bytes into a body of 100 bytes"]
    assert handler.junk == [b"hm\n"]


# ---- items of streams


async def test_items_go_to_whoever_takes_them_and_the_rest_to_the_handler(rig: Rig, kind: Kind) -> None:
    peer, handler, remote = rig.peer(kind)
    taken: list[tuple[str, str, int, bytes]] = []

    def take(method: str, one: StreamItem) -> None:
        taken.append((method, one.stream_id, one.seq, bytes(one.data)))

    item = {"method": "tick", "params": {"stream_id": "s", "seq": 0, "data": {"n": 1}}}
    late = {"method": "tick", "params": {"data": "x" * 1000, "seq": 1, "stream_id": "s"}}
    remote.send(item)
    rig.settle()
    peer.on_item = take
    remote.send(item, late, {"method": "other", "params": {}}, {"id": 1, **item})
    rig.settle()
    assert taken == [("tick", "s", 0, b'{"n": 1}')]
    assert [method for method, _ in handler.notifications] == ["tick", "tick", "other"]
    assert [number for number, _, _ in handler.requests] == [1]


async def test_an_item_that_cannot_be_taken_costs_nobody_else(rig: Rig) -> None:
    peer, handler, remote = rig.peer()

    def refuse(_method: str, _one: StreamItem) -> None:
        raise RuntimeError("a defect")

    peer.on_item = refuse
    remote.send({"method": "tick", "params": {"stream_id": "s", "seq": 0, "data": 1}}, ask(1))
    rig.settle()
    assert [one["id"] for one in remote.receive()] == [1]
    assert handler.notifications == []
    rig.errors_expected = 1
