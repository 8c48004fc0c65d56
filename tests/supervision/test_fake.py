"""The fakes keep the promises of what they stand for."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import pytest
import trio
import trio.testing
from msgspec import Raw

from utter_protocol.errors import ErrorCode, RpcError
from utter_runner.rpc.deadlines import Deadlines
from utter_runner.supervision.fake import FakeInstance, FakeSupervisor
from utter_runner.supervision.instance import Instance
from utter_runner.supervision.supervisor import Supervisor

if TYPE_CHECKING:
    from trio.testing import MockClock


class Replies:
    """A recording on_reply."""

    def __init__(self) -> None:
        self.got: list[tuple[Raw | None, RpcError | None]] = []

    def __call__(self, result: Raw | None, error: RpcError | None) -> None:
        self.got.append((result, error))

    @property
    def codes(self) -> list[int]:
        return [error.code for _, error in self.got if error is not None]


async def settle() -> None:
    await trio.testing.wait_all_tasks_blocked()


@pytest.mark.parametrize(
    ("fake", "real", "names"),
    [
        (FakeInstance, Instance, ["request", "notify", "cancel", "call", "unavailable"]),
        (FakeSupervisor, Supervisor, ["get", "provider", "wait_provider", "missing"]),
    ],
)
def test_signatures_are_the_same(fake: type, real: type, names: list[str]) -> None:
    def parameters(owner: type, name: str) -> list[tuple[str, Any, Any]]:
        given = inspect.signature(getattr(owner, name)).parameters.values()
        return [(one.name, one.kind, one.default) for one in given]

    for name in names:
        assert parameters(fake, name) == parameters(real, name)


async def test_an_answer_comes_later_than_the_request_and_once() -> None:
    plugin, replies = FakeInstance("p", {"x": {"n": 1}}), Replies()
    request_id = plugin.request("x", b'{"a":1}', replies, timeout=5)
    assert (request_id, replies.got) == (1, [])
    await settle()
    plugin.answer(plugin.received[0], {"n": 2})
    plugin.cancel(1)
    plugin.die()
    assert [bytes(result) for result, _ in replies.got] == [b'{"n":1}']
    (request,) = plugin.received
    assert (request.method, request.params, request.cancelled) == ("x", {"a": 1}, False)


async def test_what_cannot_be_sent_is_answered_at_once() -> None:
    plugin, replies = FakeInstance("p"), Replies()
    plugin.die("failed", "it crashed")
    assert plugin.request("x", b"{}", replies, timeout=5) is None
    assert replies.codes == [ErrorCode.PLUGIN_FAILED]
    assert plugin.received == []
    with pytest.raises(RpcError, match="p is failed: it crashed"):
        await plugin.call("x", timeout=5)


async def test_an_answer_that_raises_or_is_an_error_is_one() -> None:
    def refuse(_params: Any) -> Any:
        raise RpcError(-32602, "no")

    plugin = FakeInstance("p", {"raises": refuse, "fails": RpcError(-32603, "no"), "echo": lambda params: params})
    for method, code in (("raises", -32602), ("fails", -32603)):
        with pytest.raises(RpcError) as error:
            await plugin.call(method, timeout=5)
        assert error.value.code == code
    assert bytes(await plugin.call("echo", [1], timeout=5)) == b"[1]"


async def test_a_dead_epoch_answers_for_all_and_ids_begin_anew() -> None:
    plugin, first, second = FakeInstance("p"), Replies(), Replies()
    plugin.request("x", b"{}", first, timeout=5)
    plugin.request("x", b"{}", first, timeout=5)
    plugin.die()
    plugin.start()
    assert first.codes == [ErrorCode.PLUGIN_FAILED] * 2
    assert plugin.request("x", b"{}", second, timeout=5) == 1
    plugin.answer(plugin.received[0], {})
    assert ([one.epoch for one in plugin.received], second.got) == ([1, 1, 2], [])


async def test_time_outs_are_kept_and_capped(autojump_clock: MockClock) -> None:
    deadlines = Deadlines()
    plugin = FakeInstance("p", deadlines=deadlines)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(deadlines.run)
        for asked, seconds in ((0.5, 0.5), (1000.0, 60.0)):
            began = trio.current_time()
            with pytest.raises(RpcError) as error:
                await plugin.call("x", timeout=asked)
            assert trio.current_time() - began == pytest.approx(seconds)
            assert (error.value.code, error.value.data) == (ErrorCode.TIMED_OUT, {"timeout_ms": seconds * 1000})
        nursery.cancel_scope.cancel()
    assert [one.cancelled for one in plugin.received] == [True, True]
    assert len(deadlines) == 0


async def test_a_cancelled_call_cancels_the_request() -> None:
    plugin = FakeInstance("p")
    with trio.move_on_after(0.01) as scope:
        await plugin.call("x", timeout=5)
    assert scope.cancelled_caught
    assert plugin.received[0].cancelled


async def test_a_supervisor_knows_who_provides_what(autojump_clock: MockClock) -> None:
    first = FakeInstance("first", provides=["router.plan@1"])
    second = FakeInstance("second", provides=["router.plan@1"], requires=["tts.speak@1", "router.plan@1"])
    supervisor = FakeSupervisor(first, second)
    assert supervisor.instances == [first, second]
    assert supervisor.provider("router.plan@1") is first
    assert supervisor.provider("tts.speak@1") is None
    assert supervisor.missing(second) == ["tts.speak@1"]
    first.die()
    assert supervisor.provider("router.plan@1") is second
    assert await supervisor.wait_provider("router.plan@1", 1.0) is second
    second.die()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_start_after, first, 3.0)
        assert await supervisor.wait_provider("router.plan@1", 5.0) is first
    first.die()
    for capability, code in (("router.plan@1", ErrorCode.PLUGIN_FAILED), ("tts.speak@1", ErrorCode.CAPABILITY_MISSING)):
        with pytest.raises(RpcError) as error:
            await supervisor.wait_provider(capability, 1.0)
        assert error.value.code == code
    # Nobody knows when somebody else starts it, so nobody waits.
    second.die("failed")
    first.die("waiting", "nobody has connected")
    began = trio.current_time()
    with pytest.raises(RpcError, match="first is waiting: nobody has connected"):
        await supervisor.wait_provider("router.plan@1", 1.0)
    assert trio.current_time() == began
    with pytest.raises(RpcError) as error:
        supervisor.get("nobody")
    assert error.value.data == {"plugin": "nobody", "known": ["first", "second"]}


async def _start_after(instance: FakeInstance, seconds: float) -> None:
    await trio.sleep(seconds)
    instance.start()


def test_notifications_are_kept_while_it_runs_and_takes_them() -> None:
    plugin = FakeInstance("p")
    assert plugin.notify("stream.ack", b'{"seq":1}')
    plugin.takes_notifications = False
    assert not plugin.notify("stream.ack", b'{"seq":2}')
    plugin.takes_notifications = True
    plugin.die()
    assert not plugin.notify("stream.ack", b'{"seq":3}')
    assert plugin.notified == [("stream.ack", {"seq": 1})]


def test_it_says_what_it_offers_as_a_handshake_does() -> None:
    plugin = FakeInstance("p", provides=("context.live@1",), requires=("tts.speak@1",))
    assert plugin.handshake is None
    plugin.describe(methods=["stream.subscribe"], streams=["context.live"], kind="context")
    said = plugin.handshake
    assert said is not None
    assert (said.methods, said.streams, said.kind) == (("stream.subscribe",), ("context.live",), "context")
    assert (plugin.provides, plugin.requires) == (("context.live@1",), ("tts.speak@1",))
