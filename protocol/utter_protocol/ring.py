"""Layout of the shared audio ring (PROTOCOL.md, "The audio ring"): one writer, many readers, one memfd.

Rules here: nothing but memory that is handed in is touched; who maps, seals and wakes lives in
`utter_runner.dataplane.ring` and `utter_sdk.ring`. Every integer is little-endian and naturally aligned.

Header, 128 bytes:

    offset  type    field
         0  8 bytes magic            b"UTTRRING"
         8  u32     version          1
        12  u32     header_size      128, the offset of the first frame slot
        16  u32     format           1 = IEEE float32, little-endian, channels interleaved
        20  u32     rate             frames per second
        24  u32     channels
        28  u32     frame_size       bytes per frame: 4 * channels
        32  u64     capacity         frame slots
        40  24 bytes zero
        64  u64     claimed          frames that the writer has begun to write
        72  u64     position         frames that are written, counted from 0 and never going back
        80  u64     generation       counts the openings of the audio source, from 0
        88  40 bytes zero

Frame n lies in slot n % capacity, at byte header_size + slot * frame_size; a range may wrap once.

The writer stores `claimed`, then the frames, then `position`, each visible before the next. When the audio source is
opened again it counts `generation` up before it writes: time has passed between the frames before and after.

A reader that wants frames [start, start + count):
  1. loads `position` (acquire): start + count must not lie beyond it;
  2. copies the frames;
  3. loads `claimed` (after the copy): if start < claimed - capacity, the writer was at those slots, the copy is
     worthless, and the reader has been overrun. It goes on at claimed - capacity, better a little later.
A reader that cannot load 64 bits at once (pread into a buffer, say) reads a field until two readings agree. A reader
checks F_GET_SEALS for F_SEAL_SHRINK before it maps, so that the mapping cannot be cut short under it.
"""

from __future__ import annotations

import struct
import sys
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    import mmap

MAGIC = b"UTTRRING"
VERSION = 1
HEADER_SIZE = 128
FORMAT_F32LE = 1
SAMPLE_SIZE = 4

MAX_RATE = 768_000
MAX_CHANNELS = 32

COUNTERS_OFFSET = 64
COUNTERS_END = 88
# Indices into the header's counters, seen as an array of u64.
CLAIMED, POSITION, GENERATION = range(3)

_HEADER = struct.Struct("<8s6IQ")


class RingError(ValueError):
    """A ring that cannot be used; the message names the header's field and what it holds."""


class Overrun(Exception):
    """The writer has overwritten frames that were asked for.

    Args:
        oldest: the first frame that could be read when this was noticed; go on there or a little later.
    """

    def __init__(self, oldest: int) -> None:
        super().__init__(oldest)
        self.oldest = oldest

    def __str__(self) -> str:
        return f"The audio ring has moved on; the oldest frame in it is now {self.oldest}."


@dataclass(frozen=True, slots=True)
class RingLayout:
    """What is fixed for a ring's life.

    Args:
        rate: frames per second, 1 to `MAX_RATE`.
        channels: samples per frame, 1 to `MAX_CHANNELS`.
        capacity: frame slots, at least 1.

    Raises:
        RingError: a value is out of its bounds.
    """

    rate: int
    channels: int
    capacity: int

    def __post_init__(self) -> None:
        _check_bound("rate", self.rate, MAX_RATE)
        _check_bound("channels", self.channels, MAX_CHANNELS)
        # Positions are 64-bit and the file's size must be one too.
        _check_bound("capacity", self.capacity, 2**40)

    @property
    def frame_size(self) -> int:
        """Bytes per frame."""
        return SAMPLE_SIZE * self.channels

    @property
    def size(self) -> int:
        """Bytes of the whole ring, header included."""
        return HEADER_SIZE + self.capacity * self.frame_size


def pack_header(layout: RingLayout) -> bytes:
    """The header of an empty ring, `HEADER_SIZE` bytes, all counters 0."""
    fixed = _HEADER.pack(
        MAGIC,
        VERSION,
        HEADER_SIZE,
        FORMAT_F32LE,
        layout.rate,
        layout.channels,
        layout.frame_size,
        layout.capacity,
    )
    return fixed.ljust(HEADER_SIZE, b"\0")


def parse_header(header: bytes | memoryview, size: int) -> RingLayout:
    """Reads and checks the fixed fields.

    Args:
        header: the first `HEADER_SIZE` bytes of the ring, or more.
        size: bytes of the whole ring, as fstat tells it.

    Raises:
        RingError: not a ring, another version, or fields that contradict each other or the size.
    """
    if len(header) < HEADER_SIZE:
        raise RingError(f"the ring's header has {len(header)} bytes; it needs {HEADER_SIZE}")
    magic, version, header_size, audio_format, rate, channels, frame_size, capacity = _HEADER.unpack_from(header)
    if magic != MAGIC:
        raise RingError(f"magic is {magic!r}, not {MAGIC!r}: this is not an audio ring")
    for name, value, expected in (
        ("version", version, VERSION),
        ("header_size", header_size, HEADER_SIZE),
        ("format", audio_format, FORMAT_F32LE),
    ):
        if value != expected:
            raise RingError(f"{name} is {value}; this reader knows {expected} only")
    layout = RingLayout(rate=rate, channels=channels, capacity=capacity)
    if frame_size != layout.frame_size:
        raise RingError(f"frame_size is {frame_size}; {channels} float32 channels take {layout.frame_size} bytes")
    if size < layout.size:
        raise RingError(f"capacity is {capacity} frames, for which {layout.size} bytes are needed; the ring has {size}")
    return layout


def check_byte_order() -> None:
    """Go on only where the counters can be loaded and stored as they lie.

    Raises:
        RingError: the machine is not little-endian.
    """
    if sys.byteorder != "little":
        raise RingError("the audio ring is little-endian, and this machine is not")


def oldest_frame(claimed: int, capacity: int) -> int:
    """The first frame that the writer has not begun to overwrite."""
    return max(0, claimed - capacity)


def spans(layout: RingLayout, start: int, count: int) -> list[tuple[int, int]]:
    """Where the frames [start, start + count) lie: at most two pairs (byte offset, byte length), in order.

    Raises:
        ValueError: start or count is negative, or count is more than the ring holds.
    """
    if start < 0 or not 0 <= count <= layout.capacity:
        raise ValueError(
            f"start {start} and count {count} are no range; start is at least 0, count 0 to {layout.capacity}"
        )
    # Every block that is written or read comes by here.
    size = layout.frame_size
    slot = start % layout.capacity
    room = layout.capacity - slot
    if count <= room:
        return [(HEADER_SIZE + slot * size, count * size)] if count else []
    return [(HEADER_SIZE + slot * size, room * size), (HEADER_SIZE, (count - room) * size)]


class Fence:
    """Orders memory accesses before it before those after it, on every CPU.

    A lock's release followed by its acquire is a full barrier on the weakly ordered CPUs that Linux desktops have.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def __call__(self) -> None:
        """What is above a call in the program has happened before what is below it."""
        # The release is the first one's, the acquire the second one's.
        with self._lock:
            pass
        with self._lock:
            pass


class RingPen:
    """A ring as its one writer sees it. One thread at a time may use it.

    Args:
        memory: all of an empty ring, mapped for writing. `close` closes it; when this raises, it stays the caller's.

    Attributes:
        layout: rate, channels and capacity.
        position: frames written since the ring was made.
        generation: counts the openings of the source.

    Raises:
        RingError: it is no ring.
    """

    def __init__(self, memory: mmap.mmap) -> None:
        check_byte_order()
        self.layout = parse_header(memory[:HEADER_SIZE], len(memory))
        self._frame_size, self._capacity = self.layout.frame_size, self.layout.capacity
        self.position = 0
        self.generation = 0
        self._memory = memory
        self._bytes = memoryview(memory)
        self._counters = self._bytes[COUNTERS_OFFSET:COUNTERS_END].cast("Q")
        self._fence = Fence()

    def write(self, data: bytes | bytearray | memoryview) -> int:
        """Append whole frames; return how many. Of more frames than the ring holds, the last ones stay.

        Any object with the buffer protocol is taken.

        Raises:
            ValueError: not a whole number of frames.
        """
        view = memoryview(data).cast("B")
        size, capacity = self._frame_size, self._capacity
        frames, rest = divmod(len(view), size)
        if rest:
            raise ValueError(f"{len(view)} bytes are not whole frames of {size} bytes")
        if frames:
            end = self.position + frames
            kept = frames
            if frames > capacity:
                view, kept = view[(frames - capacity) * size :], capacity
            self._counters[CLAIMED] = end
            self._fence()
            self._copy(view, end - kept, kept)
            self._fence()
            self._counters[POSITION] = end
            self.position = end
        return frames

    def new_generation(self) -> int:
        """Say that the source was opened again: what follows is not continuous with what is there."""
        self.generation += 1
        self._counters[GENERATION] = self.generation
        self._fence()
        return self.generation

    def close(self) -> None:
        """Unmap. Idempotent."""
        self._counters.release()
        self._bytes.release()
        self._memory.close()

    def _copy(self, view: memoryview, start: int, count: int) -> None:
        at = 0
        for offset, length in spans(self.layout, start, count):
            self._bytes[offset : offset + length] = view[at : at + length]
            at += length


class RingView:
    """A ring as its reader sees it; a context manager that lets go the memory. One thread at a time may use it.

    Args:
        memory: all of the ring, mapped so that nobody can cut it short. `close` closes it; when this raises, it stays
            the caller's.

    Attributes:
        layout: rate, channels and capacity.

    Raises:
        RingError: it is no ring.
    """

    def __init__(self, memory: mmap.mmap) -> None:
        check_byte_order()
        self.layout = parse_header(memory[:HEADER_SIZE], len(memory))
        self._memory = memory
        self._bytes = memoryview(memory)
        # Each counter is loaded in one piece: it is aligned, and an item of an array of 64 bits.
        self._counters = self._bytes[COUNTERS_OFFSET:COUNTERS_END].cast("Q")
        self._fence = Fence()

    @property
    def position(self) -> int:
        """How many frames have been written since the ring was made."""
        return self._counters[POSITION]

    @property
    def oldest(self) -> int:
        """The first frame that can still be read."""
        return oldest_frame(self._counters[CLAIMED], self.layout.capacity)

    @property
    def generation(self) -> int:
        """How often the audio source was opened again. Where it changes, time has passed between two frames."""
        return self._counters[GENERATION]

    def read(self, start: int, count: int) -> bytes:
        """Copy the frames [start, start + count): 32-bit floats, little-endian, channels interleaved.

        Raises:
            Overrun: some of them have been overwritten.
            ValueError: a negative number, or frames that are not written yet.
        """
        position = self._counters[POSITION]
        if start < 0 or count < 0 or start + count > position:
            raise ValueError(f"frames {start} to {start + count} were asked for; frames 0 to {position} are written")
        self._fence()
        self._check(start)
        data = self._copy(start, count)
        self._fence()
        self._check(start)
        return data

    def close(self) -> None:
        """Unmap. Idempotent."""
        self._counters.release()
        self._bytes.release()
        self._memory.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check(self, start: int) -> None:
        oldest = self.oldest
        if start < oldest:
            raise Overrun(oldest)

    def _copy(self, start: int, count: int) -> bytes:
        pieces = spans(self.layout, start, count)
        return b"".join(self._bytes[offset : offset + length] for offset, length in pieces)


def _check_bound(name: str, value: int, highest: int) -> None:
    if not 1 <= value <= highest:
        raise RingError(f"{name} is {value}; it must be 1 to {highest}")
