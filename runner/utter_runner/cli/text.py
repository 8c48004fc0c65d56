"""Text from elsewhere, made safe to print on a terminal, and the JSON that `--json` prints.

Rules here: pure.
"""

from __future__ import annotations

from typing import Any


def harmless(text: object) -> str:
    r"""One line of printable text.

    Control characters (ESC among them), line ends, bidirectional and zero-width marks, and lone surrogates come out as
    `\x1b`, `\u202e` and the like, so that they neither act on the terminal nor hide anything from the reader.
    """
    line = str(text)
    if line.isprintable():
        return line
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in line)


def harmless_lines(text: object) -> list[str]:
    """As `harmless`, with the line ends kept."""
    return [harmless(line) for line in str(text).split("\n")]


def document(value: Any) -> str:
    """A JSON document on one line, in ASCII, so that it is as harmless as `harmless` makes text."""
    import json  # noqa: PLC0415 - `utter ptt` without --json does not need it

    return json.dumps(value, separators=(",", ":"))
