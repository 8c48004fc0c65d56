"""What one end of a connection says in the kit's checks: bytes, frames and requests, and the answers that came.

Rules here: what was sent is kept for the report, before it is written; which ids are open and which answers were not
taken is known here alone. How bytes come and go, and what is wrong with them, is up to those who derive from it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter, deque
from typing import TYPE_CHECKING, Any, Literal

from utter_sdk.conformance.wire import MISSING, frame, key_of, notification, request, shown

if TYPE_CHECKING:
    from collections.abc import Callable

    from utter_sdk.conformance.wire import Message

_SHOWN_ID = 60


class Talk(ABC):
    """A connection, friendly or not.

    Attributes:
        transcript: what was sent (`>`), what came (`<`), and what else happened (`-`), in order.
        tainted: set by whoever has left the other side in a state that is no use to others.
    """

    def __init__(self) -> None:
        self.transcript: list[tuple[Literal[">", "<", "-"], str]] = []
        self.tainted = False
        self._next_id = 0
        self._open: Counter[str] = Counter()
        self._answers: dict[str, deque[Message]] = {}

    # ---- What is sent

    def send(self, data: bytes, note: str = "") -> None:
        """Write bytes as they are. Whoever does not read them, or is gone, is found out by the next wait."""
        self.transcript.append((">", note or shown(data)))
        self._write(data)

    def pieces(self, *parts: bytes) -> None:
        """Write bytes in pieces, each after the one before it was read."""
        for part in parts:
            self.send(part)
            self._settle()

    def body(self, data: bytes, note: str = "") -> None:
        """Send a body in a frame."""
        self.send(frame(data), note or shown(data))

    def request(self, method: str, params: Any = MISSING, request_id: Any = MISSING) -> Any:
        """Send a request and return its id; without `request_id` the next number."""
        request_id = self.next_id() if request_id is MISSING else request_id
        self.expect(request_id)
        self.body(request(request_id, method, params))
        return request_id

    def requests(self, calls: list[tuple[str, Any]], note: str = "") -> list[int]:
        """Send requests in one write and return their ids."""
        ids = [self.next_id() for _ in calls]
        self.expect(*ids)
        bodies = [request(one, method, params) for one, (method, params) in zip(ids, calls, strict=True)]
        self.transcript += ((">", text) for text in ([note] if note else map(shown, bodies)))
        self._write(b"".join(map(frame, bodies)))
        return ids

    def notify(self, method: str, params: Any = MISSING) -> None:
        """Send a notification."""
        self.body(notification(method, params))

    def next_id(self) -> int:
        """An id that was not used yet."""
        self._next_id += 1
        return self._next_id

    def expect(self, *request_ids: Any) -> None:
        """Say that an answer with each of these ids is no surprise; None for one whose id is null."""
        self._open.update(map(key_of, request_ids))

    # ---- What comes

    def call(self, method: str, params: Any = MISSING) -> Message:
        """Send a request and return its answer, which may be an error.

        Raises:
            CheckFailed: no answer came.
        """
        return self.answer(self.request(method, params), method)

    def answer(self, request_id: Any, what: str = "", seconds: float | None = None) -> Message:
        """Wait for an answer.

        Raises:
            CheckFailed: none came.
        """
        key = key_of(request_id)
        named = f"id {key}" if len(key) <= _SHOWN_ID else f"an id of {len(key) - 2} characters"
        self.wait(lambda: key in self._answers, f"an answer to {what or 'the request'} ({named})", seconds)
        return self._pop(key)

    @abstractmethod
    def wait(self, found: Callable[[], bool], what: str, seconds: float | None = None) -> None:
        """Read until `found()`; without `seconds` as long as an answer may take.

        Raises:
            CheckFailed: it did not become true in time, or cannot any more.
        """

    # ---- Below

    def _take_open(self, key: str) -> bool:
        """Whether this is the id of an open request, which then is open no more."""
        if self._open[key] <= 0:
            return False
        self._open[key] -= 1
        return True

    def _keep(self, key: str, message: Message) -> None:
        """Keep an answer for whoever takes it."""
        self._answers.setdefault(key, deque()).append(message)

    def _pop(self, key: str) -> Message:
        waiting = self._answers[key]
        message = waiting.popleft()
        if not waiting:
            del self._answers[key]
        return message

    @abstractmethod
    def _write(self, data: bytes) -> None:
        """Write, reading meanwhile what comes, until all is written, the other side is gone, or it takes too long."""

    @abstractmethod
    def _settle(self) -> None:
        """Wait a little until the other side has read what was written."""
