"""The GlobalShortcuts portal over the session bus.

Rules here: only what the portal's unique name sends counts, and of that only what is about this connection's session
and requests. Where an answer will be is known before the question is sent, so that none can be missed. What the portal
says is checked before it is used. Sources: the documentation of xdg-desktop-portal for org.freedesktop.portal.Request,
Session and GlobalShortcuts, and org.freedesktop.host.portal.Registry.
"""

from __future__ import annotations

import logging
import secrets
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Literal

import trio

from utter_runner.config.desktop_entry import APP_ID
from utter_runner.rpc.bus import DRIVER, BusError, session_bus
from utter_runner.voice.hotkeys.portal_link import (
    DONE,
    Activated,
    Answered,
    Closed,
    Deactivated,
    Gone,
    NoAppError,
    NoPortalError,
    NoShortcutsError,
    PortalError,
    Triggers,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from jeepney import Message

    from utter_runner.rpc.bus import Bus, Signal
    from utter_runner.voice.hotkeys.portal_link import PortalEvent
    from utter_runner.voice.hotkeys.triggers import Shortcut

NAME = "org.freedesktop.portal.Desktop"
PATH = "/org/freedesktop/portal/desktop"
SHORTCUTS = "org.freedesktop.portal.GlobalShortcuts"
REQUEST = "org.freedesktop.portal.Request"
SESSION = "org.freedesktop.portal.Session"
REGISTRY = "org.freedesktop.host.portal.Registry"
PROPERTIES = "org.freedesktop.DBus.Properties"
SESSION_TOKEN = "utter_runner"  # noqa: S105 - a name, and no secret
"""Always the same: desktops that know no application remember the shortcuts by it."""
RESPONSE_SECONDS = 30.0
MAX_TRIGGER = 100
"""Characters of a trigger's description that are kept."""

_Asked = Literal["open", "bind", "list"]
_NOBODY = frozenset({f"{DRIVER}.Error.ServiceUnknown", f"{DRIVER}.Error.NameHasNoOwner"})
_SAID_NO = frozenset(
    {
        f"{DRIVER}.Error.{name}"
        for name in (
            "AccessDenied",
            "Failed",
            "InvalidArgs",
            "NotSupported",
            "UnknownInterface",
            "UnknownMethod",
            "UnknownObject",
            "UnknownProperty",
        )
    }
)
_NOT_ALLOWED = "org.freedesktop.portal.Error.NotAllowed"

log = logging.getLogger(__name__)


class BusPortal:
    """A `PortalBackend` over the session bus.

    Args:
        environ: where the bus's address is read.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ

    @asynccontextmanager
    async def link(self) -> AsyncIterator[BusLink]:
        """Connect; see `PortalBackend.link`. The portal ends the session of a connection that is closed."""
        async with session_bus(self._environ) as bus:
            yield BusLink(bus)


class BusLink:
    """A `PortalLink` over one connection to the bus."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._owner = ""
        self._me = bus.unique_name.removeprefix(":").replace(".", "_")
        self._session = f"{PATH}/session/{self._me}/{SESSION_TOKEN}"
        self._requests: dict[str, _Asked] = {}
        bus.only(self._is_wanted)

    async def find(self) -> int:
        """Return the version; see `PortalLink.find`."""
        await self._watch(sender=DRIVER, interface=DRIVER, member="NameOwnerChanged")
        # Where an application can be named, that comes before everything else, and goes once for each connection.
        try:
            await self._bus.call(_call(NAME, REGISTRY, "Register", "sa{sv}", (APP_ID, {})))
        except BusError as error:
            if error.name in _NOBODY:
                raise NoPortalError(str(error)) from None
            if _is_passing(error):
                raise
            log.debug("the portal did not take the name %s: %s", APP_ID, error)
        try:
            owner, body = await self._bus.call(_call(NAME, PROPERTIES, "Get", "ss", (SHORTCUTS, "version")))
        except BusError as error:
            if error.name in _NOBODY:
                raise NoPortalError(str(error)) from None
            if _is_passing(error):
                raise
            raise NoShortcutsError(str(error)) from None
        match body:
            case (("u", int(version)),) if version > 0:
                self._owner = owner
                return version
            case _:
                raise NoShortcutsError("the version of its shortcuts makes no sense")

    async def appear(self) -> None:
        """Wait for a portal; see `PortalLink.appear`."""
        while True:
            signal = await self._bus.signal()
            if signal.member == "NameOwnerChanged" and signal.body[2]:
                return

    async def open(self) -> None:
        """Make the session; see `PortalLink.open`."""
        await self._watch(sender=self._owner, interface=SHORTCUTS, path=PATH)
        await self._watch(sender=self._owner, interface=REQUEST, path_namespace=f"{PATH}/request/{self._me}")
        options = {"session_handle_token": ("s", SESSION_TOKEN)}
        await self._request("open", "CreateSession", "", (), options)
        with trio.move_on_after(RESPONSE_SECONDS):
            while True:
                signal = await self._bus.signal()
                asked, response, results = self._response(signal)
                if signal.sender == DRIVER:
                    raise BusError("the portal went away while it was asked for a session")
                if asked == "open":
                    break
            if response != DONE:
                raise PortalError(f"it made no session (response {response})")
            match results.get("session_handle"):
                case ("s" | "o", str(path)) if path.startswith("/"):
                    self._session = path
                case _:
                    log.debug("the portal names no session, so it is taken to be %s", self._session)
            await self._watch(sender=self._owner, interface=SESSION, path=self._session)
            return
        raise BusError(f"the portal made no session within {RESPONSE_SECONDS:g} s")

    async def bind(self, shortcuts: Sequence[Shortcut]) -> None:
        """Ask for shortcuts; see `PortalLink.bind`."""
        asked = []
        for shortcut in shortcuts:
            about = {"description": ("s", shortcut.description)}
            if shortcut.trigger:
                about["preferred_trigger"] = ("s", shortcut.trigger)
            asked.append((shortcut.id, about))
        await self._request("bind", "BindShortcuts", "oa(sa{sv})s", (self._session, asked, ""))

    async def ask_triggers(self) -> None:
        """Ask what triggers the shortcuts; see `PortalLink.ask_triggers`."""
        await self._request("list", "ListShortcuts", "o", (self._session,))

    async def configure(self) -> None:
        """Show the desktop's settings; see `PortalLink.configure`."""
        await self._ask("ConfigureShortcuts", "osa{sv}", (self._session, "", {}))

    async def next(self) -> PortalEvent:
        """Wait for what happens; see `PortalLink.next`."""
        while True:
            event = self._event(await self._bus.signal())
            if event is not None:
                return event

    # ---- asking

    async def _request(
        self, asked: _Asked, method: str, signature: str, body: tuple[Any, ...], options: dict[str, Any] | None = None
    ) -> None:
        """Call a method that answers with a request, whose response comes as a signal."""
        token = f"utter_{secrets.token_hex(8)}"
        self._requests[f"{PATH}/request/{self._me}/{token}"] = asked
        options = {"handle_token": ("s", token), **(options or {})}
        answer = await self._ask(method, signature + "a{sv}", (*body, options))
        match answer:
            case (str(path),):
                self._requests[path] = asked
            case _:
                raise PortalError(f"its answer to {method} makes no sense")

    async def _ask(self, method: str, signature: str, body: tuple[Any, ...]) -> tuple[Any, ...]:
        try:
            _, answer = await self._bus.call(_call(self._owner, SHORTCUTS, method, signature, body))
        except BusError as error:
            if error.name in _NOBODY or _is_passing(error):
                raise
            raise (NoAppError if error.name == _NOT_ALLOWED else PortalError)(str(error)) from None
        return answer

    async def _watch(self, **conditions: str) -> None:
        from jeepney import MatchRule  # noqa: PLC0415 - jeepney is optional
        from jeepney.bus_messages import message_bus  # noqa: PLC0415 - see above

        rule = MatchRule(type="signal", **conditions)
        if conditions["sender"] == DRIVER:
            rule.add_arg_condition(0, NAME)
        await self._bus.call(message_bus.AddMatch(rule))

    # ---- hearing

    def _is_wanted(self, signal: Signal) -> bool:
        if signal.sender == DRIVER:
            return (
                signal.member == "NameOwnerChanged" and len(signal.body) > 2 and signal.body[0] == NAME  # noqa: PLR2004 - name, before, after
            )
        return bool(self._owner) and signal.sender == self._owner

    def _event(self, signal: Signal) -> PortalEvent | None:
        if signal.sender == DRIVER:
            return Gone() if signal.body[2] != self._owner else None
        if signal.interface == REQUEST:
            asked, response, results = self._response(signal)
            if asked == "bind":
                return Answered(response, _triggers(results.get("shortcuts")))
            return Triggers(_triggers(results.get("shortcuts")), changed=False) if asked == "list" else None
        return self._session_event(signal)

    def _session_event(self, signal: Signal) -> PortalEvent | None:
        match signal.interface, signal.member, signal.body:
            case "org.freedesktop.portal.Session", "Closed", _ if signal.path == self._session:
                return Closed()
            case "org.freedesktop.portal.GlobalShortcuts", "Activated", (self._session, str(shortcut), *_):
                return Activated(shortcut)
            case "org.freedesktop.portal.GlobalShortcuts", "Deactivated", (self._session, str(shortcut), *_):
                return Deactivated(shortcut)
            case "org.freedesktop.portal.GlobalShortcuts", "ShortcutsChanged", (self._session, shortcuts, *_):
                return Triggers(_triggers(("a(sa{sv})", shortcuts)), changed=True)
            case _:
                log.debug("the portal said %s %r", signal.member, signal.body)
                return None

    def _response(self, signal: Signal) -> tuple[_Asked | None, int, Mapping[str, Any]]:
        """Return which request a signal answers, if it does, with what, and what came of it."""
        if (signal.interface, signal.member) != (REQUEST, "Response"):
            return None, 0, {}
        asked = self._requests.pop(signal.path, None)
        match signal.body:
            case (int(response), dict(results), *_):
                return asked, response, results
            case _:
                return asked, -1, {}


def _is_passing(error: BusError) -> bool:
    """Whether it may be otherwise in a while: who was called gave no answer of its own."""
    return error.name not in _SAID_NO and not error.name.startswith("org.freedesktop.portal.")


def _call(to: str, interface: str, method: str, signature: str, body: tuple[Any, ...]) -> Message:
    from jeepney import DBusAddress, new_method_call  # noqa: PLC0415 - jeepney is optional

    return new_method_call(DBusAddress(PATH, bus_name=to, interface=interface), method, signature, body)


def _triggers(found: object) -> dict[str, str]:
    """Return the descriptions in an `a(sa{sv})` by id, without those that have none."""
    triggers: dict[str, str] = {}
    match found:
        case ("a(sa{sv})", list(shortcuts)):
            for shortcut in shortcuts:
                match shortcut:
                    case (str(name), {"trigger_description": ("s", str(text))}) if text.strip():
                        triggers[name] = text.strip()[:MAX_TRIGGER]
    return triggers
