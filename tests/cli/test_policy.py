"""policy explain and policy list."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from utter_protocol.errors import RpcError
from utter_runner.cli import main

if TYPE_CHECKING:
    from support.fake_runner import FakeRunner


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [line.rstrip() for line in capsys.readouterr().out.splitlines() if line.strip()]


@pytest.mark.parametrize(("decision", "code"), [("allow", 0), ("confirm", 5), ("deny", 3)])
def test_explain(runner: FakeRunner, capsys: pytest.CaptureFixture[str], decision: str, code: int) -> None:
    answer = {"decision": decision, "rule": "scheme", "detail": "Because \x1b.", "args": {"url": "https://a/"}}
    runner.answers["policy.explain"] = answer
    arguments = ["policy", "explain", "open_url", '{"url": "https://a"}', "--provenance", "screen"]
    assert main(arguments) == code
    assert lines(capsys) == [
        f"Decision   {decision}",
        r"Why        Because \x1b.",
        "Rule       scheme",
        'Arguments  {"url":"https://a/"}',
    ]
    assert main([*arguments, "--json"]) == code
    assert json.loads(capsys.readouterr().out) == answer
    assert runner.calls[0] == (
        "policy.explain",
        {"op": "open_url", "args": {"url": "https://a"}, "provenance": "screen"},
    )


def test_explain_shows_the_question_as_a_person_would_read_it(
    runner: FakeRunner, capsys: pytest.CaptureFixture[str]
) -> None:
    runner.answers["policy.explain"] = {
        "op": "terminal",
        "decision": "confirm",
        "rule": "always-confirm",
        "rules": ["always-confirm", "destructive"],
        "detail": "It runs a command.",
        "args": {"command": "ls [bold]"},
        "plugin": "desktop",
        "text": "Run in a terminal: ls [bold]\nA language model had a part in this.",
    }
    assert main(["policy", "explain", "terminal", '{"command": "ls [bold]"}', "--llm"]) == 5
    assert lines(capsys)[2:] == [
        "Rules      always-confirm, destructive",
        "Plugin     desktop",
        'Arguments  {"command":"ls [bold]"}',
        "Question   Run in a terminal: ls [bold]",
        "           A language model had a part in this.",
    ]


def test_explain_hands_on_what_is_said_of_where_it_comes_from(runner: FakeRunner) -> None:
    runner.answers["policy.explain"] = {"decision": "allow", "rule": "allowed", "detail": "x", "args": {}}
    said = ["--arg", "url=screen", "--arg", "a=b=user", "--source", "clipboard", "--source", "user", "--session", "s-1"]
    assert main(["policy", "explain", "open_url", "{}", "--llm", *said]) == 0
    assert runner.calls[-1] == (
        "policy.explain",
        {
            "op": "open_url",
            "args": {},
            "provenance": "user",
            "arg_provenance": {"url": "screen", "a=b": "user"},
            "sources": ["clipboard", "user"],
            "llm": True,
            "session": "s-1",
        },
    )


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["{"], "The arguments are not JSON: Expecting property name enclosed in double quotes in line 1, column 2,"),
        (['{"url": x}'], "The arguments are not JSON: Expecting value in line 1, column 9, at 'x}'."),
        (['{"a": 1,\n"b" 2}'], "The arguments are not JSON: Expecting ':' delimiter in line 2, column 5, at '2}'."),
        (['{"url": "a"'], "line 1, column 12, where they end."),
        (["[1]"], "The arguments must be a JSON object"),
        (["3"], "must be a JSON object"),
        (["[" * 100_000], "The arguments are not JSON: "),
        (["{}", "--arg", "url"], "--arg takes NAME=screen or NAME=user, not 'url'."),
        (["{}", "--arg", "url=nobody"], "--arg takes NAME=screen or NAME=user, not 'url=nobody'."),
        (["{}", "--arg", "=screen"], "--arg takes NAME=screen or NAME=user, not '=screen'."),
        (["{}", "--arg", "url=screen", "--arg", "url=user"], "--arg says both user and screen for 'url'."),
    ],
)
def test_explain_wrong_arguments(
    runner: FakeRunner, capsys: pytest.CaptureFixture[str], arguments: list[str], complaint: str
) -> None:
    assert main(["policy", "explain", "open_url", *arguments]) == 2
    assert complaint in capsys.readouterr().err
    assert runner.calls == []


OPS: list[dict[str, Any]] = [
    {
        "op": "mute",
        "plugin": "desktop",
        "provider": True,
        "side_effect": "local",
        "state": "on",
        "rule": "allowed",
        "key": "",
        "rate": "10/minute",
    },
    {
        "op": "mute",
        "plugin": "other \x1b",
        "provider": False,
        "side_effect": "none",
        "state": "asks",
        "rule": "plugin-asks",
    },
    {
        "op": "terminal",
        "plugin": None,
        "provider": False,
        "side_effect": None,
        "state": "off",
        "rule": "op-disabled",
        "key": "[policy] disabled_ops",
    },
]


def test_list(runner: FakeRunner, capsys: pytest.CaptureFixture[str]) -> None:
    runner.answers["policy.list"] = {"ops": OPS}
    assert main(["policy", "list"]) == 0
    head, _, first, second, third = lines(capsys)
    assert head.split() == ["Op", "Plugin", "Effect", "State", "Rate", "Why"]
    assert first.split() == ["mute", "desktop", "local", "on", "10/minute"]
    assert r"(other \x1b)" in second
    assert second.split()[-2:] == ["asks", "plugin-asks"]
    assert third.split() == ["terminal", "off", "[policy]", "disabled_ops"]
    assert main(["policy", "list", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"ops": OPS}
    assert runner.calls[-1] == ("policy.list", {})


@pytest.mark.parametrize("command", [["explain", "open_url"], ["list"]])
def test_an_older_runner_without_the_method(
    runner: FakeRunner, capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    method = f"policy.{command[0]}"
    runner.answers[method] = RpcError(-32601, f"{method}: no such method")
    assert main(["policy", *command]) == 4
    assert capsys.readouterr().err == f"utter: {method}: no such method\n"
