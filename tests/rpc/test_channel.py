from __future__ import annotations

import errno
import os
import random
import tempfile
from typing import TYPE_CHECKING, Any

import pytest

from utter_runner.rpc import channel as module
from utter_runner.rpc.channel import READ_SIZE, Channel
from utter_runner.rpc.reactor import READABLE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from support.rpc_tools import Kind, Rig


class End:
    """A channel, what it reported, and the far end."""

    def __init__(self, rig: Rig, kind: Kind) -> None:
        read_fd, write_fd, self.remote = rig.wire(kind)
        self.fds = {read_fd, write_fd}
        self.data: list[bytes] = []
        self.ends: list[bool] = []
        self.broken = 0
        self.on_data: Callable[[bytes], None] = self.data.append
        self.channel = Channel(
            rig.reactor,
            read_fd,
            write_fd,
            on_data=self._on_data,
            on_end=self.ends.append,
            on_broken=self._on_broken,
        )

    def _on_data(self, data: bytes) -> None:
        self.on_data(data)

    def _on_broken(self) -> None:
        self.broken += 1

    @property
    def received(self) -> bytes:
        return b"".join(self.data)


@pytest.fixture
def end(rig: Rig, kind: Kind) -> Iterator[End]:
    end = End(rig, kind)
    yield end
    end.channel.close()


@pytest.fixture
def socket_end(rig: Rig) -> Iterator[End]:
    end = End(rig, "socket")
    yield end
    end.channel.close()


@pytest.fixture
def pipe_end(rig: Rig) -> Iterator[End]:
    end = End(rig, "pipes")
    yield end
    end.channel.close()


class Calls:
    """Every `os.write` and `os.close` of channels."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.writes: list[int] = []
        self.closes: list[int] = []
        real_write, real_close = os.write, os.close

        def write(fd: int, data: bytes) -> int:
            self.writes.append(len(data))
            return real_write(fd, data)

        def close(fd: int) -> None:
            self.closes.append(fd)
            real_close(fd)

        monkeypatch.setattr(module.os, "write", write)
        monkeypatch.setattr(module.os, "close", close)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    return Calls(monkeypatch)


# ---- reading


def test_what_arrives_is_handed_over(rig: Rig, end: End) -> None:
    end.remote.write(b"hello ")
    rig.settle()
    end.remote.write(b"world")
    rig.settle()
    assert end.data == [b"hello ", b"world"]
    assert end.ends == []


def test_a_turn_reads_at_most_64_kib(rig: Rig, end: End) -> None:
    left = 4 * READ_SIZE
    turns = 0
    while left or rig.busy:
        left -= end.remote.write(b"x" * left)
        rig.reactor.turn()
        turns += 1
        assert len(end.data) <= turns
    assert max(map(len, end.data)) == READ_SIZE
    assert len(end.received) == 4 * READ_SIZE


def test_a_paused_channel_reads_nothing_and_goes_on_where_it_was(rig: Rig, end: End) -> None:
    end.channel.pause(paused=True)
    end.channel.pause(paused=True)
    end.remote.write(b"hello")
    assert rig.settle() == 0
    end.channel.pause(paused=False)
    rig.settle()
    assert end.received == b"hello"


def test_a_hang_up_while_paused_is_met_after_what_was_unread(rig: Rig, end: End) -> None:
    end.channel.pause(paused=True)
    end.remote.write(b"last words")
    end.remote.close()
    rig.settle()
    assert end.ends == []
    end.channel.pause(paused=False)
    rig.settle()
    assert end.received == b"last words"
    assert end.ends == [True]


def test_pausing_within_a_turn_counts_for_events_already_polled(rig: Rig) -> None:
    ends = [End(rig, "socket"), End(rig, "socket")]
    for mine, other in (ends, reversed(ends)):

        def pause_other(data: bytes, mine: End = mine, other: End = other) -> None:
            mine.data.append(data)
            other.channel.pause(paused=True)

        mine.on_data = pause_other
        mine.remote.write(b"x")
    rig.settle()
    assert sorted(len(end.data) for end in ends) == [0, 1]
    for end in ends:
        end.channel.close()


def test_the_end_is_reported_once_and_never_spins(rig: Rig, end: End) -> None:
    end.remote.write(b"bye")
    end.remote.close()
    rig.settle()
    assert end.data == [b"bye"]
    assert end.ends == [True]
    end.channel.pause(paused=True)
    end.channel.pause(paused=False)
    rig.settle()
    assert end.ends == [True]


def test_a_half_close_leaves_the_other_half_open(rig: Rig, socket_end: End) -> None:
    socket_end.remote.half_close()
    rig.settle()
    assert socket_end.ends == [False]
    assert socket_end.broken == 0
    socket_end.channel.write(b"still here")
    assert socket_end.remote.read() == b"still here"


def test_a_hang_up_after_a_half_close_breaks_the_channel(rig: Rig, socket_end: End) -> None:
    socket_end.remote.half_close()
    rig.settle()
    socket_end.remote.close()
    rig.settle()
    assert socket_end.ends == [False]
    assert socket_end.broken == 1


def test_nothing_blocks_and_readiness_for_nothing_is_harmless(rig: Rig, end: End) -> None:
    assert not any(map(os.get_blocking, end.fds))
    end.channel._ready(READABLE)
    assert end.data == []
    assert end.ends == []


def test_a_reset_is_the_end(rig: Rig, socket_end: End) -> None:
    socket_end.channel.write(b"never read")
    socket_end.remote.close()
    rig.settle()
    assert socket_end.ends == [True]


def test_data_may_close_the_channel(rig: Rig, end: End) -> None:
    end.on_data = lambda _data: end.channel.close()
    end.remote.write(b"x")
    end.remote.half_close()
    rig.settle()
    assert end.channel.closed
    assert end.ends == []


# ---- writing


def test_outside_of_a_turn_bytes_leave_at_once(rig: Rig, end: End) -> None:
    end.channel.write(b"now")
    assert end.remote.read() == b"now"
    assert end.channel.queued == 0


def test_what_is_written_in_one_turn_leaves_in_one_system_call(rig: Rig, end: End, calls: Calls) -> None:
    def write(_data: bytes) -> None:
        for number in range(10):
            end.channel.write(b"%d," % number)
        assert end.channel.queued == 20
        assert calls.writes == []

    end.on_data = write
    end.remote.write(b"go")
    calls.writes.clear()
    rig.settle()
    assert calls.writes == [20]
    assert end.remote.read() == b"0,1,2,3,4,5,6,7,8,9,"
    assert end.channel.queued == 0


def test_what_the_kernel_refuses_waits_for_it(rig: Rig, end: End) -> None:
    data = random.Random(1).randbytes(3_000_000)
    end.channel.write(data)
    end.channel.write(b"tail")
    assert 0 < end.channel.queued < len(data) + 4
    assert rig.settle() == 0
    received = b""
    while end.channel.queued or rig.busy:
        received += end.remote.read(100_000)
        rig.settle()
    received += end.remote.read()
    assert received == data + b"tail"


def test_both_directions_at_once_with_partial_writes(rig: Rig, end: End) -> None:
    out, back = random.Random(2).randbytes(2_500_000), random.Random(3).randbytes(2_500_000)
    pieces = random.Random(4)
    position = 0
    while position < len(out):
        size = pieces.choice([1, 100, 5_000, 70_000, 400_000])
        end.channel.write(out[position : position + size])
        position += size
    returned, sent = b"", 0
    while len(returned) < len(out) or sent < len(back):
        sent += end.remote.write(back[sent : sent + pieces.randrange(1, 100_000)])
        returned += end.remote.read(pieces.randrange(1, 100_000))
        for _ in range(3):
            rig.reactor.turn()
    rig.settle()
    assert returned == out
    assert end.received == back
    assert end.channel.queued == 0


def test_a_long_queue_is_not_joined_again_and_again(rig: Rig, end: End, monkeypatch: pytest.MonkeyPatch) -> None:
    joined = 0
    next_chunk = Channel._next_chunk

    def counting(channel: Channel) -> bytes | memoryview:
        nonlocal joined
        chunk = next_chunk(channel)
        if isinstance(chunk, bytes):
            assert len(chunk) <= module._JOIN_SIZE
            joined += len(chunk)
        return chunk

    monkeypatch.setattr(Channel, "_next_chunk", counting)
    total = 20_000 * 100
    for _ in range(20_000):
        end.channel.write(b"m" * 100)
    left = total
    while left:
        got = len(end.remote.read(4096))
        left -= got
        rig.settle()
    assert joined <= 2 * total


def test_it_says_when_nothing_is_queued_any_more(rig: Rig, end: End) -> None:
    drained = 0

    def on_drained() -> None:
        nonlocal drained
        drained += 1

    end.channel.on_drained = on_drained
    end.channel.write(b"x" * 1_000_000)
    assert drained == 0
    while end.channel.queued:
        end.remote.read()
        rig.settle()
    assert drained == 1


def test_who_is_drained_may_write_on_without_nesting(rig: Rig, end: End) -> None:
    left = 20_000

    def refill() -> None:
        nonlocal left
        while left and end.channel.queued < 1000:
            left -= 1
            end.channel.write(b"%06d" % left)

    end.channel.on_drained = refill
    refill()
    received = b""
    while left or end.channel.queued:
        received += end.remote.read()
        rig.settle()
    received += end.remote.read()
    assert received == b"".join(b"%06d" % number for number in range(19_999, -1, -1))


def test_what_is_written_by_who_is_drained_leaves_in_one_call(rig: Rig, end: End, calls: Calls) -> None:
    left = 3

    def refill() -> None:
        nonlocal left
        if left:
            left -= 1
            for _ in range(50):
                end.channel.write(b"x" * 10)

    end.channel.on_drained = refill
    # Outside of a turn, and inside of one.
    end.channel.write(b"y")
    assert calls.writes == [1, 500, 500, 500]
    left = 1
    end.on_data = lambda _data: end.channel.write(b"z")
    end.remote.write(b"go")
    rig.settle()
    assert calls.writes[4:] == [len(b"go"), 1, 500]
    assert len(end.remote.read()) == 2002


def test_what_was_written_before_an_accident_leaves_all_the_same(rig: Rig, end: End) -> None:
    def fail() -> None:
        end.channel.write(b"b")
        raise RuntimeError("a defect")

    end.channel.on_drained = fail
    with pytest.raises(RuntimeError):
        end.channel.write(b"a")
    end.channel.on_drained = None
    rig.settle()
    assert end.remote.read() == b"ab"
    end.channel.write(b"c")
    assert end.remote.read() == b"c"


# ---- breaking off


def test_writing_to_nobody_breaks_it_once(rig: Rig, end: End) -> None:
    end.remote.close()
    for _ in range(3):
        end.channel.write(b"x")
    assert end.channel.broken
    assert end.broken == 1
    assert end.channel.queued == 0
    rig.settle()
    assert end.broken == 1


def test_a_blocked_writer_learns_that_the_other_side_is_gone(rig: Rig, end: End) -> None:
    end.channel.write(b"x" * 3_000_000)
    assert end.channel.queued
    end.remote.close()
    rig.settle()
    assert end.broken == 1
    assert end.ends == [True]
    assert end.channel.queued == 0
    end.channel.write(b"y")
    assert end.channel.queued == 0


def test_a_reader_of_pipes_that_closes_its_half_breaks_writing_only(rig: Rig, pipe_end: End) -> None:
    os.close(pipe_end.remote.read_fd)
    pipe_end.remote.read_fd = -1
    pipe_end.channel.write(b"x")
    assert pipe_end.broken == 1
    pipe_end.remote.write(b"still talking")
    rig.settle()
    assert pipe_end.received == b"still talking"


def test_nobody_is_told_that_a_broken_or_closed_channel_is_drained(rig: Rig, end: End) -> None:
    def on_drained() -> None:
        raise AssertionError("drained")

    def close(_data: bytes) -> None:
        end.channel.write(b"x")
        end.channel.close()

    end.channel.write(b"x" * 3_000_000)
    end.channel.on_drained = on_drained
    end.on_data = close
    end.remote.write(b"go")
    rig.settle()
    assert end.channel.closed


# ---- closing


def test_each_descriptor_is_closed_exactly_once(rig: Rig, end: End, calls: Calls) -> None:
    for _ in range(3):
        end.channel.close()
        end.channel.close(flush=True)
    assert sorted(calls.closes) == sorted(end.fds)
    assert not end.fds & rig.reactor._callbacks.keys()
    assert end.remote.read() == b""
    assert end.remote.ended
    end.channel.write(b"x")
    end.channel.pause(paused=True)
    end.channel.close_writing()
    assert end.channel.queued == 0
    assert rig.settle() == 0
    assert (end.ends, end.broken) == ([], 0)


def test_closing_drops_what_is_queued_unless_told_to_flush(rig: Rig, end: End) -> None:
    end.channel.write(b"x" * 3_000_000)
    end.channel.close()
    assert len(end.remote.read()) < 3_000_000
    assert end.remote.ended


def test_flushing_lets_everything_leave_and_reads_no_more(rig: Rig, end: End, calls: Calls) -> None:
    end.channel.write(b"x" * 3_000_000)
    end.channel.close(flush=True)
    assert not end.channel.closed
    end.remote.write(b"too late")
    received = 0
    while not end.remote.ended:
        received += len(end.remote.read())
        rig.settle()
    assert received == 3_000_000
    assert end.channel.closed
    assert end.data == []
    assert sorted(calls.closes) == sorted(end.fds)


def test_flushing_ends_when_the_other_side_is_gone(rig: Rig, end: End, calls: Calls) -> None:
    end.channel.write(b"x" * 3_000_000)
    end.channel.close(flush=True)
    end.remote.close()
    rig.settle()
    assert end.channel.closed
    assert end.broken == 1
    assert all(calls.closes.count(fd) == 1 for fd in end.fds)


def test_flushing_can_be_cut_short(rig: Rig, end: End) -> None:
    end.channel.write(b"x" * 3_000_000)
    end.channel.close(flush=True)
    end.channel.close()
    assert end.channel.closed
    assert rig.settle() == 0


def test_a_flush_within_a_turn_takes_what_the_turn_wrote(rig: Rig, end: End) -> None:
    def answer_and_close(_data: bytes) -> None:
        end.channel.write(b"answer")
        end.channel.close(flush=True)
        assert not end.channel.closed

    end.on_data = answer_and_close
    end.remote.write(b"question")
    rig.settle()
    assert end.channel.closed
    assert end.remote.read() == b"answer"


def test_end_of_file_for_the_other_side_leaves_reading_alone(rig: Rig, end: End, kind: Kind, calls: Calls) -> None:
    end.channel.write(b"last")
    end.channel.close_writing()
    end.channel.close_writing()
    assert len(calls.closes) == (1 if kind == "pipes" else 0)
    assert end.remote.read() == b"last"
    assert end.remote.ended
    end.channel.write(b"dropped")
    assert end.channel.queued == 0
    end.remote.write(b"answer")
    rig.settle()
    assert end.received == b"answer"
    assert (end.broken, end.ends) == (0, [])
    end.remote.close()
    rig.settle()
    assert (end.broken, end.ends) == (0, [True])
    end.channel.close()
    assert sorted(fd for fd in calls.closes if fd in end.fds) == sorted(end.fds)


def test_end_of_file_does_not_wait_for_a_reader_that_does_not_read(rig: Rig, end: End) -> None:
    end.channel.write(b"x" * 3_000_000)
    end.channel.close_writing()
    assert end.channel.queued == 0
    assert len(end.fds & rig.reactor._callbacks.keys()) == 1
    assert 0 < len(end.remote.read()) < 3_000_000
    assert end.remote.ended
    rig.settle()
    end.remote.write(b"answer")
    rig.settle()
    assert end.received == b"answer"


def test_end_of_file_after_the_other_side_gave_it_ends_the_waiting(rig: Rig, socket_end: End) -> None:
    socket_end.remote.half_close()
    rig.settle()
    assert socket_end.ends == [False]
    socket_end.channel.close_writing()
    assert socket_end.remote.read() == b""
    assert socket_end.remote.ended
    assert not socket_end.fds & rig.reactor._callbacks.keys()
    assert rig.settle() == 0


def test_end_of_file_meets_a_reader_that_is_gone(rig: Rig, end: End, calls: Calls) -> None:
    """The last flush closes the channel; what it closed must not be closed again."""
    channel = end.channel
    channel._on_broken = channel.close
    end.remote.close()
    calls.closes.clear()

    def end_of_file() -> None:
        channel.write(b"queued in this turn")
        channel.close_writing()

    rig.reactor.again(end_of_file)
    rig.settle()
    assert channel.closed
    assert sorted(calls.closes) == sorted(end.fds)


def test_descriptors_that_cannot_be_waited_for_are_closed(rig: Rig, calls: Calls) -> None:
    with tempfile.TemporaryFile() as file:
        read_fd, write_fd = os.dup(file.fileno()), os.dup(file.fileno())
        nothing: Any = None
        with pytest.raises(OSError, match="not permitted") as caught:
            Channel(rig.reactor, read_fd, write_fd, on_data=nothing, on_end=nothing, on_broken=nothing)
    assert caught.value.errno == errno.EPERM
    assert {read_fd, write_fd} <= set(calls.closes)
