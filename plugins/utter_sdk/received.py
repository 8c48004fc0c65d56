"""What an answer brings besides its result: descriptors.

Rules here: a descriptor has one owner at a time, and is closed by whoever owns it, never by chance.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from types import TracebackType


class Received:
    """What `fd.pass` brought; a context manager that closes what was not detached.

    Attributes:
        result: the answer's result.
        fds: the descriptors, close-on-exec; empty once they are closed or detached.
    """

    def __init__(self, result: dict[str, Any], fds: Sequence[int]) -> None:
        self.result = result
        self.fds = list(fds)

    @property
    def fd(self) -> int:
        """The first descriptor.

        Raises:
            ValueError: it is closed or detached.
        """
        if not self.fds:
            raise ValueError("the descriptor is closed or detached")
        return self.fds[0]

    def detach(self) -> int:
        """Return the first descriptor, which is the caller's to close from now on. Raises as `fd`."""
        fd = self.fd
        del self.fds[0]
        return fd

    def close(self) -> None:
        """Close the descriptors. Idempotent."""
        fds, self.fds = self.fds, []
        close_all(fds)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def close_all(fds: Iterable[int]) -> None:
    """Close descriptors."""
    for fd in fds:
        os.close(fd)
