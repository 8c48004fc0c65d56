"""Tests of reading the audio ring, against the runner's writer."""

from __future__ import annotations

import fcntl
import os
import struct
import threading

import pytest

from utter_protocol.ring import MAGIC
from utter_runner.dataplane.ring import RingWriter
from utter_sdk.ring import Overrun, RingError, RingReader


def frames(start: int, count: int) -> bytes:
    return struct.pack(f"<{count}f", *(float(n % 2**20) for n in range(start, start + count)))


@pytest.fixture
def writer() -> RingWriter:
    made = RingWriter.create(seconds=0.01)
    yield made
    made.close()


def test_it_reads_what_was_written_also_across_the_end(writer: RingWriter) -> None:
    with RingReader(writer.fd) as ring:
        assert (ring.layout.rate, ring.layout.channels, ring.layout.capacity) == (16_000, 1, 160)
        assert (ring.position, ring.oldest, ring.generation) == (0, 0, 0)
        assert ring.read(0, 0) == b""
        writer.write(frames(0, 100))
        assert ring.read(0, 100) == frames(0, 100)
        writer.write(frames(100, 100))
        assert (ring.position, ring.oldest) == (200, 40)
        assert ring.read(40, 160) == frames(40, 160)
        assert ring.read(150, 20) == frames(150, 20)
        writer.new_generation()
        assert ring.generation == 1


def test_what_was_overwritten_is_not_returned(writer: RingWriter) -> None:
    with RingReader(writer.fd) as ring:
        writer.write(frames(0, 200))
        with pytest.raises(Overrun, match="the oldest frame in it is now 40") as caught:
            ring.read(39, 10)
        assert ring.read(caught.value.oldest, 10) == frames(40, 10)


@pytest.mark.parametrize(("start", "count"), [(-1, 1), (0, -1), (0, 11), (10, 1)])
def test_what_is_not_written_is_refused(writer: RingWriter, start: int, count: int) -> None:
    writer.write(frames(0, 10))
    with RingReader(writer.fd) as ring, pytest.raises(ValueError, match="frames 0 to 10 are written"):
        ring.read(start, count)


def test_the_descriptor_may_be_closed_and_the_writer_may_go(writer: RingWriter) -> None:
    fd = os.dup(writer.fd)
    with RingReader(fd) as ring:
        os.close(fd)
        writer.write(frames(0, 10))
        writer.close()
        assert ring.read(0, 10) == frames(0, 10)
    ring.close()


def test_a_write_in_the_middle_of_a_copy_is_noticed(writer: RingWriter) -> None:
    writer.write(frames(0, 160))
    with RingReader(writer.fd) as ring:
        fence = ring._fence
        passed: list[None] = []

        def write_once() -> None:
            fence()
            if not passed:
                writer.write(frames(160, 1))
            passed.append(None)

        ring._fence = write_once
        with pytest.raises(Overrun) as caught:
            ring.read(0, 160)
        assert caught.value.oldest == 1


def test_a_fast_writer_never_mixes_frames() -> None:
    writer = RingWriter.create(seconds=0.01)
    stop = threading.Event()

    def write() -> None:
        at = 0
        while not stop.is_set():
            writer.write(frames(at, 37))
            at += 37

    thread = threading.Thread(target=write)
    thread.start()
    read = 0
    try:
        with RingReader(writer.fd) as ring:
            at = 0
            while read < 40:
                count = min(64, ring.position - at)
                try:
                    data = ring.read(at, count)
                except Overrun as lost:
                    at = lost.oldest
                    continue
                assert data == frames(at, count)
                at += count
                read += bool(count)
    finally:
        stop.set()
        thread.join()
        writer.close()


def test_what_is_no_ring_is_refused(tmp_path: os.PathLike[str]) -> None:
    with (tmp_path / "file").open("w+b") as file, pytest.raises(RingError, match="is no memfd"):
        RingReader(file.fileno())
    memfd = os.memfd_create("test", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
    try:
        with pytest.raises(RingError, match="not sealed against shrinking"):
            RingReader(memfd)
    finally:
        os.close(memfd)


@pytest.mark.parametrize(
    ("content", "message"), [(b"", "has 0 bytes"), (MAGIC[::-1].ljust(200, b"\0"), "this is not an audio ring")]
)
def test_a_sealed_memfd_that_is_no_ring_is_refused(content: bytes, message: str) -> None:
    memfd = os.memfd_create("test", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
    try:
        os.write(memfd, content)
        fcntl.fcntl(memfd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
        with pytest.raises(RingError, match=message):
            RingReader(memfd)
    finally:
        os.close(memfd)
