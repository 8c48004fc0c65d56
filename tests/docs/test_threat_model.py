"""The threat model names a test for every mechanism, and every test that it names exists and tests something."""

from __future__ import annotations

import re

import pytest

from support.docs import ROOT, links

PAGE = ROOT / "docs" / "threat-model.md"
TEXT = PAGE.read_text(encoding="utf-8")
NAMED = sorted({link for link in links(TEXT) if link.startswith("../tests/")})
SECTIONS = dict(re.findall(r"^## ([^\n]+)\n(.*?)(?=^## |\Z)", TEXT, re.MULTILINE | re.DOTALL))


def test_every_mechanism_says_what_it_does_not_stop_and_which_tests_show_it() -> None:
    mechanisms = {title: text for title, text in SECTIONS.items() if "stops**" in text or "stop**" in text}
    assert len(mechanisms) >= 9
    for title, text in mechanisms.items():
        assert "not stop**" in text, title
        assert "](../tests/" in text, title


@pytest.mark.parametrize("name", NAMED)
def test_what_is_named_is_a_file_of_tests(name: str) -> None:
    assert re.search(r"^(async )?def test_", (PAGE.parent / name).read_text(encoding="utf-8"), re.MULTILINE)
