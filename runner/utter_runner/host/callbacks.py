"""The one door for what plugins send: requests to whoever serves them, announcements to whoever listens.

Rules here: a plugin is known by the instance that it is, never by what it says; a method that this runner does not
offer is -32601 and names itself. What a plugin asks before it is admitted waits until it is, and ends with its wire.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from utter_protocol.errors import ErrorCode, RpcError
from utter_protocol.host import MAX_HOST_CALLS
from utter_runner.config.log_fields import about
from utter_runner.rpc.interface import internal_error

if TYPE_CHECKING:
    from collections.abc import Callable

    from msgspec import Raw

    from utter_protocol.messages import RequestId, StreamItem
    from utter_runner.rpc.peer import Peer
    from utter_runner.supervision.instance import Instance

    Listener: TypeAlias = Callable[[Instance, Raw], None]
    RequestHandler: TypeAlias = Callable[[Instance, Peer, RequestId, Raw], None]

logger = logging.getLogger(__name__)


class HostCallbacks:
    """Dispatches what plugins send."""

    def __init__(self) -> None:
        self._listeners: dict[str, Listener] = {}
        self._requests: dict[str, RequestHandler] = {}
        self._at_any_time: set[str] = set()
        # Requests that came before the admission, by peer: a peer lives one epoch, so nothing old is left over.
        self._early: dict[Peer, dict[RequestId, tuple[RequestHandler, Raw]]] = {}
        self._listen_else: Callable[[Instance, str, Raw], None] = _nobody_listens
        self.on_item: Callable[[Instance, str, StreamItem], None] = _nobody_subscribed
        """Takes the items of plugins' streams."""

    def listen(self, method: str, listener: Listener) -> None:
        """Call `listener(instance, params)` for each notification `method` of a plugin."""
        self._listeners[method] = listener

    def listen_else(self, listener: Callable[[Instance, str, Raw], None]) -> None:
        """Call `listener(instance, method, params)` for each notification that nobody listens for by its method."""
        self._listen_else = listener

    def serve(self, method: str, handler: RequestHandler, *, before_admission: bool = False) -> None:
        """Call `handler(instance, peer, request_id, params)` for each request `method` of an admitted plugin.

        Args:
            method: the method's name.
            handler: answers through `peer`, now or later, or raises RpcError.
            before_admission: do not wait for it: the handler takes a descriptor, which cannot wait.
        """
        self._requests[method] = handler
        if before_admission:
            self._at_any_time.add(method)

    def on_request(self, instance: Instance, peer: Peer, request_id: RequestId, method: str, params: Raw) -> None:
        """Answer a plugin's request. Raises RpcError."""
        handler = self._requests.get(method)
        if handler is None:
            raise RpcError(
                ErrorCode.METHOD_NOT_FOUND,
                f"the runner offers plugins no method {method!r}",
                {"method": method, "plugin": instance.id},
            )
        if peer.serving > MAX_HOST_CALLS:
            raise RpcError(
                ErrorCode.INVALID_REQUEST,
                f"{instance.id} may have {MAX_HOST_CALLS} requests in flight",
                {"bound": "max_host_calls", "limit": MAX_HOST_CALLS},
            )
        if instance.running or method in self._at_any_time:
            handler(instance, peer, request_id, params)
        else:
            self._early.setdefault(peer, {})[request_id] = (handler, params)
            peer.on_cancel(request_id, partial(self._withdraw, peer, request_id))

    def admitted(self, instance: Instance) -> None:
        """A plugin may be answered from now on: answer what it has asked already."""
        peer = instance.peer
        if peer is None:
            return
        for request_id, (handler, params) in self._early.pop(peer, {}).items():
            if peer.closed:
                # One of them has ended it; the others are nobody's wish any more.
                return
            # The callback of whoever serves it takes the place of the one that withdraws it.
            try:
                handler(instance, peer, request_id, params)
            except RpcError as refused:
                peer.reply_error(request_id, refused)
            except Exception as failed:
                logger.exception("a request of %s failed", instance.id, extra=about(instance))
                peer.reply_error(request_id, internal_error(failed))

    def _withdraw(self, peer: Peer, request_id: RequestId) -> None:
        """An early request was cancelled, or its wire is closed."""
        waiting = self._early.get(peer, {})
        if waiting.pop(request_id, None) is not None:
            peer.reply_error(request_id, RpcError(ErrorCode.CANCELLED, "the request was cancelled"))
        if not waiting:
            self._early.pop(peer, None)

    def on_notification(self, instance: Instance, method: str, params: Raw) -> None:
        """Tell whoever listens; an announcement that nobody knows is ignored (PROTOCOL.md, "Messages")."""
        listener = self._listeners.get(method)
        if listener is None:
            self._listen_else(instance, method, params)
        else:
            listener(instance, params)


def _nobody_subscribed(instance: Instance, method: str, _item: StreamItem) -> None:
    _nobody_listens(instance, method, None)


def _nobody_listens(instance: Instance, method: str, _params: Raw | None) -> None:
    logger.debug("%s announced %s, which nobody listens to", instance.id, method, extra=about(instance))
