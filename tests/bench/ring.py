"""What the microphone's ring costs, beside a plain copy and beside the same audio in base64: part of dataplane.py.

Rules here: readers are real processes. A reader of the ring waits at its pipe, reads every block out of the ring and
says how far it is in memory that it shares with the bench; a reader of base64 takes `stt.feed` from a socket, and
decodes the frame, the message and the audio. The next block is written when all have the last one, so that every block
wakes every reader, as at the microphone's pace, and none is read together with another. Figures are processor time, not
time that passed: of the writer what it spends inside of `write` (the clock's own cost is taken off), of the readers
everything from their first block on. A block is 10 ms, 160 frames, 640 bytes.
"""

from __future__ import annotations

import base64
import mmap
import os
import socket
import statistics
import subprocess
import sys
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, NamedTuple, Self

from utter_protocol.framing import encode_frame
from utter_protocol.messages import encode, notification_body
from utter_protocol.methods import SttFeedParams
from utter_runner.dataplane.memfd import new_memfd
from utter_runner.dataplane.ring import RingWriter

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

READERS = (0, 1, 8)
BLOCK = 160
BLOCKS_PER_S = 100
RING_SECONDS = 75
_SLOT = 16
"""Bytes that a reader has for how far it is, and for its processor time."""
_TURNS = 10_000
"""After so many turns in vain it is time to see whether somebody is there."""

_COMMON = """
import mmap, os, select, sys, time
number, fd, shared = map(int, sys.argv[1:4])
slot = memoryview(mmap.mmap(shared, 0)).cast("Q")[2 * number : 2 * number + 2]
clock = time.process_time_ns
"""
RING_READER = (
    _COMMON
    + """
from utter_sdk.ring import RingReader
pipe = int(sys.argv[4])
ring = RingReader(fd)
at, start = ring.position, clock()
slot[1] = 1
while os.read(pipe, 4096):
    position = ring.position
    while at < position:
        if len(ring.read(at, 160)) != 640:
            sys.exit("the ring gave something else")
        at += 160
    slot[1] = clock() - start
    slot[0] = at // 160
"""
)
BASE64_READER = (
    _COMMON
    + """
import base64, socket, msgspec
from utter_protocol.framing import FrameDecoder
from utter_protocol.messages import decode_message
from utter_protocol.methods import SttFeedParams
connection = socket.socket(fileno=fd)
frames, decode = FrameDecoder(), msgspec.json.Decoder(SttFeedParams).decode
got, start = 0, clock()
slot[1] = 1
while data := connection.recv(65536):
    frames.receive(data)
    while (body := frames.next_frame()) is not None:
        if len(base64.b64decode(decode(decode_message(body).params).data_b64)) != 640:
            sys.exit("the socket gave something else")
        got += 1
    slot[1] = clock() - start
    slot[0] = got
"""
)


class Readers:
    """So many processes that read every block; a context manager.

    Args:
        program: what each runs, with its number, `fds[n]`, the shared memory, and `pipes[n]` if there are any.
        fds: what each reads from.
        pipes: what wakes each.
    """

    def __init__(self, program: str, fds: list[int], pipes: list[int]) -> None:
        self._stack = ExitStack()
        self._processes: list[subprocess.Popen[bytes]] = []
        shared = new_memfd("utter-bench")
        self._stack.callback(os.close, shared)
        os.ftruncate(shared, max(1, len(fds)) * _SLOT)
        self._slots = memoryview(mmap.mmap(shared, 0)).cast("Q")
        self._last = range(0, 2 * len(fds), 2)
        for number, fd in enumerate(fds):
            own = [fd, shared, *pipes[number : number + 1]]
            argv = [sys.executable, "-c", program, str(number), *map(str, own)]
            self._processes.append(self._stack.enter_context(subprocess.Popen(argv, pass_fds=own)))
        while not all(self._slots[at + 1] for at in self._last):
            self._check()
            time.sleep(0.01)

    def _check(self) -> None:
        if any(process.poll() is not None for process in self._processes):
            raise SystemExit("a reader of the bench has ended")

    def wait(self, blocks: int) -> None:
        """Return when all have read so many blocks, which they do while this process yields."""
        slots, last = self._slots, self._last
        turns = 0
        while any(slots[at] < blocks for at in last):
            os.sched_yield()
            turns += 1
            if turns % _TURNS == 0:
                self._check()

    @property
    def busy(self) -> int:
        """Nanoseconds of processor time of all together."""
        return sum(self._slots[at + 1] for at in self._last)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()


class Way:
    """One way of a block to its readers."""

    def __init__(self, write: Callable[[bytes], object], readers: Readers) -> None:
        self._write = write
        self._readers = readers
        self._written = 0
        self.times: list[int] = []
        """Nanoseconds of the writer's processor time for each block."""

    @property
    def busy(self) -> int:
        """Nanoseconds of the readers' processor time."""
        return self._readers.busy

    def drive(self, blocks: int) -> None:
        """Write so many blocks, each when all have the one before."""
        block, write, wait, times, clock = os.urandom(4 * BLOCK), self._write, self._readers.wait, self.times, _clock
        for number in range(self._written + 1, self._written + blocks + 1):
            start = clock()
            write(block)
            times.append(clock() - start)
            wait(number)
        self._written += blocks


_clock = time.thread_time_ns


def through_ring(count: int, stack: ExitStack) -> Way:
    """Blocks through the ring, to so many readers."""
    ring = RingWriter.create(RING_SECONDS)
    stack.callback(ring.close)
    pipes = [os.pipe2(os.O_CLOEXEC) for _ in range(count)]
    readers = Readers(RING_READER, [ring.fd] * count, [reading for reading, _ in pipes])
    stack.enter_context(readers)
    for reading, writing in pipes:
        os.close(reading)
        os.set_blocking(writing, False)
        ring.attach(writing)
        # Before the readers are waited for, which end with their pipes.
        stack.callback(os.close, writing)
        stack.callback(ring.detach, writing)
    return Way(ring.write, readers)


def through_messages(count: int, stack: ExitStack) -> Way:
    """Blocks in `stt.feed`, encoded once and sent to so many readers."""
    pairs = [socket.socketpair() for _ in range(count)]
    readers = stack.enter_context(Readers(BASE64_READER, [far.fileno() for _, far in pairs], []))
    near = [stack.enter_context(one) for one, _ in pairs]
    for _, far in pairs:
        far.close()
    seq = 0

    def write(block: bytes) -> None:
        nonlocal seq
        params = SttFeedParams(session="5f2c", seq=seq, data_b64=base64.b64encode(block).decode("ascii"))
        frame = encode_frame(notification_body("stt.feed", encode(params)))
        for connection in near:
            connection.sendall(frame)
        seq += 1

    return Way(write, readers)


def copying(stack: ExitStack) -> Way:
    """The floor: a copy into shared memory."""
    memory = memoryview(mmap.mmap(-1, 1 << 20))

    def write(block: bytes) -> None:
        memory[: 4 * BLOCK] = block

    return Way(write, stack.enter_context(Readers("", [], [])))


def waking(stack: ExitStack) -> Way:
    """The other floor: a write to an eventfd that nobody waits at."""
    fd = os.eventfd(0, os.EFD_NONBLOCK)
    stack.callback(os.close, fd)
    one = (1).to_bytes(8, sys.byteorder)
    return Way(lambda _: os.write(fd, one), stack.enter_context(Readers("", [], [])))


class Found(NamedTuple):
    """What one way costs: microseconds of the writer for a block, and the shares of one processor, in per cent."""

    block_us: float
    writer_percent: float
    readers_percent: float


def found(way: Way, clock_ns: float) -> Found:
    """Work out what was measured."""
    seconds = len(way.times) / BLOCKS_PER_S
    busy = sum(way.times) - clock_ns * len(way.times)
    return Found((statistics.median(way.times) - clock_ns) / 1000, busy / seconds / 1e7, way.busy / seconds / 1e7)


def measure(minutes: float, rounds: int) -> dict[str, object]:
    """Run everything; return the part of the report.

    Args:
        minutes: how much audio goes through the ring; a tenth of it goes through messages.
        rounds: how often the ways alternate.
    """
    blocks = round(minutes * 60 * BLOCKS_PER_S / rounds)
    with ExitStack() as stack:
        nothing = stack.enter_context(Readers("", [], []))
        idle = Way(lambda _: None, nothing)
        floors = {"memcpy": copying(stack), "eventfd": waking(stack)}
        ring = {count: through_ring(count, stack) for count in READERS}
        messages = {count: through_messages(count, stack) for count in READERS if count}
        for way in (idle, *floors.values(), *ring.values(), *messages.values()):
            way.drive(BLOCKS_PER_S)
            way.times.clear()
        for _ in range(rounds):
            for way in (idle, *floors.values(), *messages.values()):
                way.drive(blocks // 10)
            for way in ring.values():
                way.drive(blocks)
        clock_ns = statistics.median(idle.times)
        floor = {name: found(way, clock_ns).block_us for name, way in floors.items()}
        report: dict[str, object] = {"minutes": minutes}
        report |= {f"{name}_us": round(value, 2) for name, value in floor.items()}
        base64_of = {count: found(way, clock_ns) for count, way in messages.items()}
        for count, way in ring.items():
            one = found(way, clock_ns)
            part = {f"ring_{name}": round(value, 3) for name, value in one._asdict().items()}
            part["ring_ratio"] = round(one.block_us / (floor["memcpy"] + floor["eventfd"] * count), 1)
            if count:
                other = base64_of[count]
                part |= {f"base64_{name}": round(value, 3) for name, value in other._asdict().items()}
                part["writer_to_base64"] = round(one.writer_percent / other.writer_percent, 2)
                part["readers_to_base64"] = round(one.readers_percent / other.readers_percent, 2)
            report[f"{count} readers"] = part
    return report
