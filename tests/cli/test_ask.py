"""`host.confirm` at the terminal."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from typing import TYPE_CHECKING, Any

import pytest

from support.terminal import UTTER, Terminal
from utter_protocol.errors import RpcError

if TYPE_CHECKING:
    from pathlib import Path

    from support.fake_runner import Connection, FakeRunner

QUESTION = {
    "id": "c1",
    "text": "Run the command:\n  echo \x1b[2Jhi \u202etxt",
    "op": "terminal",
    "args": {"command": "x"},
    "provenance": "user",
    "digest": "00",
    "timeout_ms": 60_000,
}
DECLINED: dict[str, Any] = {
    "op": "terminal",
    "ok": False,
    "detail": "It was not confirmed.",
    "decision": "confirm",
    "error": {"code": -32003, "message": "It was not confirmed."},
}


def asks(question: dict[str, Any]) -> Any:
    def command(connection: Connection, _params: dict[str, Any]) -> dict[str, Any]:
        try:
            approved = connection.ask("host.confirm", question)["approved"]
        except RpcError as error:
            step = {**DECLINED, "detail": f"Nobody could be asked ({error.code})."}
            return {"results": [step], "understood": True, "latency_ms": {}}
        step = {"op": "terminal", "ok": True, "detail": "Ran it.", "decision": "confirm"} if approved else DECLINED
        return {"results": [step], "understood": True, "latency_ms": {"confirm": 5.0}}

    return command


@pytest.mark.parametrize(
    ("typed", "code"), [("y\n", 0), ("Yes\n", 0), ("\n", 3), ("n\n", 3), ("yup\n", 3), ("\x04", 3)]
)
def test_only_yes_is_yes(runner: FakeRunner, typed: str, code: int) -> None:
    runner.answers["runner.command"] = asks(QUESTION)
    with Terminal([*UTTER, "say", "run it"]) as terminal:
        terminal.wait_for("[y/N] ")
        terminal.type(typed)
        assert terminal.finish()[0] == code
        assert r"  Run the command:" in terminal.shown
        assert r"    echo \x1b[2Jhi \u202etxt" in terminal.shown
        assert "\x1b[2J" not in terminal.shown
        assert ("Ran it." if code == 0 else "It was not confirmed.") in terminal.shown


def test_what_was_typed_before_the_question_does_not_count(runner: FakeRunner) -> None:
    typed = threading.Event()

    def command(connection: Connection, params: dict[str, Any]) -> dict[str, Any]:
        assert typed.wait(30)
        return dict(asks({**QUESTION, "timeout_ms": 300})(connection, params))

    runner.answers["runner.command"] = command
    with Terminal([*UTTER, "say", "run it"]) as terminal:
        runner.wait_call("runner.command")
        terminal.type("y\n")
        terminal.wait_for("y\r\n")
        typed.set()
        assert terminal.finish()[0] == 3
        assert "No answer: not done." in terminal.shown


def test_no_answer_in_time_is_no(runner: FakeRunner) -> None:
    runner.answers["runner.command"] = asks({**QUESTION, "timeout_ms": 50})
    with Terminal([*UTTER, "say", "run it"]) as terminal:
        assert terminal.finish()[0] == 3
        assert "No answer within 0.05 s means no." in terminal.shown
        assert "No answer: not done." in terminal.shown


def test_a_question_that_was_answered_elsewhere_goes_away(runner: FakeRunner) -> None:
    def command(connection: Connection, _params: dict[str, Any]) -> dict[str, Any]:
        assert connection.ask("host.confirm", QUESTION) == {"approved": False, "digest": "00"}
        return {"results": [{"op": "terminal", "ok": True, "detail": "Ran it.", "decision": "confirm"}]}

    runner.answers["runner.command"] = command
    with Terminal([*UTTER, "say", "run it"]) as terminal:
        terminal.wait_for("[y/N] ")
        runner.connections[0].cancel(1)
        assert terminal.finish()[0] == 0
        assert "The question was answered elsewhere, or is over." in terminal.shown


def test_json_stays_clean_because_the_question_goes_to_stderr(runner: FakeRunner) -> None:
    runner.answers["runner.command"] = asks(QUESTION)
    with Terminal([*UTTER, "say", "run it", "--json"], stdout_to_pipe=True) as terminal:
        terminal.wait_for("[y/N] ")
        terminal.type("y\n")
        code, out = terminal.finish()
    assert (code, json.loads(out)["results"][0]["ok"]) == (0, True)


@pytest.mark.parametrize("which", ["stdin", "stderr"])
def test_without_a_person_at_a_terminal_nobody_is_asked(runner: FakeRunner, tmp_path: Path, which: str) -> None:
    runner.answers["runner.command"] = asks(QUESTION)
    if which == "stdin":
        done = subprocess.run(
            [*UTTER, "say", "run it"], input="y\n", capture_output=True, text=True, timeout=60, check=False
        )
        code, out = done.returncode, done.stdout
    else:
        shell = ["sh", "-c", f'exec "$@" 2>{tmp_path / "err"}', "sh"]
        with Terminal([*shell, *UTTER, "say", "run it"], stdout_to_pipe=True) as terminal:
            code, out = terminal.finish()
    assert (code, "Nobody could be asked (-32601)." in out) == (3, True)


def test_ctrl_c_at_the_question_tells_the_runner(runner: FakeRunner) -> None:
    runner.answers["runner.command"] = asks(QUESTION)
    with Terminal([*UTTER, "say", "run it"]) as terminal:
        terminal.wait_for("[y/N] ")
        terminal.process.send_signal(2)
        assert terminal.finish()[0] == 130
        assert "Traceback" not in terminal.shown


def test_a_runner_that_dies_while_it_asks(runner: FakeRunner) -> None:
    runner.answers["runner.command"] = asks(QUESTION)
    with Terminal([*UTTER, "say", "run it"]) as terminal:
        terminal.wait_for("[y/N] ")
        runner.connections[0].hang_up()
        assert terminal.finish()[0] == 4
        assert "The runner is not available" in terminal.shown


def test_the_working_directory_is_of_no_importance(runner: FakeRunner, tmp_path: Path) -> None:
    (tmp_path / "json.py").write_text("raise RuntimeError('a module from the working directory was imported')")
    runner.answers["ptt.press"] = {"session": "s", "state": "listening"}
    utter = os.path.join(os.path.dirname(UTTER[0]), "utter")  # noqa: PTH118, PTH120 - a sibling of the interpreter
    done = subprocess.run(
        [utter, "ptt", "press", "--json"], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
