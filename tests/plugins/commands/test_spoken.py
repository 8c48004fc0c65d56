from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from utter_plugins.commands.numerals import is_number
from utter_plugins.commands.spoken import normalise, normalise_template, normalise_text


@pytest.mark.parametrize(
    ("raw", "normal"),
    [
        ("Open YouTube!", "open youtube"),
        ("what's the date?", "what is the date"),
        ("Whats the date", "what is the date"),
        ("what\N{RIGHT SINGLE QUOTATION MARK}s the date", "what is the date"),
        ("don't stop", "do not stop"),
        ("I'll can't", "i will can not"),
        ("Alice's phone", "alices phone"),
        ("set it to 50%", "set it to 50 percent"),
        ("set it to fifty per cent", "set it to 50 percent"),
        ("five and a half minutes", "5.5 minutes"),
        ("5½ minutes", "5.5 minutes"),
        ("5.50 minutes", "5.5 minutes"),
        ("twenty-five", "25"),
        ("one hundred and five", "105"),
        ("a hundred", "100"),
        ("two thousand twenty six", "2026"),
        ("five million two hundred thousand and twelve", "5200012"),
        ("twenty twenty", "20 20"),
        ("nineteen eighty four", "19 84"),
        ("1,000 bottles", "1000 bottles"),
        ("1,2,3", "1 2 3"),
        ("zero point two five", "0.25"),
        ("3 hours and ten minutes", "3 hours and 10 minutes"),
        ("one point", "1 point"),
        ("Café Zürich", "cafe zurich"),
        ("play mp3", "play mp 3"),
        ("R&B", "r and b"),
        ("", ""),
        ("... !?", ""),
    ],
)
def test_writing_does_not_matter(raw: str, normal: str) -> None:
    assert normalise_text(raw) == normal


@pytest.mark.parametrize(
    ("raw", "text", "address"),
    [
        ("open github.com/Foo?x=1.", "open webaddress", "https://github.com/Foo?x=1"),
        ("open github dot com slash foo", "open webaddress", "https://github.com/foo"),
        ("go to https://example.org/A", "go to webaddress", "https://example.org/A"),
        ("open localhost:8080/x", "open webaddress", "http://localhost:8080/x"),
        ("open 192.168.0.1", "open webaddress", "http://192.168.0.1"),
        ("a dot dot com", "a webaddress", "https://dot.com"),
        ("Turn it on.Then stop", "turn it on then stop", ""),
        ("dot com", "dot com", ""),
        ("polka dot dress", "polka dot dress", ""),
    ],
)
def test_addresses(raw: str, text: str, address: str) -> None:
    spoken = normalise(raw)
    assert spoken.text == text
    assert "".join(word.address for word in spoken.words) == address


def test_free_text_is_cut_from_what_was_written() -> None:
    spoken = normalise("search for What's New in ten minutes")
    start = spoken.text.index("what is")
    assert spoken.original(start, len(spoken.text)) == "What's New in ten minutes"


def test_templates_keep_their_syntax() -> None:
    assert normalise_template("Turn (on|off) [the] light[s] to fifty {percent:p} %") == (
        "turn (on|off) [the] light[s] to 50 {percent:p} percent"
    )


@given(st.text(max_size=60))
def test_normal_text_is_a_fixed_point(raw: str) -> None:
    spoken = normalise(raw)
    assert normalise_text(spoken.text) == spoken.text or any(word.address for word in spoken.words)
    assert all(0 <= word.start < word.end <= len(raw) for word in spoken.words)


@given(st.integers(min_value=0, max_value=9_999_999))
def test_numbers_survive(number: int) -> None:
    assert normalise_text(f"{number:,}") == normalise_text(str(number)) == str(number)
    assert is_number(str(number))
