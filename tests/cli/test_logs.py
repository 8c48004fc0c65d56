"""utter logs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from utter_runner.cli import main
from utter_runner.cli.logs import Level, Wanted, journal_command, log_line

if TYPE_CHECKING:
    from pathlib import Path

    from support.fake_runner import FakeRunner


def line(seq: int, text: str, **more: Any) -> dict[str, Any]:
    return {
        "seq": seq,
        "time": f"2026-01-31T09:00:{seq:02}.000Z",
        "level": "info",
        "logger": "utter_runner.supervision.instance",
        "text": text,
        **more,
    }


LINES = [line(1, "one \x1b[31m"), line(2, "two", level="warning", plugin="whisper"), line(3, "three", plugin="espeak")]


@pytest.fixture(autouse=True)
def logged(runner: FakeRunner) -> None:
    runner.answers["runner.logs"] = {"lines": LINES, "lost": 0}


def test_lines_are_harmless(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["logs"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert [one.split(maxsplit=1)[1] for one in shown] == [
        r"info    supervision.instance: one \x1b[31m",
        "warning supervision.instance: two",
        "info    supervision.instance: three",
    ]
    assert log_line({"time": "soon", "level": "info", "logger": "x", "text": "y"}) == "soon info    x: y"


def test_the_query_goes_to_the_runner(runner: FakeRunner, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["logs", "whisper", "-n", "7", "--level", "warning", "--json"]) == 0
    assert runner.calls[-1] == ("runner.logs", {"last": 7, "level": "warning", "plugin": "whisper"})
    assert [json.loads(one) for one in capsys.readouterr().out.splitlines()] == [LINES[1]]
    assert main(["logs"]) == 0
    assert runner.calls[-1] == ("runner.logs", {"last": 50, "level": "debug"})
    assert main(["logs", "--since", "2026-01-31T09:00:02+00:00", "--json"]) == 0
    assert runner.calls[-1] == ("runner.logs", {"last": 2000, "level": "debug"})
    assert capsys.readouterr().out.count('"seq"') == 2


def test_which_lines_are_shown() -> None:
    assert Wanted(None, None, Level.WARNING, "").takes(line(5, "five", level="error"))
    assert not Wanted(None, None, Level.WARNING, "").takes(line(4, "four", level="debug"))
    assert not Wanted("x", None, Level.DEBUG, "").takes(LINES[1])
    assert not Wanted(None, None, Level.DEBUG, "2026-01-31T09:00:02.500Z").takes(LINES[1])


def journal(directory: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    program = directory / "bin" / "journalctl"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    monkeypatch.delenv("UTTER_SOCKET")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(directory))


def test_without_a_runner_the_journal_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    journal(tmp_path, monkeypatch, r"""printf '%s\n' "$@"; printf 'a\033[31m\n'""")
    assert main(["logs", "whisper", "-n", "3", "--level", "error"]) == 0
    said = capsys.readouterr()
    assert said.out.splitlines() == [
        "--user", "--unit=utter-runner", "--no-pager", "--quiet", "--output=short", "--lines=3", "--priority=err",
        "PLUGIN=whisper", r"a\x1b[31m",
    ]  # fmt: skip
    assert "This is what the journal has of its service." in said.err


@pytest.mark.parametrize("script", ["exit 0", "echo No journal files were found. >&2; exit 1"])
def test_a_journal_that_has_nothing_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], script: str
) -> None:
    journal(tmp_path, monkeypatch, script)
    assert main(["logs"]) == 4
    assert "The journal has nothing of utter-runner" in capsys.readouterr().err


def test_without_a_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    journal(tmp_path, monkeypatch, "")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["logs"]) == 4
    assert "There is no journal either" in capsys.readouterr().err


def test_what_journalctl_is_asked() -> None:
    wanted = Wanted(None, None, Level.WARNING, "2026-01-31T09:00:00.000Z")
    command = journal_command("journalctl", wanted, follow=True, as_json=True)
    assert command[5:] == [
        "--output=json", "--lines=all", "--priority=warning", "--since=@1769850000.000", "--follow"
    ]  # fmt: skip
    with pytest.raises(Exception, match="no plugin's id"):
        journal_command("journalctl", wanted._replace(plugin="--vacuum-size=1"), follow=False, as_json=False)
