"""What a chord of `[hotkeys]` is called where a desktop is asked for a shortcut.

Rules here: pure. A trigger is modifiers and one key, as the XDG shortcuts specification writes it: CTRL, ALT, SHIFT and
LOGO, then the name of an xkbcommon keysym, joined by +. The desktop takes a shortcut away from every application, so
a key that people type or edit with is never proposed without CTRL, ALT or LOGO; the desktop has the last word anyhow.
"""

from __future__ import annotations

import string
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from utter_runner.machine.keys import BINDING_NAMES, key_codes, modifier_codes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from utter_runner.machine.keys import BindingName, Bindings, Chord

DESCRIPTIONS: Mapping[BindingName, str] = {
    "push_to_talk": "Hold to speak",
    "toggle": "Start or stop listening",
    "cancel": "Drop what is being said or done",
}
"""What the desktop shows beside each shortcut."""

DEFAULTS: Mapping[BindingName, str] = {
    "push_to_talk": "CTRL+ALT+space",
    "toggle": "CTRL+ALT+SHIFT+space",
    "cancel": "CTRL+ALT+SHIFT+Escape",
}
"""What is proposed where the configured chord cannot be."""

_MODIFIERS = (("CTRL", "CTRL"), ("ALT", "ALT"), ("SHIFT", "SHIFT"), ("META", "LOGO"))
_TYPED = {
    **{letter.upper(): letter for letter in string.ascii_lowercase},
    **{digit: digit for digit in string.digits},
    "SPACE": "space",
    "ENTER": "Return",
    "ESC": "Escape",
    "TAB": "Tab",
    "BACKSPACE": "BackSpace",
    "DELETE": "Delete",
    "INSERT": "Insert",
    "HOME": "Home",
    "END": "End",
    "PAGEUP": "Page_Up",
    "PAGEDOWN": "Page_Down",
    "LEFT": "Left",
    "RIGHT": "Right",
    "UP": "Up",
    "DOWN": "Down",
    "MINUS": "minus",
    "EQUAL": "equal",
    "LEFTBRACE": "bracketleft",
    "RIGHTBRACE": "bracketright",
    "SEMICOLON": "semicolon",
    "APOSTROPHE": "apostrophe",
    "GRAVE": "grave",
    "BACKSLASH": "backslash",
    "COMMA": "comma",
    "DOT": "period",
    "SLASH": "slash",
    "102ND": "less",
    **{f"KP{digit}": f"KP_{digit}" for digit in string.digits},
    "KPENTER": "KP_Enter",
    "KPPLUS": "KP_Add",
    "KPMINUS": "KP_Subtract",
    "KPASTERISK": "KP_Multiply",
    "KPSLASH": "KP_Divide",
    "KPDOT": "KP_Decimal",
}
# F13 and on have no keysym of their own in the usual layouts; this is what those layouts make of them.
_ALONE = {
    **{f"F{number}": f"F{number}" for number in range(1, 13)},
    "F13": "XF86Tools",
    **{f"F{number}": f"XF86Launch{number - 9}" for number in range(14, 19)},
    "F20": "XF86AudioMicMute",
    "F21": "XF86TouchpadToggle",
    "PAUSE": "Pause",
    "SCROLLLOCK": "Scroll_Lock",
    "SYSRQ": "Print",
    "COMPOSE": "Menu",
    "HELP": "Help",
    "MUTE": "XF86AudioMute",
    "MICMUTE": "XF86AudioMicMute",
    "PLAYPAUSE": "XF86AudioPlay",
    "CALC": "XF86Calculator",
    "MAIL": "XF86Mail",
    "HOMEPAGE": "XF86HomePage",
    "SEARCH": "XF86Search",
    "PROG1": "XF86Launch1",
    "PROG2": "XF86Launch2",
    "PROG3": "XF86Launch3",
    "PROG4": "XF86Launch4",
    "PHONE": "XF86Phone",
    "RECORD": "XF86AudioRecord",
}
KEYSYMS: Mapping[str, str] = {**_TYPED, **_ALONE}
"""Every key that can be in a trigger, and its keysym."""


class Shortcut(NamedTuple):
    """One shortcut to ask for.

    Attributes:
        id: the binding, which is the shortcut's id as well.
        description: for the person who is asked.
        trigger: what is proposed; "" when everything that could be is taken by another binding.
        note: why that is not the configured chord; "" when it is.
    """

    id: BindingName
    description: str
    trigger: str
    note: str


def trigger_of(chord: Chord) -> tuple[str, str]:
    """Return the trigger of a chord and "", or "" and the reason why it has none."""
    held: set[str] = set()
    symbols: list[str] = []
    for codes in chord.keys:
        modifier = next((name for name, side in _modifier_sides().items() if codes <= side), None)
        if modifier is not None:
            held.add(modifier)
        elif (symbol := next((_by_code()[code] for code in sorted(codes) if code in _by_code()), None)) is not None:
            symbols.append(symbol)
        else:
            return "", "has a key that desktops have no name for"
    if not symbols:
        return "", "is made of modifiers alone"
    if len(symbols) > 1:
        return "", "has more than one key that is no modifier"
    if symbols[0] not in _ALONE.values() and not held - {"SHIFT"}:
        return "", "would be taken away from every application"
    return "+".join([name for _, name in _MODIFIERS if name in held] + symbols), ""


def shortcuts(bindings: Bindings) -> tuple[Shortcut, ...]:
    """Return what to ask for: one shortcut for each binding that is configured; no trigger is there twice."""
    taken: set[str] = set()
    found = []
    for name in BINDING_NAMES:
        chords: tuple[Chord, ...] = getattr(bindings, name)
        if not chords:
            continue
        trigger, why = next((made for made in map(trigger_of, chords) if made[0]), trigger_of(chords[0]))
        if trigger in taken:
            trigger, why = "", "is the same for a desktop as another one"
        note = ""
        if not trigger:
            trigger = DEFAULTS[name] if DEFAULTS[name] not in taken else ""
            proposed = f"{trigger} is proposed to the desktop in its place" if trigger else "none is proposed"
            note = f"[hotkeys] {name} {chords[0].text} {why}, so {proposed}"
        taken |= {trigger} - {""}
        found.append(Shortcut(name, DESCRIPTIONS[name], trigger, note))
    return tuple(found)


@lru_cache(maxsize=1)
def _by_code() -> Mapping[int, str]:
    codes = key_codes()
    return {codes[name]: symbol for name, symbol in KEYSYMS.items() if name in codes}


@lru_cache(maxsize=1)
def _modifier_sides() -> Mapping[str, frozenset[int]]:
    codes = key_codes()
    every = modifier_codes()
    return {shown: every & {codes[f"LEFT{name}"], codes[f"RIGHT{name}"]} for name, shown in _MODIFIERS}
