"""Requests that are being worked on: which ones, which are cancelled, and that each is answered once.

Rules here: `Requests` alone adds, cancels and finishes, under its lock, and calls nobody meanwhile; an inline handler's
request never enters the table, because nobody can cancel it.
"""

from __future__ import annotations

import threading
from contextvars import ContextVar
from typing import TYPE_CHECKING

from utter_protocol.errors import ErrorCode, RpcError

if TYPE_CHECKING:
    from collections.abc import Callable

    from utter_protocol.messages import RequestId

MAX_IN_FLIGHT = 1024


class Request:
    """One request on a lane or on the asyncio loop."""

    __slots__ = ("callbacks", "cancelled", "id", "started")

    def __init__(self, request_id: RequestId) -> None:
        self.id = request_id
        self.cancelled = False
        self.started = False
        self.callbacks: list[Callable[[], object]] = []


current: ContextVar[Request | None] = ContextVar("utter_sdk_request", default=None)


class Requests:
    """The table of one server."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._table: dict[RequestId, Request] = {}

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
            request = self._table[request_id] = Request(request_id)
            return request

    def start(self, request: Request) -> bool:
        """Return whether the handler should run: it was not cancelled while it waited."""
        with self._lock:
            request.started = not request.cancelled
            return request.started

    def finish(self, request: Request) -> None:
        """Take out a request that started; its handler's answer is the one."""
        with self._lock:
            del self._table[request.id]

    def on_cancel(self, request: Request, callback: Callable[[], object]) -> None:
        """Call `callback` when the request is cancelled; at once if it is already."""
        with self._lock:
            if not request.cancelled:
                request.callbacks.append(callback)
                return
        callback()

    def cancel(self, request_id: RequestId) -> tuple[bool, list[Callable[[], object]]]:
        """Mark a request; unknown ids and repetitions are nothing.

        Returns:
            Whether it had not started and is out now, so that the caller answers it; and the callbacks to call.
        """
        with self._lock:
            request = self._table.get(request_id)
            if request is None or request.cancelled:
                return False, []
            request.cancelled = True
            if not request.started:
                del self._table[request_id]
                return True, []
            callbacks, request.callbacks = request.callbacks, []
            return False, callbacks

    def cancel_all(self) -> list[Callable[[], object]]:
        """Mark all; return the callbacks to call."""
        with self._lock:
            found: list[Callable[[], object]] = []
            for request in self._table.values():
                request.cancelled = True
                found += request.callbacks
                request.callbacks = []
            return found
