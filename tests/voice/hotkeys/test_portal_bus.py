"""Shortcuts over a real session bus: what is asked of the portal, and whose word counts."""

from __future__ import annotations

import contextlib
import re
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
import trio
from jeepney import DBusAddress, HeaderFields, new_method_call, new_signal
from jeepney.bus import get_connectable_addresses
from jeepney.bus_messages import message_bus
from jeepney.io.blocking import DBusConnection, Proxy, prep_socket

from support.dbus import PrivateBus
from support.portal import MockPortal
from utter_runner.config.desktop_entry import APP_ID
from utter_runner.rpc.bus import DRIVER
from utter_runner.voice.hotkeys import Bindings, BusPortal, HotkeyEvent, KeyWatch, Press, Release, Toggle
from utter_runner.voice.hotkeys.fake import FakeBackend
from utter_runner.voice.hotkeys.portal_bus import MAX_TRIGGER, PATH, REQUEST, SESSION, SHORTCUTS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

CHORDS = {"push_to_talk": "CTRL+ALT+SPACE", "toggle": "F9"}
PTT = "push_to_talk"


@pytest.fixture
def bus(tmp_path: Path) -> Iterator[PrivateBus]:
    with PrivateBus(tmp_path) as made:
        yield made


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("utter_runner.voice.hotkeys.portal.FIRST_PAUSE", 0.05)


class Watch:
    """A running watch without keyboards."""

    def __init__(self, address: str) -> None:
        self.events, self._told = trio.open_memory_channel[HotkeyEvent](100_000)
        self._states, self._next = trio.open_memory_channel[dict[str, Any]](1000)
        portal = BusPortal({"DBUS_SESSION_BUS_ADDRESS": address})
        self.keys = KeyWatch(
            Bindings.parse(**CHORDS),
            FakeBackend(),
            portal,
            self.events.send_nowait,
            on_status=self._states.send_nowait,
        )

    async def next(self) -> type:
        return type(await self._told.receive())

    @property
    def waiting(self) -> int:
        return self._told.statistics().current_buffer_used

    async def becomes(self, state: str) -> dict[str, Any]:
        """Wait until the portal's state changes to this one; return what is said of it."""
        async for status in self._next:
            if status["portal"]["state"] == state:
                return dict(status["portal"])
        raise AssertionError


@asynccontextmanager
async def watching(bus: PrivateBus) -> AsyncIterator[Watch]:
    watch = Watch(bus.address)
    with trio.fail_after(100):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch.keys.run)
            yield watch
            nursery.cancel_scope.cancel()


async def asked(portal: MockPortal, method: str, count: int = 1) -> None:
    await trio.to_thread.run_sync(portal.wait_asked, method, count)


@pytest.mark.parametrize("early", [False, True], ids=["answers-after", "answers-before"])
@pytest.mark.parametrize("version", [1, 2])
async def test_press_and_release_of_what_was_asked_for(bus: PrivateBus, version: int, early: bool) -> None:
    with MockPortal(bus.address, version=version, early=early, app_needed=True) as portal:
        async with watching(bus) as watch:
            said = await watch.becomes("bound")
            assert (said["version"], said["bound"]) == (version, True)
            await asked(portal, "ListShortcuts")
            portal.press()
            assert await watch.next() is Press
            portal.release()
            assert await watch.next() is Release
            portal.press("toggle")
            assert await watch.next() is Toggle
            portal.press("somebody.elses")
            portal.press()
            assert await watch.next() is Press
            said = watch.keys.status()["portal"]
            assert said["triggers"] == {PTT: "CTRL+ALT+space", "toggle": "F9"}
            client = portal.client
        assert await watch.next() is Release
        # The connection is closed, and the session with it.
        probe = DBusConnection(prep_socket(next(get_connectable_addresses(bus.address))))
        assert Proxy(message_bus, probe, timeout=30).NameHasOwner(client) == (0,)
        probe.close()
    assert portal.app == APP_ID
    assert portal.asked[0] == "Register"
    assert portal.shortcuts == [
        [
            (PTT, {"description": ("s", "Hold to speak"), "preferred_trigger": ("s", "CTRL+ALT+space")}),
            ("toggle", {"description": ("s", "Start or stop listening"), "preferred_trigger": ("s", "F9")}),
        ]
    ]
    assert re.fullmatch(rf"{PATH}/session/1_\d+/utter_runner", portal.sessions[0])


async def test_a_portal_that_is_not_there_is_found_when_it_comes(bus: PrivateBus) -> None:
    async with watching(bus) as watch:
        assert "There is no portal on the session bus" in (await watch.becomes("absent"))["detail"]
        with MockPortal(bus.address) as portal:
            await watch.becomes("bound")
            portal.press()
            assert await watch.next() is Press
        assert await watch.next() is Release
        await watch.becomes("absent")


async def test_a_portal_without_shortcuts_says_so_and_its_successor_is_asked(bus: PrivateBus) -> None:
    async with watching(bus) as watch:
        with MockPortal(bus.address, version=0):
            said = await watch.becomes("absent")
            assert said["available"] is False
            assert "has no shortcuts" in said["detail"] or "no portal" in said["detail"]
            while "has no shortcuts" not in watch.keys.status()["portal"]["detail"]:
                await watch.becomes("absent")
        with MockPortal(bus.address, version=1, registry=False):
            assert (await watch.becomes("bound"))["version"] == 1


async def test_a_portal_that_cannot_be_told_the_application_is_used_as_it_is(bus: PrivateBus) -> None:
    with MockPortal(bus.address, installed=False):
        async with watching(bus) as watch:
            await watch.becomes("bound")


async def test_an_application_that_is_wanted_and_not_installed(bus: PrivateBus) -> None:
    with MockPortal(bus.address, installed=False, app_needed=True) as portal:
        async with watching(bus) as watch:
            assert f"{APP_ID} is none: run `utter hotkeys bind`" in (await watch.becomes("failed"))["detail"]
            portal.installed = True
            assert watch.keys.ask().asked
            await watch.becomes("bound")


async def test_a_dialog_that_is_dismissed_and_one_that_is_open(bus: PrivateBus) -> None:
    with MockPortal(bus.address, response=1) as portal:
        async with watching(bus) as watch:
            await watch.becomes("dismissed")
            portal.response = None
            watch.keys.ask()
            await asked(portal, "BindShortcuts", 2)
            portal.press()
            portal.release()
            assert [await watch.next(), await watch.next()] == [Press, Release]
            portal.answer(0)
            await watch.becomes("bound")
            assert len(portal.shortcuts) == 2


@pytest.mark.parametrize("method", ["Register", "Get", "CreateSession"])
async def test_a_portal_that_never_answers_is_asked_again_later(
    bus: PrivateBus, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    monkeypatch.setattr("utter_runner.rpc.bus.CALL_SECONDS", 2.0)
    with MockPortal(bus.address, silent=(method,)) as portal:
        async with watching(bus) as watch:
            detail = (await watch.becomes("failed"))["detail"]
            assert "did not answer within 2 s" in detail
            assert "systemctl --user restart xdg-desktop-portal" in detail
            portal.silent = ()
            await watch.becomes("bound")


async def test_a_backend_that_makes_no_session_is_asked_again_later(
    bus: PrivateBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("utter_runner.voice.hotkeys.portal_bus.RESPONSE_SECONDS", 0.5)
    respond = MockPortal._respond
    monkeypatch.setattr(
        MockPortal, "_respond", lambda portal, *what: respond(portal, *what) if len(portal.sessions) > 1 else None
    )
    with MockPortal(bus.address) as portal:
        async with watching(bus) as watch:
            assert "the portal made no session within 0.5 s" in (await watch.becomes("failed"))["detail"]
            await watch.becomes("bound")
            assert len(portal.sessions) >= 2


async def test_a_portal_that_restarts_while_a_key_is_held(bus: PrivateBus) -> None:
    async with watching(bus) as watch:
        for _ in range(3):
            with MockPortal(bus.address) as portal:
                await watch.becomes("bound")
                portal.press()
                assert await watch.next() is Press
            assert await watch.next() is Release
        assert watch.waiting == 0


async def test_a_bus_that_dies_while_a_key_is_held(bus: PrivateBus) -> None:
    with contextlib.suppress(OSError), MockPortal(bus.address) as portal:
        async with watching(bus) as watch:
            await watch.becomes("bound")
            portal.press()
            assert await watch.next() is Press
            bus.close()
            assert await watch.next() is Release
            assert "session bus" in (await watch.becomes("failed"))["detail"]


async def test_a_session_that_the_desktop_ends(bus: PrivateBus) -> None:
    with MockPortal(bus.address) as portal:
        async with watching(bus) as watch:
            await watch.becomes("bound")
            portal.press()
            assert await watch.next() is Press
            portal.end_session()
            assert await watch.next() is Release
            assert "The desktop ended the shortcuts" in (await watch.becomes("failed"))["detail"]


async def test_the_desktop_shows_its_settings_and_other_keys_are_told(bus: PrivateBus) -> None:
    with MockPortal(bus.address) as portal:
        async with watching(bus) as watch:
            await watch.becomes("bound")
            await asked(portal, "ListShortcuts")
            portal.press()
            assert await watch.next() is Press
            watch.keys.ask()
            await asked(portal, "ConfigureShortcuts")
            portal.choose(push_to_talk="  Ctrl+F1 " + "x" * 500, toggle="")
            while "toggle" in (said := await watch.becomes("bound"))["triggers"]:
                pass
            assert said["triggers"] == {PTT: ("Ctrl+F1 " + "x" * 500)[:MAX_TRIGGER]}
            portal.release()
            assert await watch.next() is Release
            assert portal.asked.count("BindShortcuts") == 1


async def test_a_strangers_word_counts_for_nothing(bus: PrivateBus) -> None:
    stranger = DBusConnection(prep_socket(next(get_connectable_addresses(bus.address))))

    def send(path: str, interface: str, name: str, signature: str, body: tuple[Any, ...]) -> None:
        message = new_signal(DBusAddress(path, interface=interface), name, signature, body)
        for to in ("", portal.client):
            if to:
                message.header.fields[HeaderFields.destination] = to
            stranger.send(message)

    with MockPortal(bus.address) as portal:
        async with watching(bus) as watch:
            await watch.becomes("bound")
            session = portal.sessions[0]
            send(PATH, SHORTCUTS, "Activated", "osta{sv}", (session, PTT, 1, {}))
            send(PATH, SHORTCUTS, "ShortcutsChanged", "oa(sa{sv})", (session, []))
            send(session, SESSION, "Closed", "a{sv}", ({},))
            send(f"{PATH}/request/x/y", REQUEST, "Response", "ua{sv}", (1, {}))
            send("/org/freedesktop/DBus", DRIVER, "NameOwnerChanged", "sss", (portal.name, portal.client, ""))
            portal.press()
            assert await watch.next() is Press
            send(PATH, SHORTCUTS, "Deactivated", "osta{sv}", (session, PTT, 1, {}))
            # Nor does the portal's, about another session or out of shape.
            other = session.replace("utter_runner", "other")
            portal.say("Deactivated", "osta{sv}", (other, PTT, 1, {}))
            portal.say("Deactivated", "os", (other, PTT))
            portal.say("Deactivated", "s", (PTT,))
            portal.say("Deactivated", "u", (7,))
            portal.say("Deactivated", "osta{sv}", (session, PTT, 1, {}), interface="org.example.Other")
            portal.say("ShortcutsChanged", "os", (session, "none"))
            portal.say("Response", "ss", ("0", "0"), interface=REQUEST)
            portal.press("toggle")
            assert await watch.next() is Toggle
            portal.release()
            assert await watch.next() is Release
            assert portal.asked.count("CreateSession") == 1
    stranger.close()


async def test_a_flood_neither_hides_a_key_nor_doubles_it(bus: PrivateBus) -> None:
    stranger = DBusConnection(prep_socket(next(get_connectable_addresses(bus.address))))
    with MockPortal(bus.address) as portal:
        async with watching(bus) as watch:
            await watch.becomes("bound")
            message = new_signal(
                DBusAddress(PATH, interface=SHORTCUTS), "Activated", "osta{sv}", (portal.sessions[0], PTT, 1, {})
            )
            message.header.fields[HeaderFields.destination] = portal.client

            def flood() -> None:
                for _ in range(500):
                    stranger.send(message)
                for _ in range(500):
                    portal.press()
                portal.release()
                portal.press("toggle")

            await trio.to_thread.run_sync(flood)
            assert [await watch.next() for _ in range(3)] == [Press, Release, Toggle]
            assert watch.waiting == 0
    stranger.close()


async def test_without_a_bus_in_the_environment_it_says_what_to_do() -> None:
    watch = Watch("")
    with trio.fail_after(100):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch.keys.run)
            detail = (await watch.becomes("failed"))["detail"]
            assert "DBUS_SESSION_BUS_ADDRESS is not set" in detail
            assert "`utter ptt press`" in detail
            nursery.cancel_scope.cancel()


async def test_an_answer_of_the_wrong_shape_is_a_refusal(bus: PrivateBus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MockPortal, "_bind", lambda *_: ("s", ("done",)))
    with MockPortal(bus.address):
        async with watching(bus) as watch:
            await watch.becomes("asking")
            # A text is taken for the path of the request, whose response never comes; the dialog is asked for anew.
            assert watch.keys.ask().asked
            monkeypatch.setattr(MockPortal, "_bind", lambda *_: ("", ()))
            assert "its answer to BindShortcuts makes no sense" in (await watch.becomes("failed"))["detail"]


def test_the_mock_refuses_what_the_portal_refuses(bus: PrivateBus) -> None:
    """So that a test which passes because the mock lets everything through is noticed."""
    with MockPortal(bus.address, version=1, app_needed=True):
        probe = DBusConnection(prep_socket(next(get_connectable_addresses(bus.address))))
        Proxy(message_bus, probe, timeout=30)
        options = {"session_handle_token": ("s", "a"), "handle_token": ("s", "b")}
        to = DBusAddress(PATH, bus_name="org.freedesktop.portal.Desktop", interface=SHORTCUTS)
        for method, signature, body in (
            ("CreateSession", "a{sv}", (options,)),
            ("ConfigureShortcuts", "osa{sv}", (PATH, "", {})),
        ):
            reply = probe.send_and_get_reply(new_method_call(to, method, signature, body), timeout=30)
            assert HeaderFields.error_name in reply.header.fields
        probe.close()
