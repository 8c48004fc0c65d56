"""Waking readers of the audio ring that are not trusted: each has a pipe of its own.

Rules here: the writing ends stay here, and one is closed when its reader has closed the other end, or is gone. A reader
gets no eventfd: both sides share its flags, so that a reader could make the writer block.
"""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING

from utter_protocol.errors import ErrorCode, RpcError

if TYPE_CHECKING:
    from utter_runner.dataplane.ring import RingWriter
    from utter_runner.rpc.reactor import Reactor

MAX_WAKERS = 64
"""How many readers may be woken."""


class RingWakers:
    """The pipes of a ring's readers.

    Args:
        ring: what wakes them.
        reactor: tells when a reader is gone.
    """

    def __init__(self, ring: RingWriter, reactor: Reactor) -> None:
        self._ring = ring
        self._reactor = reactor
        self._pipes: set[int] = set()

    def __len__(self) -> int:
        return len(self._pipes)

    def open(self) -> int:
        """Return the reading end of a new pipe, the caller's; a read of it waits until the ring was written to.

        Raises:
            RpcError: -32600, there are `MAX_WAKERS` of them.
            OSError: no descriptors.
        """
        if len(self._pipes) >= MAX_WAKERS:
            raise RpcError(
                ErrorCode.INVALID_REQUEST,
                f"the bound max_ring_wakers ({MAX_WAKERS}) is reached",
                {"bound": "max_ring_wakers", "limit": MAX_WAKERS},
            )
        reading, writing = os.pipe2(os.O_CLOEXEC)
        try:
            os.set_blocking(writing, False)
            # Without events to wait for, what is reported is that the other end was closed.
            self._reactor.register(writing, 0, partial(self._gone, writing))
        except BaseException:
            os.close(reading)
            os.close(writing)
            raise
        self._pipes.add(writing)
        self._ring.attach(writing)
        return reading

    def _gone(self, fd: int, _events: int = 0) -> None:
        self._pipes.discard(fd)
        self._ring.detach(fd)
        self._reactor.unregister(fd)
        os.close(fd)

    def close(self) -> None:
        """Wake nobody any more; readers see the end of their pipes."""
        for fd in list(self._pipes):
            self._gone(fd)
