"""The desktop's portal for shortcuts, as the runner sees it: what it can be asked, and what it tells.

Rules here: Protocols, events and errors only; D-Bus is behind them (`portal_bus.py`), and a fake (`fake_portal.py`). A
link is one connection with one session of shortcuts: a session can be bound once, so who asks again makes a new link.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from contextlib import AbstractAsyncContextManager

    from utter_runner.voice.hotkeys.triggers import Shortcut

CONFIGURE_SINCE = 2
"""The version of the portal from which on it can be asked to show its settings."""

DONE, DISMISSED = 0, 1
"""Responses of a request: it was carried out; the person cancelled it. Every other one is a failure."""


class PortalError(Exception):
    """The portal said no, and would say no again; `str()` is what it said."""


class NoPortalError(PortalError):
    """There is no portal on the bus."""


class NoShortcutsError(PortalError):
    """The portal has no shortcuts."""


class NoAppError(PortalError):
    """The portal knows no installed application to which the shortcuts could belong."""


class Activated(NamedTuple):
    """A shortcut began to be held."""

    shortcut: str


class Deactivated(NamedTuple):
    """A shortcut is held no more."""

    shortcut: str


class Answered(NamedTuple):
    """The person, or the desktop for them, has answered what `bind` asked."""

    response: int
    triggers: Mapping[str, str]


class Triggers(NamedTuple):
    """What triggers the shortcuts, in words for a person, by id; as asked for with `ask_triggers`, or anew."""

    triggers: Mapping[str, str]
    changed: bool


class Closed(NamedTuple):
    """The desktop has ended the session."""


class Gone(NamedTuple):
    """The portal left the bus, or another one is there in its place."""


PortalEvent = Activated | Deactivated | Answered | Triggers | Closed | Gone


class PortalLink(Protocol):
    """One connection. One task uses it. Every method raises BusError when the bus is gone or nobody answers in time."""

    async def find(self) -> int:
        """Return the version of the portal's shortcuts.

        Raises:
            NoPortalError: there is no portal.
            NoShortcutsError: it has no shortcuts.
        """
        ...

    async def appear(self) -> None:
        """Wait until a portal comes onto the bus, or another one takes the place of the one that is there."""
        ...

    async def open(self) -> None:
        """Make the session.

        Raises:
            NoAppError: the portal wants to know an installed application.
            PortalError: it refused.
        """
        ...

    async def bind(self, shortcuts: Sequence[Shortcut]) -> None:
        """Ask for shortcuts; `Answered` tells what became of it. Raises PortalError: the portal refused at once."""
        ...

    async def ask_triggers(self) -> None:
        """Ask what triggers the shortcuts; `Triggers` tells. Raises PortalError."""
        ...

    async def configure(self) -> None:
        """Have the desktop show its settings for the shortcuts. Raises PortalError."""
        ...

    async def next(self) -> PortalEvent:
        """Wait for what happens next. It may be cancelled, and loses nothing."""
        ...


class PortalBackend(Protocol):
    """Where links come from."""

    def link(self) -> AbstractAsyncContextManager[PortalLink]:
        """Connect; leaving the context ends the session. Entering it raises BusError, and NoBusError for good."""
        ...
