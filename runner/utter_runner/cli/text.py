"""Text from elsewhere, made safe to print on a terminal, and the JSON that `--json` prints.

Rules here: pure.
"""

from __future__ import annotations

from typing import Any

from utter_protocol.printable import harmless

__all__ = ["document", "harmless", "harmless_lines", "sized"]

_UNIT = 1024


def harmless_lines(text: object) -> list[str]:
    """As `harmless`, with the line ends kept."""
    return [harmless(line) for line in str(text).split("\n")]


def document(value: Any) -> str:
    """A JSON document on one line, in ASCII, so that it is as harmless as `harmless` makes text."""
    import json  # noqa: PLC0415 - `utter ptt` without --json does not need it

    return json.dumps(value, separators=(",", ":"))


def sized(count: int) -> str:
    """A number of bytes for people, such as "75.1 MiB"."""
    if count < _UNIT:
        return f"{count} bytes"
    power = 1 if count < _UNIT**2 else 2 if count < _UNIT**3 else 3
    return f"{count / _UNIT**power:.1f} {'KMG'[power - 1]}iB"
