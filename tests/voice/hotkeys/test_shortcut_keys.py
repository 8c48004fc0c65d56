"""Signals of shortcuts and what they mean: whatever the desktop sends, nothing sticks and nothing counts twice."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from utter_runner.voice.hotkeys.matcher import Cancel, HotkeyEvent, Press, Release, Toggle
from utter_runner.voice.hotkeys.merge import ECHO_SECONDS, PathMerger
from utter_runner.voice.hotkeys.shortcut_keys import REPEAT_SECONDS, ShortcutKeys

PTT = "push_to_talk"
IDS = st.sampled_from([PTT, "toggle", "cancel", "somebody.elses", ""])
STEPS = st.lists(
    st.tuples(st.sampled_from(["on", "off", "gone"]), IDS, st.sampled_from([0.0, 0.03, 0.5, 0.99, 1.0, 5.0, 90.0])),
    max_size=40,
)


def kinds(events: list[HotkeyEvent]) -> list[type]:
    return [type(event) for event in events]


def alternates(events: list[type]) -> bool:
    pairs = [kind for kind in events if kind in {Press, Release}]
    return pairs == [(Press, Release)[at % 2] for at in range(len(pairs))]


def test_press_and_release_are_told_at_their_times() -> None:
    keys = ShortcutKeys()
    assert keys.activated(PTT, 7.0) == [Press(7.0)]
    assert keys.talking
    assert keys.deactivated(PTT, 8.5) == [Release(8.5)]
    assert not keys.talking
    assert not keys.one_sided


def test_a_held_key_that_repeats_is_one_press() -> None:
    keys = ShortcutKeys()
    told = keys.activated(PTT, 0.0)
    for at in range(1, 3000):
        told += keys.activated(PTT, at * 0.03)
    assert kinds(told + keys.deactivated(PTT, 91.0)) == [Press, Release]


def test_a_toggle_that_repeats_toggles_once() -> None:
    keys = ShortcutKeys()
    told = keys.activated("toggle", 0.0) + keys.activated("toggle", 0.6) + keys.deactivated("toggle", 0.7)
    assert kinds(told + keys.activated("toggle", 0.8) + keys.activated("cancel", 0.8)) == [Toggle, Toggle, Cancel]


def test_a_release_that_got_lost_is_made_up_for_by_the_next_press() -> None:
    keys = ShortcutKeys()
    keys.activated(PTT, 0.0)
    keys.deactivated(PTT, 1.0)
    keys.activated(PTT, 2.0)
    assert keys.activated(PTT, 2.0 + REPEAT_SECONDS) == [Release(3.0), Press(3.0)]
    assert keys.talking
    assert not keys.one_sided


def test_where_no_release_is_ever_told_the_next_press_is_one() -> None:
    keys = ShortcutKeys()
    told = [kinds(keys.activated(PTT, at)) for at in (0.0, 4.0, 9.0, 15.0)]
    assert told == [[Press], [Release], [Press], [Release]]
    assert keys.one_sided
    keys.activated(PTT, 20.0)
    keys.deactivated(PTT, 21.0)
    assert not keys.one_sided


def test_what_goes_away_lets_go_once() -> None:
    keys = ShortcutKeys()
    keys.activated(PTT, 0.0)
    assert kinds(keys.forget(1.0)) == [Release]
    assert keys.forget(1.0) == keys.deactivated(PTT, 2.0) == []


@given(STEPS)
def test_any_sequence_alternates_never_sticks_and_never_counts_twice(steps: list[tuple[str, str, float]]) -> None:
    keys = ShortcutKeys()
    now, told = 0.0, []
    activations = dict.fromkeys([PTT, "toggle", "cancel"], 0)
    for what, shortcut, pause in steps:
        now += pause
        if what == "on":
            activations[shortcut] = activations.get(shortcut, 0) + 1
            made = keys.activated(shortcut, now)
        else:
            made = keys.deactivated(shortcut, now) if what == "off" else keys.forget(now)
            assert not {Press, Toggle, Cancel} & set(kinds(made)), "only an activation starts anything"
            if what == "gone" or shortcut == PTT:
                assert not keys.talking
        assert all(event.time == now for event in made)
        told += kinds(made)
        assert alternates(told)
        assert keys.talking == (told.count(Press) > told.count(Release))
    for kind, shortcut in ((Press, PTT), (Toggle, "toggle"), (Cancel, "cancel")):
        assert told.count(kind) <= activations[shortcut]
    # However it was left, one press and one release of the key work again.
    now += 100.0
    after = kinds(keys.activated(PTT, now))
    assert after in ([Press], [Release], [Release, Press])
    keys.deactivated(PTT, now + 0.2)
    assert not keys.talking
    assert kinds(keys.activated(PTT, now + 0.3)) == [Press]


# ---- two paths


def test_a_key_that_both_tell_of_counts_once_whoever_is_first() -> None:
    merger = PathMerger()
    told = []
    for first, second in (("evdev", "portal"), ("portal", "evdev"), ("evdev", "portal")):
        start = 10.0 * len(told)
        told += merger.take(first, Press(start)) + merger.take(second, Press(start + 0.02))
        assert merger.delivering == first
        told += merger.take(second, Release(start + 2.0)) + merger.take(first, Release(start + 2.1))
    assert kinds(told) == [Press, Release] * 3


def test_an_echo_that_comes_after_a_short_tap_is_over_is_no_second_tap() -> None:
    merger = PathMerger()
    events = [
        ("evdev", Press(0.0)),
        ("evdev", Release(0.05)),
        ("evdev", Press(0.1)),
        ("evdev", Release(0.15)),
        ("portal", Press(0.2)),
        ("portal", Release(0.25)),
        ("portal", Press(0.3)),
        ("portal", Release(0.35)),
    ]
    assert kinds([told for path, event in events for told in merger.take(path, event)]) == [Press, Release] * 2


def test_toggles_and_cancels_have_echoes_too() -> None:
    merger = PathMerger()
    told = merger.take("portal", Toggle(0.0)) + merger.take("evdev", Toggle(0.1)) + merger.take("evdev", Cancel(0.1))
    assert kinds(told + merger.take("portal", Cancel(0.2))) == [Toggle, Cancel]
    assert kinds(merger.take("portal", Toggle(5.0)) + merger.take("evdev", Toggle(5.1 + ECHO_SECONDS))) == [Toggle] * 2


def test_two_different_keys_are_one_hold_until_both_are_up() -> None:
    merger = PathMerger()
    told = merger.take("evdev", Press(0.0)) + merger.take("portal", Press(3.0)) + merger.take("evdev", Release(4.0))
    assert kinds(told) == [Press]
    assert kinds(merger.take("portal", Release(5.0))) == [Release]


@given(
    st.lists(
        st.tuples(
            st.floats(0.05, 30.0),
            st.floats(0.05, 5.0),
            st.floats(0.0, ECHO_SECONDS),
            st.floats(0.0, ECHO_SECONDS),
            st.booleans(),
        ),
        max_size=12,
    )
)
def test_each_hold_of_a_key_that_both_paths_tell_of_is_one(
    holds: list[tuple[float, float, float, float, bool]],
) -> None:
    """Pauses, lengths, how much later the other path tells of the press and of the release, and which path it is."""
    now, events = 0.0, []
    last = {"evdev": 0.0, "portal": 0.0}
    for pause, length, late_press, late_release, swapped in holds:
        first, second = ("portal", "evdev") if swapped else ("evdev", "portal")
        # Each path keeps its own order, and tells of a hold before the next one begins.
        press = max(now + pause, last[first], last[second])
        release = press + length
        echo = press + late_press
        echo_end = max(echo, release + late_release)
        events += [(press, first, Press), (release, first, Release), (echo, second, Press), (echo_end, second, Release)]
        now = release
        last = {first: release, second: echo_end}
    merger = PathMerger()
    told = []
    for at, path, kind in sorted(events, key=lambda one: one[0]):
        told += kinds(merger.take(path, kind(at)))
    assert told == [Press, Release] * len(holds)


@given(
    st.lists(
        st.tuples(st.sampled_from(["evdev", "portal"]), st.integers(0, 3), st.sampled_from([0.0, 0.2, 0.6, 3.0])),
        max_size=60,
    )
)
def test_whatever_two_paths_tell_alternates_and_ends_when_both_have_let_go(steps: list[tuple[str, int, float]]) -> None:
    merger = PathMerger()
    now, told, held = 0.0, [], {"evdev": False, "portal": False}
    for path, what, pause in steps:
        now += pause
        event: HotkeyEvent
        if what <= 1:
            event = Release(now) if held[path] else Press(now)
            held[path] = not held[path]
        else:
            event = Toggle(now) if what == 2 else Cancel(now)
        told += kinds(merger.take(path, event))
        assert alternates(told)
        assert len(merger._recent) <= 64
    for path in [path for path, down in held.items() if down]:
        told += kinds(merger.take(path, Release(now)))
    assert told.count(Press) == told.count(Release)
