"""Key names, chords and bindings: what a person writes in `[hotkeys]`, checked and turned into key codes.

Rules here: pure data after parsing. Names are the kernel's (linux/input-event-codes.h) without `KEY_`; SHIFT, CTRL, ALT
and META match either side, LEFTCTRL and the like only the one. The name table comes from evdev, which is imported when
the first chord is parsed.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

BindingName = Literal["push_to_talk", "toggle", "cancel"]
BINDING_NAMES: tuple[BindingName, ...] = ("push_to_talk", "toggle", "cancel")

_EITHER_SIDE = {
    "SHIFT": ("LEFTSHIFT", "RIGHTSHIFT"),
    "CTRL": ("LEFTCTRL", "RIGHTCTRL"),
    "ALT": ("LEFTALT", "RIGHTALT"),
    "META": ("LEFTMETA", "RIGHTMETA"),
}
_MODIFIER_NAMES = tuple(name for sides in _EITHER_SIDE.values() for name in sides)
_SAME_KEY = {"CONTROL": "CTRL", "SUPER": "META", "WIN": "META", "ESCAPE": "ESC", "RETURN": "ENTER", "ALTGR": "RIGHTALT"}
_NOT_KEYS = frozenset({"KEY_MAX", "KEY_CNT", "KEY_MIN_INTERESTING", "KEY_RESERVED", "KEY_UNKNOWN"})
_SUGGESTIONS = 3


class HotkeyError(ValueError):
    """A chord that cannot be watched.

    Args:
        binding: the key of `[hotkeys]` that holds it, "" when a chord was parsed on its own.
        message: what is wrong and what would be right, in one sentence.
    """

    def __init__(self, binding: str, message: str) -> None:
        super().__init__(f"{binding}: {message}" if binding else message)
        self.binding = binding
        self.message = message


@lru_cache(maxsize=1)
def key_codes() -> Mapping[str, int]:
    """Every known key name (upper case, without `KEY_`; buttons keep `BTN_`) and its code."""
    from evdev import ecodes  # noqa: PLC0415 - costs 15 ms and 2 MiB, wanted only where hotkeys are configured

    names: dict[str, int] = {}
    for name, code in ecodes.ecodes.items():
        if name in _NOT_KEYS:
            continue
        if name.startswith("KEY_"):
            names[name.removeprefix("KEY_")] = code
        elif name.startswith("BTN_"):
            names[name] = code
    return names


@lru_cache(maxsize=1)
def modifier_codes() -> frozenset[int]:
    """The codes of both sides of SHIFT, CTRL, ALT and META."""
    codes = key_codes()
    return frozenset(codes[name] for name in _MODIFIER_NAMES)


@dataclass(frozen=True, slots=True)
class Chord:
    """Keys that are held together.

    Attributes:
        text: the chord as it was written, in upper case.
        keys: one set per name; a name is held when any code of its set is.
    """

    text: str
    keys: tuple[frozenset[int], ...]

    @property
    def codes(self) -> frozenset[int]:
        """Every code that takes part."""
        return frozenset().union(*self.keys)

    @classmethod
    def parse(cls, text: str, *, binding: str = "") -> Chord:
        """Read "LEFTMETA+SPACE", "ctrl + alt + KEY_F12" or "RIGHTCTRL".

        Raises:
            HotkeyError: an empty chord, an unknown name (with the nearest known ones), or the same key twice.
        """
        names = [name.strip().upper() for name in text.split("+")]
        if not all(names):
            raise HotkeyError(
                binding, f'"{text}" is not a chord: write key names joined by +, for example "LEFTMETA+SPACE".'
            )
        keys: list[frozenset[int]] = []
        for name in names:
            codes = _codes_of(name, binding)
            if any(codes & earlier for earlier in keys):
                raise HotkeyError(binding, f'"{text}" names the key {name} twice.')
            keys.append(codes)
        return cls("+".join(names), tuple(keys))


@dataclass(frozen=True, slots=True)
class Bindings:
    """The chords of each binding; any chord of a binding serves it."""

    push_to_talk: tuple[Chord, ...] = ()
    toggle: tuple[Chord, ...] = ()
    cancel: tuple[Chord, ...] = ()
    codes: frozenset[int] = field(init=False)

    def __post_init__(self) -> None:
        every: set[int] = set()
        for _, chord in self:
            every |= chord.codes
        object.__setattr__(self, "codes", frozenset(every))

    def __iter__(self) -> Iterator[tuple[BindingName, Chord]]:
        for name in BINDING_NAMES:
            for chord in getattr(self, name):
                yield name, chord

    @classmethod
    def parse(
        cls,
        *,
        push_to_talk: str | Sequence[str] = (),
        toggle: str | Sequence[str] = (),
        cancel: str | Sequence[str] = (),
    ) -> Bindings:
        """Read the chords of each binding; an empty string or list leaves the binding out.

        Raises:
            HotkeyError: a chord is wrong, or serves two bindings.
        """
        written = {"push_to_talk": push_to_talk, "toggle": toggle, "cancel": cancel}
        parsed: dict[str, tuple[Chord, ...]] = {}
        owner: dict[frozenset[frozenset[int]], str] = {}
        for binding, texts in written.items():
            several = (texts,) if isinstance(texts, str) else texts
            chords = tuple(Chord.parse(text, binding=binding) for text in several if text)
            for chord in chords:
                other = owner.setdefault(frozenset(chord.keys), binding)
                if other != binding:
                    raise HotkeyError(binding, f'"{chord.text}" is already the chord of {other}.')
            parsed[binding] = chords
        return cls(**parsed)


def _codes_of(name: str, binding: str) -> frozenset[int]:
    name = name.removeprefix("KEY_")
    name = _SAME_KEY.get(name, name)
    codes = key_codes()
    if name in _EITHER_SIDE:
        return frozenset(codes[side] for side in _EITHER_SIDE[name])
    if name in codes:
        return frozenset({codes[name]})
    known = [*codes, *_EITHER_SIDE]
    near = difflib.get_close_matches(name, known, n=_SUGGESTIONS, cutoff=0.6)
    hint = (
        f" The nearest known names are {', '.join(near)}." if near else " For example: RIGHTCTRL, F13, LEFTMETA+SPACE."
    )
    raise HotkeyError(binding, f'"{name}" is not a key name.{hint}')
