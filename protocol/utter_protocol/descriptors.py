"""Which descriptor belongs to which frame (PROTOCOL.md, "Descriptors and frames"), without I/O.

Rules here: descriptors are numbers and stay their owner's to close; they are taken in the order in which they arrived;
one that is still here when every frame that began in its read has been handled belongs to none.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_FDS_PER_MESSAGE = 1
"""How many descriptors may ride on a frame to the runner."""
MAX_FDS_PER_ANSWER = 2
"""How many descriptors ride at most on a frame of the runner."""


class _Arrival(NamedTuple):
    end: int
    fds: deque[int]


class ArrivedDescriptors:
    """Descriptors that came with bytes of a stream and that no frame has taken yet.

    Positions count the stream's bytes from 0. A kernel gives a reader at most the descriptors of one `sendmsg` at a
    time, together with some of its bytes and perhaps with bytes from before it, so that the frame they belong to begins
    in the same read, or is the one that was incomplete before it.
    """

    def __init__(self) -> None:
        self._arrivals: deque[_Arrival] = deque()

    def __len__(self) -> int:
        return sum(len(arrival.fds) for arrival in self._arrivals)

    def arrive(self, fds: Sequence[int], end: int) -> None:
        """Keep descriptors that came with a read.

        Args:
            fds: in their order.
            end: the position behind the last byte of the read.
        """
        if fds:
            self._arrivals.append(_Arrival(end, deque(fds)))

    def take(self) -> int | None:
        """Give the oldest descriptor to the frame that is being handled; None if there is none."""
        if not self._arrivals:
            return None
        fds = self._arrivals[0].fds
        fd = fds.popleft()
        if not fds:
            self._arrivals.popleft()
        return fd

    def surplus(self, position: int) -> list[int]:
        """Give back what nobody took although everything before `position` has been handled."""
        left: list[int] = []
        while self._arrivals and self._arrivals[0].end <= position:
            left += self._arrivals.popleft().fds
        return left

    def clear(self) -> list[int]:
        """Give everything back."""
        left = [fd for arrival in self._arrivals for fd in arrival.fds]
        self._arrivals.clear()
        return left
