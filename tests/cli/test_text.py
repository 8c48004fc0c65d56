from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from utter_runner.cli.text import document, harmless, harmless_lines


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Grüße 日本 🎉 [bold]x[/bold]", "Grüße 日本 🎉 [bold]x[/bold]"),
        ("a\x1b[31mb", r"a\x1b[31mb"),
        ("a\u202eb", r"a\u202eb"),
        ("a\r\nb\tc", r"a\r\nb\tc"),
        ("zero\u200bwidth", r"zero\u200bwidth"),
        ("\ud800", r"\ud800"),
        (3, "3"),
    ],
)
def test_harmless(text: object, expected: str) -> None:
    assert harmless(text) == expected


@given(st.text(st.characters()))
def test_nothing_unprintable_is_left(text: str) -> None:
    assert harmless(text).isprintable()
    harmless(text).encode()
    assert "\n".join(harmless_lines(text)).replace("\n", "").isprintable()


@given(st.dictionaries(st.text(), st.text(st.characters())))
def test_documents_are_one_line_of_ascii_and_say_the_same(value: dict[str, str]) -> None:
    text = document(value)
    assert text.isascii()
    assert text.isprintable()
    assert json.loads(text) == value
