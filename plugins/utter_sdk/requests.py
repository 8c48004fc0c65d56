"""Requests that are being worked on: which ones, which are cancelled, and that each is answered once.

Rules here: `Requests` alone adds, cancels and finishes, under its lock, and calls nobody meanwhile; an inline handler's
request never enters the table, because nobody can cancel it; an open stream's handler works in a scope, which is a
request without an id.
"""

from __future__ import annotations

import threading
from contextvars import ContextVar
from typing import TYPE_CHECKING

from utter_protocol.errors import ErrorCode, RpcError

if TYPE_CHECKING:
    from collections.abc import Callable

    from utter_protocol.messages import RequestId
    from utter_sdk.connection import Connection

MAX_IN_FLIGHT = 1024


class Request:
    """One request on a lane or on the asyncio loop.

    Attributes:
        id: the runner's id of it; None for the scope of an open stream.
        connection: the connection that it came on.
        callbacks: what the plugin wants to be called when it is cancelled.
        waits: what the SDK itself does then, by the thing that waits: it ends host calls and wakes whoever waits.
    """

    __slots__ = ("callbacks", "cancelled", "connection", "finished", "id", "started", "waits")

    def __init__(self, request_id: RequestId | None, connection: Connection | None = None) -> None:
        self.id = request_id
        self.connection = connection
        self.cancelled = False
        self.started = False
        self.finished = False
        self.callbacks: list[Callable[[], object]] = []
        self.waits: dict[object, Callable[[], object]] = {}


current: ContextVar[Request | None] = ContextVar("utter_sdk_request", default=None)


class Requests:
    """The table of one connection."""

    def __init__(self, connection: Connection | None = None) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self._table: dict[RequestId, Request] = {}
        self._scopes: set[Request] = set()

    def refuse_duplicate(self, request_id: RequestId) -> None:
        """Check that an id is free.

        Raises:
            RpcError: -32600, a request with this id is not answered yet.
        """
        if request_id in self._table:
            raise RpcError(
                ErrorCode.INVALID_REQUEST,
                f"id {request_id!r} belongs to a request that is not answered yet",
                {"field": "id"},
            )

    def add(self, request_id: RequestId) -> Request:
        """Enter a request whose id is free; only the reading thread does.

        Raises:
            RpcError: -32000, `max_in_flight` is reached.
        """
        with self._lock:
            if len(self._table) >= MAX_IN_FLIGHT:
                raise RpcError(
                    ErrorCode.PLUGIN_FAILED,
                    f"max_in_flight ({MAX_IN_FLIGHT} requests) is reached",
                    {"bound": "max_in_flight"},
                )
            request = self._table[request_id] = Request(request_id, self._connection)
            return request

    def start(self, request: Request) -> bool:
        """Return whether the handler should run: it was not cancelled while it waited."""
        with self._lock:
            request.started = not request.cancelled
            return request.started

    def finish(self, request: Request) -> None:
        """Take out a request that started; its handler's answer is the one."""
        with self._lock:
            request.finished = True
            request.waits.clear()
            if request.id is None:
                self._scopes.discard(request)
            else:
                del self._table[request.id]

    def open_scope(self) -> Request:
        """Return a scope that has started; `finish` ends it."""
        with self._lock:
            scope = Request(None, self._connection)
            scope.started = True
            self._scopes.add(scope)
            return scope

    def on_cancel(self, request: Request, callback: Callable[[], object]) -> None:
        """Call `callback` when the request is cancelled; at once if it is already."""
        with self._lock:
            if not request.cancelled:
                request.callbacks.append(callback)
                return
        callback()

    def attach(self, request: Request, waiting: object, wake: Callable[[], object]) -> bool:
        """Have `wake` called when the request is cancelled, until `detach`.

        Returns:
            False if it is cancelled already; `wake` will not be called then.
        """
        with self._lock:
            if request.cancelled:
                return False
            if not request.finished:
                request.waits[waiting] = wake
            return True

    def detach(self, request: Request, waiting: object) -> None:
        """Undo `attach`; may be called again."""
        with self._lock:
            request.waits.pop(waiting, None)

    def cancel(self, request_id: RequestId) -> tuple[bool, list[Callable[[], object]]]:
        """Mark a request; unknown ids and repetitions are nothing.

        Returns:
            Whether it had not started and is out now, so that the caller answers it; and the callbacks to call.
        """
        with self._lock:
            request = self._table.get(request_id)
            if request is None or request.cancelled:
                return False, []
            if not request.started:
                request.cancelled = True
                del self._table[request_id]
                return True, []
            return False, _mark(request)

    def cancel_scope(self, scope: Request) -> list[Callable[[], object]]:
        """Mark a scope; return the callbacks to call."""
        with self._lock:
            return [] if scope.cancelled else _mark(scope)

    def cancel_all(self, *, waits: bool) -> list[Callable[[], object]]:
        """Mark all; return the callbacks to call.

        Args:
            waits: whether what the SDK does is among them. At the end of the process it is not: nobody will go on
                waiting, and nothing more may be written to a runner that may not read.
        """
        with self._lock:
            found: list[Callable[[], object]] = []
            for request in (*self._table.values(), *self._scopes):
                if not waits:
                    request.waits.clear()
                found += _mark(request)
            return found


def _mark(request: Request) -> list[Callable[[], object]]:
    request.cancelled = True
    # The plugin's own first: an `async def` handler is cancelled before what it waits for is.
    callbacks = [*request.callbacks, *request.waits.values()]
    request.callbacks = []
    request.waits.clear()
    return callbacks
