"""On which lines of a TOML document a key is, so that an error can point at it and an edit can find it.

Rules here: `tomllib` decides what a statement is and which keys it sets; this module only counts lines. It is meant
for documents that `tomllib` has read already, and is used on the way to a message or by a command, never by what waits.
"""

from __future__ import annotations

import re
import tomllib
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

Key = tuple[str | int, ...]

# A statement that spans lines is an array or a string, so only these can end it.
_MAY_END = re.compile(r"""(?:[\]}]|\"{3}|'{3})\s*(?:#.*)?$""").search
_BUDGET = 4 * 2**20
"""How many characters are parsed at most, counting those again that are parsed again."""


def shown_key(key: Sequence[str | int]) -> str:
    """A key as people write it: `items[2].name`."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in key).removeprefix(".")


class Statement(NamedTuple):
    """One header, or one assignment.

    Attributes:
        table: the path of the table that a header opens, or that an assignment is in.
        header: whether it is a header.
        keys: every path that an assignment sets, the parts of a dotted key and what is inside of its value included; of
            a header the path of its table and those of the tables around it.
        first: its first line, counted from 1.
        last: its last line.
    """

    table: Key
    header: bool
    keys: tuple[Key, ...]
    first: int
    last: int


def line_of(text: str, key: Sequence[str | int]) -> int:
    """The line, counted from 1, on which `key` is set in the valid TOML document `text`.

    A key is a path of names and of positions in arrays: `("plugin", 1, "id")` is `id` in the second `[[plugin]]`. For a
    key that is not there, the line of the innermost table around it that has one; 1 when there is none. In a document
    with enormous values the search ends early, with the same answer as for a key that is not there.
    """
    lines = key_lines(text)
    wanted = tuple(key)
    return next((lines[wanted[:n]] for n in range(len(wanted), 0, -1) if wanted[:n] in lines), 1)


def key_lines(text: str) -> dict[Key, int]:
    """The first line of every key that a valid TOML document sets; `line_of` says how keys are written."""
    lines: dict[Key, int] = {}
    for statement in statements(text):
        for key in statement.keys:
            lines.setdefault(key, statement.first)
    return lines


def statements(text: str) -> Iterator[Statement]:
    """Every statement of a valid TOML document, in order; those after enormous values may be missing."""
    table: Key = ()
    counts: dict[Key, int] = {}
    pending: list[str] = []
    start = 0
    budget = _BUDGET
    for number, line in enumerate(text.replace("\r\n", "\n").split("\n"), 1):
        if not pending:
            start = number
        pending.append(line)
        if start != number and not _MAY_END(line):
            continue
        source = "\n".join(pending)
        budget -= len(source)
        if budget < 0:
            return
        try:
            statement = tomllib.loads(source)
        except tomllib.TOMLDecodeError:
            continue
        pending.clear()
        if source.lstrip().startswith("["):
            table = _opened(statement, counts)
            keys = tuple(table[: n + 1] for n in range(len(table)))
            yield Statement(table, header=True, keys=keys, first=start, last=number)
        elif statement:
            keys = tuple(table + key for key in _keys(statement))
            yield Statement(table, header=False, keys=keys, first=start, last=number)


def _keys(value: Any) -> Iterator[Key]:
    children: Any = ()
    if isinstance(value, dict):
        children = value.items()
    elif isinstance(value, list):
        children = enumerate(value)
    for name, child in children:
        yield (name,)
        for key in _keys(child):
            yield (name, *key)


def _opened(statement: dict[str, Any], counts: dict[Key, int]) -> Key:
    """The path of the table that the header `statement` opens; an array of tables grows by one in `counts`."""
    path: Key = ()
    value: Any = statement
    while isinstance(value, dict) and value:
        name, value = next(iter(value.items()))
        path = (*path, name)
        if isinstance(value, list):
            counts[path] = counts.get(path, -1) + 1
            return (*path, counts[path])
        if path in counts:
            path = (*path, counts[path])
    return path
