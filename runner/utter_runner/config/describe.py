"""What a key of the configuration may hold, and what it holds instead, in words.

Rules here: words come from the field's type alone; values are shown only where they cannot be secret.
"""

from __future__ import annotations

import datetime as dt
from typing import Any

import msgspec
from msgspec import inspect

_SHOWN = 40


def expected(kind: inspect.Type) -> str:
    """Words for a type, such as "a whole number from 1 to 60000"."""
    match kind:
        case inspect.Metadata(extra_json_schema={"description": str(words)}):
            pass
        case inspect.Metadata():
            words = expected(kind.type)
        case inspect.UnionType():
            words = " or ".join(expected(part) for part in kind.types if not isinstance(part, inspect.NoneType))
        case inspect.LiteralType():
            words = "one of " + ", ".join(f'"{value}"' for value in kind.values)
        case inspect.ListType():
            words = f"a list{' that is not empty' if kind.min_length else ''} (each entry: {expected(kind.item_type)})"
        case inspect.DictType():
            words = "a table"
        case inspect.IntType():
            words = "a whole number" if kind.ge is None else f"a whole number from {kind.ge} to {kind.le}"
        case inspect.BoolType():
            words = "true or false"
        case inspect.StrType(min_length=int()):
            words = "a text that is not empty"
        case _:
            words = "a text"
    return words


def got(value: Any, *, secret: bool) -> str:
    """Words for a value that does not fit: its type, and the value itself if it is short and no secret."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return f"the number {value}"
    if isinstance(value, str):
        return "a text" if secret or len(value) > _SHOWN else f"the text {value!r}"
    if isinstance(value, list):
        return "a list" if value else "an empty list"
    if isinstance(value, dict):
        return "a table"
    return "a date or time" if isinstance(value, dt.date | dt.time) else type(value).__name__


def without_values(struct: msgspec.Struct, *hidden: str) -> str:
    """What `repr` of a Struct shows when the values in some of its fields may be secret."""
    shown = []
    for name in struct.__struct_fields__:
        value = getattr(struct, name)
        if name in hidden and value:
            value = dict.fromkeys(value, "...") if isinstance(value, dict) else "..."
        shown.append(f"{name}={value!r}")
    return f"{type(struct).__name__}({', '.join(shown)})"
