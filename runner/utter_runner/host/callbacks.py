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

    from msgspec import Raw

    from utter_protocol.messages import RequestId
    from utter_runner.rpc.peer import Peer
    from utter_runner.supervision.instance import Instance

logger = logging.getLogger(__name__)


class HostCallbacks:
    """Dispatches what plugins send."""

    def __init__(self) -> None:
        self._listeners: dict[str, Callable[[Instance, Raw], None]] = {}

    def listen(self, method: str, listener: Callable[[Instance, Raw], None]) -> None:
        """Call `listener(instance, params)` for each notification `method` of a plugin."""
        self._listeners[method] = listener

    def on_request(
        self,
        instance: Instance,
        peer: Peer,  # noqa: ARG002 - the interface of supervision.instance.PluginRequests
        request_id: RequestId,  # noqa: ARG002 - likewise
        method: str,
        params: Raw,  # noqa: ARG002 - likewise
    ) -> None:
        """Refuse: this runner offers plugins no methods."""
        raise RpcError(
            ErrorCode.METHOD_NOT_FOUND,
            f"the runner offers plugins no method {method!r}",
            {"method": method, "plugin": instance.id},
        )

    def on_notification(self, instance: Instance, method: str, params: Raw) -> None:
        """Tell whoever listens; an announcement that nobody knows is ignored (PROTOCOL.md, "Messages")."""
        listener = self._listeners.get(method)
        if listener is None:
            logger.debug("%s announced %s, which nobody listens to", instance.id, method)
        else:
            listener(instance, params)
