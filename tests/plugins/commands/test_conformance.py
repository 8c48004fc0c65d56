"""The commands plugin keeps to the protocol."""

from __future__ import annotations

from pathlib import Path

import utter_plugins.commands
from support.conformance import broken, check_shipped

MANIFEST = Path(utter_plugins.commands.__file__).parent / "utter-plugin.toml"


def test_it_keeps_to_the_protocol(env: dict[str, str]) -> None:
    report = check_shipped(MANIFEST, env)
    assert broken(report) == set(), report.text()
    assert {one.check.id for one in report.outcomes if one.verdict == "holds"} >= {
        "method.router.plan",
        "method.router.hints",
        "method.knowledge.catalog",
    }
