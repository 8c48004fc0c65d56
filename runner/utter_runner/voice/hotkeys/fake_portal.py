"""A desktop's portal without a bus, for tests: it does what the fingers and the desktop would do.

Rules here: `FakePortal` is the desktop's side and remembers what it was asked; the hotkeys read the other end through
the same interface as the real portal's. Its misbehaviour is set before it is asked.
"""

from __future__ import annotations

import math
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import trio

from utter_runner.rpc.bus import BusError
from utter_runner.voice.hotkeys.portal_link import (
    DONE,
    Activated,
    Answered,
    Closed,
    Deactivated,
    Gone,
    NoPortalError,
    PortalEvent,
    Triggers,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from utter_runner.voice.hotkeys.triggers import Shortcut


class FakePortal:
    """A `PortalBackend`.

    Attributes:
        bus_error: what connecting to the bus raises; None: it succeeds.
        present: whether there is a portal.
        version: of its shortcuts.
        find_error: what looking for its shortcuts raises.
        open_error: what making a session raises.
        list_error: what asking for the triggers raises.
        response: what a binding is answered with; None: nothing, the dialog stays open.
        tells_triggers: whether it says what triggers a shortcut.
        asked: the shortcuts of each binding that it was asked for.
        configured: how often it was to show its settings.
        connections: how often somebody has connected.
    """

    def __init__(self, *, version: int = 2, response: int | None = DONE) -> None:
        self.bus_error: BusError | None = None
        self.present = True
        self.version = version
        self.find_error: Exception | None = None
        self.open_error: Exception | None = None
        self.list_error: Exception | None = None
        self.response = response
        self.tells_triggers = True
        self.asked: list[Sequence[Shortcut]] = []
        self.configured = 0
        self.connections = 0
        self._link: FakeLink | None = None

    @asynccontextmanager
    async def link(self) -> AsyncIterator[FakeLink]:
        """Connect; see `PortalBackend.link`."""
        await trio.lowlevel.checkpoint()
        if self.bus_error is not None:
            raise self.bus_error
        self.connections += 1
        self._link = FakeLink(self)
        try:
            yield self._link
        finally:
            self._link = None

    @property
    def connected(self) -> bool:
        """Somebody has a connection now."""
        return self._link is not None

    def press(self, shortcut: str) -> None:
        """A shortcut's key goes down."""
        self.tell(Activated(shortcut))

    def release(self, shortcut: str) -> None:
        """A shortcut's key goes up."""
        self.tell(Deactivated(shortcut))

    def answer(self, response: int) -> None:
        """The person answers the dialog that is open."""
        self.tell(Answered(response, self.triggers() if response == DONE else {}))

    def vanish(self, *, stays_away: bool = False) -> None:
        """The portal leaves the bus, and comes back unless it stays away."""
        self.present = not stays_away
        self.tell(Gone())

    def arrive(self) -> None:
        """A portal comes onto the bus."""
        self.present = True
        if self._link is not None:
            self._link.arrived.set()

    def close_session(self) -> None:
        """The desktop ends the session."""
        self.tell(Closed())

    def cut(self) -> None:
        """The bus goes away."""
        self.tell(BusError("the session bus went away: it hung up"))

    def tell(self, event: PortalEvent | BusError) -> None:
        """Tell an event, or fail, if anybody is connected."""
        if self._link is not None:
            self._link.events.send_nowait(event)

    def triggers(self) -> dict[str, str]:
        """What triggers the shortcuts that it was asked for at last."""
        return {one.id: f"press {one.trigger}" for one in self.asked[-1]} if self.tells_triggers else {}


class FakeLink:
    """A `PortalLink` to a `FakePortal`."""

    def __init__(self, portal: FakePortal) -> None:
        self._portal = portal
        self.arrived = trio.Event()
        self.events, self._told = trio.open_memory_channel[PortalEvent | BusError](math.inf)

    async def find(self) -> int:
        """Return the version."""
        await trio.lowlevel.checkpoint()
        if not self._portal.present:
            raise NoPortalError("nobody has that name")
        if self._portal.find_error is not None:
            raise self._portal.find_error
        return self._portal.version

    async def appear(self) -> None:
        """Wait for a portal."""
        await self.arrived.wait()

    async def open(self) -> None:
        """Make the session."""
        await trio.lowlevel.checkpoint()
        if self._portal.open_error is not None:
            raise self._portal.open_error

    async def bind(self, shortcuts: Sequence[Shortcut]) -> None:
        """Bind, as the portal was told to."""
        await trio.lowlevel.checkpoint()
        self._portal.asked.append(shortcuts)
        if self._portal.response is not None:
            self._portal.answer(self._portal.response)

    async def ask_triggers(self) -> None:
        """Tell the triggers."""
        await trio.lowlevel.checkpoint()
        if self._portal.list_error is not None:
            raise self._portal.list_error
        self._portal.tell(Triggers(self._portal.triggers(), changed=False))

    async def configure(self) -> None:
        """Show the settings."""
        await trio.lowlevel.checkpoint()
        self._portal.configured += 1

    async def next(self) -> PortalEvent:
        """Wait for what happens."""
        event = await self._told.receive()
        if isinstance(event, BusError):
            raise event
        return event
