"""Requests that must wait before they can be answered: a task for each.

Rules here: a task answers its request exactly once; `$/cancel` and the end of the connection cancel it; no exception of
one reaches another.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import trio

from utter_protocol.errors import ErrorCode, RpcError
from utter_runner.rpc.interface import internal_error

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from utter_protocol.messages import RequestId
    from utter_runner.rpc.peer import Peer

logger = logging.getLogger(__name__)


class RequestTasks:
    """Holds the tasks; `run` must be running."""

    def __init__(self) -> None:
        self._nursery: trio.Nursery | None = None

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Hold the tasks until cancelled, which cancels them."""
        try:
            async with trio.open_nursery() as self._nursery:
                task_status.started()
                await trio.sleep_forever()
        finally:
            self._nursery = None

    def start(
        self, peer: Peer, request_id: RequestId, method: str, answer: Callable[[], Awaitable[object]]
    ) -> trio.CancelScope:
        """Answer a request with what `answer` returns or raises as RpcError; the scope cancels it.

        Raises:
            RpcError: -32003, the runner is stopping.
        """
        if self._nursery is None:
            raise RpcError(ErrorCode.NOT_PERMITTED, "the runner is stopping", {"method": method})
        scope = trio.CancelScope()
        peer.on_cancel(request_id, scope.cancel)
        self._nursery.start_soon(self._answer, scope, peer, request_id, method, answer)
        return scope

    @staticmethod
    async def _answer(
        scope: trio.CancelScope,
        peer: Peer,
        request_id: RequestId,
        method: str,
        answer: Callable[[], Awaitable[object]],
    ) -> None:
        error = RpcError(ErrorCode.CANCELLED, "the request was cancelled")
        with scope:
            try:
                peer.reply_object(request_id, await answer())
            except RpcError as caught:
                error = caught
            except Exception as caught:
                logger.exception("request %s of %s failed", method, peer.name, extra=peer.log_fields)
                error = internal_error(caught)
            else:
                return
        peer.reply_error(request_id, error)
