from __future__ import annotations

import json
from itertools import pairwise
from typing import TYPE_CHECKING

from support.rpc_tools import Replies, ask, codes, frame, later
from utter_protocol.errors import RpcError
from utter_protocol.framing import encode_frame
from utter_runner.rpc.channel import READ_SIZE
from utter_runner.rpc.peer import MESSAGES_PER_TURN

if TYPE_CHECKING:
    from support.rpc_tools import Kind, Rig
    from utter_runner.rpc.peer import Peer


async def test_requests_of_this_end_are_bounded(rig: Rig) -> None:
    peer, _, remote = rig.peer(max_in_flight=2)
    replies = Replies()
    first = peer.request("x", b"{}", replies)
    peer.request("x", b"{}", replies)
    refused = peer.request("x", b"{}", replies)
    (_, error), *_ = replies.calls
    assert error is not None
    assert (error.code, error.data) == (-32600, {"bound": "max_in_flight", "limit": 2})
    assert "far: the bound max_in_flight (2)" in error.message
    peer.cancel(refused)
    remote.send({"id": first, "result": 1})
    rig.settle()
    peer.request("x", b"{}", replies)
    assert len(replies.calls) == 2
    assert peer.in_flight == 2


async def test_a_frame_too_large_is_not_sent(rig: Rig) -> None:
    peer, handler, remote = rig.peer(max_frame=1000)
    replies = Replies()
    envelope = len('{"jsonrpc":"2.0","id":1,"method":"x","params":}')
    peer.request("x", b'"' + b"a" * (998 - envelope) + b'"', replies)
    assert len(remote.receive()) == 1
    peer.request("x", b'"' + b"a" * (999 - envelope) + b'"', replies)
    peer.request("x" * 2000, b"{}", replies)
    assert remote.read() == b""
    assert [error.data for _, error in replies.calls if error] == [{"bound": "max_frame", "limit": 1000}] * 2

    envelope = len('{"jsonrpc":"2.0","method":"n","params":}')
    assert peer.notify("n", b'"' + b"a" * (998 - envelope) + b'"')
    assert not peer.notify("n", b'"' + b"a" * (999 - envelope) + b'"')
    assert len(remote.receive()) == 1

    handler.answer = later
    remote.send(ask(1), ask(2), ask("s" * 400), ask(4))
    rig.settle()
    envelope = len('{"jsonrpc":"2.0","id":1,"result":}')
    peer.reply(1, b'"' + b"a" * (998 - envelope) + b'"')
    assert ["result" in answer for answer in remote.receive()] == [True]
    peer.reply(2, b'"' + b"a" * (999 - envelope) + b'"')
    peer.reply("s" * 400, b'"' + b"a" * 600 + b'"')
    peer.reply_error(4, RpcError(-32003, "m" * 5000, {"big": "d" * 5000}))
    answers = remote.receive()
    assert codes(answers) == [(2, -32600), ("s" * 400, -32600), (4, -32003)]
    assert all(answer["error"]["data"] == {"bound": "max_frame", "limit": 1000} for answer in answers)


async def test_a_frame_too_large_is_refused_before_its_body_is_read(rig: Rig, kind: Kind) -> None:
    peer, handler, remote = rig.peer(kind, max_frame=1000)
    remote.write(b"Content-Length: 1001\r\n\r\n")
    rig.settle()
    (answer,) = remote.receive()
    assert answer["id"] is None
    assert answer["error"]["data"] == {"framing": "frame_too_large"}
    assert remote.ended
    assert peer.closed
    assert "max_frame (1000 bytes)" in handler.closed[0]


async def test_a_reader_that_does_not_read_bounds_requests_and_notifications(rig: Rig, kind: Kind) -> None:
    peer, _, remote = rig.peer(kind, max_queued_bytes=100_000)
    replies = Replies()
    params = b'"' + b"p" * 10_000 + b'"'
    while not replies.calls:
        peer.request("x", params, replies)
        assert peer.channel.queued <= 100_000 + 11_000
    assert replies.calls[0][1] is not None
    assert replies.calls[0][1].data == {"bound": "max_queued_bytes", "limit": 100_000}
    assert not peer.notify("n", params)
    sent = peer.in_flight
    while rig.busy or peer.channel.queued:
        remote.read()
        rig.settle()
    assert peer.notify("n", params)
    peer.request("x", params, replies)
    assert peer.in_flight == sent + 1
    assert not peer.closed


async def test_a_reader_that_does_not_read_its_answers_is_left(rig: Rig, kind: Kind) -> None:
    peer, handler, remote = rig.peer(kind, max_queued_bytes=100_000)
    big = b'"' + b"p" * 10_000 + b'"'
    handler.answer = lambda peer, request_id, _method, _params: peer.reply(request_id, big)
    number = 0
    while not peer.closed:
        remote.send(ask(number))
        number += 1
        rig.settle()
        assert peer.channel.queued <= 100_000 + 11_000
    (reason,) = handler.closed
    assert "max_queued_bytes (100000)" in reason
    assert peer.channel.closed


async def test_a_flood_of_nonsense_cannot_fill_the_queue(rig: Rig) -> None:
    peer, _, remote = rig.peer(max_queued_bytes=50_000)
    data = encode_frame(b"[]") * 500
    while not peer.closed:
        remote.write(data)
        rig.settle()
    assert peer.channel.queued == 0


async def test_large_messages_cross_in_both_directions_at_once(rig: Rig, kind: Kind) -> None:
    one, _, two, _ = rig.pair(kind)
    replies = {one: Replies(), two: Replies()}
    texts: dict[Peer, list[list[str]]] = {
        end: [[f"{number} {name} " + "x" * (number * 17_919 % 300_000)] for number in range(40)]
        for end, name in ((one, "one"), (two, "two"))
    }
    for number in range(40):
        for end, collected in replies.items():
            end.request("echo", json.dumps(texts[end][number]).encode(), collected)
    rig.settle()
    assert sum(len(text) for end in texts.values() for (text,) in end) > 10_000_000
    for end, collected in replies.items():
        assert collected.results == texts[end]


async def test_a_turn_handles_a_bounded_number_of_messages(rig: Rig) -> None:
    _, handler, remote = rig.peer()
    remote.send(*({"method": "n"} for _ in range(500)))
    handled = [0]
    while rig.busy:
        rig.reactor.turn()
        handled.append(len(handler.notifications))
    steps = [after - before for before, after in pairwise(handled)]
    assert sum(steps) == 500
    # One share of what was buffered, and one of what was read then.
    assert max(steps) <= 2 * MESSAGES_PER_TURN


async def test_a_flood_on_one_connection_does_not_delay_another(rig: Rig) -> None:
    busy, flooded, flood = rig.peer()
    _, _, calm = rig.peer()
    message = frame('{"jsonrpc":"2.0","method":"n","params":{}}')
    left = message * 10_000
    asked_at, waited = range(20, 2000, 50), []
    turns = 0
    asked: int | None = None
    while left or rig.busy:
        left = left[flood.write(left) :]
        if turns in asked_at and asked is None:
            calm.send(ask(turns))
            asked = turns
        before = len(flooded.notifications)
        rig.reactor.turn()
        turns += 1
        assert len(flooded.notifications) - before <= 2 * MESSAGES_PER_TURN
        assert busy._decoder.buffered <= READ_SIZE + len(message)
        if asked is not None and calm.receive():
            waited.append(turns - asked)
            asked = None
    assert len(flooded.notifications) == 10_000
    assert len(waited) >= 2
    assert max(waited) <= 2
