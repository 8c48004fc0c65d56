"""Reading the params of a request that arrived, and passing an answer on.

Rules here: what is wrong with params is -32602 and names the field; answers pass through unparsed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from utter_protocol.errors import ErrorCode, RpcError, invalid_field
from utter_runner.rpc.interface import TIMEOUT_CAP

if TYPE_CHECKING:
    from collections.abc import Callable

    from msgspec import Raw

    from utter_protocol.messages import RequestId
    from utter_runner.rpc.peer import Peer

T = TypeVar("T")

_decoders: dict[Any, Callable[[Raw], Any]] = {}


def decode_params(raw: Raw, type_: type[T]) -> T:
    """Return params as their Struct.

    Raises:
        RpcError: -32602 with `data.field`, the field's path, empty for the params as a whole; -32700.
    """
    decode = _decoders.get(type_)
    if decode is None:
        decode = _decoders[type_] = msgspec.json.Decoder(type_).decode
    try:
        value: T = decode(raw)
    except msgspec.ValidationError as error:
        raise invalid_params(error) from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise RpcError(ErrorCode.PARSE_ERROR, f"params are not JSON that can be read: {error}") from None
    return value


def invalid_params(error: msgspec.ValidationError) -> RpcError:
    """Return a decoding error as -32602; `data.field` is the field's path, empty for the params as a whole."""
    _, field = invalid_field(error)
    return RpcError(ErrorCode.INVALID_PARAMS, f"invalid params: {error}", {"field": field})


def require_structured(params: Raw) -> None:
    """Check that params which are passed on are an object or an array.

    Raises:
        RpcError: -32602.
    """
    if bytes(memoryview(params)[:1]) not in (b"{", b"["):
        raise RpcError(
            ErrorCode.INVALID_PARAMS, "params must be an object or an array, as in JSON-RPC", {"field": "params"}
        )


def seconds_of(timeout_ms: int | None, default: float) -> float:
    """Return `timeout_ms` in seconds, at most the cap of 60; `default` where there is none.

    Raises:
        RpcError: -32602, it is not greater than 0.
    """
    if timeout_ms is None:
        return default
    if timeout_ms <= 0:
        raise RpcError(
            ErrorCode.INVALID_PARAMS,
            "timeout_ms must be greater than 0",
            {"field": "timeout_ms", "value": timeout_ms},
        )
    return min(timeout_ms / 1000, TIMEOUT_CAP)


def relay(peer: Peer, request_id: RequestId, result: Raw | None, error: RpcError | None) -> None:
    """Answer a request with what another one was answered with (an `OnReply`, once the first two are bound)."""
    if error is not None:
        peer.reply_error(request_id, error)
    else:
        peer.reply(request_id, result if result is not None else b"null")
