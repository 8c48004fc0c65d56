"""`plugin.host`: what a plugin may ask of the runner (PROTOCOL.md, "Host callbacks").

Rules here: nothing but names and types; every request that belongs to a `host.` method names the request that is being
worked on, so that its trust, depth, deadline and cancellation hold for both.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, TypeVar, overload

import msgspec

from utter_protocol.methods import ActionResult, ConfirmResult
from utter_sdk.received import Received
from utter_sdk.requests import current

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from utter_protocol.methods import Provenance
    from utter_sdk.calls import HostCall
    from utter_sdk.connection import Connection
    from utter_sdk.requests import Request

T = TypeVar("T")


class _Emitted(msgspec.Struct):
    subscribers: int = 0


_decode_any = msgspec.json.Decoder().decode
_decode_object = msgspec.json.Decoder(dict[str, Any]).decode
_decode_action = msgspec.json.Decoder(ActionResult).decode
_decode_confirm = msgspec.json.Decoder(ConfirmResult).decode


_decode_emit = msgspec.json.Decoder(_Emitted).decode


def _decode_received(raw: msgspec.Raw) -> Received:
    return Received(_decode_object(raw), ())


def _decode_approved(raw: msgspec.Raw) -> bool:
    return _decode_confirm(raw).approved


def _decode_emitted(raw: msgspec.Raw) -> int:
    return _decode_emit(raw).subscribers


def working_on(find: Callable[[], Connection]) -> tuple[Connection, Request | None]:
    """Return the connection to ask on, and the request that the calling handler works on, if it does."""
    request = current.get()
    if request is None or request.finished or request.connection is None:
        return find(), None
    return request.connection, request


class Host:
    """The runner's callbacks. Each method sends its request at once and returns a `HostCall`.

    A call is awaited in an `async def` handler; on a worker thread `.result()` waits for it. Whoever needs no answer
    does neither. Cancelling the handler's request cancels its calls, which then raise `Cancelled` (in an `async def`
    handler, `asyncio.CancelledError` comes first). What the runner answers as an error is raised as `RpcError`.

    Every method raises `RuntimeError` before the runner has greeted the plugin, and `ValueError` if the request would
    exceed max_frame.
    """

    def __init__(self, connection: Callable[[str], Connection]) -> None:
        self._connection = connection

    @overload
    def invoke(
        self, capability: str, method: str, params: Any = None, *, timeout: float | None = None
    ) -> HostCall[Any]: ...
    @overload
    def invoke(
        self, capability: str, method: str, params: Any = None, *, result: type[T], timeout: float | None = None
    ) -> HostCall[T]: ...
    def invoke(
        self,
        capability: str,
        method: str,
        params: Any = None,
        *,
        result: Any = None,
        timeout: float | None = None,
    ) -> HostCall[Any]:
        """Ask whoever provides `capability`, which must be in this plugin's `requires`.

        Args:
            capability: `name@N`.
            method: the method to call.
            params: what msgspec encodes as a JSON object; None sends `{}`.
            result: a type to decode the result into, such as a `msgspec.Struct`; without it plain JSON values.
            timeout: seconds until the runner gives up (-32001); None leaves it to the runner.
        """
        asked = {"capability": capability, "method": method, "params": {} if params is None else params}
        return self._ask("host.invoke", asked, _decoder(result), timeout)

    def context(self, sources: Iterable[str] = ()) -> HostCall[dict[str, Any]]:
        """Ask for the state of the desktop; `sources` names fields, none means all."""
        return self._ask("host.context", {"sources": list(sources)}, _decode_object)

    @overload
    def perceive(self, what: str, params: Any = None, *, timeout: float | None = None) -> HostCall[Any]: ...
    @overload
    def perceive(
        self, what: str, params: Any = None, *, result: type[T], timeout: float | None = None
    ) -> HostCall[T]: ...
    def perceive(
        self, what: str, params: Any = None, *, result: Any = None, timeout: float | None = None
    ) -> HostCall[Any]:
        """Ask what is on the screen: `perception.<what>`, with its params; `result` and `timeout` as in `invoke`."""
        asked = {"what": what, "params": {} if params is None else params}
        return self._ask("host.perceive", asked, _decoder(result), timeout)

    def action(
        self,
        op: str,
        args: Mapping[str, Any] | None = None,
        *,
        provenance: Provenance = "screen",
        arg_provenance: Mapping[str, Provenance] | None = None,
        timeout: float | None = None,
    ) -> HostCall[ActionResult]:
        """Ask for an action, which the runner judges like a step of a plan.

        Args:
            op: the op.
            args: its arguments.
            provenance: where they come from; the runner takes it as at most that of the current request.
            arg_provenance: arguments with another provenance.
            timeout: as in `invoke`.
        """
        asked = {
            "op": op,
            "args": args or {},
            "provenance": provenance,
            "arg_provenance": arg_provenance or {},
        }
        return self._ask("host.action", asked, _decode_action, timeout)

    def confirm(self, text: str) -> HostCall[bool]:
        """Ask the user a question, at most 500 characters; whether they said yes. No answer is a no."""
        return self._ask("host.confirm", {"text": text}, _decode_approved)

    def emit(self, method: str, data: Any) -> HostCall[int]:
        """Give an item to everybody who subscribed to the stream `method`; how many they are.

        For plugins that list a stream without `@plugin.stream`.
        """
        return self._ask("host.emit", {"method": method, "data": data}, _decode_emitted)

    def fd_pass(self, kind: str, meta: Mapping[str, Any] | None = None) -> HostCall[Received]:
        """Ask for a descriptor, on the transports `connect` and `listen` (PROTOCOL.md, "fd.pass").

        Args:
            kind: "handle", "memfd" or "memfd.ring"; for the last see `utter_sdk.ring.RingReader`.
            meta: what belongs to it; with `wake` a ring comes with a second descriptor.
        """
        connection, request = self._where("fd.pass")
        given = meta or {}
        wanted = 2 if kind == "memfd.ring" and given.get("wake") else 1
        asked = _named({"kind": kind, "meta": given}, request)
        return connection.calls.start("fd.pass", asked, _decode_received, request=request, wanted_fds=wanted)

    @overload
    def call(self, method: str, params: Any = None, *, fds: Sequence[int] = ()) -> HostCall[Any]: ...
    @overload
    def call(self, method: str, params: Any = None, *, result: type[T], fds: Sequence[int] = ()) -> HostCall[T]: ...
    def call(self, method: str, params: Any = None, *, result: Any = None, fds: Sequence[int] = ()) -> HostCall[Any]:
        """Send any other request, such as `handle.create`.

        Args:
            method: its name.
            params: as in `invoke`.
            result: as in `invoke`.
            fds: descriptors that ride on it, on the transports `connect` and `listen`; they stay the caller's.
        """
        connection, request = self._where(method)
        given = {} if params is None else params
        if method.startswith("handle.") and isinstance(given, dict):
            given = _named({**given}, request)
        return connection.calls.start(method, given, _decoder(result), request=request, fds=fds)

    def _where(self, method: str) -> tuple[Connection, Request | None]:
        return working_on(lambda: self._connection(method))

    def _ask(
        self,
        method: str,
        params: dict[str, Any],
        decode: Callable[[msgspec.Raw], T],
        timeout: float | None = None,
    ) -> HostCall[T]:
        connection, request = self._where(method)
        if timeout is not None:
            params["timeout_ms"] = math.ceil(timeout * 1000)
        return connection.calls.start(method, _named(params, request), decode, request=request)


def _named(params: dict[str, Any], request: Request | None) -> dict[str, Any]:
    """Say in params which request of the runner they are for, if that is known."""
    if request is not None and request.id is not None:
        params["request"] = request.id
    return params


def _decoder(result: Any) -> Callable[[msgspec.Raw], Any]:
    return _decode_any if result is None else msgspec.json.Decoder(result).decode
