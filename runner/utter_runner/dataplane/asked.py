"""A request for something that does not travel as JSON: who asks, and what params say of content.

Rules here: nothing is read or written; what is wrong with params is -32602 and names the field.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, NamedTuple, Protocol

from msgspec import UNSET, Raw, Struct, UnsetType

from utter_protocol.errors import ErrorCode, RpcError
from utter_runner.dataplane.blobfiles import Bytes, Zeros
from utter_runner.dataplane.handles import PAGE
from utter_runner.policy.marks import lowest

if TYPE_CHECKING:
    from collections.abc import Callable

    from utter_protocol.host import RequestRef
    from utter_protocol.messages import RequestId
    from utter_protocol.methods import Provenance
    from utter_runner.dataplane.books import Scope
    from utter_runner.policy.marks import Mark
    from utter_runner.rpc.peer import Peer

HANDLE = "handle"
"""The source of what was read out of a blob."""
SHORT = PAGE * 3 // 2
"""Params of so many bytes are decoded without a thread; a page in base64 fits."""


class Purpose(Protocol):
    """What a request is for."""

    @property
    def mark(self) -> Mark:
        """What is to be remembered of content that is made or given away for it."""

    def receive(self, mark: Mark, source: str) -> None:
        """Take note that content with this mark, from `source`, was handed out for it."""


class Stated:
    """A client's purpose: the runner knows nothing of it but what the client says."""

    mark: Mark = "user"

    def receive(self, mark: Mark, source: str) -> None:
        """Nothing: whatever a client does with it, it says what trust that has."""


_STATED = Stated()


class Caller(NamedTuple):
    """Who asks.

    Attributes:
        scope: what it holds.
        may_hear: whether it may have the microphone's audio.
        purpose: returns what a request is for, by the `request` in its params; raises RpcError.
        unstated: the grade of content of which the caller does not say any.
    """

    scope: Scope
    may_hear: bool
    purpose: Callable[[RequestRef], Purpose] = lambda _request: _STATED
    unstated: Provenance = "screen"

    def mark_of(self, request: RequestRef, stated: Provenance | None) -> Mark:
        """Return the mark of content that is made for `request` and stated to be `stated`. Raises RpcError."""
        return lowest(self.purpose(request).mark, self.unstated if stated is None else stated)


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
