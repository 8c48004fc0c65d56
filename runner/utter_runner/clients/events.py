"""`runner.events`: the state first, then every change, to whoever subscribed.

Rules here: what an event looks like is its sender's; here it is only known that the state comes before the changes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from utter_protocol.contracts import RUNNER_STREAMS
from utter_protocol.messages import encode
from utter_runner.dataplane.hub import Hub, Topic

if TYPE_CHECKING:
    from collections.abc import Callable

    from utter_runner.dataplane.streams import Stream

EVENTS = "runner.events"


class EventBus(Topic):
    """Fans events out.

    Args:
        hub: knows the subscribers.
        snapshot: returns the state that a new subscriber is sent first.
    """

    def __init__(self, hub: Hub, snapshot: Callable[[], dict[str, Any]]) -> None:
        super().__init__(hub, EVENTS, RUNNER_STREAMS[EVENTS])
        self._snapshot = snapshot

    def emit(self, event: dict[str, Any]) -> None:
        """Offer an event to every subscriber."""
        self.send(event)

    def begin(self, stream: Stream) -> None:
        """Send the state; changes follow."""
        super().begin(stream)
        stream.offer(encode({"event": "state", "status": self._snapshot()}))
