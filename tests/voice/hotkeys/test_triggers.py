"""Chords as triggers of a desktop's shortcuts, as the XDG shortcuts specification writes them."""

from __future__ import annotations

import ctypes
import ctypes.util
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from utter_runner.config import HotkeysConfig
from utter_runner.machine.keys import Bindings, Chord, key_codes
from utter_runner.voice.hotkeys.triggers import DEFAULTS, KEYSYMS, shortcuts, trigger_of

TRIGGER = re.compile(r"(?:(?:CTRL|ALT|SHIFT|LOGO)\+)*[A-Za-z0-9_]+")
SIDES = ["LEFTCTRL", "RIGHTCTRL", "LEFTALT", "RIGHTALT", "LEFTSHIFT", "RIGHTSHIFT", "LEFTMETA", "RIGHTMETA"]
EITHER = ["CTRL", "ALT", "SHIFT", "META"]


@pytest.mark.parametrize(
    ("chord", "trigger"),
    [
        ("CTRL+ALT+SPACE", "CTRL+ALT+space"),
        ("KEY_LEFTMETA+KEY_SPACE", "LOGO+space"),
        ("shift+super+a", "SHIFT+LOGO+a"),
        ("A+ALTGR+RIGHTCTRL", "CTRL+ALT+a"),
        ("F9", "F9"),
        ("F13", "XF86Tools"),
        ("CTRL+ESC", "CTRL+Escape"),
        ("PAUSE", "Pause"),
        ("LEFTALT+102ND", "ALT+less"),
    ],
)
def test_chords_have_triggers(chord: str, trigger: str) -> None:
    assert trigger_of(Chord.parse(chord)) == (trigger, "")


@pytest.mark.parametrize(
    ("chord", "why"),
    [
        ("KEY_RIGHTCTRL", "is made of modifiers alone"),
        ("CTRL+LEFTALT", "is made of modifiers alone"),
        ("CTRL+A+B", "has more than one key that is no modifier"),
        ("BTN_SIDE", "has a key that desktops have no name for"),
        ("CTRL+KEY_FN", "has a key that desktops have no name for"),
        ("ESC", "would be taken away from every application"),
        ("SHIFT+SPACE", "would be taken away from every application"),
    ],
)
def test_chords_that_cannot_be_say_why(chord: str, why: str) -> None:
    assert trigger_of(Chord.parse(chord)) == ("", why)


def test_the_default_keys_get_proposals_and_the_notes_say_so() -> None:
    keys = HotkeysConfig()
    push_to_talk, cancel = shortcuts(Bindings.parse(push_to_talk=keys.push_to_talk, cancel=keys.cancel))
    assert (push_to_talk.id, push_to_talk.trigger) == ("push_to_talk", "CTRL+ALT+space")
    assert push_to_talk.note == (
        "[hotkeys] push_to_talk KEY_RIGHTCTRL is made of modifiers alone, so CTRL+ALT+space is proposed to the desktop "
        "in its place"
    )
    assert (cancel.id, cancel.trigger) == ("cancel", DEFAULTS["cancel"])


def test_a_proposal_that_is_taken_gives_way() -> None:
    found = shortcuts(Bindings.parse(push_to_talk="CTRL+ALT+SHIFT+SPACE", toggle="LEFTSHIFT", cancel="RIGHTSHIFT"))
    assert [one.trigger for one in found] == ["CTRL+ALT+SHIFT+space", "", DEFAULTS["cancel"]]
    assert found[1].note.endswith("so none is proposed")


def test_of_several_chords_the_first_that_can_be_is_proposed() -> None:
    (only,) = shortcuts(Bindings.parse(push_to_talk=["RIGHTCTRL", "F9"]))
    assert (only.trigger, only.note) == ("F9", "")


@given(
    st.dictionaries(
        st.sampled_from(["push_to_talk", "toggle", "cancel"]),
        st.lists(st.sampled_from([*KEYSYMS, *SIDES, *EITHER, "FN", "BTN_SIDE"]), min_size=1, max_size=4),
    )
)
def test_whatever_is_configured_the_triggers_are_well_formed_and_no_two_the_same(chords: dict[str, list[str]]) -> None:
    try:
        bindings = Bindings.parse(**{name: "+".join(keys) for name, keys in chords.items()})
    except ValueError:
        return
    found = shortcuts(bindings)
    assert [one.id for one in found] == [name for name in ("push_to_talk", "toggle", "cancel") if name in chords]
    triggers = [one.trigger for one in found if one.trigger]
    assert len(set(triggers)) == len(triggers)
    for one in found:
        assert one.trigger or one.note
        *modifiers, key = one.trigger.split("+")
        assert not one.trigger or TRIGGER.fullmatch(one.trigger)
        assert modifiers == sorted(set(modifiers), key=["CTRL", "ALT", "SHIFT", "LOGO"].index)
        if not one.note:
            wanted = {
                name.removeprefix("LEFT").removeprefix("RIGHT").replace("META", "LOGO") for name in chords[one.id]
            }
            assert set(modifiers) <= wanted
            assert key in {KEYSYMS.get(name) for name in chords[one.id]}


def test_every_key_is_one() -> None:
    assert set(KEYSYMS) <= set(key_codes())


@pytest.mark.skipif(ctypes.util.find_library("xkbcommon") is None, reason="libxkbcommon is not installed")
def test_every_keysym_is_one_of_xkbcommon() -> None:
    library = ctypes.CDLL(ctypes.util.find_library("xkbcommon"))
    library.xkb_keysym_from_name.argtypes = [ctypes.c_char_p, ctypes.c_int]
    names = {*KEYSYMS.values(), *(trigger.rsplit("+", 1)[1] for trigger in DEFAULTS.values())}
    assert [name for name in names if not library.xkb_keysym_from_name(name.encode(), 0)] == []
    assert library.xkb_keysym_from_name(b"no_such_key", 0) == 0
