from __future__ import annotations

import pytest

from utter_protocol.errors import ErrorCode, RpcError
from utter_protocol.methods import CommandResult, StepResult, WireError
from utter_runner.voice.outcome import CUES, of_error, of_result

GOOD = StepResult(op="media", ok=True, detail="Paused.")
BAD = StepResult(op="launch_app", ok=False, detail="It did not start.")


def refused(code: int) -> StepResult:
    return StepResult(op="terminal", ok=False, detail="Not allowed.", error=WireError(code=code, message="no"))


@pytest.mark.parametrize(
    ("result", "outcome", "detail"),
    [
        (CommandResult(results=[GOOD]), "done", ""),
        (CommandResult(results=[GOOD], detail="Paused it."), "done", "Paused it."),
        (CommandResult(results=[GOOD, BAD]), "failed", "It did not start."),
        (CommandResult(results=[refused(ErrorCode.NOT_PERMITTED)]), "blocked", "Not allowed."),
        (CommandResult(results=[BAD, refused(ErrorCode.UNTRUSTED_PROVENANCE)]), "blocked", "It did not start."),
        (CommandResult(results=[refused(ErrorCode.PLUGIN_FAILED)]), "failed", "Not allowed."),
        (CommandResult(results=[], understood=False, detail="What?"), "not_understood", "What?"),
        (CommandResult(results=[]), "not_understood", ""),
    ],
)
def test_the_outcome_of_a_command(result: CommandResult, outcome: str, detail: str) -> None:
    ending = of_result(result)
    assert (ending.name, ending.detail, ending.results) == (outcome, detail, result.results)


def test_the_outcome_of_an_error() -> None:
    assert of_error(RpcError(ErrorCode.TIMED_OUT, "Too slow.")).name == "unavailable"
    assert of_error(RpcError(ErrorCode.CANCELLED, "Stopped.")).name == "cancelled"
    assert of_error(RpcError(ErrorCode.PLUGIN_FAILED, "It crashed.")).detail == "It crashed."


@pytest.mark.parametrize("code", [*ErrorCode, 1, -32050])
def test_what_may_be_logged_of_an_error_is_its_kind(code: int) -> None:
    ending = of_error(RpcError(code, "You said xyzzy."))
    assert "xyzzy" not in ending.cause
    assert bool(ending.cause) is (ending.name == "unavailable")


def test_every_outcome_has_its_sound() -> None:
    assert set(CUES) == {
        "done", "failed", "not_understood", "nothing_heard", "blocked", "cancelled", "tap", "unavailable",
    }  # fmt: skip
