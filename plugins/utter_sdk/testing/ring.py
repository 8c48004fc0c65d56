"""`AudioRing`: the microphone of a plugin that is tested, into which the test writes what is to be heard.

Rules here: memory, seals and pipes are as the runner makes them; nothing waits for the plugin.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self

from utter_protocol.inherited import RING_VARIABLE, WAKE_VARIABLE
from utter_protocol.ring import HEADER_SIZE, RingLayout, RingPen, pack_header
from utter_sdk.received import close_all
from utter_sdk.testing.parts import Passing

if TYPE_CHECKING:
    from collections.abc import Mapping

# Not in Python's fcntl before 3.13 (linux/fcntl.h; Linux 5.1).
_F_SEAL_FUTURE_WRITE = 0x10


class AudioRing:
    """An audio ring; a context manager that closes it.

    A plugin over stdio inherits it: `PluginProcess(..., fds=ring.fds)`. Another one asks for it:
    `harness.on_host("fd.pass", ring.passed)`.

    Args:
        seconds: how much it holds.
        rate: frames per second.

    Attributes:
        fds: ring and wake pipe by the variables in which a plugin over stdio finds them.
    """

    def __init__(self, seconds: float = 10.0, rate: int = 16_000) -> None:
        self.layout = layout = RingLayout(rate=rate, channels=1, capacity=round(seconds * rate))
        self._fd = os.memfd_create("utter-ring", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        self._reading: list[int] = []
        self._writing: list[int] = []
        try:
            os.ftruncate(self._fd, layout.size)
            memory = mmap.mmap(self._fd, layout.size)
            memory[:HEADER_SIZE] = pack_header(layout)
            self._pen = RingPen(memory)
            fcntl.fcntl(self._fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
            with suppress(OSError):
                fcntl.fcntl(self._fd, fcntl.F_ADD_SEALS, _F_SEAL_FUTURE_WRITE)
            self.fds: Mapping[str, int] = dict(zip((RING_VARIABLE, WAKE_VARIABLE), self._open(), strict=True))
        except BaseException:
            self._close_descriptors()
            raise

    @property
    def position(self) -> int:
        """Frames written so far."""
        return self._pen.position

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Append frames, 32-bit floats, and wake whoever waits. Raises ValueError: not whole frames."""
        self._pen.write(data)
        for fd in self._writing:
            # A pipe that is full, or whose reader has gone.
            with suppress(OSError):
                os.write(fd, b"\1")

    def new_generation(self) -> None:
        """Be opened again, as after the microphone was unplugged."""
        self._pen.new_generation()

    def passed(self, _params: Any = None) -> Passing:
        """Answer `fd.pass {kind: "memfd.ring", meta: {wake: true}}`."""
        layout = self.layout
        result = {
            "rate": layout.rate,
            "channels": layout.channels,
            "capacity": layout.capacity,
            "header_size": HEADER_SIZE,
        }
        return Passing(result, self._open())

    def stop_waking(self) -> None:
        """Close the writing ends of all pipes, as a runner that ends."""
        close_all(self._writing)
        self._writing.clear()

    def close(self) -> None:
        """Close everything of this side. Idempotent."""
        if self._fd >= 0:
            self._pen.close()
            self._close_descriptors()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open(self) -> tuple[int, int]:
        """A descriptor of the ring and a pipe of its own for one reader; they are closed with the ring."""
        ring = os.open(f"/proc/self/fd/{self._fd}", os.O_RDONLY | os.O_CLOEXEC)
        self._reading.append(ring)
        wake, writing = os.pipe2(os.O_CLOEXEC)
        self._reading.append(wake)
        self._writing.append(writing)
        os.set_blocking(writing, False)
        return ring, wake

    def _close_descriptors(self) -> None:
        close_all((*self._reading, *self._writing, self._fd))
        self._reading.clear()
        self._writing.clear()
        self._fd = -1
