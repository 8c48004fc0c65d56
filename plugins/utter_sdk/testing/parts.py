"""What a test holds in its hands: requests in both directions, and streams in both directions.

Rules here: these are handles; the connection that they belong to (`runner_end.RunnerEnd`) sends, sorts and waits.
"""

from __future__ import annotations

import os
from collections import deque
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self

from utter_protocol.messages import encode, error_body, result_body
from utter_protocol.methods import StreamData, SubscribeResult

if TYPE_CHECKING:
    from collections.abc import Sequence

    from utter_protocol.errors import RpcError
    from utter_protocol.messages import RequestId
    from utter_sdk.testing.runner_end import RunnerEnd

Mode = Literal["lossy", "reliable"]


class PluginDiedError(RuntimeError):
    """The plugin ended, closed its end, or wrote what is no frame there. `code` is its exit code if it ended."""

    def __init__(self, message: str, code: int | None) -> None:
        super().__init__(message)
        self.code = code


class Passing(NamedTuple):
    """What a function of `on_host` returns to send descriptors with its result; they stay the function's."""

    result: Any
    fds: tuple[int, ...]


class Pending:
    """A request that was sent.

    Attributes:
        id: its JSON-RPC id.
        method: its method.
    """

    def __init__(self, end: RunnerEnd, request_id: int, method: str) -> None:
        self.id = request_id
        self.method = method
        self._end = end

    def result(self, timeout: float | None = None) -> Any:
        """Wait for the answer and return its result.

        Raises:
            RpcError: what the plugin answered.
            TimeoutError: no answer within `timeout` seconds.
            PluginDiedError: there will be none.
        """
        return self._end.wait_answer(self, timeout)

    def cancel(self) -> None:
        """Send `$/cancel`."""
        self._end.notify("$/cancel", {"id": self.id})


class Asked:
    """A request of the plugin that the test answers itself (`RunnerEnd.hold_host`).

    Attributes:
        id: its JSON-RPC id.
        method: its method.
        params: its params, decoded.
        cancelled: whether the plugin has sent `$/cancel`.
    """

    def __init__(self, end: RunnerEnd, request_id: RequestId, method: str, params: Any) -> None:
        self.id = request_id
        self.method = method
        self.params = params
        self.cancelled = False
        self._end = end

    def answer(self, result: Any = None, fds: Sequence[int] = ()) -> None:
        """Answer with `result` (None is `{}`), and descriptors, which stay the caller's."""
        self._end.send_body(result_body(self.id, encode({} if result is None else result)), fds)

    def refuse(self, error: RpcError) -> None:
        """Answer with an error."""
        self._end.send_body(error_body(self.id, error))

    def wait_cancelled(self, timeout: float | None = None) -> None:
        """Wait until the plugin has sent `$/cancel`."""
        self._end.wait_for(lambda: True if self.cancelled else None, timeout, f"$/cancel of {self.method}")


class PluginStream:
    """An open stream of the plugin's: iterate, or `get` with a timeout; a context manager that stops it.

    Attributes:
        stream_id: the plugin's id of it.
        method: its name.
        mode: "lossy" or "reliable".
        reason: why the plugin closed it, once it has; "end" means complete.
    """

    def __init__(self, end: RunnerEnd, method: str, opened: SubscribeResult, *, acks: bool) -> None:
        self.stream_id = opened.stream_id
        self.method = method
        self.mode = opened.mode
        self.reason: str | None = None
        self.items: deque[StreamData] = deque()
        self._end = end
        self._acks = acks
        self._stopped = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        item = self.next_item()
        if item is None:
            raise StopIteration
        return item.data

    def get(self, timeout: float | None = None) -> Any:
        """Wait for the next item and return its data.

        Raises:
            EOFError: the stream is closed, with the reason.
            TimeoutError: nothing came within `timeout` seconds.
        """
        item = self.next_item(timeout)
        if item is None:
            raise EOFError(f"{self.method} is closed: {self.reason}")
        return item.data

    def next_item(self, timeout: float | None = None) -> StreamData | None:
        """Wait for the next item, with its `seq`; None when the stream is closed."""

        def find() -> tuple[StreamData, ...] | None:
            if self.items:
                return (self.items.popleft(),)
            return () if self.reason is not None or self._stopped else None

        found = self._end.wait_for(find, timeout, f"an item of {self.method}")
        if not found:
            return None
        if self._acks and self.mode == "reliable":
            self.acknowledge(found[0].seq)
        return found[0]

    def acknowledge(self, seq: int) -> None:
        """Send `stream.ack`, which `get` and iterating do by themselves for a reliable stream."""
        self._end.notify("stream.ack", {"stream_id": self.stream_id, "seq": seq})

    def wait_closed(self, timeout: float | None = None) -> str:
        """Wait until the plugin closes the stream; return the reason."""
        return self._end.wait_for(lambda: self.reason, timeout, f"the end of {self.method}")

    def stop(self, timeout: float | None = None) -> None:
        """Send `stream.stop` and wait for its answer. Nothing if the stream is over."""
        if self.reason is None and not self._stopped:
            self._stopped = True
            self._end.call("stream.stop", {"stream_id": self.stream_id}, timeout)


class OfferedStream:
    """A stream that the plugin may subscribe to (`RunnerEnd.offer`); what is sent goes to all who have.

    Attributes:
        method: its name.
        params: of each subscription, in order.
        acknowledged: the last `seq` that each stream id has acknowledged.
        stopped: the stream ids that the plugin has stopped.
    """

    def __init__(self, end: RunnerEnd, method: str, mode: Mode) -> None:
        self.method = method
        self.params: list[dict[str, Any]] = []
        self.acknowledged: dict[str, int] = {}
        self.stopped: list[str] = []
        self._end = end
        self._mode = mode
        self._next_seq: dict[str, int] = {}

    def wait_subscribed(self, timeout: float | None = None) -> None:
        """Wait until the plugin has subscribed, or has subscribed again after it stopped."""
        self._end.wait_for(lambda: True if self._next_seq else None, timeout, f"a subscription to {self.method}")

    def wait_stopped(self, timeout: float | None = None) -> None:
        """Wait until nobody is subscribed any more."""
        self._end.wait_for(lambda: None if self._next_seq else True, timeout, f"stream.stop of {self.method}")

    def wait_acknowledged(self, seq: int, timeout: float | None = None) -> None:
        """Wait until everybody has acknowledged `seq`."""

        def find() -> bool | None:
            acked = [self.acknowledged.get(stream_id, -1) for stream_id in self._next_seq]
            return True if acked and min(acked) >= seq else None

        self._end.wait_for(find, timeout, f"the acknowledgement of {seq} of {self.method}")

    def send(self, data: Any, *, skip: int = 0) -> None:
        """Send an item to each subscriber, after a gap of `skip` items that were dropped on the way."""
        for stream_id in list(self._next_seq):
            seq = self._next_seq[stream_id] + skip
            self._next_seq[stream_id] = seq + 1
            self._end.notify(self.method, {"stream_id": stream_id, "seq": seq, "data": data})

    def close(self, reason: str = "end") -> None:
        """Send `stream.closed` to each subscriber."""
        for stream_id in list(self._next_seq):
            self._next_seq.pop(stream_id, None)
            self._end.notify("stream.closed", {"stream_id": stream_id, "reason": reason})

    def opened(self, asked: dict[str, Any]) -> SubscribeResult:
        """Answer `stream.subscribe`. For `RunnerEnd`."""
        stream_id = os.urandom(8).hex()
        self.params.append(asked.get("params", {}))
        self._next_seq[stream_id] = 0
        return SubscribeResult(stream_id=stream_id, mode=asked.get("mode") or self._mode)

    def take(self, method: str, params: dict[str, Any]) -> None:
        """Take `stream.ack` or `stream.stop`. For `RunnerEnd`."""
        stream_id = params.get("stream_id", "")
        if stream_id not in self._next_seq:
            return
        if method == "stream.ack":
            self.acknowledged[stream_id] = params["seq"]
        else:
            del self._next_seq[stream_id]
            self.stopped.append(stream_id)
