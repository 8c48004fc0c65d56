"""The table of checks: what each names exists, and the tiny plugin of the SDK keeps to all of it."""

from __future__ import annotations

import re
import sys
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from support.conformance import PATIENT, broken
from support.docs import ROOT, without_fences
from utter_sdk.conformance.friendly import CASES, HANDSHAKE, REQUESTS
from utter_sdk.conformance.plugin import CHECKS, Limits, Subject, check_plugin

if TYPE_CHECKING:
    from pathlib import Path

PROTOCOL = (ROOT / "protocol" / "PROTOCOL.md").read_text()
HEADINGS = set(re.findall(r"^#{2,} (.+)$", without_fences(PROTOCOL), re.MULTILINE))


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.id)
def test_the_section_of_a_check_exists(check: object) -> None:
    assert check.section in HEADINGS  # type: ignore[attr-defined]  # it is a Check


def test_ids_and_titles_are_fit_to_be_read() -> None:
    assert not [one for one, count in Counter(check.id for check in CHECKS).items() if count > 1]
    for check in CHECKS:
        assert re.fullmatch(r"[a-z]+(\.[a-z0-9_-]+)+", check.id), check.id
        assert check.title.endswith("."), check.title


def test_every_request_of_the_protocol_has_a_friendly_form() -> None:
    assert set(CASES) == set(REQUESTS) - set(HANDSHAKE)


TINY = """
from utter_sdk import Plugin
plugin = Plugin("tiny", version="1.2.3", kind="bundle")
plugin.run()
"""


def test_the_smallest_plugin_of_the_sdk_keeps_to_the_protocol(tmp_path: Path) -> None:
    script = tmp_path / "tiny.py"
    script.write_text(TINY)
    report = check_plugin(Subject(argv=(sys.executable, str(script))), Limits(**PATIENT))
    assert broken(report) == set(), report.text()
