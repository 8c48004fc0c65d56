"""The audio ring: a sealed memfd that one writer fills and any number of readers map (PROTOCOL.md, "The audio ring").

Rules here: only `RingWriter` changes the memory. `write` may be called from any thread, copies, moves the position and
wakes, and never waits for a reader: a slow, stopped or hostile reader loses frames and disturbs nobody. Layout,
arithmetic, the order of writing and the reading come from `utter_protocol.ring`.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import sys
import threading

from utter_protocol.ring import (
    HEADER_SIZE,
    RingError,
    RingLayout,
    RingPen,
    RingView,
    check_byte_order,
    pack_header,
)
from utter_runner.dataplane.memfd import new_memfd

# Not in Python's fcntl before 3.13 (linux/fcntl.h; Linux 5.1).
F_SEAL_FUTURE_WRITE = 0x10

_ONE = (1).to_bytes(8, sys.byteorder)


class RingWriter:
    """The one writer of a ring. Construct it with `create`."""

    def __init__(self, fd: int, memory: mmap.mmap, note: str) -> None:
        self._pen = RingPen(memory)
        self.layout = self._pen.layout
        self.note = note
        """What this kernel could not do, in one sentence, or nothing."""
        self._fd = fd
        self._wakers: tuple[int, ...] = ()
        # Held for one copy at a time: a source that was given up may still deliver, and a waker must not be closed
        # (and its number used again) while it is being written to.
        self._lock = threading.Lock()

    @classmethod
    def create(cls, seconds: float, rate: int = 16_000, channels: int = 1) -> RingWriter:
        """A new empty ring that holds `seconds` of float32 audio.

        Raises:
            RingError: a bound of the layout is exceeded, or the machine is not little-endian.
            OSError: no memory or no descriptors.
        """
        check_byte_order()
        layout = RingLayout(rate=rate, channels=channels, capacity=round(seconds * rate))
        fd = new_memfd("utter-ring")
        try:
            os.ftruncate(fd, layout.size)
            memory = mmap.mmap(fd, layout.size, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
            memory[:HEADER_SIZE] = pack_header(layout)
            return cls(fd, memory, _seal(fd))
        except BaseException:
            os.close(fd)
            raise

    @property
    def fd(self) -> int:
        """The memfd, to be passed to readers. It stays this object's."""
        return self._fd

    def open_again(self) -> int:
        """Return a descriptor for a reader, which is the caller's. Raises OSError.

        It is opened anew: it shares neither position nor flags with anybody's, and nobody can write through it.
        """
        # A reader may have taken away the permission to open it, which does not take more than its descriptor.
        os.fchmod(self._fd, 0o600)
        return os.open(f"/proc/self/fd/{self._fd}", os.O_RDONLY | os.O_CLOEXEC)

    @property
    def position(self) -> int:
        """Frames written since the ring was made."""
        return self._pen.position

    @property
    def generation(self) -> int:
        """Counts the openings of the source."""
        return self._pen.generation

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Appends whole frames. Of more frames than the ring holds, the last ones stay.

        Any object with the buffer protocol is taken. Safe on an audio callback's thread.

        Raises:
            ValueError: not a whole number of frames, or the ring is closed.
        """
        with self._lock:
            if self._fd < 0:
                raise ValueError("the audio ring is closed")
            if self._pen.write(data):
                self._wake()

    def new_generation(self) -> int:
        """Says that the source was opened again: what follows is not continuous with what is there."""
        with self._lock:
            return self._pen.new_generation()

    def attach(self, fd: int) -> None:
        """Wakes `fd` on every write: an eventfd or the writing end of a pipe, non-blocking; it stays the caller's.

        A reader that is not trusted gets a pipe: both sides share an eventfd's flags, so it could be made to block.

        Raises:
            ValueError: the descriptor would block.
        """
        if os.get_blocking(fd):
            raise ValueError(f"descriptor {fd} blocks; a waker must not")
        with self._lock:
            self._wakers = (*self._wakers, fd)

    def detach(self, fd: int) -> None:
        """Wakes `fd` no longer. When this returns, the descriptor may be closed."""
        with self._lock:
            self._wakers = tuple(waker for waker in self._wakers if waker != fd)

    def wake(self) -> None:
        """Wakes every attached descriptor although nothing was written."""
        with self._lock:
            self._wake()

    def _wake(self) -> None:
        for fd in self._wakers:
            try:
                os.write(fd, _ONE)
            except BlockingIOError:
                pass  # it is awake already
            except OSError:
                self._wakers = tuple(waker for waker in self._wakers if waker != fd)

    def close(self) -> None:
        """Unmaps and closes; readers keep what they mapped. May be called again."""
        with self._lock:
            if self._fd < 0:
                return
            self._pen.close()
            os.close(self._fd)
            self._fd = -1
            self._wakers = ()


class RingReader(RingView):
    """A read-only view of a ring. One thread at a time may use it.

    Args:
        fd: the ring's memfd; it is duplicated and stays the caller's.

    Raises:
        RingError: not a ring, or one that its maker could cut short under the mapping.
        OSError: it cannot be mapped.
    """

    def __init__(self, fd: int) -> None:
        try:
            seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
        except OSError as error:
            raise RingError(f"descriptor {fd} cannot have seals, so it is not an audio ring") from error
        if not seals & fcntl.F_SEAL_SHRINK:
            raise RingError(f"descriptor {fd} is not sealed against shrinking; mapping it would be unsafe")
        size = os.fstat(fd).st_size
        if not size:
            raise RingError(f"descriptor {fd} is empty, so it is not an audio ring")
        memory = mmap.mmap(fd, size, mmap.MAP_SHARED, mmap.PROT_READ)
        try:
            super().__init__(memory)
        except BaseException:
            memory.close()
            raise


def _seal(fd: int) -> str:
    """Seals against resizing and against writing by others; returns what could not be done, or nothing."""
    seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
    try:
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals | F_SEAL_FUTURE_WRITE)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    else:
        return ""
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    return (
        "This kernel cannot seal the audio ring against writing (F_SEAL_FUTURE_WRITE came with Linux 5.1), so a plugin"
        " that is given the ring could change the audio in it."
    )
