"""`utter confirm`: a terminal that answers, the list, and what is said of questions that are over."""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from support.terminal import UTTER, Terminal
from utter_runner.cli import main

if TYPE_CHECKING:
    from support.fake_runner import Connection, FakeRunner

QUESTION = {
    "id": "c1",
    "text": "Run in a terminal: ls \x1b[2J",
    "op": "terminal",
    "args": {"command": "x"},
    "provenance": "user",
    "digest": "d0",
    "timeout_ms": 60_000,
}
OPEN = {"id": "c1", "text": QUESTION["text"], "op": "terminal", "provenance": "user", "session": "s", "state": "asked"}


def attends(runner: FakeRunner, state: str, answers: list[Any], question: dict[str, Any] | None = None) -> None:
    """Have the runner ask as soon as somebody attends, and then say what became of it."""

    def attend(connection: Connection, _params: dict[str, Any]) -> dict[str, Any]:
        answers.append(connection.ask("host.confirm", question or QUESTION))
        # One that this terminal was never asked, and one that is.
        for number in ("c0", "c1"):
            connection.emit({"event": "confirm", "session": "s", "id": number, "text": "x", "state": state})
        return {"questions": []}

    runner.answers["confirm.attend"] = attend


@pytest.mark.parametrize(
    ("typed", "state", "shown", "code"),
    [
        ("y\n", "approved", "Approved.", 0),
        ("n\n", "denied", "Declined.", 3),
        ("\n", "denied", "Declined.", 3),
        # Somebody else was quicker.
        ("y\n", "denied", "It was denied.", 3),
    ],
)
def test_an_answer_names_what_was_shown(runner: FakeRunner, typed: str, state: str, shown: str, code: int) -> None:
    answers: list[Any] = []
    attends(runner, state, answers)
    with Terminal([*UTTER, "confirm", "--once"]) as terminal:
        terminal.wait_for("[y/N] ")
        terminal.type(typed)
        assert terminal.finish()[0] == code
        assert answers == [{"approved": typed == "y\n", "digest": "d0"}]
        assert r"  Run in a terminal: ls \x1b[2J" in terminal.shown
        assert terminal.shown.splitlines()[-1] == shown


@pytest.mark.parametrize(
    ("state", "shown", "code"),
    [
        ("approved", "Approved elsewhere.", 0),
        ("denied", "It was declined elsewhere, or is not wanted any more.", 3),
        ("timed_out", "Nobody answered in time: not done.", 3),
    ],
)
def test_what_was_not_answered_here_is_told(runner: FakeRunner, state: str, shown: str, code: int) -> None:
    answers: list[Any] = []
    attends(runner, state, answers, {**QUESTION, "timeout_ms": 1})
    with Terminal([*UTTER, "confirm", "--once"]) as terminal:
        assert terminal.finish()[0] == code
        assert answers == [{"approved": False, "digest": "d0"}]
        assert terminal.shown.splitlines()[-1] == shown


def test_events_as_json_go_to_stdout(runner: FakeRunner) -> None:
    attends(runner, "approved", [])
    with Terminal([*UTTER, "confirm", "--once", "--json"], stdout_to_pipe=True) as terminal:
        terminal.wait_for("[y/N] ")
        terminal.type("y\n")
        code, out = terminal.finish()
    assert (code, json.loads(out)["state"]) == (0, "approved")


def test_the_list(runner: FakeRunner, capsys: pytest.CaptureFixture[str]) -> None:
    runner.answers["confirm.list"] = {
        "questions": [{**OPEN, "left_ms": 21_400}, {**OPEN, "id": "c2", "state": "waiting", "left_ms": None}]
    }
    assert main(["confirm", "--list"]) == 0
    text = r"  Run in a terminal: ls \x1b[2J"
    assert capsys.readouterr().out.splitlines() == ["21 s left", text, "waits for its turn", text]
    assert main(["confirm", "--list", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["questions"][1]["id"] == "c2"
    runner.answers["confirm.list"] = {"questions": []}
    assert main(["confirm", "--list"]) == 0
    assert capsys.readouterr().err == "utter: No question is open.\n"


def test_without_a_terminal_nobody_answers(runner: FakeRunner) -> None:
    attends(runner, "approved", [])
    done = subprocess.run([*UTTER, "confirm"], input="y\n", capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert "answered by a person at a terminal" in done.stderr


def test_say_shows_what_is_asked_elsewhere(runner: FakeRunner) -> None:
    def command(connection: Connection, _params: dict[str, Any]) -> dict[str, Any]:
        connection._send({"method": "confirm.elsewhere", "params": {"id": "c1", "text": QUESTION["text"]}})
        connection._send({"method": "confirm.elsewhere", "params": []})
        step = {"op": "terminal", "ok": True, "detail": "Ran it.", "decision": "confirm"}
        return {"results": [step], "understood": True, "latency_ms": {}}

    runner.answers["runner.command"] = command
    done = subprocess.run([*UTTER, "say", "run it"], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0
    assert done.stderr.splitlines() == [
        "The runner asks elsewhere before it acts, on the desktop or where `utter confirm` runs:",
        r"  Run in a terminal: ls \x1b[2J",
    ]
