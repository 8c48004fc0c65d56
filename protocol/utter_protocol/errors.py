"""The error taxonomy of the wire (PROTOCOL.md, "Errors").

Rules here: an error that crosses the wire is an `RpcError`; its code is one of `ErrorCode`; its `data` is a JSON
object that names the field, bound, capability or plugin concerned.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any


class ErrorCode(IntEnum):
    """JSON-RPC 2.0 section 5.1 codes and those of the plugin protocol."""

    PARSE_ERROR = -32700
    INVALID_REQUEST = -32600
    METHOD_NOT_FOUND = -32601
    INVALID_PARAMS = -32602
    INTERNAL_ERROR = -32603
    PLUGIN_FAILED = -32000
    TIMED_OUT = -32001
    CANCELLED = -32002
    NOT_PERMITTED = -32003
    INCOMPATIBLE = -32004
    CAPABILITY_MISSING = -32005
    UNTRUSTED_PROVENANCE = -32006
    TOO_LARGE_INLINE = -32007


class RpcError(Exception):
    """An error that is answered to the other side as `{code, message, data?}`.

    Args:
        code: one of `ErrorCode`, or another integer that a peer sent.
        message: one sentence for a person.
        data: a JSON object that names what is wrong, or None.

    Attributes:
        answered: whether a peer wrote it, so that it may hold anything that a result may.
    """

    answered = False

    def __init__(self, code: int, message: str, data: dict[str, Any] | None = None) -> None:
        super().__init__(code, message, data)
        self.code = code
        self.message = message
        self.data = data

    def __str__(self) -> str:
        return f"{self.message} ({self.code})"


def invalid_field(error: Exception) -> tuple[str, str]:
    """Say what a `msgspec.ValidationError` found, and where.

    Returns:
        What is wrong, without the place; and the dotted path of the field, empty for the value as a whole. A field
        that is missing, or is not known, is itself the place.
    """
    what, _, path = str(error).partition(" - at `$")
    field = path.rstrip("`").removeprefix(".")
    if what.startswith(("Object missing required field `", "Object contains unknown field `")):
        name = what.split("`")[1]
        field = f"{field}.{name}" if field else name
    return what, field
