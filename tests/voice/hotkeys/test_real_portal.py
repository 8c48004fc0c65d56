"""Shortcuts through the real xdg-desktop-portal: press and release, a dialog that is dismissed, and a restart."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
import trio

from support.dbus import PrivateBus
from support.real_portal import Backend, RealPortal, find_portal
from utter_runner.config.desktop_entry import APP_ID
from utter_runner.voice.hotkeys import Bindings, BusPortal, HotkeyEvent, KeyWatch, Press, Release
from utter_runner.voice.hotkeys.fake import FakeBackend
from utter_runner.voice.hotkeys.portal_link import DISMISSED

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

PROGRAM = find_portal() or ""

pytestmark = pytest.mark.skipif(not PROGRAM, reason="xdg-desktop-portal is not installed")


@pytest.fixture
def bus(tmp_path: Path) -> Iterator[PrivateBus]:
    with PrivateBus(tmp_path) as made:
        yield made


class Watch:
    """A running watch without keyboards."""

    def __init__(self, address: str) -> None:
        self._events, self._told = trio.open_memory_channel[HotkeyEvent](100)
        self._states, self._next = trio.open_memory_channel[dict[str, Any]](1000)
        self.keys = KeyWatch(
            Bindings.parse(push_to_talk="CTRL+ALT+SPACE"),
            FakeBackend(),
            BusPortal({"DBUS_SESSION_BUS_ADDRESS": address}),
            self._events.send_nowait,
            on_status=self._states.send_nowait,
        )

    async def next(self) -> type:
        return type(await self._told.receive())

    async def becomes(self, state: str) -> dict[str, Any]:
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


async def test_press_and_release_and_a_portal_that_restarts(bus: PrivateBus, tmp_path: Path) -> None:
    with Backend(bus.address) as backend:
        async with watching(bus) as watch:
            for _ in range(2):
                with RealPortal(PROGRAM, bus.address, tmp_path):
                    said = await watch.becomes("bound")
                    assert said["version"] >= 1
                    assert said["triggers"] == {"push_to_talk": "CTRL+ALT+space"}
                    backend.press()
                    assert await watch.next() is Press
                    backend.release()
                    assert await watch.next() is Release
                    backend.choose(push_to_talk="F1")
                    assert (await watch.becomes("bound"))["triggers"] == {"push_to_talk": "F1"}
                    backend.press()
                    assert await watch.next() is Press
                assert await watch.next() is Release
    # Portals that cannot be told the application name none.
    assert set(backend.applications) <= {"", APP_ID}


async def test_a_dialog_that_is_dismissed_is_asked_for_again(bus: PrivateBus, tmp_path: Path) -> None:
    with Backend(bus.address, response=DISMISSED) as backend, RealPortal(PROGRAM, bus.address, tmp_path):
        async with watching(bus) as watch:
            await watch.becomes("dismissed")
            backend.response = 0
            assert watch.keys.ask().asked
            await watch.becomes("bound")
            assert len(backend.applications) == 2
