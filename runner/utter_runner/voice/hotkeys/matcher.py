"""Which bound chords are held, over all keyboards together.

Rules here: pure state, fed with (device, code, down) and times, returning events; only this module decides when a chord
begins and ends. It remembers bound keys and modifiers, and forgets every other key at once.

A chord begins when its last key goes down, and ends when the first of its keys goes up; further keys do not end it. It
does not begin under a foreign modifier: one that neither it nor a chord that is already held names. Cancelling must
always work, so a cancel chord minds only modifiers that would make it another bound chord. Keys that were already down
when a device appeared begin nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from utter_runner.machine.keys import modifier_codes

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable

    from utter_runner.machine.keys import BindingName, Bindings, Chord


@dataclass(frozen=True, slots=True)
class Press:
    """The push-to-talk chord began. `time` as in every event: seconds of a monotonic clock."""

    time: float


@dataclass(frozen=True, slots=True)
class Release:
    """The push-to-talk chord ended."""

    time: float


@dataclass(frozen=True, slots=True)
class Toggle:
    """The toggle chord began."""

    time: float


@dataclass(frozen=True, slots=True)
class Cancel:
    """The cancel chord began."""

    time: float


HotkeyEvent = Press | Release | Toggle | Cancel


@dataclass(slots=True)
class _Watched:
    binding: BindingName
    chord: Chord
    foreign: frozenset[int]
    """Modifiers under which it does not begin."""
    complete: bool = False
    """All its keys are down."""
    active: bool = False
    """It began and has not ended."""


class ChordMatcher:
    """The state machine between key changes and hotkey events."""

    def __init__(self, bindings: Bindings) -> None:
        modifiers = modifier_codes() if bindings.codes else frozenset()
        self._relevant = set(bindings.codes | modifiers)
        self._watched = [_Watched(name, chord, _foreign(name, chord, bindings, modifiers)) for name, chord in bindings]
        self._down: dict[Hashable, set[int]] = {}

    @property
    def talking(self) -> bool:
        """A push-to-talk chord is held: the last of Press and Release was a Press."""
        return any(each.active for each in self._watched if each.binding == "push_to_talk")

    @property
    def held(self) -> frozenset[int]:
        """The bound keys and modifiers that are down on any device."""
        return frozenset().union(*self._down.values())

    def add(self, device: Hashable, pressed: Iterable[int]) -> None:
        """A new device appeared with these keys already down. They count towards later chords but begin none."""
        if device in self._down:
            raise ValueError(f"device {device!r} was added before")
        self._down[device] = self._relevant & set(pressed)
        self._settle(0.0, begins=False)

    def key(self, device: Hashable, code: int, *, down: bool, time: float) -> list[HotkeyEvent]:
        """A key changed on a device that was added. Unknown devices and a repeated state change nothing."""
        keys = self._down.get(device)
        if keys is None or code not in self._relevant:
            return []
        if down:
            keys.add(code)
        else:
            keys.discard(code)
        return self._settle(time, begins=True)

    def sync(self, device: Hashable, pressed: Iterable[int], *, time: float) -> list[HotkeyEvent]:
        """Events of the device were lost and these keys are down now: end and begin what that implies."""
        if device not in self._down:
            return []
        self._down[device] = self._relevant & set(pressed)
        return self._settle(time, begins=True)

    def remove(self, device: Hashable, *, time: float) -> list[HotkeyEvent]:
        """The device is gone and holds nothing any more."""
        self._down.pop(device, None)
        return self._settle(time, begins=False)

    def _settle(self, time: float, *, begins: bool) -> list[HotkeyEvent]:
        held = self.held
        minded = held.difference(*(each.chord.codes for each in self._watched if each.active))
        was_talking = self.talking
        triggered: list[HotkeyEvent] = []
        for each in self._watched:
            complete = all(codes & held for codes in each.chord.keys)
            if complete and not each.complete and begins and not each.foreign & minded:
                each.active = True
                if each.binding == "toggle":
                    triggered.append(Toggle(time))
                elif each.binding == "cancel":
                    triggered.append(Cancel(time))
            elif not complete:
                each.active = False
            each.complete = complete
        talking = self.talking
        if talking and not was_talking:
            return [Press(time), *triggered]
        if was_talking and not talking:
            return [Release(time), *triggered]
        return triggered


def _foreign(name: BindingName, chord: Chord, bindings: Bindings, modifiers: frozenset[int]) -> frozenset[int]:
    if name != "cancel":
        return modifiers - chord.codes
    longer = (other.codes for _, other in bindings if set(chord.keys) < set(other.keys))
    return modifiers.intersection(frozenset[int]().union(*longer)) - chord.codes
