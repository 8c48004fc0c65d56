"""Both ways of the keys together: when the desktop is asked, what it does wrong, and what the status says."""

from __future__ import annotations

import errno
import itertools
import logging
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
import trio
import trio.testing

from utter_runner.rpc.bus import BusError, NoBusError
from utter_runner.voice.build import _NO_HOTKEYS
from utter_runner.voice.hotkeys import Bindings, Cancel, HotkeyEvent, KeyWatch, Press, Release, Toggle
from utter_runner.voice.hotkeys.fake import FakeBackend, FakeKeyboard
from utter_runner.voice.hotkeys.fake_portal import FakePortal
from utter_runner.voice.hotkeys.portal import HEALTHY_SECONDS, LONGEST_PAUSE, MAX_UNANSWERED
from utter_runner.voice.hotkeys.portal_link import (
    DISMISSED,
    DONE,
    NoAppError,
    NoShortcutsError,
    PortalError,
    Triggers,
)
from utter_runner.voice.hotkeys.watch import GRACE_SECONDS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

F13, F14, ESC = 183, 184, 1
NODE = "/dev/input/event0"
DENIED = PermissionError(errno.EACCES, "Permission denied")
PTT = "push_to_talk"


class Watch:
    """A running watch, what it told, and the clock that does not wait."""

    def __init__(self, portal: FakePortal | None, keyboards: FakeBackend, chords: dict[str, str], always: bool) -> None:
        self.portal = portal
        self.keyboards = keyboards
        self.told: list[type[HotkeyEvent]] = []
        self.states: list[dict[str, Any]] = []
        self.keys = KeyWatch(
            Bindings.parse(**chords),
            keyboards,
            portal,
            self._hear,
            always=always,
            on_status=self._see,
        )
        self._news = trio.Event()

    def _hear(self, event: HotkeyEvent) -> None:
        self.told.append(type(event))
        self._news.set()

    def _see(self, state: dict[str, Any]) -> None:
        self.states.append(state)
        self._news.set()

    async def _until(self, found: Callable[[], bool]) -> None:
        while not found():
            self._news = trio.Event()
            await self._news.wait()

    @property
    def state(self) -> str:
        return str(self.keys.status()["portal"]["state"])

    @property
    def detail(self) -> str:
        return str(self.keys.status()["portal"]["detail"])

    async def becomes(self, *, state: str = "", path: str = "") -> dict[str, Any]:
        """Wait until the status says so; return it."""

        def found() -> bool:
            status = self.keys.status()
            return (status["portal"]["state"], status["path"]) == (state or self.state, path or status["path"])

        await self._until(found)
        return self.keys.status()

    async def tells(self, *kinds: type[HotkeyEvent]) -> None:
        """Wait until these events, and no others, were told since the last time."""
        await self._until(lambda: len(self.told) >= len(kinds))
        assert self.told == list(kinds)
        self.told.clear()


@pytest.fixture(autouse=True)
def no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock that does not wait would not wait for a thread that looks at devices either."""

    async def inline(work: Callable[[], Any]) -> Any:
        await trio.lowlevel.checkpoint()
        return work()

    monkeypatch.setattr("utter_runner.voice.hotkeys.service.trio.to_thread.run_sync", inline)


@asynccontextmanager
async def watching(
    portal: FakePortal | None,
    keyboards: FakeBackend | None = None,
    *,
    always: bool = False,
    chords: dict[str, str] | None = None,
) -> AsyncIterator[Watch]:
    watch = Watch(
        portal,
        keyboards or FakeBackend({NODE: DENIED}),
        chords or {"push_to_talk": "F13", "toggle": "F14", "cancel": "ESC"},
        always,
    )
    with trio.fail_after(100_000):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch.keys.run)
            yield watch
            nursery.cancel_scope.cancel()
    # However it ended, nothing is held.
    assert watch.told.count(Press) <= watch.told.count(Release)
    assert portal is None or not portal.connected
    assert watch.keys.status()["path"] == "none"


@pytest.mark.parametrize("version", [1, 2])
async def test_without_a_readable_keyboard_the_desktop_delivers(autojump_clock: Any, version: int) -> None:
    portal = FakePortal(version=version)
    async with watching(portal) as watch:
        status = await watch.becomes(state="bound")
        assert (status["available"], status["path"], status["detail"]) == (True, "portal", "")
        assert status["evdev"]["available"] is False
        assert "usermod" in status["evdev"]["detail"]
        await watch.becomes(path="portal")
        portal.press(PTT)
        await watch.tells(Press)
        portal.release(PTT)
        await watch.tells(Release)
        portal.press("toggle")
        portal.release("toggle")
        portal.press("cancel")
        await watch.tells(Toggle, Cancel)
        await trio.sleep(7)
        status = watch.keys.status()
        assert status["seen"] == {"evdev": None, "portal": pytest.approx(7, abs=1.5)}
        assert status["portal"] == {
            "state": "bound",
            "available": True,
            "version": version,
            "bound": True,
            "triggers": {
                PTT: "press XF86Tools",
                "toggle": "press XF86Launch5",
                "cancel": "press CTRL+ALT+SHIFT+Escape",
            },
            "detail": "",
        }
    assert len(portal.asked) == 1


async def test_a_status_has_the_same_parts_whether_hotkeys_are_on_or_not(autojump_clock: Any) -> None:
    async with watching(FakePortal()) as watch:
        status = await watch.becomes(state="bound")
        assert status.keys() == _NO_HOTKEYS.keys()
        assert status["portal"].keys() == _NO_HOTKEYS["portal"].keys()
        assert status["seen"].keys() == _NO_HOTKEYS["seen"].keys()
        assert status["evdev"].keys() == _NO_HOTKEYS["evdev"].keys()
        assert {"seen", *watch.states[-1]} == status.keys()


async def test_a_keyboard_that_can_be_watched_leaves_the_desktop_in_peace(autojump_clock: Any) -> None:
    board = FakeKeyboard("board")
    keyboards = FakeBackend({NODE: board})
    portal = FakePortal()
    async with watching(portal, keyboards) as watch:
        assert (await watch.becomes(path="evdev"))["portal"]["state"] == "standby"
        answer = watch.keys.ask()
        assert answer.asked is False
        assert 'set [hotkeys] portal to "always"' in answer.detail
        await trio.sleep(1000)
        assert portal.connections == 0
        # A switch for several machines takes it away for a moment.
        keyboards.unplug(NODE)
        await watch.becomes(path="none")
        await trio.sleep(GRACE_SECONDS / 2)
        keyboards.plug(NODE, FakeKeyboard("board"))
        await watch.becomes(path="evdev")
        await trio.sleep(1000)
        assert portal.connections == 0
        keyboards.unplug(NODE)
        await watch.becomes(state="bound", path="portal")
        portal.press(PTT)
        await watch.tells(Press)
        # It comes back while the desktop's key is held.
        again = FakeKeyboard("board")
        keyboards.plug(NODE, again)
        await watch.becomes(state="standby", path="evdev")
        await watch.tells(Release)
        await trio.sleep(1)
        again.press(F13)
        again.release(F13)
        await watch.tells(Press, Release)


async def test_with_both_one_press_counts_once_and_the_status_says_who_delivers(autojump_clock: Any) -> None:
    board = FakeKeyboard("board")
    portal = FakePortal()
    async with watching(portal, FakeBackend({NODE: board}), always=True) as watch:
        status = await watch.becomes(state="bound", path="evdev")
        assert status["devices"] == ["board"]
        board.press(F13)
        await watch.tells(Press)
        portal.press(PTT)
        await trio.sleep(1)
        portal.release(PTT)
        await watch.tells(Release)
        board.release(F13)
        await trio.sleep(1)
        assert watch.told == []
        assert watch.keys.status()["path"] == "evdev"
        portal.press(PTT)
        portal.release(PTT)
        await watch.tells(Press, Release)
        assert watch.states[-1]["path"] == "portal"
        portal.vanish(stays_away=True)
        status = await watch.becomes(state="absent")
        assert status["path"] == "evdev"
        assert status["detail"] == watch.detail != ""


async def test_switched_off_it_is_never_asked(autojump_clock: Any) -> None:
    async with watching(None) as watch:
        await trio.sleep(1000)
        assert (watch.state, watch.keys.status()["path"]) == ("off", "none")
        answer = watch.keys.ask()
        assert answer.asked is False
        assert 'set [hotkeys] portal to "auto" or "always"' in answer.detail


async def test_without_a_chord_nobody_is_asked(autojump_clock: Any) -> None:
    portal = FakePortal()
    async with watching(portal, chords={"cancel": ""}, always=True) as watch:
        await trio.sleep(1000)
        assert portal.connections == 0
        assert watch.keys.status()["detail"] == "No hotkey is configured in [hotkeys]."


async def test_only_what_is_configured_is_asked_for(autojump_clock: Any) -> None:
    portal = FakePortal()
    async with watching(portal, chords={"toggle": "F14"}) as watch:
        await watch.becomes(state="bound")
        assert [one.id for one in portal.asked[0]] == ["toggle"]


# ---- what the person does


async def test_a_dialog_that_was_dismissed_is_not_shown_again_until_the_user_says_so(autojump_clock: Any) -> None:
    keyboards = FakeBackend({NODE: DENIED})
    portal = FakePortal(response=DISMISSED)
    async with watching(portal, keyboards) as watch:
        await watch.becomes(state="dismissed")
        assert "run `utter hotkeys bind`" in watch.detail
        await trio.sleep(10_000)
        keyboards.plug(NODE, FakeKeyboard("board"))
        await watch.becomes(state="standby")
        keyboards.unplug(NODE)
        await watch.becomes(state="dismissed")
        await trio.sleep(1000)
        assert (len(portal.asked), portal.connected) == (1, False)
        portal.response = DONE
        assert watch.keys.ask().asked is True
        await watch.becomes(state="bound")
        assert len(portal.asked) == 2


async def test_a_dialog_that_nobody_answers_waits_and_keys_work_meanwhile(autojump_clock: Any) -> None:
    portal = FakePortal(response=None)
    async with watching(portal, chords={"push_to_talk": "RIGHTCTRL"}) as watch:
        await watch.becomes(state="asking")
        assert "push_to_talk RIGHTCTRL is made of modifiers alone, so CTRL+ALT+space is proposed" in watch.detail
        await trio.sleep(100_000 / 2)
        assert (len(portal.asked), watch.state) == (1, "asking")
        portal.press(PTT)
        portal.release(PTT)
        await watch.tells(Press, Release)
        watch.keys.ask()
        await trio.sleep(1)
        assert len(portal.asked) == 2
        portal.answer(DONE)
        await watch.becomes(state="bound")


@pytest.mark.parametrize(("version", "configured"), [(1, 0), (2, 1)])
async def test_what_is_bound_is_configured_where_the_desktop_can_and_bound_anew_elsewhere(
    autojump_clock: Any, version: int, configured: int
) -> None:
    portal = FakePortal(version=version)
    async with watching(portal) as watch:
        await watch.becomes(state="bound")
        portal.press(PTT)
        await watch.tells(Press)
        watch.keys.ask()
        await trio.sleep(1)
        await watch.becomes(state="bound")
        assert (portal.configured, len(portal.asked)) == (configured, 2 - configured)
        # A session that goes lets go of the key; one that stays does not.
        assert watch.told == ([] if configured else [Release])
        portal.release(PTT)
        await watch.tells(Release)


async def test_other_keys_that_the_person_chooses_are_told(autojump_clock: Any) -> None:
    portal = FakePortal()
    portal.tells_triggers = False
    async with watching(portal) as watch:
        await watch.becomes(state="bound")
        assert watch.detail.startswith(
            "The desktop names no key for push_to_talk or toggle: if it has none, choose one"
        )
        portal.tell(Triggers({PTT: "Ctrl+F1", "somebody.elses": "x"}, changed=True))
        await trio.sleep(1)
        assert watch.states[-1]["portal"]["triggers"] == {PTT: "Ctrl+F1"}
        assert watch.detail == ""


# ---- what the portal does


async def test_a_portal_that_restarts_is_bound_again_and_what_was_held_is_released(autojump_clock: Any) -> None:
    portal = FakePortal()
    async with watching(portal) as watch:
        await watch.becomes(state="bound")
        for restarts in range(1, 4):
            portal.press(PTT)
            await watch.tells(Press)
            portal.vanish()
            await watch.tells(Release)
            await watch.becomes(state="failed")
            assert "run `systemctl --user restart xdg-desktop-portal`" in watch.detail
            await watch.becomes(state="bound")
            assert len(portal.asked) == 1 + restarts


async def test_a_portal_that_comes_later_is_found_without_looking_for_it(autojump_clock: Any) -> None:
    portal = FakePortal()
    portal.present = False
    async with watching(portal) as watch:
        await watch.becomes(state="absent")
        assert "install xdg-desktop-portal" in watch.detail
        await trio.sleep(10_000)
        assert portal.connections == 1
        portal.arrive()
        await watch.becomes(state="bound")


async def test_a_desktop_without_shortcuts_is_asked_once(autojump_clock: Any) -> None:
    portal = FakePortal()
    portal.find_error = NoShortcutsError("No such interface")
    async with watching(portal) as watch:
        status = await watch.becomes(state="absent")
        assert (status["available"], status["portal"]["available"]) == (False, False)
        assert "The portal of this desktop has no shortcuts" in status["detail"]
        assert "usermod" in status["detail"]
        await trio.sleep(10_000)
        assert portal.connections == 1
        portal.find_error = None
        portal.arrive()
        await watch.becomes(state="bound")


async def test_an_application_that_is_not_installed_is_said_and_asked_for_again_when_it_is(autojump_clock: Any) -> None:
    portal = FakePortal()
    portal.open_error = NoAppError("An app id is required")
    async with watching(portal) as watch:
        await watch.becomes(state="failed")
        assert "`utter hotkeys bind`, which installs it" in watch.detail
        await trio.sleep(10_000)
        assert (portal.connections, portal.asked) == (1, [])
        portal.open_error = None
        watch.keys.ask()
        await watch.becomes(state="bound")


async def test_a_portal_that_fails_is_not_asked_again_by_itself(autojump_clock: Any) -> None:
    portal = FakePortal(response=2)
    async with watching(portal) as watch:
        await watch.becomes(state="failed")
        assert "The desktop bound no shortcuts (response 2): run `utter hotkeys bind`" in watch.detail
        portal.open_error = PortalError("no")
        watch.keys.ask()
        await trio.sleep(1)
        assert "The desktop bound no shortcuts (no)" in watch.detail
        await trio.sleep(10_000)
        assert (len(portal.asked), portal.connections) == (1, 2)


async def test_a_portal_that_does_not_tell_triggers_works_all_the_same(autojump_clock: Any) -> None:
    portal = FakePortal()
    portal.list_error = BusError("it did not answer within 5 s")
    async with watching(portal) as watch:
        await watch.becomes(state="bound")
        portal.press(PTT)
        await watch.tells(Press)
        assert portal.connections == 1


async def test_a_portal_that_dies_of_its_dialog_shows_it_a_few_times_only(autojump_clock: Any) -> None:
    portal = FakePortal(response=None)
    async with watching(portal) as watch:
        for _ in range(MAX_UNANSWERED):
            await watch.becomes(state="asking")
            portal.vanish()
            await watch.becomes(state="failed")
        await trio.sleep(10_000)
        assert len(portal.asked) == MAX_UNANSWERED
        assert "it was asked 3 times without an answer" in watch.detail
        portal.response = DONE
        watch.keys.ask()
        await watch.becomes(state="bound")


async def test_a_session_that_the_desktop_ends_is_bound_again_if_it_had_lasted(autojump_clock: Any) -> None:
    portal = FakePortal()
    async with watching(portal) as watch:
        await watch.becomes(state="bound")
        await trio.sleep(HEALTHY_SECONDS)
        portal.press(PTT)
        await watch.tells(Press)
        portal.close_session()
        await watch.tells(Release)
        await watch.becomes(state="failed")
        await watch.becomes(state="bound")
        portal.close_session()
        await watch.becomes(state="failed")
        assert "The desktop ended the shortcuts soon after" in watch.detail
        await trio.sleep(10_000)
        assert len(portal.asked) == 2


async def test_a_bus_that_is_away_is_tried_less_and_less_often(
    autojump_clock: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "utter_runner.voice.hotkeys")
    portal = FakePortal()
    async with watching(portal) as watch:
        await watch.becomes(state="bound")
        await trio.sleep(HEALTHY_SECONDS)
        portal.press(PTT)
        await watch.tells(Press)
        portal.bus_error = BusError("the session bus at unix:path=/x cannot be reached: No such file or directory")
        portal.cut()
        await watch.tells(Release)
        tries: list[float] = []
        connect = portal.link

        def counted() -> Any:
            tries.append(trio.current_time())
            return connect()

        portal.link = counted  # type: ignore[method-assign]
        await trio.sleep(10 * LONGEST_PAUSE)
        pauses = [round(after - before) for before, after in itertools.pairwise(tries)]
        assert pauses[:6] == [2, 4, 8, 16, 32, 60]
        assert set(pauses[6:]) == {60}
        assert caplog.text.count("the shortcuts of the desktop are lost") == 2
        portal.bus_error = None
        await watch.becomes(state="bound")


async def test_without_a_bus_for_good_nothing_is_tried(autojump_clock: Any) -> None:
    portal = FakePortal()
    portal.bus_error = NoBusError("the Python package jeepney is missing: pip install 'utter-runner[desktop]'")
    async with watching(portal) as watch:
        await watch.becomes(state="failed")
        assert "pip install 'utter-runner[desktop]'" in watch.keys.status()["detail"]
        states = len(watch.states)
        await trio.sleep(10_000)
        assert len(watch.states) == states


async def test_a_desktop_that_tells_no_releases_is_said_to(autojump_clock: Any) -> None:
    portal = FakePortal()
    async with watching(portal) as watch:
        await watch.becomes(state="bound")
        portal.press(PTT)
        await watch.tells(Press)
        await trio.sleep(5)
        portal.press(PTT)
        await watch.tells(Release)
        assert "The desktop does not tell when a key goes up" in watch.detail


async def test_what_is_held_is_released_when_the_watch_ends(autojump_clock: Any) -> None:
    board = FakeKeyboard("board")
    portal = FakePortal()
    async with watching(portal, FakeBackend({NODE: board}), always=True) as watch:
        await watch.becomes(state="bound")
        board.press(F13)
        portal.press(PTT)
        await watch.tells(Press)
    assert watch.told == [Release]


async def test_nothing_wakes_it_while_nothing_happens(mock_clock: trio.testing.MockClock) -> None:
    portal = FakePortal()
    async with watching(portal) as watch:
        while watch.state != "bound":
            await trio.testing.wait_all_tasks_blocked(0.001)
            mock_clock.jump(0.1)
        await trio.testing.wait_all_tasks_blocked()
        assert trio.lowlevel.current_statistics().seconds_to_next_deadline > 50_000
