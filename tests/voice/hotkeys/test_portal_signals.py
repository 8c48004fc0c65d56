"""What the portal sends, of any shape: it is understood or left alone, and never raises."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from utter_runner.rpc.bus import DRIVER, Bus, Signal
from utter_runner.voice.hotkeys.portal_bus import MAX_TRIGGER, NAME, PATH, REQUEST, SESSION, SHORTCUTS, BusLink
from utter_runner.voice.hotkeys.portal_link import Activated, Answered, Closed, Deactivated, Gone, Triggers

OWNER = ":1.7"
SCALARS = st.one_of(st.integers(-1, 3), st.booleans(), st.sampled_from(["push_to_talk", "", "s", "a(sa{sv})", OWNER]))
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.tuples(inner, inner),
        st.dictionaries(st.sampled_from(["shortcuts", "trigger_description", "x"]), inner, max_size=2),
        st.tuples(st.just("s"), inner),
        st.tuples(st.just("a(sa{sv})"), st.lists(st.tuples(inner, inner), max_size=2)),
    ),
    max_leaves=12,
)


def link() -> BusLink:
    """A link whose portal is there, with a session and two requests under way."""
    connection: Any = SimpleNamespace()
    bus = Bus(connection)
    bus.unique_name = ":1.9"
    made = BusLink(bus)
    made._owner = OWNER
    made._requests = {f"{PATH}/request/1_9/a": "bind", f"{PATH}/request/1_9/b": "list"}
    return made


@given(
    st.sampled_from([SHORTCUTS, REQUEST, SESSION, "x"]),
    st.sampled_from(["Activated", "Deactivated", "ShortcutsChanged", "Response", "Closed", "NameOwnerChanged"]),
    st.sampled_from([PATH, f"{PATH}/request/1_9/a", f"{PATH}/request/1_9/b", f"{PATH}/session/1_9/utter_runner", "/"]),
    st.booleans(),
    st.lists(VALUES, max_size=4),
)
def test_signals_of_any_shape(interface: str, member: str, path: str, about: bool, body: list[Any]) -> None:
    made = link()
    session = (made._session,) if about else ()
    event = made._event(Signal(OWNER, interface, member, (*session, *body), path))
    if isinstance(event, (Activated, Deactivated)):
        assert (interface, about) == (SHORTCUTS, True)
        assert isinstance(event.shortcut, str)
    elif isinstance(event, (Answered, Triggers)):
        assert interface == (SHORTCUTS if isinstance(event, Triggers) and event.changed else REQUEST)
        for name, text in event.triggers.items():
            assert isinstance(name, str)
            assert 0 < len(text) <= MAX_TRIGGER
    elif isinstance(event, Closed):
        assert path == made._session
    else:
        assert event is None


@given(
    st.sampled_from([OWNER, DRIVER, ":1.8", ""]), st.sampled_from(["NameOwnerChanged", "Activated"]), st.lists(VALUES)
)
def test_only_the_bus_and_the_portal_are_heard(sender: str, member: str, body: list[Any]) -> None:
    made = link()
    signal = Signal(sender, DRIVER, member, tuple(body), PATH)
    if made._is_wanted(signal):
        assert sender in {OWNER, DRIVER}
        made._event(signal)
    else:
        assert sender != OWNER


def test_the_portals_name_with_another_owner_is_another_portal() -> None:
    made = link()
    for now, event in ((OWNER, None), ("", Gone()), (":1.8", Gone())):
        signal = Signal(DRIVER, DRIVER, "NameOwnerChanged", (NAME, OWNER, now), "/org/freedesktop/DBus")
        assert made._is_wanted(signal)
        assert made._event(signal) == event
