"""The runner's answers to plugins: `host.*` requests and announcements.

Rules here: a plugin is known by the instance that it is, never by what it says; a method that this runner does not
offer is -32601 and names itself. Announcements go to whoever registered for their method.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from utter_protocol.errors import ErrorCode, RpcError

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeAlias

    from msgspec import Raw

    from utter_protocol.messages import RequestId
    from utter_runner.rpc.peer import Peer
    from utter_runner.supervision.instance import Instance

    # Answers one request of a plugin through its peer, now or later, or raises RpcError.
    RequestHandler: TypeAlias = Callable[[Instance, Peer, RequestId, Raw], None]

logger = logging.getLogger(__name__)


class HostCallbacks:
    """Dispatches what plugins send."""

    def __init__(self) -> None:
        self._listeners: dict[str, Callable[[Instance, Raw], None]] = {}
        self._requests: dict[str, RequestHandler] = {}

    def listen(self, method: str, listener: Callable[[Instance, Raw], None]) -> None:
        """Call `listener(instance, params)` for each notification `method` of a plugin."""
        self._listeners[method] = listener

    def serve(self, method: str, handler: RequestHandler) -> None:
        """Answer each request `method` of a plugin with `handler(instance, peer, request_id, params)`."""
        self._requests[method] = handler

    def on_request(self, instance: Instance, peer: Peer, request_id: RequestId, method: str, params: Raw) -> None:
        """Answer a request of a plugin, or say that there is no such method. Raises RpcError."""
        handler = self._requests.get(method)
        if handler is None:
            raise RpcError(
                ErrorCode.METHOD_NOT_FOUND,
                f"the runner offers plugins no method {method!r}",
                {"method": method, "plugin": instance.id},
            )
        handler(instance, peer, request_id, params)

    def on_notification(self, instance: Instance, method: str, params: Raw) -> None:
        """Tell whoever listens; an announcement that nobody knows is ignored (PROTOCOL.md, "Messages")."""
        listener = self._listeners.get(method)
        if listener is None:
            logger.debug("%s announced %s, which nobody listens to", instance.id, method)
        else:
            listener(instance, params)
