"""What the signals of a desktop's shortcuts mean as hotkey events.

Rules here: pure state. A desktop may repeat a key that is held, may forget to tell that one went up, and may never tell
so at all; Press and Release alternate whatever it does, and no key stays pressed for good because a signal is missing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from utter_runner.voice.hotkeys.matcher import Cancel, Press, Release, Toggle

if TYPE_CHECKING:
    from utter_runner.voice.hotkeys.matcher import HotkeyEvent

REPEAT_SECONDS = 1.0
"""A key that is held repeats sooner than this, or not at all: what comes later is another press."""


class ShortcutKeys:
    """The shortcuts of one session, by their ids."""

    def __init__(self) -> None:
        self._last: dict[str, float] = {}
        self._talking = False
        self._releases = False
        self._missed = False

    @property
    def talking(self) -> bool:
        """The last of Press and Release was a Press."""
        return self._talking

    @property
    def one_sided(self) -> bool:
        """The desktop has told of presses, and never of a release where there must have been one."""
        return self._missed and not self._releases

    def activated(self, shortcut: str, time: float) -> list[HotkeyEvent]:
        """A shortcut was activated at a time of a monotonic clock. Unknown ids change nothing."""
        if shortcut not in {"push_to_talk", "toggle", "cancel"}:
            return []
        before = self._last.get(shortcut)
        self._last[shortcut] = time
        if before is not None:
            if time - before < REPEAT_SECONDS:
                return []
            self._missed = True
        if shortcut == "toggle":
            return [Toggle(time)]
        if shortcut == "cancel":
            return [Cancel(time)]
        if not self._talking:
            self._talking = True
            return [Press(time)]
        # The release got lost; or there are none here, and the key is one that is pressed once more to stop.
        self._talking = self._releases
        return [Release(time), Press(time)] if self._releases else [Release(time)]

    def deactivated(self, shortcut: str, time: float) -> list[HotkeyEvent]:
        """A shortcut is not active any more."""
        if self._last.pop(shortcut, None) is None:
            return []
        self._releases = True
        if shortcut != "push_to_talk" or not self._talking:
            return []
        self._talking = False
        return [Release(time)]

    def forget(self, time: float) -> list[HotkeyEvent]:
        """Nobody will tell of what is held: it counts as released."""
        self._last.clear()
        talking, self._talking = self._talking, False
        return [Release(time)] if talking else []
