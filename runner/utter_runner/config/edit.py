"""Changing one key in the text of a TOML document, and nothing else in it.

Rules here: functions of a text; comments, order and spacing of everything but the key stay byte for byte, so a new key
is an insertion of lines, and a key that goes is lines that are cut out. What a statement is says `utter_protocol`'s
`statements`, and tomlkit changes what is inside of one. What comes out is read again and compared with what was wanted:
a document that this page does not know how to change is refused, and never guessed at.
"""

from __future__ import annotations

import re
import tomllib
from typing import TYPE_CHECKING, Any

from utter_protocol.toml_lines import shown_key, statements

if TYPE_CHECKING:
    from collections.abc import Sequence

    from utter_protocol.toml_lines import Key, Statement

_COMMENTED_HEADER = re.compile(r"\s*#\s*\[+\s*[A-Za-z]")


class EditError(Exception):
    """The text cannot be changed that way; the sentence says why."""


def set_key(text: str, key: Sequence[str | int], value: Any) -> str:
    """Return a document with `key` set.

    Args:
        text: a valid TOML document.
        key: as in `line_of`. Tables on the way that are missing are made; one past the end of an array of tables is a
            new table in it.
        value: what TOML can hold; a table comes out as an inline one.

    Raises:
        EditError: something on the way is no table, or the document is written in a way that nobody expects.
    """
    path = tuple(key)
    wanted = tomllib.loads(text)
    _put(wanted, path, value)
    document = _Document(text)
    document.set(path, value)
    return _checked(document.text(), wanted, path)


def unset_key(text: str, key: Sequence[str | int]) -> str:
    """Return a document without `key`, and without what is in it if it is a table.

    Raises:
        EditError: it is not there, or cannot be taken out.
    """
    path = tuple(key)
    wanted = tomllib.loads(text)
    _take(wanted, path)
    document = _Document(text)
    document.unset(path)
    return _checked(document.text(), wanted, path)


def find_key(document: dict[str, Any], key: Sequence[str | int]) -> Any:
    """Return the value of a key in a document that was read.

    Raises:
        KeyError: it is not there.
    """
    value: Any = document
    for part in key:
        there = part in value if isinstance(value, dict) else isinstance(value, list) and part in range(len(value))
        if not there:
            raise KeyError(shown_key(key))
        value = value[part]
    return value


def literal(value: Any) -> str:
    """Return how TOML writes a value, on one line."""
    return str(_item(value).as_string())


def quoted(name: str) -> str:
    """Return how TOML writes the name of a key: in quotes only where that is needed."""
    import tomlkit  # noqa: PLC0415 - 40 ms that only commands that write pay

    return str(tomlkit.key(name).as_string())


class _Document:
    """The lines of a text, without their ends, and the statements in them."""

    def __init__(self, text: str) -> None:
        self._lines = text.split("\n")
        self._statements = list(statements(text))

    def text(self) -> str:
        return "\n".join(self._lines)

    def set(self, path: Key, value: Any) -> None:
        exact = self._assignment(path)
        if exact is not None:
            self._within(exact, path, value)
            return
        # The innermost thing around it that is written as an assignment takes it in.
        for n in range(len(path) - 1, 0, -1):
            around = self._assignment(path[:n])
            if around is None:
                continue
            if self._is_inline(around, path[:n]):
                self._within(around, path[: n + 1], _nested(path[n + 1 :], value))
            else:
                self._insert(around.last, [self._assigned(path[len(around.table) :], value, like=around.first)])
            return
        table = path[:-1]
        header = next((one for one in self._statements if one.header and one.table == table), None)
        if header is not None or not table:
            self._add(header, path, value)
        else:
            self._open(table, path[-1], value)

    def unset(self, path: Key) -> None:
        exact = self._assignment(path)
        if exact is not None and self._is_inside(exact, path):
            self._within(exact, path, _NOTHING)
            return
        gone: set[int] = set()
        for one in self._statements:
            if one.table[: len(path)] == path or any(key[: len(path)] == path for key in one.keys):
                gone.update(range(one.first, one.last + 1))
        block = [one for one in self._statements if one.header and one.table[: len(path)] == path]
        for header in block:
            # What stands between the lines of a table that goes is about it; of the space around it one half goes.
            end = self._end(header)
            gone.update(range(header.first, end + 1))
            if header.first > 1 and self._is_blank(header.first - 1) and self._is_blank(end + 1):
                gone.add(header.first - 1)
        self._lines = [line for number, line in enumerate(self._lines, 1) if number not in gone]
        if self._lines and self._lines[-1].endswith("\r"):
            # Its line end is gone with what came behind it.
            self._lines[-1] = self._lines[-1][:-1]

    def _is_blank(self, number: int) -> bool:
        """Whether a line is empty, or the text is over."""
        return number > len(self._lines) or not self._lines[number - 1].strip()

    def _assignment(self, path: Key) -> Statement | None:
        """The last assignment that sets a path, or something in it, as part of its own key or its value."""
        found = [one for one in self._statements if not one.header and path in one.keys]
        return found[-1] if found else None

    def _source(self, one: Statement) -> tuple[str, str]:
        """The text of a statement, and the rest of its last line's end."""
        text = "\n".join(self._lines[one.first - 1 : one.last])
        return (text[:-1], "\r") if text.endswith("\r") else (text, "")

    def _own_key(self, one: Statement) -> Key:
        """The key that an assignment assigns, from the top of the document; its value may hold more of them."""
        import tomlkit  # noqa: PLC0415 - see `quoted`

        node: Any = tomlkit.parse(self._source(one)[0])
        depth = 0
        while depth == 0 or (isinstance(node, tomlkit.items.Table) and len(node) == 1):
            node = next(iter(node.values()))
            depth += 1
        return next(key for key in one.keys if len(key) == len(one.table) + depth)

    def _is_inline(self, one: Statement, path: Key) -> bool:
        return len(path) >= len(self._own_key(one))

    def _is_inside(self, one: Statement, path: Key) -> bool:
        return len(path) > len(self._own_key(one))

    def _within(self, one: Statement, path: Key, value: Any) -> None:
        """Change an assignment's value, or what is inside of it."""
        import tomlkit  # noqa: PLC0415 - see `quoted`

        if not self._is_inline(one, path):
            raise EditError(f"{shown_key(path)} is a table; set the keys in it.")
        source, end = self._source(one)
        document = tomlkit.parse(source)
        node: Any = document
        *way, name = path[len(one.table) :]
        try:
            for part in way:
                node = node[part]
            if value is _NOTHING:
                del node[name]
            elif isinstance(name, int) and isinstance(node, list) and name == len(node):
                node.append(_item(value))
            else:
                node[name] = _item(value)
        except (TypeError, KeyError, IndexError, tomlkit.exceptions.TOMLKitError):
            raise EditError(f"{shown_key(path[:-1])} is no table.") from None
        self._lines[one.first - 1 : one.last] = (document.as_string() + end).split("\n")

    def _end(self, header: Statement) -> int:
        """The last line of what is assigned below a header itself."""
        at = self._statements.index(header)
        last = header.last
        for one in self._statements[at + 1 :]:
            if one.header:
                break
            last = one.last
        return last

    def _add(self, header: Statement | None, path: Key, value: Any) -> None:
        """Add a line to a table: where a comment shows the key, or behind its last one."""
        if header is not None:
            end = self._end(header)
            following = [one.first for one in self._statements if one.header and one.first > header.first]
        else:
            own = [one.last for one in self._statements if not one.header and not one.table]
            end = max(own, default=0)
            following = [one.first for one in self._statements if one.header]
        line = self._assigned(path[-1:], value, like=end if header is None or end > header.last else 0)
        shown = re.compile(rf"\s*#\s*{re.escape(str(path[-1]))}\s*=")
        taken = {n for one in self._statements for n in range(one.first, one.last + 1)}
        for number in range(header.last + 1 if header else 1, min(following, default=len(self._lines) + 1)):
            if number in taken:
                continue
            if _COMMENTED_HEADER.match(self._lines[number - 1]):
                break
            if shown.match(self._lines[number - 1]):
                end = number
                break
        self._insert(end, [line])

    def _open(self, table: Key, name: str | int, value: Any) -> None:
        """Add a table with one key, behind what belongs to the tables around it, or at the end."""
        header, parts = "", [part for part in table if isinstance(part, str)]
        if isinstance(table[-1], int):
            header = f"[[{'.'.join(map(quoted, parts))}]]"
        else:
            header = f"[{'.'.join(map(quoted, parts))}]"
        after = 0
        for n in range(len(table) - 1, 0, -1):
            around = [one.last for one in self._statements if one.table[:n] == table[:n]]
            if around:
                after = max(around)
                break
        lines = [header, self._assigned((name,), value)]
        if after and isinstance(table[-1], str):
            self._insert(self._paragraph(after), ["", *lines])
            return
        # The end of the last line is no line of its own.
        end = len(self._lines) - 1 if self._lines[-1] == "" else len(self._lines)
        self._insert(end, [*([""] if end else []), *lines])

    def _paragraph(self, after: int) -> int:
        """The line behind which comments about what is in line `after` end; they do not if a header follows them."""
        taken = {n for one in self._statements for n in range(one.first, one.last + 1)}
        for number in range(after + 1, len(self._lines) + 1):
            if self._is_blank(number):
                return number - 1
            if number in taken:
                break
        else:
            return len(self._lines)
        return after

    def _insert(self, after: int, lines: list[str]) -> None:
        """Put lines behind line number `after`, with the line ends that the text has."""
        end = "\r" if any(line.endswith("\r") for line in self._lines) else ""
        new = [line + end for line in lines]
        if after == len(self._lines):
            # The last line has no end of its own yet.
            self._lines[-1:] = [self._lines[-1] + end]
            new[-1] = lines[-1]
        self._lines[after:after] = new

    def _assigned(self, relative: Key, value: Any, like: int = 0) -> str:
        """The line `key = value`, indented as line number `like` is."""
        indent = re.match(r"[ \t]*", self._lines[like - 1])[0] if like else ""  # type: ignore[index] # it always matches
        return f"{indent}{'.'.join(quoted(str(part)) for part in relative)} = {literal(value)}"


_NOTHING = object()


def _item(value: Any) -> Any:
    import tomlkit  # noqa: PLC0415 - see `quoted`

    if isinstance(value, dict):
        table = tomlkit.inline_table()
        for name, child in value.items():
            table.append(name, _item(child))
        return table
    if isinstance(value, list):
        array = tomlkit.array()
        array.extend(_item(child) for child in value)
        return array
    return tomlkit.item(value)


def _nested(path: Key, value: Any) -> Any:
    for part in reversed(path):
        value = {part: value}
    return value


def _put(document: dict[str, Any], path: Key, value: Any) -> None:
    node: Any = document
    for at, part in enumerate(path[:-1]):
        fresh: Any = [] if isinstance(path[at + 1], int) else {}
        if isinstance(part, int):
            if not isinstance(node, list) or part > len(node):
                raise EditError(f"{shown_key(path[:at])} has no entry {part}.")
            if part == len(node):
                node.append(fresh)
            node = node[part]
        elif isinstance(node, dict):
            node = node.setdefault(part, fresh)
        else:
            raise EditError(f"{shown_key(path[:at])} is no table.")
    name = path[-1]
    if not isinstance(node, dict) or not isinstance(name, str):
        raise EditError(f"{shown_key(path[:-1])} is no table.")
    if isinstance(node.get(name), dict) and not isinstance(value, dict):
        raise EditError(f"{shown_key(path)} is a table; set the keys in it.")
    node[name] = value


def _take(document: dict[str, Any], path: Key) -> None:
    try:
        node = find_key(document, path[:-1])
        find_key(document, path)
    except KeyError:
        raise EditError(f"{shown_key(path)} is not set.") from None
    del node[path[-1]]


def _checked(text: str, wanted: dict[str, Any], path: Key) -> str:
    try:
        found = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        found = {"": None}
    for n in range(len(path) - 1, 0, -1):
        # Tables around it that have nothing in them any more are there or not, as they were written.
        for document in (found, wanted):
            _without_empty(document, path[:n])
    if not _same(found, wanted):
        raise EditError(f"{shown_key(path)} is written in a way that cannot be changed here; edit the file by hand.")
    return text


def _without_empty(document: dict[str, Any], path: Key) -> None:
    try:
        node, around = find_key(document, path), find_key(document, path[:-1])
    except KeyError:
        return
    if node in ({}, []) and isinstance(around, dict):
        del around[path[-1]]


def _same(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_same(one[name], other[name]) for name in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(_same, one, other))
    return bool(one == other) or (one != one and other != other)  # noqa: PLR0124 - not a number equals nothing
