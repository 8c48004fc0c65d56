from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from utter_protocol.errors import RpcError
from utter_runner.cli import main
from utter_runner.cli.ptt import Action, Command, parse

if TYPE_CHECKING:
    from pathlib import Path

    from support.fake_runner import FakeRunner


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["ptt", "press"], Command(Action.PRESS)),
        (["ptt", "--json", "toggle"], Command(Action.TOGGLE, as_json=True)),
        (["ptt", "release", "--socket", "/s", "--token-file=/t"], Command(Action.RELEASE, "/s", "/t")),
        (["ptt", "cancel", "--socket=/a=b"], Command(Action.CANCEL, "/a=b")),
        (["ptt"], None),
        (["ptt", "fly"], None),
        (["ptt", "press", "release"], None),
        (["ptt", "press", "--help"], None),
        (["ptt", "press", "--socket"], None),
        (["ptt", "press", "--json=yes"], None),
        (["status"], None),
        ([], None),
    ],
)
def test_parse(arguments: list[str], expected: Command | None) -> None:
    assert parse(arguments) == expected


def test_the_environment_names_socket_and_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UTTER_SOCKET", "/s")
    monkeypatch.setenv("UTTER_TOKEN_FILE", "/t")
    assert parse(["ptt", "press"]) == Command(Action.PRESS, "/s", "/t")
    assert parse(["ptt", "press", "--socket", "/other"]) == Command(Action.PRESS, "/other", "/t")


@pytest.mark.parametrize("action", ["press", "release", "toggle"])
def test_tells_the_state(runner: FakeRunner, capsys: pytest.CaptureFixture[str], action: str) -> None:
    runner.answers[f"ptt.{action}"] = {"session": "s1", "state": "listening"}
    assert main(["ptt", action]) == 0
    assert capsys.readouterr() == ("listening\n", "")
    assert main(["ptt", action, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"session": "s1", "state": "listening"}
    assert runner.methods() == [f"ptt.{action}"] * 2


@pytest.mark.parametrize(("cancelled", "text"), [(True, "cancelled\n"), (False, "nothing to cancel\n")])
def test_cancel(runner: FakeRunner, capsys: pytest.CaptureFixture[str], *, cancelled: bool, text: str) -> None:
    runner.answers["ptt.cancel"] = {"cancelled": cancelled}
    assert main(["ptt", "cancel"]) == 0
    assert capsys.readouterr().out == text


def test_errors(runner: FakeRunner, capsys: pytest.CaptureFixture[str]) -> None:
    runner.answers["ptt.press"] = RpcError(-32000, "There is no microphone. Plug one in.", {"plugin": "x"})
    assert main(["ptt", "press", "--json"]) == 4
    out, err = capsys.readouterr()
    assert err == "utter: There is no microphone. Plug one in.\n"
    assert json.loads(out) == {
        "error": {
            "kind": "rpc",
            "code": -32000,
            "message": "There is no microphone. Plug one in.",
            "data": {"plugin": "x"},
        }
    }


def test_what_the_quick_path_does_not_know_gets_typers_help(
    runner: FakeRunner, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["ptt", "fly"]) == 2
    assert "press|release|toggle|cancel" in capsys.readouterr().err
    assert main(["ptt", "press", "--help"]) == 0
    assert "Press or release the push-to-talk key" in capsys.readouterr().out
    assert runner.calls == []


def test_a_key_binding_imports_neither_typer_nor_rich(runner: FakeRunner, tmp_path: Path) -> None:
    runner.answers["ptt.press"] = {"session": "s1", "state": "listening"}
    script = (
        "import sys; from utter_runner.cli import main; code = main(['ptt', 'press']);"
        "heavy = {'typer', 'rich', 'asyncio', 'trio', 'json', 'subprocess'} & set(sys.modules);"
        "assert not heavy, heavy; sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "listening\n", "")
