from __future__ import annotations

import pytest

from utter_runner.machine.keys import Bindings, Chord, HotkeyError, key_codes, modifier_codes

KEY_SPACE, KEY_LEFTCTRL, KEY_RIGHTCTRL, KEY_LEFTMETA, KEY_F13, BTN_SIDE = 57, 29, 97, 125, 183, 0x113


def test_codes_are_those_of_the_kernel() -> None:
    codes = key_codes()
    assert (codes["SPACE"], codes["F13"], codes["BTN_SIDE"]) == (KEY_SPACE, KEY_F13, BTN_SIDE)
    assert "MAX" not in codes
    assert modifier_codes() == {29, 97, 42, 54, 56, 100, 125, 126}


@pytest.mark.parametrize("text", ["LEFTMETA+SPACE", " leftmeta + Space ", "KEY_LEFTMETA+KEY_SPACE"])
def test_names_in_any_case_with_and_without_prefix(text: str) -> None:
    assert Chord.parse(text).keys == (frozenset({KEY_LEFTMETA}), frozenset({KEY_SPACE}))


def test_a_generic_modifier_matches_both_sides_and_a_sided_one_only_its_own() -> None:
    assert Chord.parse("CTRL").keys == (frozenset({KEY_LEFTCTRL, KEY_RIGHTCTRL}),)
    assert Chord.parse("LEFTCTRL").keys == (frozenset({KEY_LEFTCTRL}),)


@pytest.mark.parametrize(
    ("other", "name"), [("SUPER", "META"), ("CONTROL", "CTRL"), ("ESCAPE", "ESC"), ("ALTGR", "RIGHTALT")]
)
def test_other_names_of_the_same_key(other: str, name: str) -> None:
    assert Chord.parse(other).keys == Chord.parse(name).keys


def test_an_unknown_name_is_answered_with_the_nearest_ones() -> None:
    with pytest.raises(
        HotkeyError, match=r'"RIGTHCTRL" is not a key name\. The nearest known names are RIGHTCTRL'
    ) as caught:
        Bindings.parse(push_to_talk="RIGTHCTRL")
    assert caught.value.binding == "push_to_talk"
    assert str(caught.value).startswith("push_to_talk: ")


def test_a_name_that_is_near_nothing_is_answered_with_examples() -> None:
    with pytest.raises(HotkeyError, match="For example: RIGHTCTRL, F13"):
        Chord.parse("¤¤¤¤¤")


@pytest.mark.parametrize("text", ["", "+", "CTRL+", "CTRL++SPACE", "  "])
def test_an_empty_name_is_refused(text: str) -> None:
    with pytest.raises(HotkeyError, match="is not a chord"):
        Chord.parse(text)


@pytest.mark.parametrize("text", ["SPACE+SPACE", "CTRL+LEFTCTRL", "MUTE+KEY_MUTE"])
def test_the_same_key_twice_is_refused(text: str) -> None:
    with pytest.raises(HotkeyError, match="twice"):
        Chord.parse(text)


def test_bindings_take_one_chord_or_several_and_leave_out_the_empty() -> None:
    bindings = Bindings.parse(push_to_talk=["RIGHTCTRL", "F13"], toggle="", cancel="ESC")
    assert [(name, chord.text) for name, chord in bindings] == [
        ("push_to_talk", "RIGHTCTRL"),
        ("push_to_talk", "F13"),
        ("cancel", "ESC"),
    ]
    assert bindings.codes == {KEY_RIGHTCTRL, KEY_F13, 1}
    assert not Bindings.parse().codes


def test_one_chord_cannot_serve_two_bindings() -> None:
    with pytest.raises(HotkeyError, match=r'cancel: "SPACE\+META" is already the chord of toggle'):
        Bindings.parse(toggle="META+SPACE", cancel="SPACE+META")
