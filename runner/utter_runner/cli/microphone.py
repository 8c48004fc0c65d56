"""The runner's microphone as a command hears it: opened by `audio.open`, read from the ring.

Rules here: one thread; whatever is waited for, the connection and the signal to end are watched beside it, so that a
runner that dies and a Ctrl-C are noticed at once.
"""

from __future__ import annotations

import os
import select
import time
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from utter_protocol.errors import RpcError
from utter_protocol.ring import Overrun
from utter_runner.cli.connection import CALL_TIMEOUT_S
from utter_sdk.client import RunnerUnavailable
from utter_sdk.ring import RingReader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from utter_runner.cli.interrupts import Interrupts
    from utter_sdk.client import Client, Subscription

PATIENCE_S = 3.0
"""How much longer than was asked for is listened for frames that are missing."""
SLACK_S = 0.3
"""Frames come in blocks, some time after they were heard; what is later than this was lost."""

_TURN_S = 0.05
_WAKE_BYTES = 4096
_AT_ONCE = 16_000
_MARGIN = 1_600


class Piece(NamedTuple):
    """What was heard next.

    Args:
        frames: f32le mono.
        lost: how many frames before these were overwritten before they could be read.
    """

    frames: bytes
    lost: int


class Microphone:
    """The microphone, open; a context manager that lets it go.

    Args:
        client: a connection; it holds the microphone once, so there is one of these at a time.
        on_trouble: told in a sentence what the runner says of the microphone meanwhile: a fault, and its end.

    Attributes:
        device: what a person calls it.
        rate: frames per second.
        faults: what went wrong since it was opened.
        fault: what is wrong now, or nothing.
        heard: frames that were read.
        late_s: seconds of audio that were due by the clock and did not come.

    Raises:
        RpcError: it cannot be opened; the message says why. So do the methods, as `Client.call`.
    """

    def __init__(self, client: Client, on_trouble: Callable[[str], None]) -> None:
        self._client = client
        self._on_trouble = on_trouble
        self._stack = ExitStack()
        self.faults: list[str] = []
        self.fault = ""
        self.heard = 0
        self.late_s = 0.0

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self.device = str(self._client.call("audio.open", {}, CALL_TIMEOUT_S)["device"])
            # The end of the connection closes it as well; not every command ends there.
            stack.callback(self._close)
            self._events: Subscription = stack.enter_context(self._client.subscribe("runner.events"))
            passed = stack.enter_context(self._client.fd_pass("memfd.ring", {"wake": True}))
            self._ring = stack.enter_context(RingReader(passed.fds[0]))
            self._wake = passed.fds[1]
            self.rate = self._ring.layout.rate
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _close(self) -> None:
        with suppress(RpcError, RunnerUnavailable, TimeoutError):
            self._client.call("audio.close", {}, CALL_TIMEOUT_S)

    def listen(self, seconds: float | None, interrupts: Interrupts) -> Iterator[Piece]:
        """What is heard from now on: for so many seconds, or until a signal comes.

        Frames that do not come are waited for `PATIENCE_S` longer than that.
        """
        first = at = self._ring.position
        started = time.monotonic()
        wanted = None if seconds is None else round(seconds * self.rate)
        while wanted is None or self.heard < wanted:
            left = None if seconds is None else started + seconds + PATIENCE_S - time.monotonic()
            if (left is not None and left <= 0) or not self._wait(at, left, interrupts):
                break
            piece, at = self._read(at, None if wanted is None else wanted - self.heard)
            if piece.frames:
                self.heard += len(piece.frames) // 4
                yield piece
        passed = time.monotonic() - started
        # What has come and was not read is not the microphone's fault: this process may be the one that is slow.
        late = passed - (self._ring.position - first) / self.rate
        self.late_s = late if late > SLACK_S else 0.0

    def _wait(self, at: int, seconds: float | None, interrupts: Interrupts) -> bool:
        """Wait for frames or news, no longer than `seconds`; False at a signal."""
        poll = select.poll()
        for fd in (self._wake, self._client.fileno(), interrupts.fd):
            poll.register(fd, select.POLLIN)
        wait_ms = 0 if self._ring.position > at else None if seconds is None else seconds * 1000
        ready = {fd for fd, _ in poll.poll(wait_ms)}
        if self._wake in ready:
            os.read(self._wake, _WAKE_BYTES)
        if self._client.fileno() in ready:
            with suppress(TimeoutError):
                self._client.wait_stream(self._events, _TURN_S)
        while self._events.ready:
            self._take(self._events.get(None))
        return interrupts.fd not in ready

    def _read(self, at: int, most: int | None) -> tuple[Piece, int]:
        lost = 0
        while True:
            count = min(self._ring.position - at, _AT_ONCE, _AT_ONCE if most is None else most)
            try:
                frames = self._ring.read(at, count)
            except Overrun as overrun:
                # A little later, or the writer is there again before these are read.
                beyond = min(overrun.oldest + _MARGIN, self._ring.position)
                lost, at = lost + beyond - at, beyond
            else:
                return Piece(frames, lost), at + count

    def _take(self, event: dict[str, Any]) -> None:
        if event.get("event") != "audio" or event.get("state") not in {"fault", "recovered"}:
            return
        detail = str(event.get("detail") or event["state"])
        self.fault = detail if event["state"] == "fault" else ""
        if self.fault:
            self.faults.append(detail)
        self._on_trouble(detail)
