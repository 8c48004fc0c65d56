"""Hotkeys from the desktop: asks its portal for shortcuts, and follows them for as long as they are wanted.

Rules here: one task talks to the portal; it waits for what the bus tells and wakes for nothing else, except between two
tries. Whatever goes wrong ends in the status. What a person may see is asked for once: who has dismissed it, or was
asked often enough without answering, is not asked again before `ask`. What is held when the portal, the bus or the
session goes counts as released.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import trio

from utter_runner.rpc.bus import BusError, NoBusError
from utter_runner.voice.hotkeys import portal_report
from utter_runner.voice.hotkeys.portal_link import (
    CONFIGURE_SINCE,
    DISMISSED,
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
from utter_runner.voice.hotkeys.portal_report import Found
from utter_runner.voice.hotkeys.shortcut_keys import ShortcutKeys
from utter_runner.voice.hotkeys.triggers import shortcuts

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping

    from utter_runner.machine.keys import Bindings
    from utter_runner.voice.hotkeys.matcher import HotkeyEvent
    from utter_runner.voice.hotkeys.portal_link import PortalBackend, PortalEvent, PortalLink
    from utter_runner.voice.hotkeys.portal_report import State

FIRST_PAUSE = 1.0
LONGEST_PAUSE = 60.0
HEALTHY_SECONDS = 60.0
MAX_UNANSWERED = 3
"""How often in a row a person is asked by a portal that goes away before there is an answer."""

log = logging.getLogger(__name__)


class _Lost(Exception):
    """The portal, or its session, is not there any more."""


@dataclass(slots=True)
class _Session:
    """One session: since when it is bound, and what triggers its shortcuts."""

    version: int
    bound_at: float = math.inf
    triggers: dict[str, str] = field(default_factory=dict)


class PortalKeys:
    """Follows the shortcuts of the desktop.

    Args:
        bindings: what is configured; a binding without a chord is not asked for.
        backend: where the portal is.
        on_event: told every Press, Release, Toggle and Cancel, from the running task, as `Hotkeys` tells them.
        on_status: told when `found` changes.
    """

    def __init__(
        self,
        bindings: Bindings,
        backend: PortalBackend,
        on_event: Callable[[HotkeyEvent], None],
        *,
        on_status: Callable[[], None] = lambda: None,
    ) -> None:
        self._shortcuts = shortcuts(bindings)
        self._backend = backend
        self._on_event = on_event
        self._on_status = on_status
        self.found = Found()
        self._keys = ShortcutKeys()
        self._wanted = False
        self._grace = 0.0
        self._stopped: Found | None = None
        self._unanswered = 0
        self._pause = FIRST_PAUSE
        self._configure = False
        self._complained = ""
        self._turn = trio.CancelScope()
        self._listening: trio.CancelScope | None = None

    @property
    def usable(self) -> bool:
        """Shortcuts are bound."""
        return self.found.state == "bound"

    def want(self, *, wanted: bool, grace: float = 0.0) -> None:
        """Say whether the shortcuts are wanted from now on; they are asked for after `grace` seconds of that."""
        if wanted != self._wanted:
            self._wanted, self._grace = wanted, grace
            self._turn.cancel()

    def ask(self) -> str:
        """Ask the person anew, or have the desktop show its settings; return what was done, as a sentence."""
        self._stopped = None
        self._unanswered = 0
        self._grace = 0.0
        if self.found.state == "bound" and (self.found.version or 0) >= CONFIGURE_SINCE:
            self._configure = True
            if self._listening is not None:
                self._listening.cancel()
            return "The desktop shows its settings for the shortcuts, if it has any."
        self._turn.cancel()
        return "The desktop is asked for the shortcuts: answer its dialog, if it shows one."

    async def run(self) -> None:
        """Follow the shortcuts until cancelled."""
        try:
            while True:
                with trio.CancelScope() as self._turn:
                    await self._serve()
                self._let_go()
        finally:
            self._let_go()
            self._wanted = False
            self._publish("standby")

    async def _serve(self) -> None:
        """Do what is wanted until somebody wants something else, which cancels it."""
        if not self._wanted or not self._shortcuts:
            self._publish("standby")
            await trio.sleep_forever()
        await trio.sleep(self._grace)
        self._pause = FIRST_PAUSE
        while True:
            if self._stopped is not None:
                self._tell(self._stopped)
                await trio.sleep_forever()
            await self._live()
            self._let_go()

    async def _live(self) -> None:
        """One connection, from its beginning to its end, and the pause after it."""
        began = trio.current_time()
        try:
            async with self._backend.link() as link:
                await self._follow(link)
        except NoBusError as error:
            self._stop("failed", portal_report.no_bus(str(error)))
            return
        except (BusError, _Lost) as error:
            why = str(error)
        else:
            return
        self._let_go()
        if self._unanswered >= MAX_UNANSWERED:
            self._stop("failed", portal_report.refused(f"it was asked {MAX_UNANSWERED} times without an answer"))
            return
        if trio.current_time() - began >= HEALTHY_SECONDS:
            self._pause = FIRST_PAUSE
        # Said once, and again when it is something else: a machine may never have a desktop.
        level = logging.DEBUG if why == self._complained else logging.INFO
        self._complained = why
        log.log(level, "the shortcuts of the desktop are lost: %s; next try in %g s", why, self._pause)
        self._publish("failed", portal_report.away(why))
        await trio.sleep(self._pause)
        self._pause = min(2 * self._pause, LONGEST_PAUSE)

    async def _follow(self, link: PortalLink) -> None:
        """Bind and listen; return when it is to be tried again at once. Raises _Lost, BusError."""
        version: int | None = None
        try:
            version = await link.find()
            await link.open()
            self._unanswered += 1
            self._publish("asking", portal_report.asking([one.note for one in self._shortcuts if one.note]), version)
            await link.bind(self._shortcuts)
            await self._listen(link, version)
        except NoPortalError:
            self._publish("absent", portal_report.no_portal())
            await link.appear()
        except NoShortcutsError as error:
            log.debug("the portal has no shortcuts: %s", error)
            self._publish("absent", portal_report.no_shortcuts())
            await link.appear()
        except NoAppError:
            self._stop("failed", portal_report.no_application(), version)
        except PortalError as error:
            self._stop("failed", portal_report.refused(str(error)), version)

    async def _listen(self, link: PortalLink, version: int) -> None:
        session = _Session(version)
        self._configure = False
        while True:
            event = await self._next(link)
            now = trio.current_time()
            if isinstance(event, Activated):
                self._act(self._keys.activated(event.shortcut, now))
            elif isinstance(event, Deactivated):
                self._act(self._keys.deactivated(event.shortcut, now))
            elif event is not None and not self._take(event, session, now):
                return
            if session.bound_at <= now:
                wanted = [one.id for one in self._shortcuts]
                detail = portal_report.bound(wanted, session.triggers, one_sided=self._keys.one_sided)
                self._publish("bound", detail, version, session.triggers)
            if isinstance(event, Answered):
                await _unless_refused(link.ask_triggers())
            if self._configure:
                self._configure = False
                await _unless_refused(link.configure())

    def _take(self, event: Answered | Triggers | Closed | Gone, session: _Session, now: float) -> bool:
        """Take what is no key; whether the session goes on. Raises _Lost."""
        match event:
            case Answered(response, triggers):
                if not self._take_answer(response, session.version):
                    return False
                session.bound_at = now
                session.triggers |= self._ours(triggers)
            case Triggers(triggers, changed):
                session.triggers = {**({} if changed else session.triggers), **self._ours(triggers)}
            case Closed():
                if now - session.bound_at >= HEALTHY_SECONDS:
                    raise _Lost("it ended the session")
                self._stop("failed", portal_report.closed(), session.version)
                return False
            case Gone():
                raise _Lost("it went away")
        return True

    async def _next(self, link: PortalLink) -> PortalEvent | None:
        """Wait for what happens; None: somebody asked for something meanwhile."""
        event = None
        with trio.CancelScope() as self._listening:
            event = await link.next()
        self._listening = None
        return event

    def _take_answer(self, response: int, version: int) -> bool:
        self._unanswered = 0
        self._complained = ""
        if response == DONE:
            for shortcut in self._shortcuts:
                if shortcut.note:
                    log.info("%s", shortcut.note)
            return True
        if response == DISMISSED:
            self._stop("dismissed", portal_report.dismissed(), version)
        else:
            self._stop("failed", portal_report.refused(f"response {response}"), version)
        return False

    def _ours(self, triggers: Mapping[str, str]) -> dict[str, str]:
        return {one.id: triggers[one.id] for one in self._shortcuts if one.id in triggers}

    def _stop(self, state: State, detail: str, version: int | None = None) -> None:
        """Nothing more is tried until somebody asks for it."""
        self._stopped = Found(state=state, version=version, detail=detail)
        log.info("%s", detail)

    def _let_go(self) -> None:
        self._act(self._keys.forget(trio.current_time()))

    def _act(self, events: Iterable[HotkeyEvent]) -> None:
        for event in events:
            self._on_event(event)

    def _publish(
        self, state: State, detail: str = "", version: int | None = None, triggers: dict[str, str] | None = None
    ) -> None:
        self._tell(Found(state=state, version=version, triggers=dict(triggers or {}), detail=detail))

    def _tell(self, found: Found) -> None:
        if found != self.found:
            self.found = found
            self._on_status()


async def _unless_refused(asked: Awaitable[None]) -> None:
    """Wait for what is good to have. That the bus is gone is noticed by who listens to it."""
    try:
        await asked
    except (BusError, PortalError) as error:
        log.info("the desktop does not say what triggers its shortcuts, or does not show it: %s", error)


def portal_status(keys: PortalKeys | None) -> dict[str, Any]:
    """Return what `runner.status` says of the portal; None: it is switched off."""
    return (Found(state="off") if keys is None else keys.found).status()
