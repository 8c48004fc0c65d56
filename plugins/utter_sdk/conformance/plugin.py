"""Runs all checks of plugins against one plugin (`utter conformance`).

Rules here: checks with a process of their own run side by side, a few at a time; the report has every check of the
tables, in their order; nothing runs any more when `check_plugin` returns or raises.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from utter_sdk.conformance import plugin_sent
from utter_sdk.conformance.channel import Limits
from utter_sdk.conformance.lab import Entry, Facts, Lab
from utter_sdk.conformance.launch import Subject
from utter_sdk.conformance.plugin_framing import FRAMING
from utter_sdk.conformance.plugin_handshake import HANDSHAKES
from utter_sdk.conformance.plugin_messages import MESSAGES
from utter_sdk.conformance.plugin_methods import METHOD_CHECKS
from utter_sdk.conformance.plugin_process import PROCESS
from utter_sdk.conformance.plugin_ring import RING
from utter_sdk.conformance.plugin_streams import STREAM_CHECKS
from utter_sdk.conformance.report import Check, Outcome, Report

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["CHECKS", "Limits", "Subject", "check_plugin"]

TABLES = (HANDSHAKES, FRAMING, MESSAGES, METHOD_CHECKS, STREAM_CHECKS, PROCESS, RING)
CHECKS: tuple[Check, ...] = (*(entry.check for table in TABLES for entry in table.entries), *plugin_sent.CHECKS)
"""Every check of a plugin, in the order of a report."""

_SIDE_BY_SIDE = 4


def check_plugin(
    subject: Subject,
    limits: Limits | None = None,
    *,
    loud: bool = False,
    only: Sequence[str] = (),
    side_by_side: int = _SIDE_BY_SIDE,
) -> Report:
    """Run every check against a plugin and return the report.

    Args:
        subject: the plugin.
        limits: how long to wait for what.
        loud: also ask for what can be seen, heard or felt: speak, draw, press a key, carry out ops.
        only: beginnings of ids; other checks are left out, except those of all that was written. None means all.
        side_by_side: how many processes of the plugin may run at a time.
    """
    limits = limits or Limits()
    facts = Facts()
    # On threads from the first moment on: what Ctrl-C interrupts is then never a process that is being started.
    pool = ThreadPoolExecutor(side_by_side, thread_name_prefix="conformance")
    try:
        lab = Lab(subject, limits, facts)
        pool.submit(lab.learn).result()
        outcomes: dict[str, Outcome] = {}
        for other, found in pool.map(lambda job: _run(Lab(subject, limits, facts, loud=loud), job), _jobs(facts, only)):
            outcomes.update((one.check.id, one) for one in found)
            lab.found += other.found
            lab.heard += other.heard
    except BaseException:
        limits.stop.set()
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
    failed = frozenset(name for name, one in outcomes.items() if one.verdict == "fails")
    sent = plugin_sent.Sent(lab.found, lab.heard)
    outcomes.update((one.check.id, one) for one in plugin_sent.judge(sent, failed))
    ordered = tuple(
        outcomes.get(check.id) or Outcome(check, "skipped", "The handshake fails.")
        for check in CHECKS
        if check.id in outcomes or check.id.startswith(tuple(only) or "")
    )
    return Report(f"{subject.title or ' '.join(subject.argv)} ({subject.transport})", ordered)


def _jobs(facts: Facts, only: Sequence[str]) -> list[list[Entry]]:
    """What is run one after the other in one process, or alone."""
    jobs: list[list[Entry]] = []
    for table in TABLES:
        wanted = [entry for entry in table.entries if entry.check.id.startswith(tuple(only) or "")]
        jobs.append([entry for entry in wanted if not entry.alone])
        jobs += ([entry] for entry in wanted if entry.alone)
    jobs = [job for job in jobs if job]
    if facts.problem:
        # Nothing else can be said about a plugin that does not come as far as this, and each try would take its time.
        jobs = [[entry] for table in TABLES for entry in table.entries if entry.check.id == "hello.answered"]
    return jobs


def _run(lab: Lab, job: Sequence[Entry]) -> tuple[Lab, list[Outcome]]:
    try:
        return lab, [lab.run(entry) for entry in job]
    finally:
        lab.close()
