"""The exit codes of `utter`, and the one place that maps what the runner answered to them.

Rules here: pure; a code once given out keeps its meaning. Of several steps the gravest decides: blocked, then
unavailable, then failed.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Any

from utter_protocol.errors import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class Exit(IntEnum):
    """What an exit code of `utter` means."""

    DONE = 0
    FAILED = 1
    """The action failed, or the sentence was not understood."""
    USAGE = 2
    """The command line, or a file named on it, is wrong."""
    BLOCKED = 3
    """Policy denied a step, it was not confirmed, this client is not accepted, or a package was not agreed to."""
    UNAVAILABLE = 4
    """The runner, a plugin or the microphone cannot be reached, or did not answer in time."""
    ASKS = 5
    """Nothing was done, and a person would be asked first (`utter policy explain`)."""
    INTERRUPTED = 130
    """Ctrl-C: 128 + SIGINT, as shells have it."""
    BROKEN_PIPE = 141
    """Nobody reads the output any more: 128 + SIGPIPE."""


_UNAVAILABLE = frozenset(
    {
        ErrorCode.PLUGIN_FAILED,
        ErrorCode.TIMED_OUT,
        ErrorCode.INCOMPATIBLE,
        ErrorCode.CAPABILITY_MISSING,
        ErrorCode.METHOD_NOT_FOUND,
    }
)
_BLOCKED = frozenset({ErrorCode.NOT_PERMITTED, ErrorCode.UNTRUSTED_PROVENANCE})
_USAGE = frozenset({ErrorCode.INVALID_PARAMS, ErrorCode.TOO_LARGE_INLINE})
_GRAVITY = (Exit.BLOCKED, Exit.UNAVAILABLE, Exit.FAILED, Exit.DONE)
_EXPLAINED = {"allow": Exit.DONE, "confirm": Exit.ASKS, "deny": Exit.BLOCKED}
_OUTCOMES = {"done": Exit.DONE, "blocked": Exit.BLOCKED, "unavailable": Exit.UNAVAILABLE}


def of_error(code: int) -> Exit:
    """The exit code for an error that answers a whole request; invalid params came from the command line."""
    return Exit.USAGE if code in _USAGE else _of_step_error(code)


def _of_step_error(code: int) -> Exit:
    if code in _BLOCKED:
        return Exit.BLOCKED
    return Exit.UNAVAILABLE if code in _UNAVAILABLE else Exit.FAILED


def of_step(step: Mapping[str, Any]) -> Exit:
    """The exit code for one StepResult."""
    if step.get("ok"):
        return Exit.DONE
    if step.get("decision") == "deny":
        return Exit.BLOCKED
    error = step.get("error")
    return Exit.FAILED if error is None else _of_step_error(int(error.get("code", 0)))


def of_results(results: Sequence[Mapping[str, Any]]) -> Exit:
    """The exit code for the steps of one command; no steps means that it was not understood."""
    found = {of_step(step) for step in results}
    return next((code for code in _GRAVITY if code in found), Exit.FAILED)


def of_command(result: Mapping[str, Any]) -> Exit:
    """The exit code for a CommandResult."""
    return of_results(result.get("results", ())) if result.get("understood", True) else Exit.FAILED


def of_session(report: Mapping[str, Any]) -> Exit:
    """The exit code for a SessionReport."""
    outcome = report.get("outcome")
    if outcome == "failed":
        found = of_results(report.get("results", ()))
        return Exit.FAILED if found is Exit.DONE else found
    return _OUTCOMES.get(str(outcome), Exit.FAILED)


def of_explanation(explanation: Mapping[str, Any]) -> Exit:
    """The exit code for what `policy.explain` answers: it tells the decision, too, so that scripts can ask."""
    return _EXPLAINED.get(str(explanation.get("decision")), Exit.FAILED)


def of_validation(answer: Mapping[str, Any]) -> Exit:
    """The exit code for what `runner.validate_plugin` answers."""
    return Exit.DONE if answer.get("ok") else Exit.UNAVAILABLE
