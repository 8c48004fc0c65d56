"""How much one end of a connection may send: buckets of credit that fill at a steady rate.

Rules here: the clock is read only when the credit is used up, so that a peer within its bounds costs a subtraction per
turn; whoever has overdrawn waits until the debt is paid, and is not refused. Pure: the time is an argument.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

BURST_SECONDS = 2.0
"""How many seconds' worth may come at once after a pause."""
_LEAST_PAUSE = 0.001
# Shorter ones would cost more than they hold back, and the clock might not show that they are over.


class Meter(Protocol):
    """What a peer asks after each turn in which something arrived."""

    def spend(self, messages: int, size: int) -> float:
        """Charge messages and bytes that arrived; return for how many seconds no more is to be read, 0 for none.

        Raises:
            RpcError: it had its share; the error is sent and the connection is closed.
        """


class Bucket:
    """Credit for one kind of thing.

    Args:
        rate: how much is added per second; infinity for no bound.
        burst: how much there is at most, and in the beginning.
        now: the time in seconds.
    """

    __slots__ = ("_burst", "_rate", "_since", "credit")

    def __init__(self, rate: float, burst: float, now: float) -> None:
        self._rate = rate
        self._burst = burst
        self._since = now
        self.credit = burst

    def wait(self, now: float) -> float:
        """Add what has come in since the last call; return the seconds until a debt is paid, 0 for none."""
        if self.credit > 0:
            return 0.0
        self.credit = min(self._burst, self.credit + (now - self._since) * self._rate)
        self._since = now
        return 0.0 if self.credit >= 0 else max(-self.credit / self._rate, _LEAST_PAUSE)


class RateLimit:
    """A `Meter` that lets a peer wait.

    Args:
        messages_per_s: of any kind; 0 for no bound.
        bytes_per_s: as they are on the wire; 0 for no bound.
        clock: the time in seconds.
    """

    __slots__ = ("_bytes", "_clock", "_messages")

    def __init__(self, messages_per_s: int, bytes_per_s: int, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._messages = _bucket(messages_per_s, clock())
        self._bytes = _bucket(bytes_per_s, clock())

    def spend(self, messages: int, size: int) -> float:
        """As `Meter.spend`; it raises nothing."""
        counts, sizes = self._messages, self._bytes
        counts.credit -= messages
        sizes.credit -= size
        if counts.credit > 0 and sizes.credit > 0:
            return 0.0
        now = self._clock()
        return max(counts.wait(now), sizes.wait(now))


def _bucket(per_second: int, now: float) -> Bucket:
    rate = per_second or math.inf
    return Bucket(rate, rate * BURST_SECONDS, now)
