"""How much a peer may send: the buckets by themselves, and a peer that is read no faster than its bound."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from support.rpc_tools import ask
from utter_protocol.errors import ErrorCode, RpcError
from utter_runner.rpc.rate import BURST_SECONDS, RateLimit

if TYPE_CHECKING:
    from trio.testing import MockClock

    from support.rpc_tools import Kind, Rig


class Clock:
    """A clock that a test moves, and that counts how often it is read."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.read = 0

    def __call__(self) -> float:
        self.read += 1
        return self.now


@settings(derandomize=True, database=None, deadline=None, max_examples=300)
@given(
    rate=st.integers(1, 10_000),
    turns=st.lists(st.tuples(st.integers(0, 64), st.floats(0, 5)), max_size=200),
)
def test_nobody_gets_more_than_the_rate_and_the_burst_and_whoever_waits_is_served(
    rate: int, turns: list[tuple[int, float]]
) -> None:
    clock = Clock()
    limit = RateLimit(rate, 0, clock)
    started, passed = clock.now, 0
    for messages, idle in turns:
        # What was asked for when there was credit is let through, so that one turn may overdraw.
        assert passed <= 2 * rate * BURST_SECONDS + rate * (clock.now - started) + 64 + 1
        passed += messages
        wait = limit.spend(messages, 10**9)
        assert 0 <= wait <= max(64 / rate, 0.001) + 1e-6
        clock.now += wait
        # Having waited once is enough.
        assert limit.spend(0, 0) <= 0.001
        clock.now += idle


def test_within_the_bounds_the_clock_is_not_read() -> None:
    clock = Clock()
    limit = RateLimit(100, 100_000, clock)
    before = clock.read
    for _ in range(199):
        assert limit.spend(1, 1000) == 0.0
    assert clock.read == before
    assert limit.spend(1, 1000) == 0.0
    assert limit.spend(1, 0) == pytest.approx(1 / 100)
    assert limit.spend(0, 50_000) == pytest.approx(0.5)


def test_a_pause_earns_no_more_than_a_burst() -> None:
    clock = Clock()
    limit = RateLimit(10, 0, clock)
    assert limit.spend(20, 0) == 0.0
    assert limit.spend(10, 0) == pytest.approx(1.0)
    clock.now += 10_000
    assert limit.spend(0, 0) == 0.0
    assert limit.spend(20, 0) == 0.0
    assert limit.spend(5, 0) == pytest.approx(0.5)


def test_without_bounds_nobody_waits() -> None:
    clock = Clock()
    limit = RateLimit(0, 0, clock)
    for _ in range(100):
        assert limit.spend(10**9, 10**15) == 0.0


# ---- a peer with a meter


async def test_a_peer_is_read_no_faster_than_its_bound_and_loses_nothing(
    rpc_loop: Rig, kind: Kind, autojump_clock: MockClock
) -> None:
    peer, _, remote = rpc_loop.peer(kind)
    peer.meter = RateLimit(100, 0, trio.current_time)
    started = trio.current_time()
    remote.send(*(ask(number) for number in range(600)))
    answered: list[int] = []
    while len(answered) < 600:
        await trio.testing.wait_all_tasks_blocked()
        answered += [answer["id"] for answer in remote.receive()]
        assert len(answered) <= 100 * (BURST_SECONDS + trio.current_time() - started) + 64
        await trio.sleep(0.05)
    assert answered == [*range(600)]
    assert trio.current_time() - started == pytest.approx(4.0, abs=0.8)
    peer.close("the test is over")


async def test_bytes_count_too_also_those_of_a_frame_that_never_ends(
    rpc_loop: Rig, kind: Kind, autojump_clock: MockClock
) -> None:
    peer, handler, remote = rpc_loop.peer(kind)
    peer.meter = RateLimit(0, 10_000, trio.current_time)
    remote.send(ask(1, pad="x" * 40_000), ask(2))
    await trio.testing.wait_all_tasks_blocked()
    # One read takes in what it takes in; the next waits until that is paid for.
    assert [answer["id"] for answer in remote.receive()] == [1, 2]
    remote.send(ask(3))
    await trio.testing.wait_all_tasks_blocked(0.0001)
    assert remote.receive() == []
    await trio.sleep(3)
    assert [answer["id"] for answer in remote.receive()] == [3]
    assert handler.closed == []
    peer.close("the test is over")


async def test_one_that_leaves_while_it_waits_is_let_go(rpc_loop: Rig, kind: Kind, autojump_clock: MockClock) -> None:
    peer, handler, remote = rpc_loop.peer(kind)
    peer.meter = RateLimit(10, 0, trio.current_time)
    remote.send(*(ask(number) for number in range(64)))
    await trio.testing.wait_all_tasks_blocked()
    remote.close()
    await trio.sleep(100)
    assert peer.closed
    assert len(handler.closed) == 1


async def test_one_that_had_its_share_is_told_the_bound_and_closed(rig: Rig, kind: Kind) -> None:
    class Strict:
        def spend(self, messages: int, size: int) -> float:  # noqa: ARG002 - it is the same for all
            raise RpcError(ErrorCode.INVALID_REQUEST, "enough", {"bound": "b", "limit": 1})

    peer, handler, remote = rig.peer(kind)
    peer.meter = Strict()
    remote.send(ask(1))
    rig.settle()
    first, last = remote.receive()
    assert first["id"] == 1
    assert last == {
        "jsonrpc": "2.0",
        "id": None,
        "error": {"code": ErrorCode.INVALID_REQUEST, "message": "enough", "data": {"bound": "b", "limit": 1}},
    }
    assert handler.closed == ["enough"]
    assert remote.ended
