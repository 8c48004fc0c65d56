"""The windows of a compositor niri in the context, with a socket of the test's own in its place."""

from __future__ import annotations

import json
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from support.desktop import PATIENT
from utter_plugins.desktop.failure import Failure
from utter_plugins.desktop.windows import MAX_LINE, MAX_TEXT, MAX_WINDOWS, WindowWatch
from utter_sdk.testing import PluginProcess

ARGV = [sys.executable, "-P", "-m", "utter_plugins.desktop"]


class Niri:
    """The compositor's end."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        self._listener.settimeout(10)
        self._connection: socket.socket | None = None

    def accept(self) -> None:
        """Wait until the event stream is asked for, and grant it."""
        self._connection, _ = self._listener.accept()
        self._connection.settimeout(10)
        asked = b""
        while not asked.endswith(b"\n"):
            asked += self._connection.recv(4096)
        assert json.loads(asked) == "EventStream"
        self.send({"Ok": "Handled"})

    def send(self, *events: Any) -> None:
        self.send_bytes(b"".join(json.dumps(event).encode() + b"\n" for event in events))

    def send_bytes(self, data: bytes) -> None:
        assert self._connection is not None
        self._connection.sendall(data)

    def hang_up(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def close(self) -> None:
        self.hang_up()
        self._listener.close()


@pytest.fixture
def niri(tmp_path: Path) -> Iterator[Niri]:
    made = Niri(tmp_path / "niri.sock")
    yield made
    made.close()


def plugin(niri: Niri, tmp_path: Path, **settings: Any) -> PluginProcess:
    env = {"NIRI_SOCKET": str(niri.path), "DBUS_SESSION_BUS_ADDRESS": "", "XDG_RUNTIME_DIR": str(tmp_path)}
    return PluginProcess(PATIENT, env=env, settings=settings)


def window(number: int, title: str, *, focused: bool = False, workspace: int | None = 1, **more: Any) -> dict[str, Any]:
    return {"id": number, "title": title, "app_id": "foot", "workspace_id": workspace, "is_focused": focused, **more}


WORKSPACES = {
    "WorkspacesChanged": {
        "workspaces": [
            {"id": 1, "idx": 1, "name": None, "output": "DP-1", "is_active": True, "is_focused": True},
            {"id": 7, "idx": 2, "name": "mail", "output": "DP-1", "is_active": False, "is_focused": False},
        ]
    }
}
WINDOWS = {"WindowsChanged": {"windows": [window(1, "One", focused=True, pid=5), window(2, "Two", workspace=7)]}}


IDS = {"One": "1", "Two": "2", "New": "3", "Newer": "4"}


def shown(title: str, workspace: str = "1") -> dict[str, str]:
    return {"id": IDS[title], "app": "foot", "title": title, "workspace": workspace}


def told(process: PluginProcess, *names: str) -> dict[str, Any]:
    """What the next announcements say, which must be of these fields."""
    fields: dict[str, Any] = {}
    for _ in names:
        fields |= process.notification("context.changed")["context"]
    assert set(fields) == set(names)
    return fields


def test_a_snapshot_waits_for_the_windows(niri: Niri, tmp_path: Path) -> None:
    with plugin(niri, tmp_path) as process:
        niri.accept()
        pending = process.send("context.snapshot", {"sources": ["window", "windows", "workspace"]})
        niri.send({"KeyboardLayoutsChanged": {"keyboard_layouts": {"names": ["de"], "current_idx": 0}}}, WORKSPACES)
        niri.send(WINDOWS)
        assert pending.result() == {
            "window": {"id": "1", "app": "foot", "title": "One"},
            "windows": [shown("One"), shown("Two", "mail")],
            "workspace": "1",
        }


def test_each_event_is_followed(niri: Niri, tmp_path: Path) -> None:
    with plugin(niri, tmp_path) as process:
        niri.accept()
        niri.send(WORKSPACES, {"WindowsChanged": {"windows": []}})
        assert told(process, "windows", "workspace") == {"windows": [], "workspace": "1"}
        niri.send({"WindowOpenedOrChanged": {"window": window(3, "New", focused=True)}})
        assert told(process, "window", "windows")["window"] == {"id": "3", "app": "foot", "title": "New"}
        niri.send({"WindowOpenedOrChanged": {"window": window(4, "Newer", focused=True)}})
        assert told(process, "window", "windows") == {
            "window": {"id": "4", "app": "foot", "title": "Newer"},
            "windows": [shown("New"), shown("Newer")],
        }
        niri.send({"WindowFocusChanged": {"id": 3}})
        assert told(process, "window") == {"window": {"id": "3", "app": "foot", "title": "New"}}
        niri.send({"WindowFocusChanged": {"id": None}})
        assert told(process, "window") == {"window": None}
        niri.send({"WindowClosed": {"id": 3}})
        assert told(process, "windows") == {"windows": [shown("Newer")]}
        niri.send(
            {"WorkspaceActivated": {"id": 7, "focused": False}}, {"WorkspaceActivated": {"id": 7, "focused": True}}
        )
        assert told(process, "workspace") == {"workspace": "mail"}
        niri.send({"WindowClosed": {"id": 99}}, {"WindowLayoutsChanged": {"changes": [[1, {}]]}}, {"Later": 1})
        niri.send({"WindowOpenedOrChanged": {"window": {"id": 4, "title": None, "app_id": None, "workspace_id": None}}})
        assert told(process, "windows") == {"windows": [{"id": "4", "app": "", "title": "", "workspace": ""}]}


def test_events_may_be_cut_anywhere(niri: Niri, tmp_path: Path) -> None:
    with plugin(niri, tmp_path) as process:
        niri.accept()
        for byte in json.dumps(WORKSPACES).encode() + b"\n" + json.dumps(WINDOWS).encode() + b"\n":
            niri.send_bytes(bytes([byte]))
        assert told(process, "window", "windows", "workspace")["workspace"] == "1"


def test_a_compositor_that_goes_away_takes_its_fields_with_it_and_is_looked_for(niri: Niri, tmp_path: Path) -> None:
    with plugin(niri, tmp_path) as process:
        niri.accept()
        niri.send(WORKSPACES, WINDOWS)
        told(process, "window", "windows", "workspace")
        niri.hang_up()
        assert told(process, "window", "windows", "workspace") == {"window": None, "windows": None, "workspace": None}
        process.wait_stderr("The windows are not watched: niri went away.")
        niri.accept()
        niri.send(WORKSPACES, WINDOWS)
        assert told(process, "window", "windows", "workspace")["workspace"] == "1"


def test_it_is_bounded(niri: Niri, tmp_path: Path) -> None:
    with plugin(niri, tmp_path) as process:
        niri.accept()
        many = [window(number, "x" * 1000) for number in range(MAX_WINDOWS + 5)]
        niri.send(WORKSPACES, {"WindowsChanged": {"windows": many}})
        windows = told(process, "windows", "workspace")["windows"]
        assert len(windows) == MAX_WINDOWS
        assert windows[0]["title"] == "x" * MAX_TEXT


def test_without_niri_nothing_is_looked_for(tmp_path: Path) -> None:
    env = {"NIRI_SOCKET": "", "DBUS_SESSION_BUS_ADDRESS": "", "XDG_RUNTIME_DIR": str(tmp_path)}
    with PluginProcess(ARGV, env=env) as process:
        assert process.call("context.snapshot") == {}
        process.close()
        assert "The windows" not in process.stderr


def test_a_dry_run_connects_to_nobody(niri: Niri, tmp_path: Path) -> None:
    with plugin(niri, tmp_path, dry_run=True) as process:
        assert process.call("context.snapshot") == {}
        niri._listener.settimeout(0)
        with pytest.raises(BlockingIOError):
            niri.accept()


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"hello\n", "niri sent what is no event"),
        (b'{"WindowsChanged": {"windows": 5}}\n', "niri sent what is no event"),
        (b"[" * 100_000 + b"\n", "niri sent what is no event"),
        (b"x" * (MAX_LINE + 1), f"niri sent a line of more than {MAX_LINE} bytes"),
        (b"", "niri went away"),
        (b'{"Err": "no"}\n', "niri does not answer: timed out"),
    ],
    ids=["text", "wrong", "deep", "long", "end", "silent"],
)
def test_what_is_no_event_stream(data: bytes, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("utter_plugins.desktop.windows.KNOWN_S", 0.2 if why.endswith("timed out") else 30)
    ours, theirs = socket.socketpair()

    def write() -> None:
        with suppress(BrokenPipeError):
            theirs.sendall(data)

    if not data:
        theirs.shutdown(socket.SHUT_WR)
    writer = threading.Thread(target=write)
    writer.start()
    with theirs:
        with ours, pytest.raises(Failure, match=why):
            WindowWatch({"NIRI_SOCKET": "x"}, lambda *_: None, print).watch(ours)
        writer.join()


def test_a_socket_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(Failure, match=r"niri cannot be reached at .*/none: "):
        WindowWatch({"NIRI_SOCKET": str(tmp_path / "none")}, lambda *_: None, print).connect()
    with pytest.raises(Failure, match="niri cannot be reached at"):
        WindowWatch({"NIRI_SOCKET": "/" + "x" * 500}, lambda *_: None, print).connect()
