"""What a plugin prints, as lines for the log.

Rules here: whatever the bytes are, a line that comes out is one printable line of at most MAX_LINE characters and a
mark; bytes are held no longer than until their line is complete or too long. Secrets that the runner gave to the plugin
are not among what comes out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from utter_protocol.printable import harmless

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

MAX_LINE = 8 * 1024
"""The longest line, in bytes as it was printed and in characters as it is logged."""
CUT = " [cut off: max_log_line]"
HIDDEN = "[secret]"


class Words:
    """Makes lines of bytes as they come.

    Args:
        on_line: called with each line.
        secrets: texts that are replaced by `HIDDEN`.
    """

    def __init__(self, on_line: Callable[[str], None], secrets: Sequence[str] = ()) -> None:
        self._on_line = on_line
        # The longest first, should one be a part of another.
        self._secrets = sorted(filter(None, secrets), key=len, reverse=True)
        self._partial = b""
        self._skipping = False

    def feed(self, data: bytes) -> None:
        """Take what was printed."""
        *lines, rest = data.split(b"\n")
        for line in lines:
            self._add(line)
            self.end()
        self._add(rest)

    def end(self) -> None:
        """End the line that has no end yet."""
        partial, self._partial = self._partial, b""
        skipped, self._skipping = self._skipping, False
        if not skipped:
            self._say(partial, "")

    def _add(self, data: bytes) -> None:
        if self._skipping:
            return
        self._partial += data
        if len(self._partial) > MAX_LINE:
            partial, self._partial = self._partial, b""
            self._skipping = True
            self._say(partial, CUT)

    def _say(self, raw: bytes, mark: str) -> None:
        text = raw.rstrip(b"\r").decode("utf-8", "backslashreplace")
        for secret in self._secrets:
            text = text.replace(secret, HIDDEN)
        text = harmless(text.replace("\t", " "))
        if len(text) > MAX_LINE:
            text, mark = text[:MAX_LINE], CUT
        if text:
            self._on_line(text + mark)
