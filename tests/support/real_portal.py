"""The real xdg-desktop-portal on a test's own bus, in front of a backend that does what the test says.

Rules here: the portal is a process of the test's, with directories of its own; it is looked for where distributions put
it, or where UTTER_TEST_PORTAL says.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any, Self

from support.dbus import Service
from utter_runner.operate.desktop_entry import install
from utter_runner.voice.hotkeys.portal_bus import PATH

_WAIT_S = 60.0
_BACKEND = "org.freedesktop.impl.portal.desktop.utter"
_SHORTCUTS = "org.freedesktop.impl.portal.GlobalShortcuts"
_PLACES = ("/usr/libexec", "/usr/lib", "/usr/lib/xdg-desktop-portal", "/usr/local/libexec")


def find_portal() -> str | None:
    """Where the program is, or None."""
    named = os.environ.get("UTTER_TEST_PORTAL")
    places = [named] if named else [f"{place}/xdg-desktop-portal" for place in _PLACES]
    return next((place for place in places if os.access(place, os.X_OK) and Path(place).is_file()), None)


class Backend(Service):
    """What a desktop has behind the portal; a context manager.

    Attributes:
        response: what a binding is answered with.
        applications: who made each session.
    """

    def __init__(self, address: str, response: int = 0) -> None:
        self.response = response
        self.applications: list[str] = []
        self._session = ""
        self._bound: list[tuple[str, dict[str, Any]]] = []
        super().__init__(address, _BACKEND, self._do)

    def press(self, shortcut: str = "push_to_talk") -> None:
        """A shortcut's key goes down."""
        self.emit(PATH, _SHORTCUTS, "Activated", "osta{sv}", (self._session, shortcut, 1, {}))

    def release(self, shortcut: str = "push_to_talk") -> None:
        """A shortcut's key goes up."""
        self.emit(PATH, _SHORTCUTS, "Deactivated", "osta{sv}", (self._session, shortcut, 2, {}))

    def choose(self, **triggers: str) -> None:
        """Choose other keys."""
        listed = [(name, {"trigger_description": ("s", text)}) for name, text in triggers.items()]
        self.emit(PATH, _SHORTCUTS, "ShortcutsChanged", "oa(sa{sv})", (self._session, listed))

    def _do(self, _interface: str, member: str, body: tuple[Any, ...]) -> tuple[str, Any] | str | None:
        match member:
            case "GetAll":
                return "a{sv}", ({"version": ("u", 1)},)
            case "Get":
                return "v", (("u", 1),)
            case "CreateSession":
                self._session = body[1]
                self.applications.append(body[2])
                return "ua{sv}", (0, {})
            case "BindShortcuts":
                self._bound = body[2]
                return "ua{sv}", (self.response, self._listed() if self.response == 0 else {})
            case "ListShortcuts":
                return "ua{sv}", (0, self._listed())
            case _:
                return "", ()

    def _listed(self) -> dict[str, Any]:
        listed = [(name, {"trigger_description": about["preferred_trigger"]}) for name, about in self._bound]
        return {"shortcuts": ("a(sa{sv})", listed)}


class RealPortal:
    """The process; a context manager that ends it.

    Args:
        program: see `find_portal`.
        address: the bus, on which the backend has to be.
        directory: of the test.
    """

    def __init__(self, program: str, address: str, directory: Path) -> None:
        portals = directory / "portals"
        portals.mkdir(exist_ok=True)
        (portals / "utter.portal").write_text(f"[portal]\nDBusName={_BACKEND}\nInterfaces={_SHORTCUTS};\nUseIn=utter\n")
        (portals / "utter-portals.conf").write_text("[preferred]\ndefault=utter\n")
        env = {
            **{name: value for name, value in os.environ.items() if not name.startswith("XDG_")},
            "DBUS_SESSION_BUS_ADDRESS": address,
            "XDG_DESKTOP_PORTAL_DIR": str(portals),
            "XDG_CURRENT_DESKTOP": "utter",
            "XDG_RUNTIME_DIR": str(directory),
            "XDG_DATA_HOME": str(directory / "data"),
            "HOME": str(directory),
        }
        install(env)
        self._process = subprocess.Popen(
            [program, "--replace"], env=env, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait(_WAIT_S)
