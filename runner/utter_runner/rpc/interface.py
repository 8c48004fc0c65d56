"""What a peer is given and what it gives back: its bounds, who answers what arrives, how an answer is handed over.

Rules here: nothing here has state or does I/O, so that rooms above can name these types without the peer; errors that
more than one part of a connection makes are made here, once.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Protocol, TypeAlias

import msgspec

from utter_protocol.errors import ErrorCode, RpcError
from utter_protocol.framing import MAX_FRAME, MAX_HEADER, MAX_JUNK
from utter_protocol.messages import RequestId, error_body

if TYPE_CHECKING:
    from collections.abc import Callable

    from msgspec import Raw

    from utter_runner.rpc.peer import Peer

logger = logging.getLogger(__name__)

TIMEOUT_CAP = 60.0
_SHORT_MESSAGE = 200

# Called with the result, or with None and the error.
OnReply: TypeAlias = "Callable[[Raw | None, RpcError | None], None]"


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds of one peer, in bytes and counts (PROTOCOL.md, "Bounds")."""

    max_frame: int = MAX_FRAME
    max_header: int = MAX_HEADER
    max_junk: int = MAX_JUNK
    max_in_flight: int = 1024
    max_queued_bytes: int = 32 * 1024 * 1024


class Handler(Protocol):
    """Who answers what arrives at a peer. Everything here is called in a reactor turn and must not block."""

    def on_request(self, peer: Peer, request_id: RequestId, method: str, params: Raw) -> None:
        """Answer with `peer.reply*` now or later, or raise `RpcError`."""

    def on_notification(self, peer: Peer, method: str, params: Raw) -> None:
        """Take note. Errors have nowhere to go: they are logged."""

    def on_junk(self, peer: Peer, junk: bytes) -> None:
        """Bytes stood before a frame that belong to none."""

    def on_closed(self, peer: Peer, reason: str) -> None:
        """The peer is gone; it is called exactly once, after every callback of requests in flight."""


def guarded(callback: Callable[..., object], *args: object) -> None:
    """Call somebody's callback; what it raises is logged."""
    try:
        callback(*args)
    except Exception:
        logger.exception("a callback failed")


def internal_error(error: Exception) -> RpcError:
    """Return -32603 for a defect of this end, without what the exception says of its insides."""
    return RpcError(ErrorCode.INTERNAL_ERROR, f"internal error: {type(error).__name__}")


def bound_error(name: str, bound: str, limit: int) -> RpcError:
    """Return -32600 for a bound of the connection to `name` that is reached."""
    return RpcError(
        ErrorCode.INVALID_REQUEST,
        f"{name}: the bound {bound} ({limit}) is reached",
        {"bound": bound, "limit": limit},
    )


def error_answer(name: str, request_id: RequestId | None, error: RpcError, max_frame: int) -> bytes:
    """Return the body of an error answer to `name`; one longer than `max_frame` is shortened and names the bound."""
    try:
        body = error_body(request_id, error)
    except Exception as why:
        logger.exception("an error for %s is no JSON", name)
        body = error_body(request_id, internal_error(why))
    if len(body) > max_frame:
        short = RpcError(error.code, error.message[:_SHORT_MESSAGE], {"bound": "max_frame", "limit": max_frame})
        body = error_body(request_id, short)
    return body
