"""Waking readers of the audio ring that are not trusted: each has a pipe of its own.

Rules here: the writing ends stay here, and one is closed when its reader has closed the other end, is gone, or is to be
woken no more. A reader gets no eventfd: both sides share its flags, so that a reader could make the writer block.
"""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from utter_protocol.errors import ErrorCode, RpcError

if TYPE_CHECKING:
    from collections.abc import Callable

    from utter_runner.dataplane.ring import RingWriter
    from utter_runner.rpc.reactor import Reactor

MAX_WAKERS = 64
"""How many readers that have asked for it may be woken."""


class RingEnds(NamedTuple):
    """What one process needs to read the ring; the descriptors are whoever's who asked for them.

    Attributes:
        ring: the ring, read-only.
        wake: the reading end of a pipe of its own.
        end: wakes that reader no more; may be called again.
    """

    ring: int
    wake: int
    end: Callable[[], None]


class _Pipe:
    """The writing end of one reader's pipe; -1 once it is closed, for the number will be somebody else's."""

    def __init__(self, fd: int, *, asked: bool) -> None:
        self.fd = fd
        self.asked = asked


class RingWakers:
    """The pipes of a ring's readers.

    Args:
        ring: what wakes them.
        reactor: tells when a reader is gone.
    """

    def __init__(self, ring: RingWriter, reactor: Reactor) -> None:
        self._ring = ring
        self._reactor = reactor
        self._pipes: set[_Pipe] = set()

    def __len__(self) -> int:
        return len(self._pipes)

    def open(self) -> int:
        """Return the reading end of a new pipe, the caller's; a read of it waits until the ring was written to.

        Raises:
            RpcError: -32600, `MAX_WAKERS` readers have asked for one.
            OSError: no descriptors.
        """
        if sum(pipe.asked for pipe in self._pipes) >= MAX_WAKERS:
            raise RpcError(
                ErrorCode.INVALID_REQUEST,
                f"the bound max_ring_wakers ({MAX_WAKERS}) is reached",
                {"bound": "max_ring_wakers", "limit": MAX_WAKERS},
            )
        return self._open(asked=True)[0]

    def open_ring(self) -> RingEnds:
        """Return ring and pipe for a process that inherits them; the plugins of the config are their bound.

        Raises:
            OSError: no descriptors.
        """
        ring = self._ring.open_again()
        try:
            wake, pipe = self._open(asked=False)
        except BaseException:
            os.close(ring)
            raise
        return RingEnds(ring, wake, partial(self._gone, pipe))

    def _open(self, *, asked: bool) -> tuple[int, _Pipe]:
        reading, writing = os.pipe2(os.O_CLOEXEC)
        pipe = _Pipe(writing, asked=asked)
        try:
            os.set_blocking(writing, False)
            # Without events to wait for, what is reported is that the other end was closed.
            self._reactor.register(writing, 0, partial(self._gone, pipe))
        except BaseException:
            os.close(reading)
            os.close(writing)
            raise
        self._pipes.add(pipe)
        self._ring.attach(writing)
        return reading, pipe

    def _gone(self, pipe: _Pipe, _events: int = 0) -> None:
        fd, pipe.fd = pipe.fd, -1
        if fd < 0:
            return
        self._pipes.discard(pipe)
        self._ring.detach(fd)
        self._reactor.unregister(fd)
        os.close(fd)

    def close(self) -> None:
        """Wake nobody any more; readers see the end of their pipes."""
        for pipe in list(self._pipes):
            self._gone(pipe)
