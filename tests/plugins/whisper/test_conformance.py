"""The whisper plugin keeps to the protocol."""

from __future__ import annotations

from pathlib import Path

import pytest

import utter_plugins.whisper
from support.conformance import broken, check_shipped

MANIFEST = Path(utter_plugins.whisper.__file__).parent / "utter-plugin.toml"


@pytest.mark.model
@pytest.mark.timeout(300)
def test_it_keeps_to_the_protocol() -> None:
    report = check_shipped(MANIFEST)
    assert broken(report) == set(), report.text()
    assert {one.check.id for one in report.outcomes if one.verdict == "holds"} >= {
        "method.stt.session",
        "method.stt.unknown",
        "method.stt.cancel",
        "health.busy",
    }
