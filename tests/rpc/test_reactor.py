from __future__ import annotations

import os
import socket
from functools import partial
from typing import TYPE_CHECKING

import pytest
import trio

from utter_runner.rpc.reactor import HANGUP, READABLE, WRITABLE, Reactor

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def reactor() -> Iterator[Reactor]:
    reactor = Reactor()
    yield reactor
    reactor.close()


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    near, far = socket.socketpair()
    with near, far:
        yield near, far


Pair = tuple[socket.socket, socket.socket]


def test_a_callback_is_told_what_its_descriptor_is_ready_for(reactor: Reactor, pair: Pair) -> None:
    near, far = pair
    seen: list[int] = []
    reactor.register(near.fileno(), READABLE, seen.append)
    reactor.turn()
    assert seen == []
    far.send(b"x")
    reactor.turn()
    reactor.turn()
    assert seen == [READABLE, READABLE]
    near.recv(1)
    reactor.modify(near.fileno(), READABLE | WRITABLE)
    reactor.turn()
    assert seen[2:] == [WRITABLE]
    reactor.modify(near.fileno(), 0)
    far.close()
    reactor.turn()
    assert seen[3] & HANGUP
    reactor.unregister(near.fileno())
    reactor.turn()
    assert len(seen) == 4


def test_an_exception_of_one_callback_reaches_no_other(
    reactor: Reactor, pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    called: list[str] = []

    def broken(name: str, _events: int = 0) -> None:
        called.append(name)
        raise ValueError(name)

    def deferring() -> None:
        reactor.at_turn_end(partial(broken, "end"))
        reactor.at_turn_end(lambda: called.append("end, too"))

    for end in pair:
        reactor.register(end.fileno(), WRITABLE, partial(broken, "ready"))
    reactor.again(partial(broken, "again"))
    reactor.again(lambda: called.append("again, too"))
    reactor.again(deferring)
    reactor.turn()
    assert called == ["again", "again, too", "ready", "ready", "end", "end, too"]
    assert len(caplog.records) == 4
    reactor.turn()
    assert called[6:] == ["ready", "ready"]


def test_again_is_for_the_next_turn_and_once_however_often_it_is_asked_for(reactor: Reactor) -> None:
    called: list[int] = []

    def work() -> None:
        called.append(len(called))
        reactor.again(work)
        reactor.again(work)

    reactor.again(work)
    reactor.again(work)
    for turns in range(1, 4):
        reactor.turn()
        assert len(called) == turns


def test_the_end_of_a_turn_comes_after_everything_ready_and_once(reactor: Reactor, pair: Pair) -> None:
    order: list[str] = []

    def flush() -> None:
        order.append("flush")

    def ready(name: str, _events: int) -> None:
        order.append(name)
        reactor.at_turn_end(flush)
        reactor.at_turn_end(flush)

    for name, end in zip(("near", "far"), pair, strict=True):
        reactor.register(end.fileno(), WRITABLE, partial(ready, name))
    reactor.turn()
    assert sorted(order[:2]) == ["far", "near"]
    assert order[2:] == ["flush"]


def test_outside_of_a_turn_the_end_is_now(reactor: Reactor) -> None:
    called: list[int] = []
    reactor.at_turn_end(lambda: called.append(1))
    assert called == [1]

    def at_the_end() -> None:
        # The turn is over while its end is worked off.
        reactor.at_turn_end(lambda: called.append(2))
        assert called == [1, 2]

    reactor.again(lambda: reactor.at_turn_end(at_the_end))
    reactor.turn()
    assert called == [1, 2]


def test_one_that_was_unregistered_in_this_turn_is_not_called(reactor: Reactor, pair: Pair) -> None:
    called: list[int] = []

    def ready(fd: int, other: int, _events: int) -> None:
        called.append(fd)
        reactor.unregister(other)

    near, far = (end.fileno() for end in pair)
    reactor.register(near, WRITABLE, partial(ready, near, far))
    reactor.register(far, WRITABLE, partial(ready, far, near))
    reactor.turn()
    assert len(called) == 1


def test_events_of_a_closed_descriptor_do_not_reach_the_next_file_of_that_number(reactor: Reactor) -> None:
    """A hang-up that was polled for the old file would end the new one."""
    ends = [socket.socketpair() for _ in range(2)]
    for _, far in ends:
        far.close()
    called: list[str] = []
    reused: list[int] = []
    kept: list[socket.socket] = []

    def hung_up(mine: int, other: int, _events: int) -> None:
        called.append("old")
        reactor.unregister(ends[other][0].fileno())
        number = ends[other][0].fileno()
        ends[other][0].close()
        new, new_far = socket.socketpair()
        kept.extend((new, new_far))
        assert number in {new.fileno(), new_far.fileno()}
        reused.append(number)
        reactor.register(number, READABLE, lambda _events: called.append("new"))
        reactor.unregister(ends[mine][0].fileno())

    for mine, other in ((0, 1), (1, 0)):
        reactor.register(ends[mine][0].fileno(), READABLE, partial(hung_up, mine, other))
    reactor.turn()
    assert called == ["old"]
    reactor.turn()
    assert called == ["old"]
    # From the next turn on it counts like any other.
    by_number = {end.fileno(): end for end in kept}
    next(end for number, end in by_number.items() if number != reused[0]).send(b"x")
    reactor.turn()
    assert called == ["old", "new"]
    reactor.unregister(reused[0])
    for end in (*kept, *(near for near, _ in ends)):
        end.close()


def test_what_is_registered_before_the_poll_is_called_in_the_same_turn(reactor: Reactor, pair: Pair) -> None:
    called: list[int] = []
    reactor.again(lambda: reactor.register(pair[0].fileno(), WRITABLE, called.append))
    reactor.turn()
    assert called == [WRITABLE]


def test_closing_it_leaves_registered_descriptors_to_their_owners(pair: Pair) -> None:
    reactor = Reactor()
    reactor.register(pair[0].fileno(), READABLE, lambda _events: None)
    reactor.close()
    assert os.fstat(pair[0].fileno())


async def test_it_wakes_up_for_descriptors_and_for_work_asked_for_outside(
    reactor: Reactor, pair: Pair, nursery: trio.Nursery
) -> None:
    near, far = pair
    nursery.start_soon(reactor.run)
    await trio.testing.wait_all_tasks_blocked()
    arrived = trio.Event()

    def ready(_events: int) -> None:
        near.recv(1)
        arrived.set()

    reactor.register(near.fileno(), READABLE, ready)
    far.send(b"x")
    await arrived.wait()
    await trio.testing.wait_all_tasks_blocked()
    asked = trio.Event()
    reactor.again(asked.set)
    await asked.wait()
    nursery.cancel_scope.cancel()


async def test_work_without_end_lets_tasks_and_descriptors_have_their_turn(
    reactor: Reactor, pair: Pair, nursery: trio.Nursery
) -> None:
    near, far = pair
    turns = 0

    def work() -> None:
        nonlocal turns
        turns += 1
        reactor.again(work)

    arrived = trio.Event()

    def ready(_events: int) -> None:
        near.recv(1)
        arrived.set()

    reactor.register(near.fileno(), READABLE, ready)
    reactor.again(work)
    nursery.start_soon(reactor.run)
    for _ in range(10):
        await trio.lowlevel.checkpoint()
    far.send(b"x")
    before = turns
    await arrived.wait()
    assert 0 < turns - before < 5
    nursery.cancel_scope.cancel()
