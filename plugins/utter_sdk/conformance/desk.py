"""Answers what the plugin under test asks of the runner, so that its own answers do not fail for want of one.

Rules here: nothing is carried out and nobody is asked; a blob lives as long as its connection.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from typing import TYPE_CHECKING, Any

from utter_protocol.errors import ErrorCode, RpcError

if TYPE_CHECKING:
    from collections.abc import Callable

_INLINE = 64 * 1024
_MAX_BLOB = 64 * 1024 * 1024


class Desk:
    """The runner's side of a plugin's requests, for one connection."""

    def __init__(self) -> None:
        self._blobs: dict[str, bytes] = {}
        self._methods: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
            "handle.create": self._create,
            "handle.fetch": self._fetch,
            "handle.stat": lambda params: self._described(self._find(params)),
            "host.context": lambda _: {"meta": {}},
            "host.confirm": lambda _: {"approved": False},
            "host.emit": lambda _: {},
            "stream.ack": lambda _: {},
            "stream.stop": lambda _: {},
        }

    def answer(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """The result of a plugin's request.

        Raises:
            RpcError: the request is refused.
        """
        if method == "host.action":
            raise RpcError(
                ErrorCode.NOT_PERMITTED, "nothing is carried out in a conformance run", {"rule": "op-disabled"}
            )
        if method in ("host.invoke", "host.perceive"):
            raise RpcError(ErrorCode.CAPABILITY_MISSING, "no other plugin takes part in a conformance run")
        function = self._methods.get(method)
        if function is None:
            raise RpcError(ErrorCode.METHOD_NOT_FOUND, f"there is no method {method!r}", {"method": method})
        return function(params)

    def knows(self, handle: str) -> bool:
        """Whether the plugin has made this handle."""
        return handle in self._blobs

    def _create(self, params: dict[str, Any]) -> dict[str, Any]:
        size = params.get("size", 0)
        if isinstance(params.get("data_b64"), str):
            try:
                blob = base64.b64decode(params["data_b64"], validate=True)
            except binascii.Error:
                raise RpcError(ErrorCode.INVALID_PARAMS, "data_b64 is no base64", {"field": "data_b64"}) from None
        elif isinstance(params.get("data"), str):
            blob = params["data"].encode("utf-8", "replace")
        elif isinstance(size, int) and 0 <= size <= _MAX_BLOB:
            blob = bytes(size)
        else:
            raise RpcError(ErrorCode.INVALID_PARAMS, "neither data_b64, data nor a size", {"field": "data_b64"})
        handle = f"handle://{hashlib.sha256(blob).hexdigest()}"
        self._blobs[handle] = blob
        return self._described(handle)

    def _fetch(self, params: dict[str, Any]) -> dict[str, Any]:
        handle = self._find(params)
        blob = self._blobs[handle]
        if len(blob) > _INLINE:
            raise RpcError(ErrorCode.TOO_LARGE_INLINE, "too large", {"bound": "max_inline", "limit": _INLINE})
        return {**self._described(handle), "data_b64": base64.b64encode(blob).decode()}

    def _find(self, params: dict[str, Any]) -> str:
        handle = str(params.get("handle"))
        if handle not in self._blobs:
            raise RpcError(ErrorCode.INVALID_PARAMS, "there is no such handle", {"field": "handle"})
        return handle

    def _described(self, handle: str) -> dict[str, Any]:
        return {"handle": handle, "sha256": handle.removeprefix("handle://"), "size": len(self._blobs[handle])}
