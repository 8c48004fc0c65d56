"""`RingReader`: reads the runner's audio ring, whose memfd `plugin.host.fd_pass("memfd.ring")` gives.

Rules here: reading never disturbs the writer; what was overwritten while it was read is never returned; all but the
mapping comes from `utter_protocol.ring`. Read PROTOCOL.md, "The audio ring", for what the numbers mean.
"""

from __future__ import annotations

import fcntl
import mmap
import os

from utter_protocol.ring import HEADER_SIZE, Overrun, RingError, RingView

__all__ = ["Overrun", "RingError", "RingReader"]


class RingReader(RingView):
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
        try:
            sealed = fcntl.fcntl(fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK
        except OSError as error:
            raise RingError(f"descriptor {fd} is no memfd, so it is no audio ring") from error
        if not sealed:
            raise RingError(f"descriptor {fd} is not sealed against shrinking; mapping it would be unsafe")
        size = os.fstat(fd).st_size
        if size < HEADER_SIZE:
            raise RingError(f"descriptor {fd} has {size} bytes; the ring's header alone has {HEADER_SIZE}")
        memory = mmap.mmap(fd, size, mmap.MAP_SHARED, mmap.PROT_READ)
        try:
            super().__init__(memory)
        except BaseException:
            memory.close()
            raise
