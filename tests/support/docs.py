"""Reads the documentation as the tests see it: its code blocks, its links and its headings.

Rules here: only the Markdown that the pages use (ATX headings, fenced and indented code, inline links); a block that a
test may run stands below an HTML comment, `<!-- WHAT: ARGUMENTS -->`.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]

_BLOCK = re.compile(
    r"^<!-- (?P<what>[a-z]+)(?:: (?P<arguments>[^\n]*?))? -->\n```(?P<language>[a-z]*)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
# One that belongs to an item of a list is indented like it.
_FENCED = re.compile(r"^(?P<indent> *)```.*?^(?P=indent)```$", re.MULTILINE | re.DOTALL)
_INDENTED = re.compile(r"(?:(?<=\n\n)|\A)(?:(?: {4}.*)?\n)+", re.MULTILINE)
_CODE = re.compile(r"`[^`]+`")
_LINK = re.compile(r"\[[^\]]+\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#{1,6} (.+)$", re.MULTILINE)
_MAIN = 'if __name__ == "__main__":'


class Block(NamedTuple):
    """A fenced block with a comment above it: `<!-- what: arguments -->`."""

    what: str
    arguments: str
    language: str
    text: str


def blocks(page: str) -> list[Block]:
    """The marked blocks in their order."""
    return [Block(m["what"], m["arguments"] or "", m["language"], m["text"]) for m in _BLOCK.finditer(page)]


def without_fences(page: str) -> str:
    """The page without its fenced blocks."""
    return _FENCED.sub("", page)


def prose(page: str) -> str:
    """The page without code; the word "code" stands for what was code inside of a line."""
    return _CODE.sub("code", _INDENTED.sub("", without_fences(page)))


def code(page: str) -> list[str]:
    """The lines of all code blocks, and what is code inside of a line."""
    fenced = [line.strip() for block in _FENCED.finditer(page) for line in block[0].splitlines()[1:-1]]
    rest = without_fences(page)
    indented = [line.strip() for block in _INDENTED.findall(rest) for line in block.splitlines()]
    return [*fenced, *indented, *(found.strip("`") for found in _CODE.findall(_INDENTED.sub("", rest)))]


def links(page: str) -> list[str]:
    """The targets of all links."""
    return _LINK.findall(prose(page))


def anchors(page: str) -> list[str]:
    """The headings' anchors, as GitHub makes them."""
    found = []
    for heading in _HEADING.findall(without_fences(page)):
        words = "".join(c for c in heading.lower() if c.isalnum() or c in " -_")
        found.append(words.replace(" ", "-"))
    return found


def write_files(page: str, directory: Path) -> None:
    """Do with the marked blocks what the page asks the reader to do.

    `file: PATH` makes a file, `append: PATH` adds to its end, `insert: PATH` puts the block above the last lines of a
    Python file, and `replace: PATH NAME` in the place of the function NAME. Other blocks are left to the caller.
    """
    for block in blocks(page):
        name, _, function = block.arguments.partition(" ")
        path = directory / name
        if block.what == "file":
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text)
        elif block.what == "append":
            path.write_text(f"{path.read_text()}\n{block.text}")
        elif block.what == "insert":
            head, found, tail = path.read_text().partition(_MAIN)
            assert found, f"{name} has no line {_MAIN}"
            path.write_text(f"{head}{block.text}\n\n{found}{tail}")
        elif block.what == "replace":
            path.write_text(_replaced(path.read_text(), function, block.text))


def _replaced(source: str, function: str, text: str) -> str:
    lines = source.splitlines(keepends=True)
    (found,) = (n for n in ast.parse(source).body if isinstance(n, ast.FunctionDef) and n.name == function)
    first = min(n.lineno for n in (found, *found.decorator_list)) - 1
    assert found.end_lineno is not None
    return "".join([*lines[:first], text, *lines[found.end_lineno :]])


def tables(page: str, header: str) -> list[list[str]]:
    """The rows of every table whose header line is `header`, as lists of cells."""
    found = []
    for part in page.split(f"{header}\n")[1:]:
        for line in part.splitlines()[1:]:
            if not line.startswith("|"):
                break
            found.append([cell.strip() for cell in line.strip("|").split("|")])
    return found
