"""Which windows there are and which one is in front, as the compositor niri tells it.

Rules here: `WindowTable` is told every event and does no I/O; events and fields that are not listed here are ignored,
so that a newer niri is no trouble. What windows say of themselves is data of unknown origin: it is cut to a bound.
Source: the documentation of the crate niri-ipc.
"""

from __future__ import annotations

import socket
import time
from typing import TYPE_CHECKING, Any

import msgspec

from .failure import Failure
from .watch import KNOWN_S, Watch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

VARIABLE = "NIRI_SOCKET"
MAX_WINDOWS = 64
"""How many windows are told, so that they fit into a field of the runner's."""
MAX_TEXT = 300
"""How many characters of a title are kept."""
MAX_LINE = 4 * 1024 * 1024
_READ_SIZE = 64 * 1024
# What has been told in full.
_WINDOWS, _WORKSPACES = 1, 2
_REQUEST = b'"EventStream"\n'


class Window(msgspec.Struct):
    """A window."""

    id: int
    title: str | None = None
    app_id: str | None = None
    workspace_id: int | None = None
    is_focused: bool = False


class Workspace(msgspec.Struct):
    """A workspace; `idx` counts from 1 on its output."""

    id: int
    idx: int
    name: str | None = None
    is_focused: bool = False


class _Workspaces(msgspec.Struct):
    workspaces: list[Workspace]


class _WorkspaceActivated(msgspec.Struct):
    id: int
    focused: bool = False


class _Windows(msgspec.Struct):
    windows: list[Window]


class _WindowOpened(msgspec.Struct):
    window: Window


class _WindowId(msgspec.Struct):
    id: int | None


class Event(msgspec.Struct):
    """One line of the event stream: an object with one of these fields, or with another that is not needed here."""

    workspaces: _Workspaces | None = msgspec.field(name="WorkspacesChanged", default=None)
    workspace_activated: _WorkspaceActivated | None = msgspec.field(name="WorkspaceActivated", default=None)
    windows: _Windows | None = msgspec.field(name="WindowsChanged", default=None)
    opened: _WindowOpened | None = msgspec.field(name="WindowOpenedOrChanged", default=None)
    closed: _WindowId | None = msgspec.field(name="WindowClosed", default=None)
    focused: _WindowId | None = msgspec.field(name="WindowFocusChanged", default=None)


class WindowTable:
    """The windows and workspaces of one compositor."""

    def __init__(self) -> None:
        self._windows: dict[int, Window] = {}
        self._workspaces: dict[int, Workspace] = {}
        self._told = 0

    @property
    def complete(self) -> bool:
        """Whether both have been told."""
        return self._told == _WINDOWS | _WORKSPACES

    def take(self, event: Event) -> None:
        """Take an event."""
        windows = self._windows
        if event.windows is not None:
            self._windows = {window.id: window for window in event.windows.windows}
            self._told |= _WINDOWS
        elif event.workspaces is not None:
            self._workspaces = {workspace.id: workspace for workspace in event.workspaces.workspaces}
            self._told |= _WORKSPACES
        elif event.opened is not None:
            window = event.opened.window
            windows[window.id] = window
            if window.is_focused:
                _focus(windows, window.id)
        elif event.closed is not None and event.closed.id is not None:
            windows.pop(event.closed.id, None)
        elif event.focused is not None:
            _focus(windows, event.focused.id)
        elif event.workspace_activated is not None and event.workspace_activated.focused:
            _focus(self._workspaces, event.workspace_activated.id)

    def context(self) -> dict[str, Any]:
        """The fields `window`, `windows` and `workspace`; None for what there is none of."""
        windows = list(self._windows.values())
        focused = next((window for window in windows if window.is_focused), None)
        workspace = next((one for one in self._workspaces.values() if one.is_focused), None)
        return {
            "window": _shown(focused) if focused else None,
            "windows": [{**_shown(window), "workspace": self._workspace(window)} for window in windows[:MAX_WINDOWS]],
            "workspace": _name(workspace) if workspace else None,
        }

    def _workspace(self, window: Window) -> str:
        workspace = None if window.workspace_id is None else self._workspaces.get(window.workspace_id)
        return _name(workspace) if workspace else ""


def _focus(things: Mapping[int, Window] | Mapping[int, Workspace], focused: int | None) -> None:
    for number, thing in things.items():
        thing.is_focused = number == focused


def _shown(window: Window) -> dict[str, str]:
    return {"id": str(window.id), "app": (window.app_id or "")[:MAX_TEXT], "title": (window.title or "")[:MAX_TEXT]}


def _name(workspace: Workspace) -> str:
    return (workspace.name or str(workspace.idx))[:MAX_TEXT]


_decode = msgspec.json.Decoder(Event).decode


class WindowWatch(Watch[socket.socket]):
    """Watches the windows as long as there is a compositor niri.

    Args:
        env: names its socket.
        changed: is called on the watch's thread with each field that changes, None for one that is gone.
        log: takes a line that says why they are not watched.
    """

    def __init__(self, env: Mapping[str, str], changed: Callable[[str, Any], None], log: Callable[[str], None]) -> None:
        super().__init__("The windows", log)
        self._path = env.get(VARIABLE, "")
        self._changed = changed

    @property
    def wanted(self) -> bool:
        """Whether the environment names a compositor that can be watched."""
        return bool(self._path)

    def connect(self) -> socket.socket:
        """Return a connection that the event stream was asked for on."""
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.settimeout(KNOWN_S)
            connection.connect(self._path)
            connection.sendall(_REQUEST)
        except (OSError, ValueError) as error:
            connection.close()
            raise Failure(f"niri cannot be reached at {self._path}: {error}.") from error
        return connection

    def lost(self) -> None:
        """Tell that nobody knows the windows."""
        for name in WindowTable().context():
            self._changed(name, None)

    def watch(self, source: socket.socket) -> None:
        """Tell the windows, and each change."""
        table, rest = WindowTable(), b""
        deadline = time.monotonic() + KNOWN_S
        while True:
            try:
                source.settimeout(None if table.complete else max(0.001, deadline - time.monotonic()))
                data = source.recv(_READ_SIZE)
            except OSError as error:
                raise Failure(f"niri does not answer: {error}.") from error
            *lines, rest = (rest + data).split(b"\n")
            if not data or len(rest) > MAX_LINE:
                raise Failure("niri went away." if not data else f"niri sent a line of more than {MAX_LINE} bytes.")
            for line in lines:
                table.take(_event(line))
            if table.complete:
                for name, value in table.context().items():
                    self._changed(name, value)
                self.known()


def _event(line: bytes) -> Event:
    try:
        return _decode(line)
    except (msgspec.DecodeError, RecursionError) as error:
        raise Failure(f"niri sent what is no event: {error}.") from error
