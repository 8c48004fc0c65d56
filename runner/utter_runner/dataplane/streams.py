"""One subscription: what waits for a subscriber that is slower than the stream, and what it may be sent.

Rules here: `state` changes through `TRANSITIONS` and in no other way. `seq` comes with the item, so that a gap says
exactly how many were lost, wherever that was. A lossy stream drops the oldest; a reliable one never drops: without
credit it holds, and beyond its bound it is given up with a reason. Nothing here blocks, and a stream that has ended
sends what it holds before it says so (PROTOCOL.md, "Streams").
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable

    from msgspec import Raw

Mode: TypeAlias = Literal["lossy", "reliable"]
State: TypeAlias = Literal["open", "ending", "closed"]
Event: TypeAlias = Literal["finish", "drained", "give_up", "stop"]
Sent: TypeAlias = Literal["sent", "later", "too large"]

TRANSITIONS: dict[tuple[State, Event], State] = {
    ("open", "finish"): "ending",
    ("open", "give_up"): "closed",
    ("open", "stop"): "closed",
    ("ending", "finish"): "ending",
    ("ending", "drained"): "closed",
    ("ending", "give_up"): "closed",
    ("ending", "stop"): "closed",
    ("closed", "finish"): "closed",
    ("closed", "give_up"): "closed",
    ("closed", "stop"): "closed",
}

_ENDLESS = 1 << 64
RELIABLE_HOLD = 4096
"""How many items a reliable stream holds behind its window."""


class Wire(Protocol):
    """The connection that one subscriber's streams share."""

    held: int
    """Bytes that all its streams hold."""
    max_held: int

    def send(self, stream: Stream, seq: int, item: bytes | Raw) -> Sent:
        """Put an item on the wire, if it takes more right now."""

    def wait(self, stream: Stream) -> None:
        """Call `stream.send_next` when it takes more. May be called while it waits already."""

    def over(self, stream: Stream, reason: str | None) -> None:
        """The stream is closed; with a reason, the subscriber is to be told."""


class Stream:
    """One subscription.

    Args:
        stream_id: unguessable id.
        method: the stream's name.
        mode: what happens when the subscriber is slow.
        wire: where items go.
        queue: how many items a lossy stream holds.
        window: how many items a reliable stream sends ahead of its acknowledgements.
    """

    __slots__ = (
        "__weakref__",
        "_acked",
        "_held",
        "_limit",
        "_offered",
        "_reason",
        "_sent",
        "_window",
        "_wire",
        "dropped",
        "head",
        "id",
        "method",
        "mode",
        "on_ack",
        "on_over",
        "state",
    )

    def __init__(self, stream_id: str, method: str, mode: Mode, wire: Wire, *, queue: int, window: int) -> None:
        self.id = stream_id
        self.method = method
        self.mode: Mode = mode
        self.state: State = "open"
        self.dropped = 0
        self.head = b""
        """What the wire writes before the number of each item."""
        self.on_ack: Callable[[int], None] = _nothing
        """Told each time the subscriber acknowledges more: everything up to this number."""
        self.on_over: Callable[[], None] = _nothing
        """Told once when the stream is closed, whoever closed it."""
        self._wire = wire
        self._limit = queue if mode == "lossy" else RELIABLE_HOLD
        self._window = window if mode == "reliable" else _ENDLESS
        self._held: deque[tuple[int, bytes]] = deque()
        self._offered = -1
        self._sent = -1
        self._acked = -1
        self._reason = ""

    @property
    def held(self) -> int:
        """How many items wait."""
        return len(self._held)

    # ---- the source's side

    def offer(self, item: bytes | Raw) -> None:
        """Send an item under the next number, hold it, or drop the oldest held one."""
        self.put(self._offered + 1, item)

    def put(self, seq: int, item: bytes | Raw) -> None:
        """As `offer`, under a number that is greater than all before it; of a reliable stream, the next one."""
        if self.state != "open":
            return
        self._offered = seq
        if self._held or self._sent - self._acked >= self._window:
            self._hold(seq, item)
            return
        before, self._sent = self._sent, seq
        sent = self._wire.send(self, seq, item)
        if sent == "sent":
            return
        if sent == "later":
            self._sent = before
            self._hold(seq, item)
        else:
            self._cannot(len(item))

    def finish(self, reason: str) -> None:
        """No more items come: tell the subscriber why, once it has got what is held."""
        if self.state == "open":
            self._reason = reason
            self._move("finish")
            if not self._held:
                self._move("drained")
                self._end(reason)

    # ---- the subscriber's side

    def acknowledge(self, seq: int) -> None:
        """Take note that everything up to `seq` was received. Numbers that were never sent count for nothing."""
        if self._acked < seq <= self._sent and self.state != "closed":
            self._acked = seq
            self.on_ack(seq)
            if self._held:
                self._wire.wait(self)

    def send_next(self) -> bool:
        """Send one held item, if credit and wire allow; whether there is another one to send."""
        held = self._held
        if not held or self._sent - self._acked >= self._window:
            return False
        # Out of the queue before it is sent: sending may find the connection gone, and end this stream.
        seq, item = held.popleft()
        self._wire.held -= len(item)
        before, self._sent = self._sent, seq
        sent = self._wire.send(self, seq, item)
        if sent == "later":
            self._sent = before
            held.appendleft((seq, item))
            self._wire.held += len(item)
            return True
        if sent == "too large":
            self._cannot(len(item))
        if not held and self.state == "ending":
            self._move("drained")
            self._end(self._reason)
        return bool(held) and self._sent - self._acked < self._window

    def give_up(self, reason: str) -> None:
        """Close it now and tell the subscriber why. Idempotent."""
        if self.state != "closed":
            self._move("give_up")
            self._end(reason)

    def stop(self) -> None:
        """Free what is held and send nothing more. Idempotent."""
        if self.state != "closed":
            self._move("stop")
            self._end(None)

    # ---- inside

    def _hold(self, seq: int, item: bytes | Raw) -> None:
        held, wire = self._held, self._wire
        # A copy: what arrived may be a small part of a large message.
        kept = bytes(item)
        held.append((seq, kept))
        wire.held += len(kept)
        if self.mode == "lossy":
            while len(held) > self._limit or (wire.held > wire.max_held and held):
                wire.held -= len(held.popleft()[1])
                self.dropped += 1
        elif len(held) > self._limit:
            self.give_up(f"the subscriber acknowledged nothing while {self._limit} items waited")
            return
        elif wire.held > wire.max_held:
            self.give_up(f"more than max_queued_bytes ({wire.max_held}) waited for the subscriber")
            return
        wire.wait(self)

    def _cannot(self, size: int) -> None:
        if self.mode == "lossy":
            self.dropped += 1
        else:
            self.give_up(f"an item of {size} bytes is more than max_frame lets through")

    def _move(self, event: Event) -> None:
        self.state = TRANSITIONS[self.state, event]

    def _end(self, reason: str | None) -> None:
        self._wire.held -= sum(len(item) for _, item in self._held)
        self._held.clear()
        self._wire.over(self, reason)
        self.on_over()
        self.on_ack = self.on_over = _nothing


def _nothing(*_: object) -> None:
    """Nobody wants to know."""


def diagram() -> str:
    """Return the table as a Mermaid state diagram."""
    lines = ["stateDiagram-v2", "    [*] --> open"]
    lines += [f"    {state} --> {target}: {event}" for (state, event), target in TRANSITIONS.items() if state != target]
    return "\n".join(lines)
