from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import trio
import trio.testing

from support.rpc_tools import Replies, ask, codes, frame, later
from utter_protocol.errors import ErrorCode, RpcError
from utter_protocol.framing import encode_frame

if TYPE_CHECKING:
    from msgspec import Raw
    from trio.testing import MockClock

    from support.rpc_tools import Kind, Rig
    from utter_protocol.messages import RequestId
    from utter_runner.rpc.peer import Peer


# ---- requests that arrive


async def test_a_request_is_handled_and_answered(rig: Rig, kind: Kind) -> None:
    _, handler, remote = rig.peer(kind)
    remote.write(frame('{"jsonrpc":"2.0","id":1,"method":"a.b","params":{"n": 1.50}}'))
    rig.settle()
    assert handler.requests == [(1, "a.b", b'{"n": 1.50}')]
    # Forwarded bytes stay as they are.
    assert remote.read() == frame('{"jsonrpc":"2.0","id":1,"result":{"n": 1.50}}')


async def test_params_that_were_left_out_are_an_empty_object(rig: Rig) -> None:
    _, handler, remote = rig.peer()
    remote.send({"id": 1, "method": "a"}, {"method": "b"}, {"method": "c", "params": []})
    rig.settle()
    assert handler.requests == [(1, "a", b"{}")]
    assert handler.notifications == [("b", b"{}"), ("c", b"[]")]


async def test_ids_keep_their_type_and_zero_is_one(rig: Rig) -> None:
    peer, handler, remote = rig.peer()
    handler.answer = later
    ids: list[int | str] = [0, "0", -1, "", 2**63 - 1, "\u65e5\u672c", "x" * 1024]
    remote.send(*map(ask, ids))
    rig.settle()
    for request_id in reversed(ids):
        peer.reply(request_id, b"true")
    assert [message["id"] for message in remote.receive()] == ids[::-1]


async def test_answers_may_come_later_and_in_any_order(rig: Rig) -> None:
    peer, handler, remote = rig.peer()
    handler.answer = later
    remote.send(ask(1), ask(2), ask(3))
    rig.settle()
    assert remote.receive() == []
    peer.reply_object(3, {"three": 3})
    peer.reply_error(1, RpcError(ErrorCode.NOT_PERMITTED, "no", {"field": "f"}))
    peer.reply(2, b"null")
    assert remote.receive() == [
        {"jsonrpc": "2.0", "id": 3, "result": {"three": 3}},
        {"jsonrpc": "2.0", "id": 1, "error": {"code": -32003, "message": "no", "data": {"field": "f"}}},
        {"jsonrpc": "2.0", "id": 2, "result": None},
    ]


async def test_only_the_first_answer_counts(rig: Rig) -> None:
    peer, handler, remote = rig.peer()

    def twice(peer: Peer, request_id: RequestId, method: str, params: Raw) -> None:
        peer.reply(request_id, b"1")
        peer.reply(request_id, b"2")
        peer.reply_error(request_id, RpcError(1, "late"))
        raise RpcError(2, "later")

    handler.answer = twice
    remote.send(ask(1))
    rig.settle()
    peer.reply_object(1, 3)
    peer.reply(99, b"4")
    assert remote.receive() == [{"jsonrpc": "2.0", "id": 1, "result": 1}]


async def test_a_handler_that_raises_is_an_answer(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    rig.errors_expected = 1
    _, handler, remote = rig.peer()

    def raising(peer: Peer, request_id: RequestId, method: str, params: Raw) -> None:
        if method == "refuse":
            raise RpcError(ErrorCode.INVALID_PARAMS, "n is missing", {"field": "n"})
        raise KeyError("a secret")

    handler.answer = raising
    remote.send(ask(1, "refuse"), ask(2, "fail"), ask(3, "refuse"))
    rig.settle()
    answers = remote.receive()
    assert codes(answers) == [(1, -32602), (2, -32603), (3, -32602)]
    assert answers[0]["error"]["data"] == {"field": "n"}
    # What went wrong inside is for the log.
    assert answers[1]["error"]["message"] == "internal error: KeyError"
    assert "a secret" in caplog.text


async def test_an_answer_that_is_no_json_is_an_internal_error(rig: Rig) -> None:
    rig.errors_expected = 3
    peer, handler, remote = rig.peer()
    handler.answer = later
    remote.send(ask(1), ask(2), ask(3))
    rig.settle()
    peer.reply_object(1, object())
    peer.reply_error(2, RpcError(1, "m", {"path": "\udcff"}))
    peer.reply_error(3, RpcError(1, "\udcff"))
    assert codes(remote.receive()) == [(1, -32603), (2, -32603), (3, -32603)]


async def test_a_notification_that_fails_has_nobody_to_tell(rig: Rig) -> None:
    rig.errors_expected = 1
    peer, handler, remote = rig.peer()

    class Raising(list[Any]):
        def append(self, item: Any) -> None:
            super().append(item)
            raise RpcError(1, "refused") if len(self) == 1 else ValueError(item)

    handler.notifications = Raising()
    remote.send({"method": "a"}, {"method": "b"}, ask(1))
    rig.settle()
    assert [message["id"] for message in remote.receive()] == [1]
    assert not peer.closed


async def test_an_id_that_is_in_flight_is_refused_and_the_first_is_still_answered(rig: Rig) -> None:
    peer, handler, remote = rig.peer()
    handler.answer = later
    remote.send(ask("a"), ask("a"), ask("b"))
    rig.settle()
    assert [request_id for request_id, _, _ in handler.requests] == ["a", "b"]
    assert codes(remote.receive()) == [("a", -32600)]
    peer.reply("a", b"1")
    assert remote.receive()[0]["result"] == 1
    remote.send(ask("a"))
    rig.settle()
    assert len(handler.requests) == 3


async def test_more_requests_than_max_in_flight_are_refused(rig: Rig) -> None:
    peer, handler, remote = rig.peer(max_in_flight=2)
    handler.answer = later
    remote.send(ask(1), ask(2), ask(3))
    rig.settle()
    (refused,) = remote.receive()
    assert refused["id"] == 3
    assert len(handler.requests) == 2
    assert refused["error"]["data"] == {"bound": "max_in_flight", "limit": 2}
    peer.reply(1, b"1")
    remote.send(ask(3))
    rig.settle()
    assert [request_id for request_id, _, _ in handler.requests] == [1, 2, 3]


async def test_what_is_no_message_is_answered_and_the_connection_lives_on(rig: Rig, kind: Kind) -> None:
    peer, _, remote = rig.peer(kind)
    bodies = ["nonsense", "[]", '{"id":3,"method":"x"}', '{"jsonrpc":"2.0","id":1.5,"method":"x"}', "[" * 5000]
    for body in bodies:
        remote.write(frame(body))
    remote.write(encode_frame(b'{"jsonrpc":"2.0","id":4,"method":"x","params":["\xff"]}'))
    remote.send(ask(5))
    rig.settle()
    answers = remote.receive()
    expected = [(None, -32700), (None, -32600), (3, -32600), (None, -32600), (None, -32700), (None, -32700)]
    assert codes(answers) == expected
    assert answers[-1]["id"] == 5
    assert not peer.closed


# ---- requests of this end


async def test_a_request_is_sent_and_its_answer_handed_over(rig: Rig, kind: Kind) -> None:
    peer, _, remote = rig.peer(kind)
    replies = Replies()
    request_id = peer.request("a.b", b'{"n": 1}', replies)
    assert peer.in_flight == 1
    assert remote.read() == encode_frame(b'{"jsonrpc":"2.0","id":%d,"method":"a.b","params":{"n": 1}}' % request_id)
    remote.send({"id": request_id, "result": {"ok": True}})
    rig.settle()
    assert replies.calls == [({"ok": True}, None)]
    assert (peer.in_flight, len(rig.deadlines)) == (0, 0)


async def test_an_error_is_handed_over_as_it_was_answered(rig: Rig) -> None:
    peer, _, remote = rig.peer()
    replies = Replies()
    remote.send({"id": peer.request("x", b"{}", replies), "error": {"code": 7, "message": "m", "data": {"f": 1}}})
    remote.send({"id": peer.request("x", b"{}", replies), "error": "no object"})
    rig.settle()
    (_, first), (_, second) = replies.calls
    assert first is not None
    assert (first.code, first.message, first.data) == (7, "m", {"f": 1})
    assert second is not None
    assert second.code == ErrorCode.INTERNAL_ERROR


async def test_an_answer_that_is_no_message_ends_its_request_at_once(rig: Rig) -> None:
    peer, _, remote = rig.peer()
    replies = Replies()
    request_id = peer.request("x", b"{}", replies)
    remote.receive()
    remote.send({"id": request_id, "result": 1, "error": {"code": 1, "message": "m"}})
    rig.settle()
    assert replies.codes == [ErrorCode.INTERNAL_ERROR]
    assert "JSON-RPC 2.0" in str(replies.calls[0][1])
    # The other end may have a request of this id in flight: it must not take this for its answer.
    assert codes(remote.receive()) == [(None, -32600)]
    remote.write(encode_frame(b'{"id":%d,"result":1}' % request_id))
    rig.settle()
    assert len(replies.calls) == 1
    assert peer.late_replies == 1
    assert not peer.closed


async def test_late_and_unknown_answers_are_dropped_and_counted(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    peer, _, remote = rig.peer()
    replies = Replies()
    request_id = peer.request("x", b"{}", replies)
    for answer in (request_id, request_id, str(request_id), 999, None):
        remote.send({"id": answer, "result": 1})
    remote.send({"id": None, "error": {"code": -32700, "message": "what you sent is no JSON"}})
    rig.settle()
    assert replies.results == [1]
    assert peer.late_replies == 5
    assert "what you sent is no JSON" in caplog.text
    assert not peer.closed


async def test_a_callback_that_raises_breaks_no_other(rig: Rig, autojump_clock: MockClock) -> None:
    rig.errors_expected = 11
    peer, _, remote = rig.peer(max_in_flight=5)
    replies = Replies()

    def broken(result: Raw | None, error: RpcError | None) -> None:
        replies(result, error)
        raise ValueError("a callback's own fault")

    first, second = (peer.request("x", b"{}", broken) for _ in range(2))
    cancelled = peer.request("x", b"{}", broken)
    remote.send({"id": first, "result": 1}, {"id": second, "error": {"code": 7, "message": "m"}})
    rig.settle()
    peer.cancel(cancelled)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(rig.deadlines.run)
        for _ in range(2):
            peer.request("x", b"{}", broken, timeout=1)
        await trio.sleep(2)
        nursery.cancel_scope.cancel()
    for _ in range(5):
        peer.request("x", b"{}", broken)
    peer.request("x", b"{}", broken)
    peer.close("enough")
    assert replies.results == [1]
    assert replies.codes == [7, -32002, -32001, -32001, -32600] + [-32000] * 5
    assert (peer.in_flight, len(rig.deadlines)) == (0, 0)


async def test_a_callback_may_send_the_next_request(rig: Rig) -> None:
    peer, _, remote = rig.peer()
    replies = Replies()

    def again(result: Raw | None, error: RpcError | None) -> None:
        replies(result, error)
        if len(replies.calls) < 5:
            peer.request("again", b"{}", again)

    peer.request("first", b"{}", again)
    while messages := remote.receive():
        remote.send(*({"id": message["id"], "result": message["method"]} for message in messages))
        rig.settle()
    peer.request("again", b"{}", again)
    assert replies.results == ["first", "again", "again", "again", "again"]
    peer.close("gone")
    assert replies.codes == [-32000]


async def test_notifications_go_out(rig: Rig) -> None:
    peer, _, remote = rig.peer()
    assert peer.notify("a", b'{"n":1}')
    assert peer.notify("b")
    assert remote.receive() == [
        {"jsonrpc": "2.0", "method": "a", "params": {"n": 1}},
        {"jsonrpc": "2.0", "method": "b", "params": {}},
    ]
