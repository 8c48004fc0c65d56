from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from utter_protocol.errors import RpcError
from utter_runner.cli import main

if TYPE_CHECKING:
    from pathlib import Path

    from support.fake_runner import FakeRunner

DONE: dict[str, Any] = {
    "op": "open_url",
    "ok": True,
    "detail": "Opened https://www.youtube.com/",
    "decision": "allow",
    "args": {"url": "https://www.youtube.com/"},
}
BLOCKED: dict[str, Any] = {
    "op": "terminal",
    "ok": False,
    "detail": "",
    "decision": "deny",
    "error": {"code": -32003, "message": "Running commands is off."},
}


def test_done(runner: FakeRunner, capsys: pytest.CaptureFixture[str]) -> None:
    runner.answers["runner.command"] = {
        "results": [DONE],
        "understood": True,
        "detail": "",
        "latency_ms": {"action": 80.4, "router": 12.0, "zzz": 1.0},
    }
    assert main(["say", "open youtube"]) == 0
    assert capsys.readouterr() == (
        "done  open_url  Opened https://www.youtube.com/\nrouter 12 ms, action 80 ms, zzz 1 ms\n",
        "",
    )
    assert runner.calls == [("runner.command", {"utterance": "open youtube", "provenance": "user"})]


def test_json_is_the_protocols_own_result(runner: FakeRunner, capsys: pytest.CaptureFixture[str]) -> None:
    result = {"results": [DONE, BLOCKED], "understood": True, "detail": "", "latency_ms": {}}
    runner.answers["runner.command"] = result
    assert main(["say", "open youtube", "--json", "--provenance", "screen"]) == 3
    out, err = capsys.readouterr()
    assert (json.loads(out), out.count("\n"), err) == (result, 1, "")
    assert runner.calls[0][1]["provenance"] == "screen"


def test_blocked(runner: FakeRunner, capsys: pytest.CaptureFixture[str]) -> None:
    runner.answers["runner.command"] = {"results": [DONE, BLOCKED]}
    assert main(["say", "x"]) == 3
    assert capsys.readouterr().out.splitlines()[1].rstrip().split(maxsplit=2) == [
        "blocked",
        "terminal",
        "Running commands is off.",
    ]


@pytest.mark.parametrize("detail", ["I know no command like that.", ""])
def test_not_understood(runner: FakeRunner, capsys: pytest.CaptureFixture[str], detail: str) -> None:
    runner.answers["runner.command"] = {"results": [], "understood": False, "detail": detail}
    assert main(["say", "x"]) == 1
    out, err = capsys.readouterr()
    assert (out, err) == ("", f"utter: {detail or 'The sentence was not understood.'}\n")


def test_untrusted_text_does_not_reach_the_terminal(runner: FakeRunner, capsys: pytest.CaptureFixture[str]) -> None:
    step = {"op": "\x1b]0;x\x07", "ok": True, "detail": "[red]a[/red]\x1b[2J\u202e:smile:", "decision": "allow"}
    runner.answers["runner.command"] = {"results": [step], "latency_ms": {}}
    assert main(["say", "x"]) == 0
    assert capsys.readouterr().out == "done  \\x1b]0;x\\x07  [red]a[/red]\\x1b[2J\\u202e:smile:\n"
    runner.answers["runner.command"] = RpcError(-32000, "bad \x1b[2J text")
    assert main(["say", "x"]) == 4
    assert capsys.readouterr().err == "utter: bad \\x1b[2J text\n"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (RpcError(-32000, "The router has crashed."), 4),
        (RpcError(-32001, "The router did not answer within 30 s."), 4),
        (RpcError(-32003, "This program may not connect."), 3),
        (RpcError(-32602, "utterance: longer than 1000 characters"), 2),
        (RpcError(-32603, "KeyError: x"), 1),
    ],
)
def test_errors(runner: FakeRunner, capsys: pytest.CaptureFixture[str], error: RpcError, code: int) -> None:
    runner.answers["runner.command"] = error
    assert main(["say", "x"]) == code
    assert capsys.readouterr() == ("", f"utter: {error.message}\n")


def test_nobody_can_confirm_by_an_option(runner: FakeRunner, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["say", "x", "--yes"]) == 2
    assert "No such option: --yes" in capsys.readouterr().err
    assert main(["say", "--help"]) == 0
    assert "a confirmation is for a person" in " ".join(capsys.readouterr().out.split())
    assert runner.calls == []


def test_usage(runner: FakeRunner, capsys: pytest.CaptureFixture[str]) -> None:
    for wrong in (["say"], ["say", "a", "b"], ["say", "a", "--provenance", "page"], ["sing"], ["--no-such"]):
        assert main(wrong) == 2
        assert "Try 'utter" in capsys.readouterr().err
    assert runner.calls == []


def test_no_runner(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "none.sock"
    assert main(["say", "x", "--socket", str(path)]) == 4
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith(f"utter: The runner is not available: {path}: there is no socket")
    assert main(["say", "x", "--json"]) == 4
    assert json.loads(capsys.readouterr().out)["error"]["kind"] == "unavailable"


def test_a_token(runner: FakeRunner, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runner.token = "s3cret"  # noqa: S105 - a test's own
    runner.answers["runner.command"] = {"results": [DONE]}
    token = tmp_path / "token"
    token.write_text(" s3cret\n")
    token.chmod(0o600)
    assert main(["say", "x"]) == 3
    assert capsys.readouterr().err == "utter: Authenticate with runner.auth first.\n"
    assert main(["say", "x", "--token-file", str(token)]) == 0
    token.write_text("wrong")
    assert main(["say", "x", "--token-file", str(token)]) == 3
    assert capsys.readouterr().err == "utter: The token is wrong.\n"


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (None, "cannot be read: No such file or directory."),
        (b"", "must hold a token of 1 to 4096 bytes."),
        (b"x" * 4097, "must hold a token of 1 to 4096 bytes."),
        (b"\xff", "does not hold text in UTF-8."),
    ],
)
def test_token_files_that_cannot_be_used(
    runner: FakeRunner, tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes | None, complaint: str
) -> None:
    token = tmp_path / "token"
    if content is not None:
        token.write_bytes(content)
        token.chmod(0o600)
    assert main(["say", "x", "--token-file", str(token)]) == 2
    assert capsys.readouterr().err == f"utter: The token file {token} {complaint}\n"
    assert runner.calls == []
