from __future__ import annotations

import array
import contextlib
import errno
import fcntl
import mmap
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from utter_protocol.ring import HEADER_SIZE, Overrun, RingError, RingLayout, pack_header
from utter_runner.dataplane.ring import F_SEAL_FUTURE_WRITE, RingReader, RingWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

CAPACITY = 16


def numbers(start: int, count: int) -> bytes:
    """Frames whose sample is their own number, so that a misplaced one shows."""
    return array.array("f", range(start, start + count)).tobytes()


def open_descriptors() -> set[str]:
    return {entry.name for entry in Path("/proc/self/fd").iterdir()}


def read_or_oldest(reader: RingReader, start: int, count: int) -> bytes | int:
    """The frames, or after an overrun the oldest frame there is."""
    try:
        return reader.read(start, count)
    except Overrun as overrun:
        return overrun.oldest


@pytest.fixture
def writer() -> Iterator[RingWriter]:
    before = open_descriptors()
    writer = RingWriter.create(seconds=CAPACITY, rate=1)
    yield writer
    writer.close()
    assert open_descriptors() == before


@pytest.fixture
def reader(writer: RingWriter) -> Iterator[RingReader]:
    with RingReader(writer.fd) as reader:
        yield reader


class RingAgainstList(RuleBasedStateMachine):
    """The ring beside a plain list that forgets nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.writer = RingWriter.create(seconds=CAPACITY, rate=1)
        self.reader = RingReader(self.writer.fd)
        self.written: list[float] = []
        self.follower = 0
        self.openings = 0

    def teardown(self) -> None:
        self.reader.close()
        self.writer.close()

    @rule(count=st.integers(0, 3 * CAPACITY))
    def write(self, count: int) -> None:
        self.writer.write(numbers(len(self.written), count))
        self.written += [float(n) for n in range(len(self.written), len(self.written) + count)]

    @rule()
    def reopen(self) -> None:
        self.openings += 1
        assert self.writer.new_generation() == self.openings

    @rule(data=st.data())
    def read_anything(self, data: st.DataObject) -> None:
        start = data.draw(st.integers(0, len(self.written)))
        count = data.draw(st.integers(0, len(self.written) - start))
        oldest = max(0, len(self.written) - CAPACITY)
        if start < oldest:
            with pytest.raises(Overrun) as caught:
                self.reader.read(start, count)
            assert caught.value.oldest == oldest
        else:
            assert self.reader.read(start, count) == array.array("f", self.written[start : start + count]).tobytes()

    @rule(most=st.integers(1, CAPACITY))
    def follow(self, most: int) -> None:
        """A reader that goes on where it was, and re-syncs when it was overrun."""
        count = min(most, len(self.written) - self.follower)
        result = read_or_oldest(self.reader, self.follower, count)
        if isinstance(result, int):
            assert self.follower < result == len(self.written) - CAPACITY
            self.follower = result
        else:
            assert result == numbers(self.follower, count)
            self.follower += count

    @rule(beyond=st.integers(1, 5))
    def read_the_future(self, beyond: int) -> None:
        with pytest.raises(ValueError, match=f"frames 0 to {len(self.written)} are written"):
            self.reader.read(len(self.written), beyond)

    @invariant()
    def both_sides_agree(self) -> None:
        assert self.writer.position == self.reader.position == len(self.written)
        assert self.reader.oldest == max(0, len(self.written) - CAPACITY)
        assert self.writer.generation == self.reader.generation == self.openings


TestRingAgainstList = RingAgainstList.TestCase
TestRingAgainstList.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)


@pytest.mark.parametrize("written_during", range(1, 2 * CAPACITY))
def test_a_write_in_the_middle_of_a_read_gives_right_frames_or_an_overrun(
    writer: RingWriter, reader: RingReader, monkeypatch: pytest.MonkeyPatch, written_during: int
) -> None:
    writer.write(numbers(0, 24))
    copy = reader._copy

    def interrupted(start: int, count: int) -> bytes:
        first = copy(start, count // 2)
        writer.write(numbers(24, written_during))
        return first + copy(start + count // 2, count - count // 2)

    monkeypatch.setattr(reader, "_copy", interrupted)
    oldest = 24 + written_during - CAPACITY
    assert read_or_oldest(reader, 12, 8) == (oldest if oldest > 12 else numbers(12, 8))


@pytest.mark.parametrize("start", range(8, 25))
@pytest.mark.parametrize("half", ["before the copy", "after the copy"])
def test_a_read_in_the_middle_of_a_write_gives_right_frames_or_an_overrun(
    writer: RingWriter, reader: RingReader, monkeypatch: pytest.MonkeyPatch, start: int, half: str
) -> None:
    writer.write(numbers(0, 24))
    copy = writer._pen._copy
    seen: list[bytes | int] = []

    def observed(view: memoryview, at: int, count: int) -> None:
        if half == "after the copy":
            copy(view, at, count)
        seen.append(read_or_oldest(reader, start, 24 - start))
        if half == "before the copy":
            copy(view, at, count)

    monkeypatch.setattr(writer._pen, "_copy", observed)
    writer.write(numbers(24, 5))
    oldest = 24 + 5 - CAPACITY
    assert seen == [oldest if oldest > start else numbers(start, 24 - start)]


def test_frames_of_several_channels_stay_whole(writer: RingWriter) -> None:
    stereo = RingWriter.create(seconds=4, rate=1, channels=2)
    with contextlib.closing(stereo), RingReader(stereo.fd) as reader:
        stereo.write(numbers(0, 12))
        assert reader.position == 6
        assert reader.read(2, 4) == numbers(4, 8)
        with pytest.raises(ValueError, match="4 bytes are not whole frames of 8 bytes"):
            stereo.write(numbers(0, 1))


def test_any_buffer_can_be_written(writer: RingWriter, reader: RingReader) -> None:
    writer.write(array.array("f", [1.0, 2.0]))  # type: ignore[arg-type] # an audio library's own buffer type
    writer.write(memoryview(bytearray(numbers(3, 1))))
    assert reader.read(0, 3) == numbers(1, 3)


def test_a_closed_ring_is_not_written_and_readers_keep_what_was_there(writer: RingWriter, reader: RingReader) -> None:
    writer.write(numbers(0, 3))
    writer.close()
    with pytest.raises(ValueError, match="closed"):
        writer.write(numbers(3, 1))
    assert reader.read(0, 3) == numbers(0, 3)


def try_writing(fd: int) -> None:
    os.pwrite(fd, b"x", HEADER_SIZE)


def try_writable_mapping(fd: int) -> None:
    mmap.mmap(fd, os.fstat(fd).st_size).close()


def try_write_only_mapping(fd: int) -> None:
    mmap.mmap(fd, os.fstat(fd).st_size, mmap.MAP_SHARED, mmap.PROT_WRITE).close()


def try_shrinking(fd: int) -> None:
    os.ftruncate(fd, 0)


def try_growing(fd: int) -> None:
    os.ftruncate(fd, os.fstat(fd).st_size + 1)


def try_writing_after_reopening(fd: int) -> None:
    again = os.open(f"/proc/self/fd/{fd}", os.O_RDWR)
    try:
        os.pwrite(again, b"x", HEADER_SIZE)
    finally:
        os.close(again)


def try_truncating_open(fd: int) -> None:
    os.close(os.open(f"/proc/self/fd/{fd}", os.O_RDWR | os.O_TRUNC))


def try_allocating_more(fd: int) -> None:
    os.posix_fallocate(fd, os.fstat(fd).st_size, 4096)


def try_more_seals(fd: int) -> None:
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)


@pytest.mark.parametrize(
    "attempt",
    [
        try_writing,
        try_writable_mapping,
        try_write_only_mapping,
        try_shrinking,
        try_growing,
        try_writing_after_reopening,
        try_truncating_open,
        try_allocating_more,
        try_more_seals,
    ],
)
def test_who_holds_the_descriptor_cannot_change_the_ring(
    writer: RingWriter, reader: RingReader, attempt: Callable[[int], None]
) -> None:
    writer.write(numbers(0, 3))
    with pytest.raises(PermissionError):
        attempt(writer.fd)
    writer.write(numbers(3, 20))
    assert reader.read(7, 16) == numbers(7, 16)
    assert writer.note == ""


def test_a_kernel_without_the_seal_is_reported_and_the_size_is_sealed_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = fcntl.fcntl

    def older_kernel(fd: int, command: int, argument: int = 0) -> int:
        if command == fcntl.F_ADD_SEALS and argument & F_SEAL_FUTURE_WRITE:
            raise OSError(errno.EINVAL, "Invalid argument")
        return real(fd, command, argument)

    monkeypatch.setattr(fcntl, "fcntl", older_kernel)
    with contextlib.closing(RingWriter.create(seconds=1, rate=8)) as writer:
        assert "F_SEAL_FUTURE_WRITE" in writer.note
        with pytest.raises(PermissionError):
            os.ftruncate(writer.fd, 0)
        with RingReader(writer.fd) as reader:
            writer.write(numbers(0, 2))
            assert reader.read(0, 2) == numbers(0, 2)


def test_a_failed_creation_leaks_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(fd: int, command: int, argument: int = 0) -> int:
        raise OSError(errno.EPERM, "no seals today")

    before = open_descriptors()
    monkeypatch.setattr(fcntl, "fcntl", refused)
    with pytest.raises(OSError, match="no seals today"):
        RingWriter.create(seconds=1)
    assert open_descriptors() == before


def test_a_reader_refuses_what_could_be_cut_short_under_it() -> None:
    fd = os.memfd_create("unsealed", os.MFD_ALLOW_SEALING)
    try:
        os.write(fd, pack_header(RingLayout(rate=1, channels=1, capacity=1)) + bytes(4))
        with pytest.raises(RingError, match="not sealed against shrinking"):
            RingReader(fd)
    finally:
        os.close(fd)


@pytest.mark.parametrize(("content", "message"), [(b"", "is empty"), (b"x" * 500, "magic is"), (b"x", "has 1 bytes")])
def test_a_reader_refuses_what_is_no_ring_and_leaks_nothing(content: bytes, message: str) -> None:
    before = open_descriptors()
    fd = os.memfd_create("other", os.MFD_ALLOW_SEALING)
    try:
        os.write(fd, content)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
        with pytest.raises(RingError, match=message):
            RingReader(fd)
    finally:
        os.close(fd)
    assert open_descriptors() == before


def test_a_reader_refuses_a_pipe() -> None:
    read_end, write_end = os.pipe()
    try:
        with pytest.raises(RingError, match="cannot have seals"):
            RingReader(read_end)
    finally:
        os.close(read_end)
        os.close(write_end)


READER_IN_ANOTHER_PROCESS = """
import os, sys
from utter_protocol.ring import Overrun
from utter_runner.dataplane.ring import RingReader
with RingReader(int(sys.argv[1])) as reader:
    for line in sys.stdin:
        start, count = map(int, line.split())
        try:
            print(reader.position, reader.generation, reader.read(start, count).hex(), flush=True)
        except Overrun as overrun:
            print("overrun", overrun.oldest, flush=True)
"""


def test_a_reader_in_another_process_sees_the_frames(writer: RingWriter) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", READER_IN_ANOTHER_PROCESS, str(writer.fd)],
        pass_fds=[writer.fd],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )

    def ask(start: int, count: int) -> list[str]:
        assert process.stdin
        assert process.stdout
        process.stdin.write(f"{start} {count}\n")
        process.stdin.flush()
        return process.stdout.readline().split()

    with process:
        writer.write(numbers(0, 10))
        assert ask(4, 6) == ["10", "0", numbers(4, 6).hex()]
        writer.new_generation()
        writer.write(numbers(10, 10))
        assert ask(4, 16) == ["20", "1", numbers(4, 16).hex()]
        assert ask(3, 1) == ["overrun", "4"]
        assert process.stdin
        process.stdin.close()
    assert process.returncode == 0


def test_readers_beside_a_writing_thread_never_see_a_wrong_frame() -> None:
    capacity, blocks, block = 256, 3000, 20
    with contextlib.closing(RingWriter.create(seconds=capacity, rate=1)) as writer, RingReader(writer.fd) as reader:

        def write() -> None:
            for n in range(blocks):
                writer.write(numbers(n * block, block))

        thread = threading.Thread(target=write)
        thread.start()
        at = read = 0
        while at < blocks * block:
            count = min(reader.position - at, 100)
            result = read_or_oldest(reader, at, count)
            if isinstance(result, int):
                at = result
            else:
                assert result == numbers(at, count)
                at += count
                read += count
        thread.join()
    assert read >= capacity


def test_every_waker_is_woken_by_every_write_until_it_is_detached(writer: RingWriter) -> None:
    flags = os.EFD_NONBLOCK | os.EFD_CLOEXEC
    first, second = os.eventfd(0, flags), os.eventfd(0, flags)
    try:
        writer.attach(first)
        writer.write(numbers(0, 1))
        writer.attach(second)
        writer.write(numbers(1, 1))
        writer.write(b"")
        assert (os.eventfd_read(first), os.eventfd_read(second)) == (2, 1)
        writer.detach(first)
        writer.wake()
        assert os.eventfd_read(second) == 1
        with pytest.raises(BlockingIOError):
            os.eventfd_read(first)
    finally:
        os.close(first)
        os.close(second)


def test_a_waker_that_blocks_is_refused(writer: RingWriter) -> None:
    fd = os.eventfd(0, os.EFD_CLOEXEC)
    try:
        with pytest.raises(ValueError, match="blocks"):
            writer.attach(fd)
    finally:
        os.close(fd)


def test_a_waker_that_nobody_reads_or_that_is_gone_does_not_disturb_the_writer(
    writer: RingWriter, reader: RingReader
) -> None:
    full = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
    read_end, write_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        os.eventfd_write(full, 2**64 - 2)
        writer.attach(full)
        writer.attach(write_end)
        os.close(read_end)
        writer.write(numbers(0, 4))
        writer.write(numbers(4, 4))
        assert reader.read(0, 8) == numbers(0, 8)
        assert writer._wakers == (full,)
    finally:
        os.close(full)
        os.close(write_end)
