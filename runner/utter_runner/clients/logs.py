"""The runner's log, for clients: the last lines that were logged, and a stream of those that come.

Rules here: what is kept is what the log holds, as harmless lines, and bounded in lines and bytes; it is logged from any
thread and streamed from the loop, where what the streaming itself logs is kept and not streamed, so that no line makes
another one for ever.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import trio

from utter_protocol.methods import LOG_LEVELS, MAX_LOG_LINES, LogLine, LogsResult
from utter_protocol.printable import harmless

if TYPE_CHECKING:
    from collections.abc import Iterator

    from utter_protocol.methods import LogLevel, LogsParams
    from utter_runner.dataplane.hub import Topic

STREAM = "runner.log"
MAX_BYTES = 2**20
"""`log_backlog_bytes`: how many characters the lines that are kept have together."""
MAX_LINE = 8_192
"""`max_log_line`: what a line has more is cut off."""
# What a line has besides its text, in a reply.
_HEAD = 256


class LogBacklog(logging.Handler):
    """A handler that remembers.

    Args:
        max_lines: how many lines are kept.
        max_bytes: how many characters they have together.
    """

    def __init__(self, *, max_lines: int = MAX_LOG_LINES, max_bytes: int = MAX_BYTES) -> None:
        super().__init__()
        self._max_lines = max_lines
        self._max_bytes = max_bytes
        self._lines: deque[LogLine] = deque()
        self._bytes = 0
        self._seq = 0
        self._topic: Topic | None = None
        self._token: trio.lowlevel.TrioToken | None = None
        self._pending: deque[LogLine] = deque(maxlen=max_lines)
        # The thread that streams right now.
        self._streaming: int | None = None

    # ---- any thread

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a record, and have it streamed if anybody listens; never raises."""
        try:
            lines = list(self._lines_of(record))
        except Exception:  # noqa: BLE001 - what cannot be formatted, the standard library reports
            self.handleError(record)
            return
        for line in lines:
            self._lines.append(line)
            self._bytes += len(line.text)
        while len(self._lines) > self._max_lines or self._bytes > self._max_bytes:
            self._bytes -= len(self._lines.popleft().text)
        if self._token is not None and self._streaming != threading.get_ident():
            self._pending.extend(lines)
            with suppress(trio.RunFinishedError):
                self._token.run_sync_soon(self._stream, idempotent=True)

    def _lines_of(self, record: logging.LogRecord) -> Iterator[LogLine]:
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        texts = [record.getMessage()]
        if record.exc_info:
            texts += (f"  {line}" for line in logging.Formatter().formatException(record.exc_info).split("\n"))
        for text in texts:
            self._seq += 1
            yield LogLine(
                seq=self._seq,
                time=time,
                level=_level(record.levelno),
                logger=record.name,
                text=harmless(text[:MAX_LINE])[:MAX_LINE],
                plugin=getattr(record, "plugin", None),
                epoch=getattr(record, "epoch", None),
                session=getattr(record, "session", None),
            )

    # ---- the loop

    def serve(self, topic: Topic) -> None:
        """From here on what is logged goes to the subscribers of a stream whose `on_active` is `want`."""
        self._topic = topic

    def want(self, wanted: bool) -> None:
        """Somebody listens, or nobody does any more."""
        with self._guard():
            self._token = trio.lowlevel.current_trio_token() if wanted else None
            self._pending.clear()

    def answer(self, params: LogsParams, *, room: int) -> LogsResult:
        """Return the last lines that fit a query.

        Args:
            params: the query.
            room: how many bytes they may have together; of those that do not fit the oldest are left out.
        """
        least = LOG_LEVELS.index(params.level)
        found: deque[LogLine] = deque()
        with self._guard():
            lost = self._seq - len(self._lines)
            for line in reversed(self._lines):
                if params.plugin not in {None, line.plugin} or LOG_LEVELS.index(line.level) < least:
                    continue
                room -= len(line.text.encode()) + _HEAD
                if room < 0 or len(found) == params.last:
                    break
                found.appendleft(line)
        return LogsResult(lines=list(found), lost=lost)

    def _stream(self) -> None:
        topic = self._topic
        if topic is None:
            return
        self._streaming = threading.get_ident()
        try:
            # What comes meanwhile has its own turn.
            for _ in range(len(self._pending)):
                topic.send(self._pending.popleft())
        finally:
            self._streaming = None

    def _guard(self) -> threading.RLock:
        """The lock that `emit` is called with."""
        if self.lock is None:
            raise RuntimeError("a handler has a lock")
        return self.lock


def _level(number: int) -> LogLevel:
    if number >= logging.ERROR:
        return "error"
    if number >= logging.WARNING:
        return "warning"
    return "info" if number >= logging.INFO else "debug"
