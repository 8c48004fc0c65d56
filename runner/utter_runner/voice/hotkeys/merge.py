"""One key that is told of by two paths counts once.

Rules here: pure state. What one path tells within `ECHO_SECONDS` of the same event of another path is that event again.
A press and its echo are one hold, which ends with the first release of either; Press and Release alternate.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from utter_runner.voice.hotkeys.matcher import Press, Release

if TYPE_CHECKING:
    from utter_runner.voice.hotkeys.matcher import HotkeyEvent

ECHO_SECONDS = 0.5
_MAX_RECENT = 64


@dataclass(eq=False, slots=True)
class _Told:
    """An event that counted, until its echo has come or none can come any more."""

    path: str
    kind: type[HotkeyEvent]
    time: float


@dataclass(slots=True)
class PathMerger:
    """Merges the events of several paths.

    Attributes:
        delivering: the path of the last event that counted and was no Release; "" before the first.
    """

    delivering: str = ""
    _recent: deque[_Told] = field(default_factory=lambda: deque(maxlen=_MAX_RECENT))
    _holds: dict[str, _Told] = field(default_factory=dict)
    _held: set[_Told] = field(default_factory=set)

    def take(self, path: str, event: HotkeyEvent) -> list[HotkeyEvent]:
        """Take an event of a path; return what it comes to. Within a path, Press and Release alternate."""
        if isinstance(event, Release):
            return self._release(path, event)
        while self._recent and event.time - self._recent[0].time > ECHO_SECONDS:
            self._recent.popleft()
        echoed = next((told for told in self._recent if told.path != path and told.kind is type(event)), None)
        if echoed is not None:
            self._recent.remove(echoed)
            if isinstance(event, Press):
                self._holds[path] = echoed
            return []
        told = _Told(path, type(event), event.time)
        self._recent.append(told)
        self.delivering = path
        if not isinstance(event, Press):
            return [event]
        self._holds[path] = told
        self._held.add(told)
        return [event] if len(self._held) == 1 else []

    def _release(self, path: str, event: Release) -> list[HotkeyEvent]:
        hold = self._holds.pop(path, None)
        if hold is None or hold not in self._held:
            return []
        self._held.discard(hold)
        return [] if self._held else [event]
