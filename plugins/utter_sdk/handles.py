"""A client's handles: large data by its content, however large (PROTOCOL.md, "Handles").

Rules here: what is too large to travel in a message travels as a descriptor; the caller does not notice.
"""

from __future__ import annotations

import base64
import fcntl
import os
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

import msgspec

from utter_protocol.blobs import MAX_INLINE, HandleData, HandleInfo
from utter_protocol.errors import ErrorCode, RpcError

if TYPE_CHECKING:
    from utter_sdk.client import Client

T = TypeVar("T")

_SEALS = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW


class Handles:
    """The handles of one connection, as `client.handles`.

    Every method takes `timeout`, in seconds, and `scope`, the name of a part of the connection's own handles. It raises
    as `Client.call`; RpcError -32602 for a handle that this connection does not have.

    Args:
        client: the connection.
    """

    def __init__(self, client: Client) -> None:
        self._client = client

    def create(self, data: bytes | str, *, scope: str = "", timeout: float = 30.0) -> HandleInfo:
        """Store bytes, or a text as UTF-8."""
        content = data.encode() if isinstance(data, str) else data
        if len(content) <= MAX_INLINE:
            params = {"data_b64": base64.b64encode(content).decode(), "scope": scope}
            return _as(self._client.call("handle.create", params, timeout), HandleInfo)
        fd = sealed_memfd(content)
        try:
            return self.create_from(fd, scope=scope, timeout=timeout)
        finally:
            os.close(fd)

    def create_from(self, fd: int, *, scope: str = "", timeout: float = 30.0) -> HandleInfo:
        """Store what is in a memfd that is sealed against writing, shrinking and growing; it stays the caller's."""
        answer = self._client.call("handle.create", {"fd": True, "scope": scope}, timeout, fds=[fd])
        return _as(answer, HandleInfo)

    def stat(self, handle: str, *, scope: str = "", timeout: float = 30.0) -> HandleInfo:
        """Return what a handle stands for."""
        return _as(self._client.call("handle.stat", {"handle": handle, "scope": scope}, timeout), HandleInfo)

    def read(self, handle: str, *, scope: str = "", timeout: float = 30.0) -> bytes:
        """Return the content."""
        params = {"handle": handle, "scope": scope}
        try:
            return base64.b64decode(_as(self._client.call("handle.fetch", params, timeout), HandleData).data_b64)
        except RpcError as error:
            if error.code != ErrorCode.TOO_LARGE_INLINE:
                raise
        with self.open(handle, scope=scope, timeout=timeout) as file:
            return file.read()

    def open(self, handle: str, *, scope: str = "", timeout: float = 30.0) -> BinaryIO:
        """Return the content as a file to be read, and closed."""
        passed = self._client.fd_pass("handle", {"handle": handle, "scope": scope}, timeout=timeout)
        return os.fdopen(passed.detach(), "rb")

    def retain(self, handle: str, *, scope: str = "", timeout: float = 30.0) -> None:
        """Hold it once more."""
        self._client.call("handle.retain", {"handle": handle, "scope": scope}, timeout)

    def release(self, handle: str, *, scope: str = "", timeout: float = 30.0) -> None:
        """Hold it once less; the last time lets it go."""
        self._client.call("handle.release", {"handle": handle, "scope": scope}, timeout)

    def grant(self, handle: str, plugin: str, *, timeout: float = 30.0) -> None:
        """Let a plugin have it, too."""
        self._client.call("handle.grant", {"handle": handle, "scope": plugin}, timeout)


def sealed_memfd(data: bytes) -> int:
    """Return a memfd with this content that nobody can change, the caller's to close. Raises OSError."""
    fd = os.memfd_create("utter-data", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(fd, rest) :]
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _as(answer: Any, type_: type[T]) -> T:
    try:
        return msgspec.convert(answer, type_)
    except msgspec.ValidationError as error:
        raise RpcError(ErrorCode.INTERNAL_ERROR, f"a malformed answer: {error}") from None
