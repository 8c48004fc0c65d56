from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
import trio
import trio.testing

from support.rpc_tools import Replies, ask, codes, echo, later
from utter_protocol.errors import ErrorCode, RpcError

if TYPE_CHECKING:
    from msgspec import Raw
    from trio.testing import MockClock

    from support.rpc_tools import Rig
    from utter_protocol.messages import RequestId
    from utter_runner.rpc.peer import Peer


# ---- time


async def test_a_request_times_out_and_the_other_end_is_told(rig: Rig, autojump_clock: MockClock) -> None:
    peer, _, remote = rig.peer()
    start = trio.current_time()
    timed: list[float] = []
    errors: list[RpcError | None] = []

    def on_reply(result: Raw | None, error: RpcError | None) -> None:
        timed.append(trio.current_time() - start)
        errors.append(error)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(rig.deadlines.run)
        short = peer.request("x", b"{}", on_reply, timeout=0.25)
        capped = peer.request("x", b"{}", on_reply, timeout=9999)
        answered = peer.request("x", b"{}", on_reply, timeout=1)
        remote.send({"id": answered, "result": 1})
        rig.settle()
        await trio.sleep(100)
        nursery.cancel_scope.cancel()
    assert timed == pytest.approx([0, 0.25, 60])
    assert [(error.code, error.data) for error in errors if error] == [
        (-32001, {"timeout_ms": 250}),
        (-32001, {"timeout_ms": 60_000}),
    ]
    cancels = [message["params"] for message in remote.receive() if message["method"] == "$/cancel"]
    assert cancels == [{"id": short}, {"id": capped}]
    remote.send({"id": short, "result": 1})
    rig.settle()
    assert peer.late_replies == 1
    assert len(errors) == 3


async def test_many_answered_requests_leave_no_deadlines(rig: Rig) -> None:
    peer, _, remote = rig.peer()
    replies = Replies()
    for _ in range(200):
        for message in [peer.request("x", b"{}", replies) for _ in range(10)]:
            remote.send({"id": message, "result": 1})
        remote.read()
        rig.settle()
    assert len(replies.results) == 2000
    assert len(rig.deadlines) == 0
    assert len(rig.deadlines._heap) < 600


# ---- cancelling


async def test_cancelling_a_request_tells_the_other_end_and_ends_it(rig: Rig) -> None:
    peer, _, remote = rig.peer()
    replies = Replies()
    request_id = peer.request("x", b"{}", replies)
    peer.cancel(request_id)
    peer.cancel(request_id)
    peer.cancel(12345)
    assert replies.codes == [-32002]
    assert [message["method"] for message in remote.receive()] == ["x", "$/cancel"]
    remote.send({"id": request_id, "result": 1})
    rig.settle()
    assert (len(replies.calls), peer.late_replies) == (1, 1)


async def test_a_cancelled_request_of_the_other_end_is_told_once(rig: Rig) -> None:
    peer, handler, remote = rig.peer()
    handler.answer = later
    remote.send(ask(0), ask("s"))
    rig.settle()
    cancelled: list[str] = []

    def stop(request_id: int | str, name: str) -> None:
        cancelled.append(name)
        peer.reply_error(request_id, RpcError(ErrorCode.CANCELLED, "cancelled"))

    peer.on_cancel(0, partial(stop, 0, "zero"))
    peer.on_cancel("s", lambda: cancelled.append("string"))
    peer.on_cancel(99, lambda: cancelled.append("unknown"))
    cancel = {"method": "$/cancel"}
    remote.send(*(cancel | {"params": {"id": request_id}} for request_id in (0, 0, "s", "s", 99, "0")))
    rig.settle()
    assert cancelled == ["zero", "string"]
    assert codes(remote.receive()) == [(0, -32002)]
    # Cancelled but not answered: it can still be, once.
    peer.reply("s", b"1")
    assert [message["id"] for message in remote.receive()] == ["s"]
    peer.close("over")
    assert cancelled == ["zero", "string"]


async def test_a_cancellation_that_came_first_is_not_lost(rig: Rig) -> None:
    peer, handler, remote = rig.peer()
    handler.answer = later
    remote.send(ask(1), {"method": "$/cancel", "params": {"id": 1}})
    rig.settle()
    cancelled: list[int] = []
    peer.on_cancel(1, lambda: cancelled.append(1))
    assert cancelled == [1]


async def test_nobody_cancels_what_is_answered(rig: Rig) -> None:
    peer, handler, remote = rig.peer()

    def answer(peer: Peer, request_id: RequestId, method: str, params: Raw) -> None:
        peer.on_cancel(request_id, lambda: pytest.fail("cancelled"))
        peer.reply(request_id, b"1")
        peer.on_cancel(request_id, lambda: pytest.fail("cancelled"))

    handler.answer = answer
    remote.send(ask(1), {"method": "$/cancel", "params": {"id": 1}})
    rig.settle()
    peer.close("over")


async def test_a_cancel_callback_that_raises_breaks_nothing(rig: Rig) -> None:
    rig.errors_expected = 2
    peer, handler, remote = rig.peer()
    handler.answer = later
    remote.send(ask(1), ask(2))
    rig.settle()
    peer.on_cancel(1, lambda: 1 / 0)
    peer.on_cancel(2, lambda: 1 / 0)
    handler.answer = echo
    remote.send({"method": "$/cancel", "params": {"id": 1}}, ask(3))
    rig.settle()
    assert [message["id"] for message in remote.receive()] == [3]
    peer.close("over")
    assert handler.closed == ["over"]


@pytest.mark.parametrize("params", [{}, {"id": None}, {"id": 1.5}, {"id": [1]}, [1]])
async def test_a_cancellation_of_nothing_is_ignored(rig: Rig, params: Any) -> None:
    peer, handler, remote = rig.peer()
    remote.send({"method": "$/cancel", "params": params}, {"method": "$/cancel"}, ask(1))
    rig.settle()
    assert [message["id"] for message in remote.receive()] == [1]
    assert handler.notifications == []
    assert not peer.closed


# ---- waiting for an answer


async def test_call_returns_the_result(rpc_loop: Rig) -> None:
    one, _, _, other = rpc_loop.pair()
    results: list[Any] = []

    async def call(params: Any) -> None:
        results.append(msgspec.json.decode(await one.call("echo", params)))

    async with trio.open_nursery() as nursery:
        for number in range(20):
            nursery.start_soon(call, {"n": number})
        nursery.start_soon(call, None)
    assert sorted(results, key=str) == sorted([{"n": number} for number in range(20)] + [{}], key=str)
    other.answer = lambda peer, request_id, _method, _params: peer.reply(request_id, b"null")
    assert bytes(await one.call("null")) == b"null"


async def test_call_raises_the_error(rpc_loop: Rig) -> None:
    one, _, _, other = rpc_loop.pair()

    def refuse(peer: Peer, request_id: RequestId, method: str, params: Raw) -> None:
        raise RpcError(ErrorCode.NOT_PERMITTED, "no")

    other.answer = refuse
    with pytest.raises(RpcError, match=r"no \(-32003\)"):
        await one.call("x")
    one.close("over")
    with pytest.raises(RpcError, match="far is not running") as caught, trio.testing.assert_checkpoints():
        await one.call("x")
    assert caught.value.code == ErrorCode.PLUGIN_FAILED


async def test_a_call_that_is_cancelled_is_cancelled_on_the_other_side(rpc_loop: Rig) -> None:
    one, _, two, other = rpc_loop.pair()
    cancelled = trio.Event()
    arrived = trio.Event()

    def wait(peer: Peer, request_id: RequestId, method: str, params: Raw) -> None:
        peer.on_cancel(request_id, cancelled.set)
        arrived.set()

    other.answer = wait
    async with trio.open_nursery() as nursery:
        nursery.start_soon(one.call, "x")
        await arrived.wait()
        assert one.in_flight == 1
        nursery.cancel_scope.cancel()
    assert (one.in_flight, len(rpc_loop.deadlines)) == (0, 0)
    await cancelled.wait()
    two.reply(other.requests[0][0], b"1")
    other.answer = echo
    await one.call("next")
    assert one.late_replies == 1


async def test_a_call_in_a_cancelled_scope_sends_nothing(rig: Rig) -> None:
    peer, _, remote = rig.peer()
    with trio.CancelScope() as scope:
        scope.cancel()
        await peer.call("x")
    assert scope.cancelled_caught
    assert remote.read() == b""
    assert peer.in_flight == 0


async def test_calls_that_wait_when_the_peer_goes_raise_errors_of_their_own(rpc_loop: Rig) -> None:
    one, _, two, other = rpc_loop.pair()
    other.answer = later
    errors: list[RpcError] = []

    async def call() -> None:
        with pytest.raises(RpcError) as caught:
            await one.call("x")
        errors.append(caught.value)

    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(call)
        await trio.testing.wait_all_tasks_blocked()
        two.close("tired")
    assert [error.code for error in errors] == [-32000] * 3
    assert len(set(map(id, errors))) == 3


async def test_a_call_times_out(rig: Rig, nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    peer, _, _ = rig.peer()
    nursery.start_soon(rig.deadlines.run)
    start = trio.current_time()
    with pytest.raises(RpcError) as caught:
        await peer.call("x", timeout=2)
    assert caught.value.code == ErrorCode.TIMED_OUT
    assert trio.current_time() - start == pytest.approx(2)
