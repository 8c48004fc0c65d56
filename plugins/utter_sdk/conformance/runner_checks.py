"""Runs all checks of runners against one that is running (`utter conformance --runner SOCKET`).

Rules here: one check after the other, over connections of their own; nothing is asked that changes the desktop; the
report has every check of the tables, in their order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from utter_sdk.conformance.report import Check, Outcome, Report
from utter_sdk.conformance.runner_api import RUNNER_API
from utter_sdk.conformance.runner_connections import RUNNER_CONNECTIONS
from utter_sdk.conformance.runner_framing import RUNNER_FRAMING
from utter_sdk.conformance.runner_handles import RUNNER_HANDLES
from utter_sdk.conformance.runner_lab import RunnerLab
from utter_sdk.conformance.runner_messages import RUNNER_MESSAGES
from utter_sdk.conformance.runner_streams import RUNNER_STREAMS

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["CHECKS", "check_runner"]

TABLES = (RUNNER_CONNECTIONS, RUNNER_FRAMING, RUNNER_MESSAGES, RUNNER_API, RUNNER_STREAMS, RUNNER_HANDLES)
CHECKS: tuple[Check, ...] = tuple(entry.check for table in TABLES for entry in table.entries)
"""Every check of a runner, in the order of a report."""


def check_runner(socket: str, *, token: str | None = None, timeout: float = 10.0, only: Sequence[str] = ()) -> Report:
    """Run every check against a runner and return the report.

    Args:
        socket: the path of its socket.
        token: what it asks for; without it, a runner that asks is checked as far as a stranger can.
        timeout: seconds for an answer.
        only: beginnings of ids; other checks are left out. None means all.
    """
    lab = RunnerLab(socket, token, timeout)
    lab.learn()
    outcomes: list[Outcome] = []
    try:
        for table in TABLES:
            for entry in table.entries:
                if not entry.check.id.startswith(tuple(only) or ""):
                    continue
                if lab.facts.problem and entry.check.id != "connect.answers":
                    # Each try would take its time, and say the same.
                    outcomes.append(Outcome(entry.check, "skipped", "The runner does not answer."))
                else:
                    outcomes.append(lab.run(entry))
    finally:
        lab.close()
    return Report(socket, tuple(outcomes))
