"""The handles of a client or a plugin: large data by its content, however large (PROTOCOL.md, "Handles").

Rules here: what is too large to travel in a message travels as a descriptor; the caller does not notice.
"""

from __future__ import annotations

import base64
import fcntl
import os
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol, TypeVar

import msgspec

from utter_protocol.blobs import MAX_INLINE, HandleData, HandleInfo
from utter_protocol.errors import ErrorCode, RpcError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from utter_protocol.methods import Provenance
    from utter_sdk.host import Host
    from utter_sdk.received import Received

T = TypeVar("T")

_SEALS = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW


class Asker(Protocol):
    """Who asks the runner and waits: a `Client`, or a plugin's `PluginAsker`."""

    def call(self, method: str, params: Any = None, timeout: float | None = 30.0, *, fds: Sequence[int] = ()) -> Any:
        """Send a request, with descriptors that stay the caller's, and return its result."""

    def fd_pass(self, kind: str, meta: dict[str, Any] | None = None, *, timeout: float | None = 30.0) -> Received:
        """Ask for a descriptor."""


class PluginAsker:
    """A plugin's way to ask and wait, for handlers that may wait.

    Args:
        host: the plugin's `host`.
    """

    def __init__(self, host: Host) -> None:
        self._host = host

    def call(self, method: str, params: Any = None, timeout: float | None = 30.0, *, fds: Sequence[int] = ()) -> Any:
        """Send a request and wait for its result. Raises as `HostCall.result`; RpcError -32003 where no fds travel."""
        try:
            call = self._host.call(method, params, fds=fds)
        except ValueError as error:
            if not fds:
                raise
            # The same as the runner says of a descriptor that it would have to send.
            data = {"method": method, "transport": "stdio"}
            raise RpcError(ErrorCode.NOT_PERMITTED, f"{method}: {error}", data) from None
        try:
            return call.result(timeout)
        except TimeoutError:
            call.cancel()
            raise

    def fd_pass(self, kind: str, meta: dict[str, Any] | None = None, *, timeout: float | None = 30.0) -> Received:
        """Ask for a descriptor and wait for it. Raises as `HostCall.result`."""
        call = self._host.fd_pass(kind, meta)
        try:
            return call.result(timeout)
        except TimeoutError:
            call.cancel()
            raise


class Handles:
    """The handles of a client, as `client.handles`, or of a plugin, as `plugin.handles`.

    Every method takes `timeout`, in seconds, and `scope`, the name of a part of the caller's own handles. It raises
    as `Client.call` or `HostCall.result`; RpcError -32602 for a handle that the caller does not have. More than 64 KiB
    need a descriptor, which a plugin over stdio cannot be given: RpcError -32003.

    Args:
        asker: asks the runner.
    """

    def __init__(self, asker: Asker) -> None:
        self._asker = asker

    def create(
        self,
        data: bytes | bytearray | memoryview | str,
        *,
        scope: str = "",
        provenance: Provenance | None = None,
        timeout: float = 30.0,
    ) -> HandleInfo:
        """Store bytes, or a text as UTF-8. Anything in contiguous memory is taken, and copied once.

        `provenance` says where it comes from. Without it, what a plugin stores has that of the request that it works
        on, and what a client stores is the screen's.
        """
        content = memoryview(data.encode() if isinstance(data, str) else data).cast("B")
        if len(content) <= MAX_INLINE:
            params = _stated({"data_b64": base64.b64encode(content).decode(), "scope": scope}, provenance)
            return _as(self._asker.call("handle.create", params, timeout), HandleInfo)
        fd = sealed_memfd(content)
        try:
            return self.create_from(fd, scope=scope, provenance=provenance, timeout=timeout)
        finally:
            os.close(fd)

    def create_from(
        self, fd: int, *, scope: str = "", provenance: Provenance | None = None, timeout: float = 30.0
    ) -> HandleInfo:
        """Store what is in a memfd that is sealed against writing, shrinking and growing; it stays the caller's."""
        params = _stated({"fd": True, "scope": scope}, provenance)
        answer = self._asker.call("handle.create", params, timeout, fds=[fd])
        return _as(answer, HandleInfo)

    def stat(self, handle: str, *, scope: str = "", timeout: float = 30.0) -> HandleInfo:
        """Return what a handle stands for."""
        return _as(self._asker.call("handle.stat", {"handle": handle, "scope": scope}, timeout), HandleInfo)

    def read(self, handle: str, *, scope: str = "", timeout: float = 30.0) -> bytes:
        """Return the content."""
        params = {"handle": handle, "scope": scope}
        try:
            return base64.b64decode(_as(self._asker.call("handle.fetch", params, timeout), HandleData).data_b64)
        except RpcError as error:
            if error.code != ErrorCode.TOO_LARGE_INLINE:
                raise
        with self.open(handle, scope=scope, timeout=timeout) as file:
            return file.read()

    def open(self, handle: str, *, scope: str = "", timeout: float = 30.0) -> BinaryIO:
        """Return the content as a file to be read, and closed."""
        passed = self._asker.fd_pass("handle", {"handle": handle, "scope": scope}, timeout=timeout)
        return os.fdopen(passed.detach(), "rb")

    def retain(self, handle: str, *, scope: str = "", timeout: float = 30.0) -> None:
        """Hold it once more."""
        self._asker.call("handle.retain", {"handle": handle, "scope": scope}, timeout)

    def release(self, handle: str, *, scope: str = "", timeout: float = 30.0) -> None:
        """Hold it once less; the last time lets it go."""
        self._asker.call("handle.release", {"handle": handle, "scope": scope}, timeout)

    def grant(self, handle: str, plugin: str, *, timeout: float = 30.0) -> None:
        """Let a plugin have it, too."""
        self._asker.call("handle.grant", {"handle": handle, "scope": plugin}, timeout)


def sealed_memfd(data: bytes | memoryview) -> int:
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


def _stated(params: dict[str, Any], provenance: Provenance | None) -> dict[str, Any]:
    if provenance is not None:
        params["provenance"] = provenance
    return params


def _as(answer: Any, type_: type[T]) -> T:
    try:
        return msgspec.convert(answer, type_)
    except msgspec.ValidationError as error:
        raise RpcError(ErrorCode.INTERNAL_ERROR, f"a malformed answer: {error}") from None
