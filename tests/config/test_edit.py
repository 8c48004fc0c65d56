from __future__ import annotations

import copy
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from utter_runner.config.edit import EditError, find_key, literal, quoted, set_key, unset_key

EXAMPLE = Path(__file__).parents[2] / "config.example.toml"

NAMES = st.sampled_from(["a", "b", "c", '"a.b"'])
COMMENTS = st.sampled_from(["", "  # of a", "# b = 1", "#"])
VALUES = st.sampled_from(
    [
        "1", "-2.5", "true", '"x # y"', "'''\n# no comment\n[a]\n'''", "[]", "[1, [2]]", '[\n  "p", # of p\n  "q",\n]',
        "{}", "{ a = 1, b.c = 2 }", "{ c = { b = [1] } }", "1979-05-27", "nan",
    ]
)  # fmt: skip
NEW = st.one_of(
    st.integers(-(2**63), 2**63 - 1), st.booleans(), st.floats(), st.text(st.characters(codec="utf-8"), max_size=9),
    st.lists(st.text(st.characters(codec="utf-8"), max_size=3), max_size=3),
    st.dictionaries(st.text(st.characters(codec="utf-8"), max_size=3), st.integers(0, 9), max_size=2),
)  # fmt: skip


@st.composite
def assignments(draw: st.DrawFn) -> str:
    key = ".".join(draw(st.lists(NAMES, min_size=1, max_size=2)))
    return f"{draw(st.sampled_from(['', '  ']))}{key} = {draw(VALUES)}{draw(COMMENTS)}"


@st.composite
def headers(draw: st.DrawFn) -> str:
    key = ".".join(draw(st.lists(NAMES, min_size=1, max_size=3)))
    return f"{f'[[{key}]]' if draw(st.booleans()) else f'[{key}]'}{draw(COMMENTS)}"


@st.composite
def documents(draw: st.DrawFn) -> str:
    """A valid document, grown line by line: what would make it invalid is left out."""
    text = ""
    for line in draw(st.lists(st.one_of(assignments(), headers(), COMMENTS, st.just("")), max_size=12)):
        try:
            tomllib.loads(f"{text}{line}\n")
        except tomllib.TOMLDecodeError:
            continue
        text += f"{line}\n"
    if draw(st.booleans()):
        text = text.removesuffix("\n")
    return text.replace("\n", "\r\n") if draw(st.booleans()) else text


def paths(value: Any, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """Every key of a document that can be named."""
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    found = [] if not path or isinstance(path[-1], int) else [path]
    for name, child in children:
        found += paths(child, (*path, name))
    return found


def is_piece_of(piece: str, whole: str) -> bool:
    """Whether `whole` is `piece` with something put in at one place."""
    more = len(whole) - len(piece)
    return any(whole[:at] + whole[at + more :] == piece for at in range(len(piece) + 1))


def without_empty(document: Any) -> Any:
    if isinstance(document, dict):
        kept = {name: without_empty(child) for name, child in document.items()}
        return {name: child for name, child in kept.items() if child not in ({}, [])}
    return [without_empty(child) for child in document] if isinstance(document, list) else document


def same(one: Any, other: Any) -> bool:
    """Whether two documents are the same; what nan is says its text."""
    return _sorted(one) == _sorted(other)


def _sorted(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ",".join(f"{name!r}:{_sorted(value[name])}" for name in sorted(value)) + "}"
    return f"[{','.join(map(_sorted, value))}]" if isinstance(value, list) else repr(value)


def comments(text: str) -> list[str]:
    """The lines that are comments; what looks like one inside of a text means something, and is missed without."""
    document, lines = tomllib.loads(text), text.split("\n")

    def is_comment(number: int) -> bool:
        try:
            return same(tomllib.loads("\n".join(lines[:number] + lines[number + 1 :])), document)
        except tomllib.TOMLDecodeError:
            return False

    return [line for number, line in enumerate(lines) if line.lstrip().startswith("#") and is_comment(number)]


@given(documents(), st.data())
def test_setting_changes_the_key_and_nothing_else(text: str, data: st.DataObject) -> None:
    document = tomllib.loads(text)
    around = [(), *(path for path in paths(document) if isinstance(find_key(document, path), dict))]
    new = st.sampled_from(around).flatmap(
        lambda path: st.sampled_from([(*path, "b"), (*path, "new"), (*path, "n", "m")])
    )
    path = data.draw(st.one_of(new, st.sampled_from(paths(document))) if paths(document) else new)
    value = data.draw(NEW)
    try:
        old = find_key(document, path)
    except KeyError:
        old = None
    assume(not (isinstance(old, dict) or (isinstance(old, list) and any(isinstance(one, dict) for one in old))))
    wanted = copy.deepcopy(document)
    node: Any = wanted
    for part in path[:-1]:
        node = node.setdefault(part, {}) if isinstance(node, dict) else node[part]
        assume(isinstance(node, dict | list))
    node[path[-1]] = value
    try:
        changed = set_key(text, path, value)
    except EditError as error:
        # What is inside of an array, of an inline table, or below tables in an order of its own may be beyond it.
        assert "edit the file by hand" in str(error) or "is no table" in str(error)  # noqa: PT017
        return
    assert same(tomllib.loads(changed), wanted)
    if old is None and changed.count("\n") > text.count("\n"):
        assert is_piece_of(text, changed)
    assert [line for line in comments(text) if line not in changed] == []


@given(documents(), st.data())
def test_taking_a_key_out_changes_nothing_else(text: str, data: st.DataObject) -> None:
    document = tomllib.loads(text)
    found = paths(document)
    assume(found)
    path = data.draw(st.sampled_from(found))
    wanted = copy.deepcopy(document)
    del find_key(wanted, path[:-1])[path[-1]]
    try:
        changed = unset_key(text, path)
    except EditError as error:
        assert "edit the file by hand" in str(error)  # noqa: PT017
        return
    assert same(without_empty(tomllib.loads(changed)), without_empty(wanted))
    assert len(changed) < len(text)


@pytest.mark.parametrize("key", paths(tomllib.loads(EXAMPLE.read_text())))
def test_every_key_of_the_example_can_be_taken_out_and_set_again(key: tuple[str | int, ...]) -> None:
    text = EXAMPLE.read_text()
    document = tomllib.loads(text)
    value = find_key(document, key)
    without = unset_key(text, key)
    with pytest.raises(KeyError):
        find_key(tomllib.loads(without), key)
    if not isinstance(value, dict) and key != ("plugin",):
        assert tomllib.loads(set_key(without, key, value)) == document
        assert tomllib.loads(set_key(text, key, "other")) != document
        assert set_key(set_key(text, key, "other"), key, value).count("\n") <= text.count("\n")


def changed_lines(before: str, after: str) -> tuple[list[str], list[str]]:
    old, new = before.split("\n"), after.split("\n")
    while old and new and old[0] == new[0]:
        del old[0], new[0]
    while old and new and old[-1] == new[-1]:
        del old[-1], new[-1]
    return [line for line in old if line], [line for line in new if line]


DOCUMENT = """\
# of a
a.b = 1 # x
i = { a = 1 } # y

# of p
[[p]]
id = "x" # z

# of p.s
  [p.s]
  a=1

# of t
[t]
# d = "shown"
c = 1
# [t.u]
# e = 1

# of the next
[v]
"""


@pytest.mark.parametrize(
    ("key", "value", "old", "new"),
    [
        (("a", "b"), 2, ["a.b = 1 # x"], ["a.b = 2 # x"]),
        (("a", "c"), 2, [], ["a.c = 2"]),
        (("i", "a"), 2, ["i = { a = 1 } # y"], ["i = { a = 2 } # y"]),
        (("p", 0, "id"), "y", ['id = "x" # z'], ['id = "y" # z']),
        (("p", 0, "n"), [1], [], ["n = [1]"]),
        (("p", 0, "s", "b"), True, [], ["  b = true"]),
        (("p", 0, "n", "m"), 2, [], ["[p.n]", "m = 2"]),
        (("p", 1, "id"), "z", [], ["[[p]]", 'id = "z"']),
        (("t", "d"), 1, [], ["d = 1"]),
        (("t", "f"), {"g": "h"}, [], ['f = {g = "h"}']),
        (("t", "u", "e"), 1, [], ["[t.u]", "e = 1"]),
        (("w", "x y"), "\x1b", [], ["[w]", r'"x y" = "\u001b"']),
        (("n",), 1, [], ["n = 1"]),
    ],
)
def test_where_a_new_key_stands(key: tuple[str | int, ...], value: Any, old: list[str], new: list[str]) -> None:
    changed = set_key(DOCUMENT, key, value)
    assert changed_lines(DOCUMENT, changed) == (old, new)
    assert find_key(tomllib.loads(changed), key) == value


def test_a_key_stands_behind_the_comment_that_shows_it() -> None:
    lines = set_key(DOCUMENT, ("t", "d"), 1).split("\n")
    assert lines[lines.index('# d = "shown"') + 1] == "d = 1"
    # What stands in a table that is commented out is not of the table before it.
    lines = set_key(DOCUMENT, ("t", "e"), 1).split("\n")
    assert lines[lines.index("c = 1") + 1] == "e = 1"


def test_comments_of_what_follows_stay_with_it() -> None:
    for key in (("t", "new"), ("t", "u", "new"), ("p", 0, "s", "new"), ("p", 0, "new"), ("a", "new")):
        changed = set_key(DOCUMENT, key, 1)
        for comment, header in (
            ("# of the next", "[v]"),
            ("# of t", "[t]"),
            ("# of p.s", "  [p.s]"),
            ("# of p", "[[p]]"),
        ):
            assert f"\n{comment}\n{header}\n" in changed


@pytest.mark.parametrize(
    ("key", "gone"),
    [
        (("a", "b"), ["a.b = 1 # x"]),
        (("a",), ["a.b = 1 # x"]),
        (("i",), ["i = { a = 1 } # y"]),
        (("t", "c"), ["c = 1"]),
        (("p", 0, "s"), ["  [p.s]", "  a=1"]),
        (("v",), ["[v]"]),
    ],
)
def test_what_goes_with_a_key(key: tuple[str | int, ...], gone: list[str]) -> None:
    left = unset_key(DOCUMENT, key).split("\n")
    lines = DOCUMENT.split("\n")
    for line in gone:
        lines.remove(line)
    assert [line for line in left if line] == [line for line in lines if line]


def test_line_ends_stay_what_they_are() -> None:
    text = DOCUMENT.replace("\n", "\r\n")
    for key in (("a", "b"), ("a", "c"), ("t", "d"), ("t", "u", "e"), ("new", "a"), ("n",)):
        assert set_key(text, key, 5) == set_key(DOCUMENT, key, 5).replace("\n", "\r\n")
    assert unset_key(text, ("t", "c")) == unset_key(DOCUMENT, ("t", "c")).replace("\n", "\r\n")
    assert set_key("a = 1", ("b",), 2) == "a = 1\nb = 2"
    assert set_key("", ("a", "b"), 2) == "[a]\nb = 2\n"


@pytest.mark.parametrize(
    ("key", "complaint"),
    [
        (("a",), "a is a table; set the keys in it."),
        (("t",), "t is a table; set the keys in it."),
        (("a", "b", "c"), "a.b is no table."),
        (("p", "c"), "p is no table."),
        (("p", 3, "c"), "p has no entry 3."),
    ],
)
def test_what_cannot_be_set(key: tuple[str | int, ...], complaint: str) -> None:
    with pytest.raises(EditError) as caught:
        set_key(DOCUMENT, key, 1)
    assert str(caught.value) == complaint


def test_what_is_not_there_cannot_be_taken_out() -> None:
    for key in (("a", "x"), ("p", 5, "a"), ("a", "b", "c")):
        with pytest.raises(EditError, match="is not set"):
            unset_key(DOCUMENT, key)


def test_a_value_is_written_on_one_line() -> None:
    assert literal({"a": ["x", 1, True]}) == '{a = ["x", 1, true]}'
    assert literal("two\nlines") == r'"two\nlines"'
    assert quoted("a.b") == '"a.b"'
    assert quoted("a-b_1") == "a-b_1"
