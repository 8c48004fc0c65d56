"""`utter audit` over files that a runner would have written."""

from __future__ import annotations

import json
import os
import subprocess
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from support.terminal import UTTER
from utter_protocol.audit import AuditConfirmation, AuditEntry, AuditResult, AuditSource
from utter_runner.actions.audit_file import AuditFile
from utter_runner.cli import app
from utter_runner.cli.audit import entry_line
from utter_runner.cli.connection import UsageError
from utter_runner.cli.exits import Exit
from utter_runner.cli.moments import moment

if TYPE_CHECKING:
    from pathlib import Path

ENTRY = AuditEntry(
    time="2026-01-31T09:00:00.000Z",
    session="s1",
    op="open_url",
    args_sha256="ab",
    provenance="user",
    source=AuditSource(kind="client", pid=7, program="/usr/bin/python3"),
    decision="allow",
    rule="allowed",
    result=AuditResult(status="ok"),
    plugin="desktop",
    epoch=1,
    duration_ms=12.4,
)


class Trail:
    """A trail in the place where the command looks for it."""

    def __init__(self, state: Path) -> None:
        self.directory = state / "utter"
        self.path = self.directory / "audit.jsonl"
        self._file = AuditFile(self.directory, 2**20)

    def add(self, **changes: Any) -> None:
        written, error = self._file.append([msgspec.structs.replace(ENTRY, **changes)], 0)
        assert (written, error) == (1, None)

    def rotate(self) -> None:
        self._file._rotate()

    def close(self) -> None:
        self._file.close()


@pytest.fixture
def trail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    made = Trail(tmp_path)
    yield made
    made.close()


def ops(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [json.loads(line)["op"] for line in capsys.readouterr().out.splitlines()]


def test_without_a_trail_it_says_where_there_is_none(trail: Trail, capsys: pytest.CaptureFixture[str]) -> None:
    assert app.run(["audit"]) == Exit.DONE
    assert capsys.readouterr().err == f"utter: There is no such entry in {trail.path}.\n"
    assert app.run(["audit", "--verify"]) == Exit.DONE


def test_an_entry_is_one_line_for_a_person(trail: Trail, capsys: pytest.CaptureFixture[str]) -> None:
    trail.add()
    trail.add(
        op="wipe\x1b[31m\n",
        decision="confirm",
        rule="destructive",
        confirmation=AuditConfirmation(state="approved", surface="client"),
        source=AuditSource(kind="voice"),
        result=AuditResult(status="late", code=-32001),
    )
    trail.add(
        decision="deny",
        rule="url",
        provenance="screen",
        tainted=["url"],
        plugin="",
        source=AuditSource(kind="plugin", plugin="router"),
        result=AuditResult(status="denied", code=-32003),
    )
    assert app.run(["audit"]) == Exit.DONE
    assert capsys.readouterr().out.splitlines() == [
        "2026-01-31T09:00:00.000Z ok open_url by client 7 /usr/bin/python3 for desktop - allow by allowed user 12 ms",
        (
            "2026-01-31T09:00:00.000Z late (-32001) wipe\\x1b[31m\\n by voice for desktop - confirm by destructive "
            "user confirmation approved on client 12 ms"
        ),
        "2026-01-31T09:00:00.000Z denied (-32003) open_url by plugin router - deny by url tainted url 12 ms",
    ]


def test_arguments_are_shown_where_they_were_kept() -> None:
    shown = entry_line(msgspec.structs.replace(ENTRY, args={"url": "https://a.example/\u202e"}))
    assert 'open_url {"url":"https://a.example/\\u202e"} by client' in shown


def test_the_last_entries_are_shown_across_files(trail: Trail, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(30):
        trail.add(op=f"op{number}")
        if number in {5, 25}:
            trail.rotate()
    assert app.run(["audit", "--json"]) == Exit.DONE
    assert ops(capsys) == [f"op{number}" for number in range(10, 30)]
    app.run(["audit", "--json", "--last", "2"])
    assert ops(capsys) == ["op28", "op29"]
    app.run(["audit", "--json", "--last", "100"])
    assert len(ops(capsys)) == 30
    assert app.run(["audit", "--verify"]) == Exit.DONE


def test_entries_are_chosen_by_op_decision_and_time(trail: Trail, capsys: pytest.CaptureFixture[str]) -> None:
    trail.add(op="a")
    trail.add(op="b", decision="deny")
    trail.add(op="a", decision="deny", time="2026-02-01T09:00:00.000Z")
    app.run(["audit", "--json", "--op", "b"])
    assert ops(capsys) == ["b"]
    app.run(["audit", "--json", "--decision", "deny"])
    assert ops(capsys) == ["b", "a"]
    app.run(["audit", "--json", "--since", "2026-02-01T08:00:00+00:00"])
    assert ops(capsys) == ["a"]


@pytest.mark.parametrize(
    ("text", "then"),
    [
        ("30s", "2026-01-31T08:59:30.000Z"),
        ("15m", "2026-01-31T08:45:00.000Z"),
        ("2h", "2026-01-31T07:00:00.000Z"),
        ("7d", "2026-01-24T09:00:00.000Z"),
        ("2026-01-31T09:00:00+02:00", "2026-01-31T07:00:00.000Z"),
    ],
)
def test_a_time_is_an_age_or_a_date(text: str, then: str) -> None:
    assert moment(text, datetime(2026, 1, 31, 9, tzinfo=UTC)) == then


@pytest.mark.parametrize("text", ["", "yesterday", "-3h", "h", "99999999999999d", "2026-13-01"])
def test_what_is_no_time_is_said_so(text: str) -> None:
    with pytest.raises(UsageError, match="is no time"):
        moment(text, datetime(2026, 1, 31, 9, tzinfo=UTC))


def test_a_line_that_was_changed_or_removed_is_found(trail: Trail, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(4):
        trail.add(op=f"op{number}")
    assert app.run(["audit", "--verify"]) == Exit.DONE
    assert capsys.readouterr().out == f"{trail.path}: 4 entries; problems: 0\n"
    first, second, third, fourth = trail.path.read_bytes().splitlines(keepends=True)
    trail.path.write_bytes(first + second.replace(b"op1", b"op9") + fourth)
    assert app.run(["audit", "--verify"]) == Exit.FAILED
    assert capsys.readouterr().out.splitlines() == [
        "PROBLEM: Line 2 was changed: its hash is not its own.",
        "PROBLEM: Lines 3 to 3 are missing.",
        f"{trail.path}: 3 entries; problems: 2",
    ]
    trail.path.write_bytes(first + second + third[:40])
    assert app.run(["audit", "--verify", "--json"]) == Exit.DONE
    assert json.loads(capsys.readouterr().out) == {
        "path": str(trail.path),
        "entries": 2,
        "problems": [],
        "notes": ["The last line was cut off."],
    }


def test_verifying_goes_with_nothing_else(trail: Trail, capsys: pytest.CaptureFixture[str]) -> None:
    assert app.run(["audit", "--verify", "--last", "3"]) == Exit.USAGE
    assert "--verify looks at the whole trail" in capsys.readouterr().err


def test_a_trail_that_cannot_be_read_is_said_so(trail: Trail, capsys: pytest.CaptureFixture[str]) -> None:
    trail.path.parent.mkdir()
    trail.path.mkdir()
    assert app.run(["audit"]) == Exit.USAGE
    assert "cannot be read: Is a directory." in capsys.readouterr().err


def test_following_shows_what_comes_and_goes_over_a_rotation(trail: Trail) -> None:
    trail.add(op="before")
    with subprocess.Popen(
        [*UTTER, "audit", "-f", "--json"], stdout=subprocess.PIPE, env={**os.environ}, text=True
    ) as process:
        assert process.stdout is not None

        def shown() -> str:
            assert process.stdout is not None
            return str(json.loads(process.stdout.readline())["op"])

        assert shown() == "before"
        trail.add(op="one")
        assert shown() == "one"
        trail.add(op="two")
        trail.rotate()
        trail.add(op="three")
        trail.add(op="four")
        assert [shown(), shown(), shown()] == ["two", "three", "four"]
        process.terminate()
