"""A stream that a client subscribed to (PROTOCOL.md, "Streams").

Rules here: items are kept until they are asked for, the newest of too many; whoever takes one of a reliable stream has
it acknowledged by that.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Self

from utter_sdk.streams import StreamClosed

if TYPE_CHECKING:
    from types import TracebackType

    from utter_protocol.methods import StreamData, SubscribeResult
    from utter_sdk.client import Client

MAX_QUEUED = 4096
"""How many items of a stream wait at most for their reader."""


# The reason of a stream that has come to its end, as plugins and the runner give it.
_COMPLETE = "end"


class Subscription:
    """A stream's data, in order: iterate, or `get` with a timeout; a context manager that closes it.

    Attributes:
        stream_id: the runner's id of it.
        method: its name.
        mode: "lossy" or "reliable".
        missed: how many items the runner or this client dropped, counted by gaps in `seq` (lossy streams only).
        reason: why it has ended, as `stream.closed` says; None while it has not.
    """

    def __init__(self, client: Client, method: str, answer: SubscribeResult) -> None:
        self.stream_id = answer.stream_id
        self.method = method
        self.mode = answer.mode
        self.missed = 0
        self.reason: str | None = None
        self._client = client
        self._items: deque[StreamData] = deque(maxlen=MAX_QUEUED)
        self._last_seq: int | None = None
        self._open = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        """Return the next item's data; a stream that is complete, or was closed here, stops the iteration."""
        if not self._open:
            raise StopIteration
        try:
            return self.get(None)
        except StreamClosed as closed:
            if closed.reason == _COMPLETE:
                raise StopIteration from None
            raise

    @property
    def ready(self) -> bool:
        """Whether `get` does not wait."""
        return bool(self._items) or self.reason is not None

    def get(self, timeout: float | None) -> Any:
        """Return the next item's data.

        Args:
            timeout: seconds; None waits for as long as it takes.

        Raises:
            TimeoutError: nothing came.
            StreamClosed: nothing more will come; its reason is "end" when the stream is complete.
            RunnerUnavailable: the runner went away.
        """
        self._client.wait_stream(self, timeout)
        if not self._items:
            raise StreamClosed(self.reason or "")
        item = self._items.popleft()
        if self._last_seq is not None:
            self.missed += max(0, item.seq - self._last_seq - 1)
        self._last_seq = item.seq
        if self.mode == "reliable":
            self._client.acknowledge(self, item.seq)
        return item.data

    def put(self, item: StreamData) -> None:
        """Queue an item that arrived; for `Client`. Of more than `MAX_QUEUED` the oldest are dropped."""
        self._items.append(item)

    def end(self, reason: str) -> None:
        """Take the news that nothing more will come; for `Client`."""
        self.reason = reason

    def close(self) -> None:
        """Stop the stream. Idempotent."""
        if self._open:
            self._open = False
            self._items.clear()
            if self.reason is None:
                self._client.stop(self)
