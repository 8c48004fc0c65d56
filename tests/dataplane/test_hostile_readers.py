"""Readers of the audio ring that are slow, dead or hostile, in processes of their own: nobody else notices."""

from __future__ import annotations

import array
import json
import os
import signal
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Self

import pytest
import trio

from utter_runner.dataplane.ring import RingReader, RingWriter
from utter_runner.dataplane.wakers import RingWakers
from utter_runner.rpc.reactor import Reactor

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

SCRIPT = Path(__file__).parents[1] / "support" / "ring_reader.py"
CAPACITY = 4000
BLOCK = 100
BLOCKS = 400
AHEAD = 8
"""How many blocks are written before a good reader must have read the first."""
BAD = ("stopped", "slow", "closes", "deaf", "stuffs", "dies", "tampers")
GONE = ("closes", "dies")


class Reader:
    """A process that reads; a context manager that ends it. It is made on a thread beside the loop."""

    def __init__(self, behaviour: str, wakers: RingWakers) -> None:
        self.said: list[str] = []
        ends = trio.from_thread.run_sync(wakers.open_ring)
        self.end = ends.end
        argv = [sys.executable, str(SCRIPT), behaviour, str(ends.ring), str(ends.wake)]
        try:
            self.process = subprocess.Popen(
                argv, pass_fds=(ends.ring, ends.wake), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
        finally:
            os.close(ends.ring)
            os.close(ends.wake)

    def line(self) -> str:
        """The next thing that it says."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline().strip()
        assert line, f"it ended with {self.process.wait()} after {self.said}"
        self.said.append(line)
        return line

    def wait_ready(self) -> None:
        while self.line() != "ready":
            pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            stream.close()
        # A stopped one heeds nothing else.
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


class House:
    """A ring, and whoever reads it."""

    def __init__(self, writer: RingWriter, wakers: RingWakers) -> None:
        self.writer = writer
        self.wakers = wakers

    def write(self, count: int = BLOCK) -> None:
        """Append frames whose sample is their own number."""
        start = self.writer.position
        self.writer.write(array.array("f", range(start, start + count)).tobytes())

    @contextmanager
    def readers(self, *behaviours: str) -> Iterator[list[Reader]]:
        """Processes that have begun to read."""
        with ExitStack() as stack:
            readers = [stack.enter_context(Reader(one, self.wakers)) for one in behaviours]
            for reader in readers:
                reader.wait_ready()
            yield readers

    def feed(self, good: Reader) -> None:
        """Write on, as fast as one reader reads, which must miss nothing."""
        read = 0
        for block in range(1, BLOCKS + 1):
            self.write()
            while block * BLOCK - read > AHEAD * BLOCK:
                read = int(good.line())
        while read < BLOCKS * BLOCK:
            read = int(good.line())


@pytest.fixture
async def house() -> AsyncIterator[House]:
    reactor = Reactor()
    writer = RingWriter.create(seconds=CAPACITY, rate=1)
    wakers = RingWakers(writer, reactor)
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(reactor.run)
            yield House(writer, wakers)
            nursery.cancel_scope.cancel()
    finally:
        wakers.close()
        writer.close()
        reactor.close()


async def until_woken(house: House, count: int) -> None:
    """Until so many readers are left that are woken."""
    with trio.fail_after(60):
        while len(house.wakers) > count:
            await trio.lowlevel.checkpoint()


@pytest.mark.parametrize("bad", [(one,) for one in BAD] + [BAD], ids="+".join)
async def test_a_good_reader_sees_every_frame_whatever_others_do(house: House, bad: tuple[str, ...]) -> None:
    def work() -> None:
        with house.readers("good", *bad) as (good, *others):
            house.feed(good)
            assert good.said[-1] == str(house.writer.position) == str(BLOCKS * BLOCK)
            for reader in others:
                for line in reader.said:
                    if line.startswith("succeeded: "):
                        assert json.loads(line.removeprefix("succeeded: ")) == []
                    else:
                        assert line == "ready"
            # A new one can still come and read what there is.
            with RingReader(house.writer.fd) as reader, house.readers("good"):
                start = reader.oldest
                assert reader.read(start, CAPACITY) == array.array("f", range(start, start + CAPACITY)).tobytes()

    await trio.to_thread.run_sync(work)
    await until_woken(house, 0)
    assert house.writer._wakers == ()


@pytest.mark.parametrize("bad", GONE)
async def test_who_is_gone_costs_nothing_any_more(house: House, bad: str) -> None:
    def work() -> None:
        with house.readers(bad):
            trio.from_thread.run(until_woken, house, 0)
            assert house.writer._wakers == ()
            house.write()

    await trio.to_thread.run_sync(work)


async def test_who_stays_but_does_not_read_costs_one_refused_write(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrote: list[int] = []
    real = os.write

    def counted(fd: int, data: bytes) -> int:
        wrote.append(fd)
        return real(fd, data)

    def work() -> None:
        with house.readers("stopped", "deaf", "stuffs", "tampers"):
            wakers = set(house.writer._wakers)
            # So often that the pipes are full.
            for _ in range(10_000):
                house.write(1)
            monkeypatch.setattr(os, "write", counted)
            house.write(1)
            monkeypatch.undo()
            assert sorted(wrote) == sorted(wakers)
            assert not any(os.get_blocking(fd) for fd in wakers)

    await trio.to_thread.run_sync(work)
    await until_woken(house, 0)


async def test_when_an_epoch_ends_its_reader_is_woken_no_more_even_if_somebody_kept_the_pipe(house: House) -> None:
    def work() -> None:
        with house.readers("deaf") as (reader,):
            assert len(house.wakers) == 1
            trio.from_thread.run_sync(reader.end)
            # Another one gets a descriptor of the same number; the old one's end must not hit it.
            with house.readers("good") as (good,):
                trio.from_thread.run_sync(reader.end)
                assert len(house.wakers) == 1
                house.feed(good)

    await trio.to_thread.run_sync(work)
    await until_woken(house, 0)


def test_a_reader_that_forbids_everybody_to_open_the_ring_does_not_keep_others_out() -> None:
    # For root, nothing is forbidden; for everybody else this is the real thing.
    writer = RingWriter.create(seconds=CAPACITY, rate=1)
    try:
        first = writer.open_again()
        os.fchmod(first, 0)
        os.close(first)
        second = writer.open_again()
        assert os.fstat(second).st_mode & 0o777 == 0o600
        os.close(second)
    finally:
        writer.close()
