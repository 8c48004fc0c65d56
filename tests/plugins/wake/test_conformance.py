"""The wake plugin keeps to the protocol."""

from __future__ import annotations

from pathlib import Path

import utter_plugins.wake
from support.conformance import broken, check_shipped

MANIFEST = Path(utter_plugins.wake.__file__).parent / "utter-plugin.toml"


def test_it_keeps_to_the_protocol() -> None:
    report = check_shipped(MANIFEST)
    assert broken(report) == set(), report.text()
