"""The runner's own streams: a bounded queue per subscriber, and what happens when it is full.

Rules here: `seq` counts every item that was offered, so that a gap says exactly how many were dropped; a lossy stream
drops the oldest, a reliable one never drops: without credit it holds, and beyond its bound it is closed with a reason.
Offering never blocks (PROTOCOL.md, "Streams").
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable

Mode: TypeAlias = Literal["lossy", "reliable"]

RELIABLE_HOLD = 4096


class Stream:
    """One subscription.

    Args:
        stream_id: unguessable id.
        mode: what happens when the subscriber is slow.
        send: puts an item (JSON already) with its seq on the wire.
        writable: whether the wire takes more right now.
        on_overrun: called once when a reliable stream had to be given up; the stream is closed then.
        queue: how many items a lossy stream holds.
        window: how many items a reliable stream sends ahead of its acknowledgements.
    """

    def __init__(
        self,
        stream_id: str,
        mode: Mode,
        *,
        send: Callable[[int, bytes], None],
        writable: Callable[[], bool],
        on_overrun: Callable[[str], None],
        queue: int,
        window: int,
    ) -> None:
        self.id = stream_id
        self.mode: Mode = mode
        self.closed = False
        self.dropped = 0
        self._send = send
        self._writable = writable
        self._on_overrun = on_overrun
        self._limit = queue if mode == "lossy" else RELIABLE_HOLD
        self._window = window
        self._held: deque[tuple[int, bytes]] = deque()
        self._next_seq = 0
        self._acked = -1
        self._sent = -1

    def offer(self, item: bytes) -> None:
        """Send an item, hold it, or drop the oldest held one."""
        if self.closed:
            return
        seq = self._next_seq
        self._next_seq += 1
        if not self._held and self._may_send():
            self._sent = seq
            self._send(seq, item)
            return
        self._held.append((seq, item))
        if len(self._held) <= self._limit:
            return
        if self.mode == "lossy":
            self._held.popleft()
            self.dropped += 1
        else:
            self.close()
            self._on_overrun(f"the subscriber acknowledged nothing while {self._limit} items waited")

    def acknowledge(self, seq: int) -> None:
        """Take note that everything up to `seq` was received. Numbers that were never sent count for nothing."""
        if self._acked < seq <= self._sent:
            self._acked = seq
            self.pump()

    def pump(self) -> None:
        """Send what is held as far as the wire and the credit allow."""
        while self._held and not self.closed and self._may_send():
            seq, item = self._held.popleft()
            self._sent = seq
            self._send(seq, item)

    def close(self) -> None:
        """Free what is held. Idempotent."""
        self.closed = True
        self._held.clear()

    def _may_send(self) -> bool:
        if self.mode == "reliable" and self._sent - self._acked >= self._window:
            return False
        return self._writable()
