"""The espeak plugin keeps to the protocol."""

from __future__ import annotations

from pathlib import Path

import utter_plugins.espeak
from support.conformance import broken, check_shipped

MANIFEST = Path(utter_plugins.espeak.__file__).parent / "utter-plugin.toml"


def test_it_keeps_to_the_protocol() -> None:
    report = check_shipped(MANIFEST, output="none")
    assert broken(report) == set(), report.text()
    assert "method.tts.speak" in {one.check.id for one in report.outcomes if one.verdict == "holds"}
