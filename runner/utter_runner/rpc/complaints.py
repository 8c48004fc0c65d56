"""Says in the log what is wrong with one connection, no more often than a person could read.

Rules here: the first complaints are said as they come; of a flood one a second is, with how many were left out.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import logging
    from collections.abc import Callable, Mapping

PER_S = 1
AT_ONCE = 20


class Complaints:
    """The complaints about one connection.

    Args:
        clock: the time in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._credit = float(AT_ONCE)
        self._since = clock()
        self._left_out = 0

    def heard(self) -> str | None:
        """Whether the next complaint is to be said: None if not, else what to add to it, which mostly is nothing."""
        now = self._clock()
        self._credit = min(AT_ONCE, self._credit + (now - self._since) * PER_S)
        self._since = now
        if self._credit < 1:
            self._left_out += 1
            return None
        self._credit -= 1
        left_out, self._left_out = self._left_out, 0
        return f" (and {left_out} more that were left out)" if left_out else ""

    def warn(
        self, logger: logging.Logger, text: str, *arguments: object, extra: Mapping[str, object] | None = None
    ) -> None:
        """Log a warning, if it is to be said; `extra` is as for the logger."""
        more = self.heard()
        if more is not None:
            logger.warning(f"{text}%s", *arguments, more, extra=extra)  # noqa: G004 - `text` is a format, and goes on
