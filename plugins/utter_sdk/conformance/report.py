"""What a conformance check is, what came of it, and the report of a whole run.

Rules here: pure data, shared by the checks of plugins and of runners; only a broken "must" makes a report fail; the
JSON document is stable: fields are added, never renamed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

Level = Literal["must", "should"]
Verdict = Literal["holds", "fails", "skipped"]
LineKind = Literal["fails", "warning", "skipped", "evidence", "summary"]


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that the protocol asks for.

    Attributes:
        id: stable name, such as `framing.header-case`.
        title: one sentence in the present tense that holds when the check does.
        section: the heading in PROTOCOL.md that asks for it, word for word and without the `#`.
        level: a `must` that does not hold fails the run, a `should` is a warning.
    """

    id: str
    title: str
    section: str
    level: Level = "must"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one check.

    Attributes:
        verdict: `skipped` when the check does not apply to the program.
        detail: why it does not hold, or does not apply, in one sentence; empty when it holds.
        sent: what the program was sent, one entry for each thing, for people.
        expected: what had to come.
        got: what came, one entry for each thing.
        seconds: how long it took.
    """

    check: Check
    verdict: Verdict
    detail: str = ""
    sent: tuple[str, ...] = ()
    expected: str = ""
    got: tuple[str, ...] = ()
    seconds: float = 0.0

    def document(self) -> dict[str, Any]:
        """The outcome as an object for JSON; what is empty is left out, except `detail`."""
        found: dict[str, Any] = {
            "id": self.check.id,
            "title": self.check.title,
            "section": self.check.section,
            "level": self.check.level,
            "verdict": self.verdict,
            "detail": self.detail,
            "seconds": round(self.seconds, 3),
        }
        if self.sent:
            found["sent"] = list(self.sent)
        if self.expected:
            found["expected"] = self.expected
        if self.got:
            found["got"] = list(self.got)
        return found


_DOCUMENT = "PROTOCOL.md"


class CheckFailed(Exception):
    """Raised by a check's function: what was asked for does not hold. Its attributes are those of `Outcome`."""

    def __init__(
        self, detail: str, *, expected: str = "", sent: tuple[str, ...] = (), got: tuple[str, ...] = ()
    ) -> None:
        super().__init__(detail)
        self.detail = detail
        self.expected = expected
        self.sent = sent
        self.got = got


class NotApplicable(Exception):
    """Raised by a check's function: the check is not about this program. The message says why, in one sentence."""


@dataclass(frozen=True, slots=True)
class Report:
    """The outcomes of one run.

    Attributes:
        subject: what was tested: a command line, or the path of a manifest or a socket.
        outcomes: one for each check, in the order of the table.
    """

    subject: str
    outcomes: tuple[Outcome, ...]

    @property
    def ok(self) -> bool:
        """Whether every `must` that applies holds."""
        return not self.broken("must")

    def broken(self, level: Level) -> tuple[Outcome, ...]:
        """The outcomes of a level that do not hold."""
        return tuple(one for one in self.outcomes if one.verdict == "fails" and one.check.level == level)

    @property
    def counts(self) -> dict[str, int]:
        """How many checks hold, fail, are warnings (a `should` that does not hold), and do not apply (`skipped`)."""
        return {
            "holds": sum(one.verdict == "holds" for one in self.outcomes),
            "fails": len(self.broken("must")),
            "warnings": len(self.broken("should")),
            "skipped": sum(one.verdict == "skipped" for one in self.outcomes),
        }

    def document(self) -> dict[str, Any]:
        """The report as an object for JSON: `{subject, ok, counts, checks}`."""
        return {
            "subject": self.subject,
            "ok": self.ok,
            "counts": self.counts,
            "checks": [one.document() for one in self.outcomes],
        }

    def lines(self) -> list[tuple[LineKind, str]]:
        """The report for people: what does not hold with what was sent and what came, what does not apply, the counts.

        What came from the program may hold control characters where it is part of a `detail`.
        """
        found: list[tuple[LineKind, str]] = []
        for level, word in (("must", "fails"), ("should", "warning")):
            for one in self.broken("must" if level == "must" else "should"):
                found.append(("fails" if word == "fails" else "warning", f"{word}  {one.check.id}: {one.check.title}"))
                found += (("evidence", line) for line in _evidence(one))
        reasons: dict[str, list[str]] = {}
        for one in self.outcomes:
            if one.verdict == "skipped":
                reasons.setdefault(one.detail, []).append(one.check.id)
        found += (("skipped", f"not looked at  {why} ({', '.join(ids)})") for why, ids in reasons.items())
        words = {"holds": "hold", "fails": "fail", "warnings": "warnings", "skipped": "not looked at"}
        counts = ", ".join(f"{count} {words[name]}" for name, count in self.counts.items())
        return [*found, ("summary", f"{self.subject}: {counts}")]

    def text(self) -> str:
        """`lines` as one text, such as for the message of an assertion."""
        return "\n".join(line for _, line in self.lines())


def _evidence(outcome: Outcome) -> list[str]:
    lines = [f"    {outcome.detail}", f'    see       {_DOCUMENT}, "{outcome.check.section}"']
    if outcome.expected:
        lines.append(f"    expected  {outcome.expected}")
    for name, entries in (("sent", outcome.sent), ("came", outcome.got)):
        lines += (f"    {name if n == 0 else '':8}  {entry}" for n, entry in enumerate(entries))
    return lines
