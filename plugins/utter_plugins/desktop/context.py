"""The desktop's state for others: context.snapshot, the stream context.live, and the announcement context.changed.

Rules here: `DesktopContext` holds what is known, a value for each field; whoever finds out something sets the field. A
field without a value is left out. A subscriber that is slow gets the latest values only, never a queue of old ones.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from utter_protocol.kinds import ContextChanged, SnapshotParams
from utter_sdk import Stream  # noqa: TC001 - the SDK reads the annotations of handlers at run time

if TYPE_CHECKING:
    from collections.abc import Callable

    from utter_sdk import Plugin

CAPABILITIES = ("context.snapshot@1", "context.live@1")
ANNOUNCEMENT = "context.changed"


class _Subscriber:
    """What one subscriber has not been sent yet."""

    def __init__(self, wanted: frozenset[str], fields: dict[str, Any]) -> None:
        self.wanted = wanted
        self.news = fields
        self.closed = False

    def select(self, fields: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in fields.items() if not self.wanted or name in self.wanted}


class DesktopContext:
    """What is known of the desktop.

    Args:
        plugin: announces changes.
        refresh: is called before a snapshot, to look again for what could not be watched.
    """

    def __init__(self, plugin: Plugin, refresh: Callable[[], None]) -> None:
        self._plugin = plugin
        self._refresh = refresh
        self._changed = threading.Condition()
        # Two changes are announced in their order; separate, because the wire may be slow to take an announcement.
        self._announcing = threading.Lock()
        self._fields: dict[str, Any] = {}
        self._subscribers: list[_Subscriber] = []

    def set(self, name: str, value: Any) -> None:
        """Set a field, from any thread; None takes it away. What is the same as before changes nothing."""
        with self._announcing:
            with self._changed:
                if self._fields.get(name) == value:
                    return
                if value is None:
                    del self._fields[name]
                else:
                    self._fields[name] = value
                for subscriber in self._subscribers:
                    subscriber.news |= subscriber.select({name: value})
                self._changed.notify_all()
            self._plugin.notify(ANNOUNCEMENT, ContextChanged(context={name: value}))

    def snapshot(self, params: SnapshotParams) -> dict[str, Any]:
        """Answer context.snapshot."""
        self._refresh()
        with self._changed:
            return _Subscriber(frozenset(params.sources), {}).select(self._fields)

    def live(self, params: SnapshotParams, stream: Stream) -> None:
        """Send the whole context, and then each field that changes; null for one that is gone."""
        self._refresh()
        subscriber = _Subscriber(frozenset(params.sources), {})

        def stop() -> None:
            with self._changed:
                subscriber.closed = True
                self._changed.notify_all()

        self._plugin.on_cancel(stop)
        with self._changed:
            first = subscriber.select(self._fields)
            self._subscribers.append(subscriber)
        try:
            stream.send(first)
            while True:
                with self._changed:
                    self._changed.wait_for(lambda: subscriber.closed or bool(subscriber.news))
                    if subscriber.closed:
                        return
                    news, subscriber.news = subscriber.news, {}
                stream.send(news)
        finally:
            with self._changed:
                self._subscribers.remove(subscriber)
