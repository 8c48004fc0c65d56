from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from utter_runner.machine.keys import Bindings
from utter_runner.voice.hotkeys.events import (
    DOWN,
    EV_KEY,
    EV_SYN,
    SYN_DROPPED,
    SYN_REPORT,
    UP,
    EventDecoder,
    KeyChange,
    encode,
)
from utter_runner.voice.hotkeys.matcher import Cancel, ChordMatcher, HotkeyEvent, Press, Release, Toggle

ESC, SPACE, LEFTCTRL, RIGHTCTRL, LEFTSHIFT, LEFTMETA, RIGHTMETA, F13, KEY_A = 1, 57, 29, 97, 42, 125, 126, 183, 30
EXAMPLES = settings(deadline=None, derandomize=True, database=None, max_examples=300)


class Desk:
    """A matcher with keyboards, driven by (device, "+key" or "-key")."""

    def __init__(self, *devices: str, **chords: str | list[str]) -> None:
        self.matcher = ChordMatcher(Bindings.parse(**chords))
        self.time = 0.0
        for device in devices or ("a",):
            self.matcher.add(device, ())

    def down(self, *codes: int, on: str = "a") -> list[HotkeyEvent]:
        return [event for code in codes for event in self._key(on, code, down=True)]

    def up(self, *codes: int, on: str = "a") -> list[HotkeyEvent]:
        return [event for code in codes for event in self._key(on, code, down=False)]

    def _key(self, device: str, code: int, *, down: bool) -> list[HotkeyEvent]:
        self.time += 1
        return self.matcher.key(device, code, down=down, time=self.time)


def test_holding_a_chord_presses_and_its_first_key_up_releases() -> None:
    desk = Desk(push_to_talk="LEFTMETA+SPACE")
    assert desk.down(LEFTMETA) == []
    assert desk.down(SPACE) == [Press(2)]
    assert desk.up(LEFTMETA) == [Release(3)]
    assert desk.up(SPACE) == []


def test_the_order_of_the_keys_does_not_matter() -> None:
    assert Desk(push_to_talk="LEFTMETA+SPACE").down(SPACE, LEFTMETA) == [Press(2)]


def test_keys_on_several_keyboards_make_one_chord() -> None:
    desk = Desk("a", "b", push_to_talk="LEFTMETA+SPACE")
    desk.down(LEFTMETA, on="a")
    assert desk.down(SPACE, on="b") == [Press(2)]
    assert desk.down(SPACE, on="a") == []
    assert desk.up(SPACE, on="b") == []
    assert desk.up(SPACE, on="a") == [Release(5)]


def test_a_generic_modifier_is_held_by_either_side() -> None:
    desk = Desk(push_to_talk="META+SPACE")
    desk.down(LEFTMETA)
    assert desk.down(SPACE) == [Press(2)]
    assert desk.down(RIGHTMETA) == []
    assert desk.up(LEFTMETA) == []
    assert desk.up(RIGHTMETA) == [Release(5)]


def test_a_sided_modifier_is_not_held_by_the_other_side() -> None:
    assert Desk(push_to_talk="LEFTCTRL").down(RIGHTCTRL) == []


def test_a_chord_does_not_begin_under_a_foreign_modifier_but_goes_on_under_it() -> None:
    desk = Desk(push_to_talk="LEFTMETA+SPACE")
    assert desk.down(LEFTSHIFT, LEFTMETA, SPACE) == []
    assert desk.up(LEFTSHIFT) == []
    assert desk.up(SPACE) == []
    assert desk.down(SPACE) == [Press(6)]
    assert desk.down(LEFTSHIFT) == []
    assert desk.up(SPACE) == [Release(8)]


def test_the_longer_chord_wins_over_the_one_inside_it() -> None:
    desk = Desk(push_to_talk="CTRL+SPACE", toggle="CTRL+SHIFT+SPACE")
    assert desk.down(LEFTCTRL, LEFTSHIFT, SPACE) == [Toggle(3)]


def test_cancel_works_while_a_modifier_is_held_to_talk() -> None:
    desk = Desk(push_to_talk="RIGHTCTRL", cancel="ESC")
    assert desk.down(RIGHTCTRL) == [Press(1)]
    assert desk.down(ESC) == [Cancel(2)]
    assert desk.up(ESC) == []
    assert desk.down(LEFTSHIFT, ESC) == [Cancel(5)]


def test_cancel_does_not_fire_inside_a_longer_chord_but_under_any_other_modifier() -> None:
    desk = Desk(push_to_talk="CTRL+ESC", cancel="ESC")
    assert desk.down(LEFTCTRL, ESC) == [Press(2)]
    desk.up(LEFTCTRL, ESC)
    assert desk.down(LEFTMETA, ESC) == [Cancel(6)]


def test_triggers_fire_once_per_press() -> None:
    desk = Desk(cancel="ESC", toggle="F13")
    assert desk.down(ESC) == [Cancel(1)]
    assert desk.down(ESC) == []
    assert desk.up(ESC) == []
    assert desk.down(ESC, F13) == [Cancel(4), Toggle(5)]


def test_two_chords_of_one_binding_overlap_into_one_hold() -> None:
    desk = Desk(push_to_talk=["F13", "SPACE"])
    assert desk.down(F13, SPACE) == [Press(1)]
    assert desk.up(F13) == []
    assert desk.up(SPACE) == [Release(4)]


def test_other_keys_are_not_remembered() -> None:
    desk = Desk(push_to_talk="F13")
    desk.down(KEY_A, LEFTSHIFT)
    assert desk.matcher.held == {LEFTSHIFT}


def test_keys_that_are_down_when_a_keyboard_appears_begin_nothing_but_count() -> None:
    desk = Desk(push_to_talk="LEFTMETA+SPACE", cancel="ESC")
    desk.matcher.add("b", [LEFTMETA, SPACE, ESC])
    assert not desk.matcher.talking
    assert desk.up(SPACE, on="b") == []
    assert desk.down(SPACE, on="a") == [Press(2)]


def test_a_keyboard_that_vanishes_releases_what_it_held() -> None:
    desk = Desk("a", "b", push_to_talk="LEFTMETA+SPACE")
    desk.down(LEFTMETA, on="a")
    desk.down(SPACE, on="b")
    assert desk.matcher.remove("b", time=9.0) == [Release(9.0)]
    assert desk.matcher.held == {LEFTMETA}
    assert desk.matcher.remove("b", time=9.0) == []
    assert desk.down(SPACE, on="b") == []


def test_a_resync_ends_and_begins_what_was_missed() -> None:
    desk = Desk(push_to_talk="F13", cancel="ESC")
    assert desk.matcher.sync("a", [F13], time=1.0) == [Press(1.0)]
    assert desk.matcher.sync("a", [F13, ESC], time=2.0) == [Cancel(2.0)]
    assert desk.matcher.sync("a", [ESC], time=3.0) == [Release(3.0)]
    assert desk.matcher.sync("unknown", [F13], time=4.0) == []


def test_adding_a_device_twice_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="added before"):
        Desk().matcher.add("a", ())


KEYS = [ESC, SPACE, LEFTMETA, LEFTSHIFT, F13]
steps = st.lists(
    st.one_of(
        st.tuples(st.sampled_from("abc"), st.sampled_from(KEYS), st.booleans()),
        st.tuples(st.sampled_from("abc"), st.sets(st.sampled_from(KEYS)), st.just("lost")),
        st.tuples(st.sampled_from("abc"), st.none(), st.sampled_from(["gone", "back"])),
    ),
    max_size=40,
)


@EXAMPLES
@given(steps)
def test_press_and_release_alternate_and_end_with_the_devices(script: list[tuple[str, object, object]]) -> None:
    """Whatever three keyboards do, lose and however they come and go."""
    matcher = ChordMatcher(Bindings.parse(push_to_talk=["LEFTMETA+SPACE", "F13"], cancel="ESC"))
    pressed: dict[str, set[int]] = {}
    told: list[HotkeyEvent] = []
    for time, (device, what, how) in enumerate(script):
        if how == "back":
            if device not in pressed:
                pressed[device] = set()
                matcher.add(device, ())
        elif how == "gone":
            pressed.pop(device, None)
            told += matcher.remove(device, time=time)
        elif isinstance(what, set):
            if device in pressed:
                pressed[device] = set(what)
            told += matcher.sync(device, what, time=time)
        else:
            assert isinstance(what, int)
            if device in pressed:
                (pressed[device].add if how else pressed[device].discard)(what)
            told += matcher.key(device, what, down=bool(how), time=time)
        held = set().union(*pressed.values())
        assert matcher.held == held
        if matcher.talking:
            assert F13 in held or {LEFTMETA, SPACE} <= held
    for device in list(pressed):
        told += matcher.remove(device, time=len(script))
    assert not matcher.held
    assert not matcher.talking
    holds = [type(event) for event in told if isinstance(event, Press | Release)]
    assert holds == [Press, Release] * (len(holds) // 2)
    assert [event.time for event in told] == sorted(event.time for event in told)


@EXAMPLES
@given(st.lists(st.tuples(st.sampled_from([F13, ESC, LEFTSHIFT]), st.booleans()), max_size=20), st.data())
def test_lost_events_at_any_place_end_in_the_true_state(script: list[tuple[int, bool]], data: st.DataObject) -> None:
    first = data.draw(st.integers(0, len(script)))
    last = data.draw(st.integers(first, len(script)))
    report = encode(EV_SYN, SYN_REPORT, 0)
    parts = [encode(EV_KEY, code, DOWN if down else UP) + report for code, down in script]
    stream = b"".join(parts[:first]) + encode(EV_SYN, SYN_DROPPED, 0) + report + b"".join(parts[last:])
    matcher, decoder = ChordMatcher(Bindings.parse(push_to_talk="F13")), EventDecoder()
    matcher.add("a", ())
    # The bitmap is read when the reader gets to it, which is after everything in the stream happened.
    final = {code for code, down in dict(script).items() if down}
    told: list[HotkeyEvent] = []
    for change in decoder.feed(stream):
        if isinstance(change, KeyChange):
            told += matcher.key("a", change.code, down=change.down, time=0)
        else:
            told += matcher.sync("a", final, time=0)
    assert matcher.held == final & {F13, LEFTSHIFT}
    assert matcher.talking <= (F13 in final)
    holds = [type(event) for event in told]
    assert holds == [Press, Release] * (len(holds) // 2) + [Press] * (len(holds) % 2)
