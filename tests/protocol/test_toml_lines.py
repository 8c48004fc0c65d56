from __future__ import annotations

import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from utter_protocol.toml_lines import line_of

DOCUMENT = '''\
# a comment
name = "x"
list = [
  "one",  # name = "no"
  "two",
]
text = """
kind = "not here"
[plugin]
"""
kind = "y"
inline = { a = 1, b = { c = 2 } }
a.b.c = 3

[table]
name = "z"

[[plugin]]
id = "first"
[plugin.settings]
deep = true

[[plugin]]
"id" = "second"
[[plugin.paths]]
path = "p"
[[plugin.paths]]
path = "q"

[ "quoted.name" . x ]
y = 1'''


@pytest.mark.parametrize(
    ("key", "line"),
    [
        (("name",), 2),
        (("list",), 3),
        (("list", 1), 3),
        (("text",), 7),
        (("kind",), 11),
        (("inline",), 12),
        (("inline", "b", "c"), 12),
        (("a",), 13),
        (("a", "b", "c"), 13),
        (("table",), 15),
        (("table", "name"), 16),
        (("plugin",), 18),
        (("plugin", 0), 18),
        (("plugin", 0, "id"), 19),
        (("plugin", 0, "settings", "deep"), 21),
        (("plugin", 1), 23),
        (("plugin", 1, "id"), 24),
        (("plugin", 1, "paths", 0, "path"), 26),
        (("plugin", 1, "paths", 1, "path"), 28),
        (("quoted.name", "x"), 30),
        (("quoted.name", "x", "y"), 31),
        (("plugin", 1, "cwd"), 23),
        (("table", "gone", "deeper"), 15),
        (("gone",), 1),
        ((), 1),
    ],
)
def test_the_line_of_a_key(key: tuple[str | int, ...], line: int) -> None:
    assert line_of(DOCUMENT, key) == line


def test_carriage_returns_do_not_disturb() -> None:
    assert line_of(DOCUMENT.replace("\n", "\r\n"), ("plugin", 1, "paths", 1, "path")) == 28


def test_a_long_array_is_read_once() -> None:
    rows = "".join(f'  ["row {n}", [{n}]],\n' for n in range(5_000))
    assert line_of(f"before = 1\nrows = [\n{rows}]  # end\nafter = 1\n", ("after",)) == 5_004


def test_the_search_ends_where_it_would_take_too_long() -> None:
    lines = "]\n" * 50_000
    text = f'\nbefore = 1\ntext = """\n{lines}"""\nafter = 1\n'
    assert tomllib.loads(text)["after"] == 1
    assert line_of(text, ("before",)) == 2
    assert line_of(text, ("after",)) == 1


names = st.text("abc.\" é\n'#=[]", max_size=4)
values = st.one_of(
    st.integers(0, 9), st.booleans(), st.lists(st.integers(0, 9), max_size=3), st.text("a\n[=]\"'#", max_size=6)
)


def quoted(text: str) -> str:
    return '"' + "".join(f"\\u{ord(c):04x}" if c in '"\\\n' else c for c in text) + '"'


def written(value: Any) -> str:
    if isinstance(value, str):
        return '"""\n' + value.replace("\\", "\\\\").replace('"', '\\"') + '"""'
    if isinstance(value, list):
        return "[\n" + "".join(f"  {item},\n" for item in value) + "]"
    return str(value).lower()


@given(st.dictionaries(names, st.dictionaries(names, values, max_size=4), max_size=4))
def test_every_key_of_a_document_is_found_on_the_line_that_sets_it(document: dict[str, dict[str, Any]]) -> None:
    lines: list[str] = []
    expected: dict[tuple[str, ...], int] = {}
    for table, entries in document.items():
        expected[table,] = len(lines) + 1
        lines.append(f"[{quoted(table)}]")
        for name, value in entries.items():
            expected[table, name] = len(lines) + 1
            lines.extend(f"{quoted(name)} = {written(value)}".split("\n"))
    text = "\n".join(lines)
    assert tomllib.loads(text) == document
    assert {key: line_of(text, key) for key in expected} == expected
