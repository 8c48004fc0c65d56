"""What became of a spoken session, in one word and one sentence.

Rules here: pure; the words are those of `SessionReport.outcome`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from utter_protocol.errors import ErrorCode, RpcError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from utter_protocol.methods import CommandResult, StepResult
    from utter_runner.voice.collaborators import CueName

_BLOCKED = frozenset({ErrorCode.NOT_PERMITTED, ErrorCode.UNTRUSTED_PROVENANCE})

CUES: Mapping[str, CueName | None] = {
    "done": "done",
    "failed": "error",
    "not_understood": "error",
    "nothing_heard": "cancel",
    "blocked": "error",
    "cancelled": "cancel",
    "tap": None,
    "unavailable": "error",
}
"""The sound that each outcome ends with."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of a session; `cause` is what may be logged of it, since `detail` may repeat what was said."""

    name: str
    detail: str = ""
    cause: str = ""
    results: list[StepResult] = field(default_factory=list)
    latency: Mapping[str, float] = field(default_factory=dict)


def of_result(result: CommandResult) -> Outcome:
    """The outcome of a command that ran to its end: done only if every step is."""
    failed = [step for step in result.results if not step.ok]
    if not result.understood or not result.results:
        name = "not_understood"
    elif not failed:
        name = "done"
    elif any(step.error is not None and step.error.code in _BLOCKED for step in failed):
        name = "blocked"
    else:
        name = "failed"
    detail = result.detail or (failed[0].detail if failed else "")
    return Outcome(name, detail, results=result.results, latency=result.latency_ms)


def of_answer(approved: bool | None, words: Sequence[str]) -> Outcome:
    """The outcome of what was said to answer a question: yes, no, or neither (then the question stays open)."""
    if approved is None:
        return Outcome("not_understood", f"That answered nothing. What is understood: {', '.join(words)}.")
    return Outcome("done", "You said yes." if approved else "You said no.")


def of_error(error: RpcError) -> Outcome:
    """The outcome when the recogniser or the router could not be used."""
    if error.code == ErrorCode.CANCELLED:
        return Outcome("cancelled", error.message)
    known = error.code in ErrorCode.__members__.values()
    cause = ErrorCode(error.code).name.lower().replace("_", " ") if known else f"error {error.code}"
    return Outcome("unavailable", error.message, cause)
