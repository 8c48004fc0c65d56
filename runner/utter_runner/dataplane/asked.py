"""A request for something that does not travel as JSON: who asks, and what params say of content.

Rules here: nothing is read or written; what is wrong with params is -32602 and names the field.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, NamedTuple

from msgspec import UNSET, Raw, Struct, UnsetType

from utter_protocol.errors import ErrorCode, RpcError
from utter_runner.dataplane.blobfiles import Bytes, Zeros
from utter_runner.dataplane.handles import PAGE

if TYPE_CHECKING:
    from utter_protocol.messages import RequestId
    from utter_runner.dataplane.books import Scope
    from utter_runner.rpc.peer import Peer

SHORT = PAGE * 3 // 2
"""Params of so many bytes are decoded without a thread; a page in base64 fits."""


class Caller(NamedTuple):
    """Who asks.

    Attributes:
        scope: what it holds.
        may_hear: whether it may have the microphone's audio.
    """

    scope: Scope
    may_hear: bool


class Asked(NamedTuple):
    """A request that is to be answered, through `peer`."""

    caller: Caller
    peer: Peer
    id: RequestId
    params: Raw


def check_one_of(params: Struct, *names: str) -> None:
    """Check that exactly one of the fields is given. Raises RpcError: -32602."""
    given = [name for name in names if getattr(params, name) is not UNSET and getattr(params, name) is not False]
    if len(given) != 1:
        raise RpcError(
            ErrorCode.INVALID_PARAMS,
            f"exactly one of {', '.join(names)} must be given" + (f", not {' and '.join(given)}" if given else ""),
            {"field": given[1] if given else names[0]},
        )


def content_of(size: int | UnsetType, data: str | UnsetType, data_b64: str | UnsetType) -> Bytes | Zeros:
    """Return what is given in one of three ways. Raises RpcError: -32602, it is not base64."""
    if isinstance(size, int):
        return Zeros(size)
    if isinstance(data, str):
        return Bytes(data.encode())
    try:
        return Bytes(base64.b64decode(data_b64 or "", validate=True))
    except ValueError as error:
        raise RpcError(ErrorCode.INVALID_PARAMS, f"data_b64 is not base64: {error}", {"field": "data_b64"}) from None
