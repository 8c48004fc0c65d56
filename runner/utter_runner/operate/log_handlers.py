"""Where log records go: lines on stderr, or records with fields in the journal.

Rules here: what a handler writes cannot be taken for another record, whatever a plugin has printed; a record in the
journal has the fields of `config/log_fields.py`, in capitals. Cheap to import: the daemon starts with it.
"""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Any, TextIO

from utter_protocol.printable import harmless
from utter_runner.config.log_fields import fields_of
from utter_runner.operate.journal import JOURNAL_SOCKET, JournalSocket, StreamSocket, encode, is_journal

if TYPE_CHECKING:
    from collections.abc import Mapping

IDENTIFIER = "utter-runner"

# syslog(3).
_CRITICAL, _ERROR, _WARNING, _INFO, _DEBUG = 2, 3, 4, 6, 7
_PRIORITIES = (
    (logging.CRITICAL, _CRITICAL),
    (logging.ERROR, _ERROR),
    (logging.WARNING, _WARNING),
    (logging.INFO, _INFO),
)


class LineFormatter(logging.Formatter):
    """One printable line for each record, and under it the lines of its traceback, indented: nobody forges another."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the standard library's name
        """Make the first line."""
        return harmless(super().formatMessage(record))

    def formatException(self, ei: Any) -> str:  # noqa: N802 - as above
        """Make the lines below."""
        head, *lines = super().formatException(ei).split("\n")
        return "\n".join([harmless(head), *(f"  {harmless(line)}" for line in lines)])


def priority(level: int) -> int:
    """Return the priority of syslog(3) for a level of Python's logging."""
    return next((number for least, number in _PRIORITIES if level >= least), _DEBUG)


class JournalHandler(logging.Handler):
    """Sends records to the journal, and lines to stderr when it is gone.

    A record that finds the journal busy is lost, and counted; the next one that gets through says how many were. It is
    the choice between that and a runner that stands still while journald does.

    Args:
        journal: takes records.
        fallback: takes lines.
    """

    def __init__(self, journal: JournalSocket, fallback: StreamSocket) -> None:
        super().__init__()
        self.setFormatter(LineFormatter("%(message)s"))
        self._journal = journal
        self._fallback = fallback
        self._lost = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Send one. Never blocks."""
        try:
            if self._lost and self._send(_losses(self._lost)):
                self._lost = 0
            if not self._send(record):
                self._lost += 1
        except Exception:  # noqa: BLE001 - what cannot be formatted is the standard library's to report
            self.handleError(record)

    def _send(self, record: logging.LogRecord) -> bool:
        message, number = self.format(record), priority(record.levelno)
        sent = self._journal.send(encode(_journal_fields(record, message, number)))
        if sent != "gone":
            return sent == "sent"
        return self._fallback.send(f"{record.levelname} {record.name}: {message}", number)

    def close(self) -> None:
        """Close what it writes to."""
        self._journal.close()
        self._fallback.close()
        super().close()


def _losses(lost: int) -> logging.LogRecord:
    text = "%d records were lost, because the journal did not take them"
    return logging.LogRecord(__name__, logging.WARNING, __file__, 0, text, (lost,), None)


def _journal_fields(record: logging.LogRecord, message: str, number: int) -> list[tuple[str, str]]:
    fields = [
        ("MESSAGE", message),
        ("PRIORITY", str(number)),
        ("SYSLOG_IDENTIFIER", IDENTIFIER),
        ("LOGGER", record.name),
        ("CODE_FILE", record.pathname),
        ("CODE_LINE", str(record.lineno)),
        ("CODE_FUNC", record.funcName or ""),
    ]
    return fields + [(name.upper(), str(value)) for name, value in fields_of(record).items()]


def log_handler(environ: Mapping[str, str], stderr: int = 2, journal: str = JOURNAL_SOCKET) -> logging.Handler:
    """Return the handler for this process: for the journal if stderr leads there, else for lines on stderr.

    Args:
        environ: the runner's environment.
        stderr: the descriptor.
        journal: journald's socket.
    """
    if is_journal(environ, stderr):
        return JournalHandler(JournalSocket(journal), StreamSocket(stderr))
    handler = logging.StreamHandler(_stream(stderr))
    handler.setFormatter(LineFormatter("%(levelname)s %(name)s: %(message)s"))
    return handler


def _stream(stderr: int) -> TextIO:
    """Return stderr by a descriptor of its own, in UTF-8 whatever the locale."""
    return os.fdopen(os.dup(stderr), "w", buffering=1, encoding="utf-8", errors="backslashreplace")
