"""A checked copy of arguments: JSON values only, inside bounds, sharing nothing with whoever proposed them.

Rules here: what comes out encodes to JSON that every reader decodes to the same values: no NaN or infinity, no integer
beyond 64 bits, no lone surrogate, no keys but strings.
"""

from __future__ import annotations

import math
from typing import Any

from .builtin import ArgumentError

MAX_CHARACTERS = 64 * 1024
MAX_DEPTH = 16
_MIN_INT, _MAX_INT = -(2**63), 2**64 - 1


def copy_args(args: dict[str, Any]) -> dict[str, Any]:
    """Copy arguments.

    Raises:
        ArgumentError: naming the argument that is no JSON, too deep, or with which the arguments pass MAX_CHARACTERS
            (characters of strings and keys, and one for each value).
    """
    left = MAX_CHARACTERS
    out: dict[str, Any] = {}
    for name, value in args.items():
        if type(value) is str and value.isascii():
            left -= len(value)
            out[name] = value
        else:
            out[name], left = _copy(value, name, left, 1)
        left -= 1 + len(name)
        if left < 0:
            raise _too_large(name)
        if not name.isascii():
            _check_text(name, name)
    return out


def _too_large(field: str) -> ArgumentError:
    return ArgumentError(field, f"The arguments hold more than {MAX_CHARACTERS} characters.")


def _check_text(text: str, field: str) -> None:
    if any("\ud800" <= char <= "\udfff" for char in text):
        raise ArgumentError(field, "The arguments contain half a character (a lone UTF-16 surrogate).")


def _copy(value: Any, field: str, left: int, depth: int) -> tuple[Any, int]:
    if depth > MAX_DEPTH:
        raise ArgumentError(field, f"The argument '{field}' is nested more than {MAX_DEPTH} deep.")
    left -= 1
    if left < 0:
        raise _too_large(field)
    kind = type(value)
    if kind is str:
        _check_text(value, field)
        return value, left - len(value)
    if kind is dict:
        copied: dict[str, Any] = {}
        for key, child in value.items():
            if type(key) is not str:
                raise ArgumentError(field, f"The argument '{field}' has a key that is not a string.")
            _check_text(key, field)
            copied[key], left = _copy(child, field, left - len(key), depth + 1)
        return copied, left
    if kind is list:
        items: list[Any] = []
        for child in value:
            item, left = _copy(child, field, left, depth + 1)
            items.append(item)
        return items, left
    _check_scalar(value, field)
    return value, left


def _check_scalar(value: Any, field: str) -> None:
    kind = type(value)
    if value is None or kind is bool:
        return
    if kind is int and _MIN_INT <= value <= _MAX_INT:
        return
    if kind is float and math.isfinite(value):
        return
    raise ArgumentError(field, f"The argument '{field}' holds a value that is not JSON, or a number beyond 64 bits.")
