"""How often an op may run, and when it last did.

Rules here: at most `count` runs lie within any stretch of `seconds`, however they are spread; time is monotonic
seconds, handed in; no more is remembered than the rate needs.
"""

from __future__ import annotations

import math
import re
from collections import deque
from typing import Literal, cast

import msgspec

RatePeriod = Literal["second", "minute", "hour"]
_SECONDS: dict[str, float] = {"second": 1.0, "minute": 60.0, "hour": 3600.0}
_RATE = re.compile(r"([1-9][0-9]{0,8})/(second|minute|hour)")

MAX_COUNT = 9_999
"""So many times of an op are remembered at most."""


class Rate(msgspec.Struct, frozen=True):
    """At most `count` runs in any `per`."""

    count: int
    per: RatePeriod

    @property
    def seconds(self) -> float:
        """The length of the stretch."""
        return _SECONDS[self.per]

    def __str__(self) -> str:
        """Return the text that `parse_rate` reads."""
        return f"{self.count}/{self.per}"


def parse_rate(text: str) -> Rate:
    """Read a rate such as "10/minute".

    Raises:
        ValueError: it is not 1 to 9999 per second, minute or hour.
    """
    match = _RATE.fullmatch(text)
    if match is None or int(match[1]) > MAX_COUNT:
        raise ValueError(f"{text!r} is not a rate such as 10/minute: 1 to {MAX_COUNT} per second, minute or hour.")
    return Rate(int(match[1]), cast("RatePeriod", match[2]))


class Runs:
    """When ops with a rate last ran."""

    def __init__(self) -> None:
        self._times: dict[str, deque[float]] = {}

    def note(self, op: str, rate: Rate, now: float) -> None:
        """An op is let through."""
        times = self._times.get(op)
        if times is None or times.maxlen != rate.count:
            times = self._times[op] = deque(times or (), maxlen=rate.count)
        times.append(now)

    def wait_ms(self, op: str, rate: Rate, now: float) -> int:
        """Milliseconds until the op may run again; 0 if it may now."""
        times = self._times.get(op, ())
        if len(times) < rate.count:
            return 0
        # Of the runs that are remembered, the one that has to be out of the stretch before another may begin.
        return max(0, math.ceil((times[-rate.count] + rate.seconds - now) * 1000))


NEVER_RAN = Runs()
"""For judging without a history. Nobody notes anything in it."""
