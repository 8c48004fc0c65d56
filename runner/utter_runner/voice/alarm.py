"""A fault of the microphone is heard: whoever speaks into it later would otherwise not know why nothing happens.

Rules here: it sees the microphone's events on their way out and changes none of them; one fault sounds once, however
long it lasts and however often the microphone seems to be well in between.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import trio

if TYPE_CHECKING:
    from collections.abc import Callable

SETTLED_SECONDS = 1.0
"""A microphone that recovered and was well for less is still at the same fault."""


class FaultAlarm:
    """Stands between the microphone and those who are told of it.

    Args:
        sound: gives the alarm.
        emit: who is told every event.
    """

    def __init__(self, sound: Callable[[], object], emit: Callable[[dict[str, Any]], object]) -> None:
        self._sound = sound
        self._emit = emit
        self._well_since = -math.inf

    def emit(self, event: dict[str, Any], *, permanent: bool = False) -> None:
        """Pass an event of the microphone on, and give the alarm if it is a new fault.

        Args:
            event: as `Capture` tells it.
            permanent: the microphone is missing from the set-up and did not break, so nobody is to be alarmed.
        """
        self._emit(event)
        now = trio.current_time()
        if event["state"] == "fault":
            if not permanent and now - self._well_since >= SETTLED_SECONDS:
                self._sound()
        elif event["state"] == "recovered":
            self._well_since = now
