"""The desktop entry by which desktops know the runner."""

from __future__ import annotations

import configparser
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from utter_runner.config.desktop_entry import APP_ID, entry_path, entry_text
from utter_runner.operate.desktop_entry import install, remove
from utter_runner.operate.errors import OperateError
from utter_runner.operate.program import runner_program


def command_of(text: str) -> list[str]:
    """The Exec line as desktops read it: a value's escapes first, then those of the command in it."""
    entry = configparser.ConfigParser(interpolation=None)
    entry.optionxform = str  # type: ignore[method-assign,assignment]  # how configparser is told to keep the case
    entry.read_string(text)
    line = entry["Desktop Entry"]["Exec"].replace("\\\\", "\\").replace("%%", "%")
    # What is quoted is quoted as for a shell.
    done = subprocess.run(
        ["sh", "-c", f"printf '%s\\n' {line}"], capture_output=True, text=True, check=True, timeout=60
    )
    return done.stdout.splitlines()


def test_it_is_written_once_replaced_when_it_is_another_and_taken_away(tmp_path: Path) -> None:
    environ = {"XDG_DATA_HOME": str(tmp_path / "data"), "PATH": "/bin"}
    path = install(environ)
    assert path == tmp_path / "data" / "applications" / f"{APP_ID}.desktop"
    assert command_of(path.read_text()) == [str(runner_program(sys.executable))]
    assert install(environ) is None
    path.write_text("[Desktop Entry]\nExec=/old/utter-runner\n")
    assert install(environ) == path
    assert [one.name for one in path.parent.iterdir()] == [path.name]
    assert remove(environ) == path
    assert remove(environ) is None


def test_it_lies_where_desktops_look(tmp_path: Path) -> None:
    usual = Path("/home/me/.local/share/applications") / f"{APP_ID}.desktop"
    assert entry_path({"HOME": "/home/me"}) == entry_path({"HOME": "/home/me", "XDG_DATA_HOME": "relative"}) == usual


@pytest.mark.parametrize("program", ["/usr/bin/utter-runner", "/home/me/my bin/run", '/x/$HOME/`a`/"b"/%u/\\c'])
def test_any_path_is_the_one_word_of_its_command(program: str) -> None:
    assert command_of(entry_text(Path(program))) == [program]


@pytest.mark.skipif(shutil.which("desktop-file-validate") is None, reason="desktop-file-utils is not installed")
def test_it_is_valid(tmp_path: Path) -> None:
    path = tmp_path / f"{APP_ID}.desktop"
    path.write_text(entry_text(Path("/usr/bin/utter-runner")))
    done = subprocess.run(["desktop-file-validate", path], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (0, "")


def test_what_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("no directory")
    with pytest.raises(OperateError, match=rf"{APP_ID}.desktop cannot be written: Not a directory"):
        install({"XDG_DATA_HOME": str(tmp_path / "data")})


def test_a_daemon_that_is_nowhere_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", str(tmp_path / "python"))
    environ = {"XDG_DATA_HOME": str(tmp_path / "data"), "PATH": "/bin"}
    with pytest.raises(OperateError, match=r"There is no .*/utter-runner beside this Python"):
        install(environ)
    (tmp_path / "utter-runner").write_text("#!/bin/sh\n")
    (tmp_path / "utter-runner").chmod(0o755)
    path = install(environ)
    assert path is not None
    assert command_of(path.read_text()) == [str(tmp_path / "utter-runner")]
