"""What a plugin prints becomes lines that nothing can be done with."""

from __future__ import annotations

import json
import logging
import sys
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from utter_runner.operate.log_handlers import LineFormatter
from utter_runner.supervision.words import CUT, HIDDEN, MAX_LINE, Words

MODEL = settings(derandomize=True, database=None, deadline=None, max_examples=500)


def lines_of(*chunks: bytes, secrets: tuple[str, ...] = ()) -> list[str]:
    lines: list[str] = []
    words = Words(lines.append, secrets)
    for chunk in chunks:
        words.feed(chunk)
    words.end()
    return lines


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b"plain", "plain"),
        ("grüße ✓ 日本".encode(), "grüße ✓ 日本"),
        (b"dos\r", "dos"),
        (b"a\tb", "a b"),
        (b"\x1b[31mred\x1b[0m", "\\x1b[31mred\\x1b[0m"),
        (b"over\rwritten", "over\\rwritten"),
        (b"\x9b31m", "\\x9b31m"),
        (b"\xc2\x9b31m", "\\x9b31m"),
        (b"\x00\x07\x7f", "\\x00\\x07\\x7f"),
        (b"\xff\xfe bad", "\\xff\\xfe bad"),
        ("\u202egnp.exe".encode(), "\\u202egnp.exe"),
        ("\u2028new\u0085line".encode(), "\\u2028new\\x85line"),
        ("\U000e0041tag".encode(), "\\U000e0041tag"),
        ("zero\u200bwidth".encode(), "zero\\u200bwidth"),
    ],
)
def test_what_a_terminal_would_obey_is_escaped(raw: bytes, text: str) -> None:
    assert lines_of(raw) == [text]


@pytest.mark.parametrize("raw", [b"", b"\r\r", b"\n\n\r\n"])
def test_nothing_makes_no_line(raw: bytes) -> None:
    assert lines_of(raw) == []


def test_lines_are_told_apart_wherever_they_are_torn() -> None:
    assert lines_of(b"one\ntw", b"o", b"\nthr", b"ee") == ["one", "two", "three"]
    assert lines_of("é".encode()[:1], "é".encode()[1:]) == ["é"]


def test_a_long_line_is_cut_at_once_and_the_rest_of_it_is_not_told() -> None:
    lines: list[str] = []
    words = Words(lines.append)
    words.feed(b"x" * (MAX_LINE + 1))
    assert lines == ["x" * MAX_LINE + CUT]
    words.feed(b"y" * MAX_LINE)
    words.feed(b"y\nnext\n")
    assert lines[1:] == ["next"]
    assert lines_of(b"x" * MAX_LINE + b"\nnext") == ["x" * MAX_LINE, "next"]


def test_what_grows_by_escaping_is_cut_too() -> None:
    (line,) = lines_of(b"\x1b" * (MAX_LINE - 1))
    assert len(line) == MAX_LINE + len(CUT)


def test_secrets_of_the_plugin_are_hidden() -> None:
    (line,) = lines_of(b"Authorization: Bearer sk-1234567890 and sk-123456", secrets=("sk-123456", "sk-1234567890", ""))
    assert line == f"Authorization: Bearer {HIDDEN} and {HIDDEN}"


@MODEL
@given(
    chunks=st.lists(
        st.binary()
        | st.text().map(str.encode)
        | st.binary(min_size=1, max_size=4).map(lambda piece: piece * 3000)
        | st.sampled_from([b"\n", b"\r\n", b"\x1b]0;x\x07", b"\nINFO utter_runner: forged"]),
        max_size=8,
    )
)
def test_whatever_is_printed_each_line_of_the_log_is_one_printable_bounded_line(chunks: list[bytes]) -> None:
    formatter = LineFormatter("%(levelname)s %(name)s: %(message)s")
    for line in lines_of(*chunks):
        record = logging.LogRecord("utter_runner.x", logging.INFO, "", 0, "%s: %s", ("plug-in", line), None)
        logged = formatter.format(record)
        assert logged.startswith("INFO utter_runner.x: plug-in: ")
        assert logged.isprintable()
        assert len(line) <= MAX_LINE + len(CUT)
        assert logged.endswith(line)


@MODEL
@given(data=st.binary(), cuts=st.lists(st.integers(0, 400), max_size=5))
def test_where_the_pipe_tears_it_makes_no_difference(data: bytes, cuts: list[int]) -> None:
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    pieces = [data[begin:end] for begin, end in pairwise(edges)]
    assert lines_of(*pieces) == lines_of(data)


def test_a_record_with_a_traceback_forges_no_line() -> None:
    formatter = LineFormatter("%(levelname)s %(name)s: %(message)s")
    try:
        json.loads("nonsense")
    except ValueError:
        cause = sys.exc_info()[2]
    info = (ValueError, ValueError("one\nINFO utter_runner: forged\x1b[2J"), cause)
    record = logging.LogRecord("utter_runner", logging.ERROR, "", 0, "it\nfailed", (), info)
    first, head, *below = formatter.format(record).split("\n")
    assert (first, head) == ("ERROR utter_runner: it\\nfailed", "Traceback (most recent call last):")
    assert below[-2:] == ["  ValueError: one", "  INFO utter_runner: forged\\x1b[2J"]
    assert all(line.startswith("  ") and line.isprintable() for line in below)
