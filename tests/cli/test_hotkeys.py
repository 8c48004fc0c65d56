"""`utter hotkeys bind`, and how the status shows the desktop's shortcuts."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from utter_runner.cli import main
from utter_runner.cli.lines import keys_text
from utter_runner.config.desktop_entry import entry_path

if TYPE_CHECKING:
    from pathlib import Path

    from support.fake_runner import FakeRunner


@pytest.fixture(autouse=True)
def data_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    return tmp_path


def test_bind_installs_the_entry_and_asks(
    runner: FakeRunner, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    runner.answers["hotkeys.bind"] = {"asked": True, "detail": "The desktop is asked.\x1b[31m"}
    path = entry_path({"XDG_DATA_HOME": str(tmp_path)})
    assert main(["hotkeys", "bind"]) == 0
    assert path.is_file()
    assert capsys.readouterr().out == f"installed {path}\nThe desktop is asked.\\x1b[31m\n"
    assert main(["hotkeys", "bind", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        **runner.answers["hotkeys.bind"],
        "installed": None,
    }
    assert runner.methods() == ["hotkeys.bind"] * 2


def test_bind_that_is_not_asked_says_why(runner: FakeRunner, capsys: pytest.CaptureFixture[str]) -> None:
    runner.answers["hotkeys.bind"] = {"asked": False, "detail": "A keyboard is watched."}
    assert main(["hotkeys", "bind"]) == 4
    assert "A keyboard is watched." in capsys.readouterr().err


def test_forget_removes_the_entry(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = entry_path({"XDG_DATA_HOME": str(tmp_path)})
    path.parent.mkdir()
    path.write_text("[Desktop Entry]\n")
    assert main(["hotkeys", "forget"]) == 0
    assert capsys.readouterr().out == f"removed {path}\n"
    assert not path.exists()
    assert main(["hotkeys", "forget"]) == 0
    assert capsys.readouterr().out == "there is no desktop entry\n"
    assert main(["hotkeys", "forget", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"removed": None}


BOUND = {"bound": True, "triggers": {"push_to_talk": "Ctrl+Alt+Space", "cancel": "Ctrl+Esc"}}
SHOWN = "shortcuts of the desktop (push_to_talk Ctrl+Alt+Space, cancel Ctrl+Esc)"


@pytest.mark.parametrize(
    ("hotkeys", "text"),
    [
        ({"available": True, "devices": [], "path": "portal", "portal": BOUND}, SHOWN),
        (
            {"available": True, "devices": ["A"], "path": "portal", "portal": BOUND},
            f"A; {SHOWN}; delivered by the desktop",
        ),
        (
            {"available": True, "devices": ["A"], "path": "evdev", "portal": BOUND, "detail": "Careful."},
            f"A; {SHOWN}; delivered by the keyboards; Careful.",
        ),
        ({"available": True, "devices": [], "path": "portal", "portal": {"bound": True}}, "shortcuts of the desktop"),
        ({"available": True, "devices": ["A"], "path": "evdev", "portal": {"bound": False}}, "A"),
        ({"available": False, "detail": "Ask.", "portal": {"bound": False, "triggers": {}}}, "not available: Ask."),
    ],
)
def test_the_keys_in_a_status(hotkeys: dict[str, Any], text: str) -> None:
    assert keys_text(hotkeys) == text
