"""`utter reload`, and `utter plugins start`, `stop` and `restart`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from utter_protocol.errors import ErrorCode, RpcError
from utter_runner.cli import main

if TYPE_CHECKING:
    from support.fake_runner import FakeRunner

READY = {"id": "timer", "status": "ready", "epoch": 3, "detail": "", "changed": True}
NOTHING: dict[str, list[str]] = {"added": [], "removed": [], "restarted": []}


@pytest.mark.parametrize(
    ("action", "answer", "code", "said"),
    [
        ("restart", READY, 0, "timer is ready (epoch 3)\n"),
        ("start", {**READY, "changed": False}, 0, "timer is ready already; nothing was done (epoch 3)\n"),
        ("stop", {**READY, "status": "stopped", "detail": "it was \x1b[1mstopped"}, 0, "timer is stopped: it was "),
        ("start", {**READY, "status": "failed", "detail": "code 7"}, 4, "utter: timer is failed: code 7\n"),
        ("start", {**READY, "status": "degraded", "detail": "ill"}, 0, "timer is degraded (epoch 3): ill\n"),
        ("start", {**READY, "status": "waiting"}, 0, "timer is waiting (epoch 3)\n"),
        ("stop", {**READY, "status": "failed"}, 4, "utter: timer is failed\n"),
    ],
)
def test_what_became_of_a_plugin(  # noqa: PLR0917 - what pytest hands in
    runner: FakeRunner, capsys: pytest.CaptureFixture[str], action: str, answer: dict[str, Any], code: int, said: str
) -> None:
    runner.answers["runner.control"] = answer
    assert main(["plugins", action, "timer", "--timeout", "2.5"]) == code
    out, err = capsys.readouterr()
    assert (err if code else out).startswith(said)
    assert not (out if code else err)
    assert "\x1b" not in out
    assert runner.calls == [("runner.control", {"plugin": "timer", "action": action, "timeout_ms": 2500})]
    assert main(["plugins", action, "timer", "--json"]) == code
    assert json.loads(capsys.readouterr().out) == answer


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (RpcError(ErrorCode.TIMED_OUT, "timer is starting after 30000 ms"), 4),
        (RpcError(ErrorCode.CAPABILITY_MISSING, "there is no plugin 'timer'"), 4),
        (RpcError(ErrorCode.NOT_PERMITTED, "runner.auth comes first"), 3),
    ],
)
def test_what_the_runner_refuses_is_said(
    runner: FakeRunner, capsys: pytest.CaptureFixture[str], error: RpcError, code: int
) -> None:
    runner.answers["runner.control"] = error
    assert main(["plugins", "restart", "timer"]) == code
    assert error.message in capsys.readouterr().err


@pytest.mark.parametrize("timeout", ["0", "61", "soon"])
def test_a_time_that_cannot_be_is_refused(runner: FakeRunner, timeout: str) -> None:
    assert main(["plugins", "start", "timer", "--timeout", timeout]) == 2
    assert runner.calls == []


def test_a_reload_tells_what_has_changed(runner: FakeRunner, capsys: pytest.CaptureFixture[str]) -> None:
    answer = {
        "ok": True,
        "changed": ["voice.language", "log.level"],
        "plugins": {"added": ["lamp"], "removed": ["timer"], "restarted": ["whisper"]},
        "needs_restart": ["runner.handle_root"],
        "problems": ["/x/runner.toml:3: there is no plugin 'gone'"],
    }
    runner.answers["runner.reload"] = answer
    assert main(["reload"]) == 0
    said = capsys.readouterr()
    assert said.out.splitlines() == [
        "Changed: voice.language, log.level",
        "Plugins added: lamp",
        "Plugins removed: timer",
        "Plugins restarted: whisper",
        "In effect after a restart of the runner: runner.handle_root",
    ]
    assert said.err == "utter: /x/runner.toml:3: there is no plugin 'gone'\n"
    assert main(["reload", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == answer


def test_a_reload_that_changes_nothing_says_so(runner: FakeRunner, capsys: pytest.CaptureFixture[str]) -> None:
    runner.answers["runner.reload"] = {"ok": True, "changed": [], "plugins": NOTHING, "needs_restart": []}
    assert main(["reload"]) == 0
    assert capsys.readouterr().out == "Nothing has changed.\n"


def test_a_reload_that_is_refused_is_a_failure(runner: FakeRunner, capsys: pytest.CaptureFixture[str]) -> None:
    answer = {"ok": False, "changed": [], "plugins": NOTHING, "needs_restart": [], "problems": ["/x:3: no", "/x:4: no"]}
    runner.answers["runner.reload"] = answer
    assert main(["reload"]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.splitlines()[:2] == ["utter: /x:3: no", "utter: /x:4: no"]
    assert "goes on with the configuration that it had" in said.err
    assert main(["reload", "--json"]) == 1
    assert json.loads(capsys.readouterr().out) == answer
