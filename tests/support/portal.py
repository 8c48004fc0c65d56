"""The desktop's portal for shortcuts on a test's own bus, with somebody at it who answers dialogs and presses keys.

Rules here: it keeps to the portal's documented behaviour unless it is told to misbehave; each wait has an end.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from support.dbus import Service
from utter_runner.voice.hotkeys.portal_bus import NAME, PATH, REGISTRY, REQUEST, SESSION, SHORTCUTS

if TYPE_CHECKING:
    from collections.abc import Callable

_WAIT_S = 60.0
_UNKNOWN = "org.freedesktop.DBus.Error.UnknownMethod"


class MockPortal(Service):
    """A portal with shortcuts; a context manager, as every service.

    Args:
        address: the bus.
        version: of the shortcuts; 0: it has none.
        response: what a binding is answered with; None: the dialog stays open.
        early: it answers requests before the calls that make them.
        registry: it can be told which application calls.
        installed: the desktop entry of the application is there.
        app_needed: it gives no session to callers without an application.
        silent: methods that it never answers.
        triggers: whether it says what triggers a shortcut.

    Attributes:
        app: what the caller says that it is.
        sessions: the paths of the sessions that were made, the last one being the one that is bound.
        shortcuts: what was asked for, at each binding.
    """

    def __init__(
        self,
        address: str,
        *,
        version: int = 2,
        response: int | None = 0,
        early: bool = False,
        registry: bool = True,
        installed: bool = True,
        app_needed: bool = False,
        silent: tuple[str, ...] = (),
        triggers: bool = True,
    ) -> None:
        self.version, self.response, self.early, self.silent = version, response, early, silent
        self.registry, self.installed, self.app_needed, self.triggers = registry, installed, app_needed, triggers
        self.app: str | None = None
        self.asked: list[str] = []
        self.sessions: list[str] = []
        self.shortcuts: list[list[tuple[str, dict[str, Any]]]] = []
        self.client = ""
        self._dialog = ""
        self._later: list[Callable[[], None]] = []
        self._changed = threading.Condition()
        super().__init__(address, NAME, self._do)

    # ---- the person

    def press(self, shortcut: str = "push_to_talk") -> None:
        """A shortcut's key goes down."""
        self._tell("Activated", "osta{sv}", (self.sessions[-1], shortcut, 4711, {}))

    def release(self, shortcut: str = "push_to_talk") -> None:
        """A shortcut's key goes up."""
        self._tell("Deactivated", "osta{sv}", (self.sessions[-1], shortcut, 4712, {}))

    def answer(self, response: int) -> None:
        """Answer the dialog that is open."""
        self._respond(self._dialog, response, self._listed() if response == 0 else {})

    def choose(self, **triggers: str) -> None:
        """Choose other keys in the desktop's settings."""
        listed = [(name, {"trigger_description": ("s", text)}) for name, text in triggers.items()]
        self._tell("ShortcutsChanged", "oa(sa{sv})", (self.sessions[-1], listed))

    def end_session(self) -> None:
        """The desktop ends the session."""
        self.emit(self.sessions[-1], SESSION, "Closed", "a{sv}", ({},), to=self.client)

    def say(self, signal: str, signature: str, body: tuple[Any, ...], *, interface: str = SHORTCUTS) -> None:
        """Send a signal, whatever it is."""
        self.emit(PATH, interface, signal, signature, body, to=self.client)

    # ---- waiting

    def wait_asked(self, method: str, count: int = 1) -> None:
        """Wait until a method was called so often."""
        with self._changed:
            assert self._changed.wait_for(lambda: self.asked.count(method) >= count, _WAIT_S), (method, self.asked)

    # ---- the portal

    def _tell(self, signal: str, signature: str, body: tuple[Any, ...]) -> None:
        self.emit(PATH, SHORTCUTS, signal, signature, body, to=self.client)

    def _take(self, message: Any) -> None:
        super()._take(message)
        for act in self._later:
            act()
        self._later.clear()

    def _do(self, interface: str, member: str, body: tuple[Any, ...]) -> tuple[str, Any] | str | None:
        with self._changed:
            self.asked.append(member)
            self._changed.notify_all()
        if member in self.silent:
            return None
        if interface == REGISTRY:
            return self._register(*body)
        if member == "Get" and self.version:
            return "v", (("u", self.version),)
        methods = {"CreateSession": self._create, "BindShortcuts": self._bind, "ListShortcuts": self._list}
        if self.version >= 2:
            methods["ConfigureShortcuts"] = lambda *_: ("", ())
        if interface != SHORTCUTS or not self.version or member not in methods:
            return _UNKNOWN
        return methods[member](*body)

    def _register(self, app: str, _options: dict[str, Any]) -> tuple[str, Any] | str:
        if not self.registry:
            return _UNKNOWN
        if not self.installed or self.caller == self.client:
            return "org.freedesktop.portal.Error.Failed"
        self.app = app
        self.client = self.caller
        return "", ()

    def _create(self, options: dict[str, Any]) -> tuple[str, Any] | str:
        if self.app_needed and self.app is None:
            return "org.freedesktop.portal.Error.NotAllowed"
        self.client = self.caller
        session = f"{PATH}/session/{self._sender}/{options['session_handle_token'][1]}"
        self.sessions.append(session)
        return self._request(options, 0, {"session_handle": ("s", session)})

    def _bind(
        self, session: str, shortcuts: list[tuple[str, dict[str, Any]]], window: str, options: dict[str, Any]
    ) -> tuple[str, Any]:
        assert (session, window) == (self.sessions[-1], "")
        self.shortcuts.append(shortcuts)
        return self._request(options, self.response, self._listed() if self.response == 0 else {})

    def _list(self, session: str, options: dict[str, Any]) -> tuple[str, Any]:
        assert session == self.sessions[-1]
        return self._request(options, 0, self._listed())

    def _listed(self) -> dict[str, Any]:
        if not self.triggers:
            return {"shortcuts": ("a(sa{sv})", [])}
        listed = [
            (name, {"description": about["description"], "trigger_description": about["preferred_trigger"]})
            for name, about in self.shortcuts[-1]
        ]
        return {"shortcuts": ("a(sa{sv})", listed)}

    @property
    def _sender(self) -> str:
        return self.caller.removeprefix(":").replace(".", "_")

    def _request(self, options: dict[str, Any], response: int | None, results: dict[str, Any]) -> tuple[str, Any]:
        path = f"{PATH}/request/{self._sender}/{options['handle_token'][1]}"
        if response is None:
            self._dialog = path
        elif self.early:
            self._respond(path, response, results)
        else:
            self._later.append(lambda: self._respond(path, response, results))
        return "o", (path,)

    def _respond(self, path: str, response: int, results: dict[str, Any]) -> None:
        self.emit(path, REQUEST, "Response", "ua{sv}", (response, results))
