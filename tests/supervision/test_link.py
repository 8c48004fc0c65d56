"""The door and its keeper without processes: bounds, logging, pauses."""

from __future__ import annotations

import errno
import logging
import os
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from utter_runner.rpc.deadlines import Deadlines
from utter_runner.rpc.endpoint import Endpoint
from utter_runner.rpc.reactor import Reactor
from utter_runner.supervision import link as room
from utter_runner.supervision.link import Door, Doorkeeper, Meeting
from utter_runner.supervision.plugin_socket import Guest
from utter_runner.supervision.spec import PluginSpec, Timing

MockClock = trio.testing.MockClock


@pytest.fixture
async def reactor(nursery: trio.Nursery) -> AsyncIterator[Reactor]:
    made = Reactor()
    nursery.start_soon(made.run)
    yield made
    nursery.cancel_scope.cancel()
    made.close()


@pytest.fixture
async def deadlines(nursery: trio.Nursery) -> Deadlines:
    made = Deadlines()
    nursery.start_soon(made.run)
    return made


@contextmanager
def connected(path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(path))
        connection.settimeout(20)
        yield connection


def pair() -> tuple[socket.socket, socket.socket]:
    return socket.socketpair(socket.AF_UNIX)


async def test_who_cannot_be_looked_at_in_time_is_refused_and_the_looks_are_bounded(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    release = threading.Event()
    looking = threading.Semaphore(0)

    def stuck(_connection: socket.socket, _guest: Guest) -> None:
        looking.release()
        release.wait(60)

    monkeypatch.setattr(room, "refusal", stuck)
    keeper = Doorkeeper("p", 2.0)
    try:
        for _ in range(8):
            ours, theirs = pair()
            with theirs:
                began = trio.current_time()
                assert await keeper.refuses(ours, Guest()) == "it could not be found out in time who it is"
                assert trio.current_time() - began == pytest.approx(2.0)
                assert ours.fileno() == -1
        # The clock does not wait for threads, so this does.
        assert [looking.acquire(timeout=20) for _ in range(4)] == [True] * 4
        assert not looking.acquire(blocking=False)
    finally:
        release.set()
    assert keeper.refused == 8
    assert "could not be found out in time" in caplog.text


async def test_giving_up_a_look_closes_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()
    monkeypatch.setattr(room, "refusal", lambda _connection, _guest: release.wait(60))
    ours, theirs = pair()
    with theirs, trio.move_on_after(0.01) as scope:
        await Doorkeeper("p", 60.0).refuses(ours, Guest())
    release.set()
    assert scope.cancelled_caught
    assert ours.fileno() == -1


async def test_refusals_are_counted_each_and_logged_once_a_minute(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    keeper = Doorkeeper("p", 2.0)
    ours, theirs = pair()
    with ours, theirs:
        for seconds, lines in ((0, 1), (1, 1), (58, 1), (2, 2), (59, 2), (2, 3)):
            await trio.sleep(seconds)
            keeper.note(ours, "because")
            assert caplog.text.count("was refused: because") == lines
    assert keeper.refused == 6
    assert caplog.messages[-1] == f"p: a connection with pid {os.getpid()} was refused: because (6 refused so far)"


async def test_a_door_lets_in_one_and_leaves_or_turns_away_the_others(
    tmp_path: Path, reactor: Reactor, deadlines: Deadlines
) -> None:
    path = tmp_path / "s"
    keeper = Doorkeeper("p", 2.0)
    door = Door(Endpoint(path), keeper, reactor, deadlines)
    try:
        with connected(path) as early, connected(path) as late:
            inside = await door.admit(Guest())
            with inside:
                inside.send(b"welcome")
                assert early.recv(100) == b"welcome"
                # Nothing is done about the other one until somebody says so.
                await trio.testing.wait_all_tasks_blocked()
                assert keeper.refused == 0
                door.shut("it is full")
                door.shut("it is full")
                assert await trio.to_thread.run_sync(late.recv, 100) == b""
                assert keeper.refused == 1
                door.shut(None)
                with connected(path) as patient:
                    await trio.testing.wait_all_tasks_blocked()
                    assert keeper.refused == 1
                    with await door.admit(Guest()) as next_one:
                        next_one.send(b"you")
                        assert patient.recv(100) == b"you"
    finally:
        door.close()
    assert not path.exists()


async def test_a_door_that_pauses_for_want_of_descriptors_does_not_open_again_once_it_is_closed(
    tmp_path: Path, reactor: Reactor, deadlines: Deadlines, monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    tries: list[float] = []

    def accept(_listener: socket.socket) -> Any:
        tries.append(trio.current_time())
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(socket.socket, "accept", accept)
    door = Door(Endpoint(tmp_path / "s"), Doorkeeper("p", 2.0), reactor, deadlines)
    try:
        with connected(tmp_path / "s"):
            door.shut("it is full")
            await trio.sleep(0.5)
            # A listener stays readable: without pauses it would be tried without end.
            assert tries == pytest.approx([0.0, 0.2, 0.4])
            door.shut(None)
            await trio.sleep(0.5)
            assert len(tries) == 3
            door.shut("it is full")
            await trio.testing.wait_all_tasks_blocked()
            assert len(tries) == 4
    finally:
        door.close()
    await trio.sleep(1)
    assert len(tries) == 4


async def test_one_that_listens_is_dialled_with_growing_pauses(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    at: list[float] = []
    ours, theirs = pair()

    def dial(_path: Path) -> socket.socket:
        at.append(trio.current_time())
        if len(at) < 9:
            raise ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")
        return ours

    async def everybody_is_right(_self: Doorkeeper, _connection: socket.socket, _guest: Guest) -> None:
        """Without a thread, which the clock would not wait for."""
        await trio.lowlevel.checkpoint()

    monkeypatch.setattr(room, "_connect", dial)
    monkeypatch.setattr(Doorkeeper, "refuses", everybody_is_right)
    nothing: Any = None
    spec = PluginSpec(id="p", argv=(), transport="listen", socket_path=str(tmp_path / "s"), spawn=False)
    meeting = Meeting(spec, Timing(dial_first=0.01, absent_most=0.5), nothing, nothing)
    troubles: list[str] = []
    with theirs:
        with await meeting.wait(troubles.append) as connection:
            assert connection is ours
        assert {*troubles} == {f"nobody listens on {tmp_path / 's'}"}
        pauses = [later - earlier for earlier, later in pairwise(at)]
        assert pauses == pytest.approx([0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.5, 0.5])
