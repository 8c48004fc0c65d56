"""The conformance kit as the tests run it: against the plugin of every kind, and against those that ship.

Rules here: waits are long, because a machine may be busy and only a defect makes them last.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from utter_sdk.conformance.plugin import Limits, Subject, check_plugin

if TYPE_CHECKING:
    from utter_sdk.conformance.report import Report

BAD_PLUGIN = Path(__file__).parent / "bad_plugin"
PATIENT = {"handshake": 60.0, "answer": 60.0, "work": 60.0, "health": 60.0, "end": 30.0}


def argv(*defects: str, transport: str = "stdio") -> tuple[str, ...]:
    """The command line of the plugin of every kind with some defects."""
    return (sys.executable, "-I", "-S", str(BAD_PLUGIN), f"transport={transport}", *defects)


def check(*defects: str, transport: Any = "stdio", only: tuple[str, ...] = (), **limits: float) -> Report:
    """Run the kit against the plugin of every kind with some defects."""
    argument = argv(*defects, transport=transport)
    subject = Subject(argv=argument, transport=transport, inherits_ring=transport == "stdio")
    return check_plugin(subject, Limits(**{**PATIENT, **limits}), only=only)


def check_shipped(manifest: Path, env: dict[str, str] | None = None, **settings: Any) -> Report:
    """Run the kit against a plugin that ships."""
    return check_plugin(Subject.from_manifest(manifest, env=env, settings=settings), Limits(**PATIENT))


def broken(report: Report) -> set[str]:
    """The ids of the checks that do not hold."""
    return {one.check.id for one in report.outcomes if one.verdict == "fails"}
