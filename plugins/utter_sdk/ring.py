"""`RingReader`: reads the runner's audio ring, whose memfd `plugin.host.fd_pass("memfd.ring")` gives.

Rules here: reading never disturbs the writer; what was overwritten while it was read is never returned; layout and
arithmetic come from `utter_protocol.ring`. Read PROTOCOL.md, "The audio ring", for what the numbers mean.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import sys
import threading
from typing import Self

from utter_protocol.ring import (
    CLAIMED,
    COUNTERS_END,
    COUNTERS_OFFSET,
    GENERATION,
    HEADER_SIZE,
    POSITION,
    RingError,
    oldest_frame,
    parse_header,
    spans,
)

__all__ = ["Overrun", "RingError", "RingReader"]


class Overrun(Exception):
    """The writer has overwritten frames that were asked for.

    Args:
        oldest: the first frame that could be read when this was noticed; go on there or a little later.
    """

    def __init__(self, oldest: int) -> None:
        super().__init__(oldest)
        self.oldest = oldest

    def __str__(self) -> str:
        return f"the audio ring has moved on; its oldest frame is now {self.oldest}"


class RingReader:
    """A read-only view of the ring; a context manager that unmaps it. One thread at a time may use it.

    Args:
        fd: the ring's memfd; it may be closed afterwards.

    Attributes:
        layout: rate, channels and capacity.

    Raises:
        RingError: it is no ring, or one that could be cut short under the mapping.
        OSError: it cannot be mapped.
    """

    def __init__(self, fd: int) -> None:
        if sys.byteorder != "little":
            raise RingError("the audio ring is little-endian, and this machine is not")
        try:
            sealed = fcntl.fcntl(fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK
        except OSError as error:
            raise RingError(f"descriptor {fd} is no memfd, so it is no audio ring") from error
        if not sealed:
            raise RingError(f"descriptor {fd} is not sealed against shrinking; mapping it would be unsafe")
        size = os.fstat(fd).st_size
        if size < HEADER_SIZE:
            raise RingError(f"descriptor {fd} has {size} bytes; the ring's header alone has {HEADER_SIZE}")
        self._memory = mmap.mmap(fd, size, mmap.MAP_SHARED, mmap.PROT_READ)
        try:
            self.layout = parse_header(self._memory[:HEADER_SIZE], size)
        except BaseException:
            self._memory.close()
            raise
        self._bytes = memoryview(self._memory)
        # Each counter is loaded in one piece: it is aligned, and an item of an array of 64 bits.
        self._counters = self._bytes[COUNTERS_OFFSET:COUNTERS_END].cast("Q")
        self._lock = threading.Lock()

    @property
    def position(self) -> int:
        """How many frames have been written."""
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
        position = self.position
        if start < 0 or count < 0 or start + count > position:
            raise ValueError(f"frames {start} to {start + count} were asked for; frames 0 to {position} are written")
        if start < self.oldest:
            raise Overrun(self.oldest)
        self._fence()
        pieces = spans(self.layout, start, count)
        data = b"".join(self._bytes[offset : offset + length] for offset, length in pieces)
        self._fence()
        if start < self.oldest:
            raise Overrun(self.oldest)
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

    def _fence(self) -> None:
        # Taking and letting go a lock keeps the CPU from moving loads across: acquire, then release, then acquire.
        with self._lock:
            pass
        with self._lock:
            pass
