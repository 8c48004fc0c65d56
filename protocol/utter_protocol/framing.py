"""Content-Length framing, the LSP base protocol's header part (PROTOCOL.md, "Framing"), without I/O.

Rules here: the decoder owns one receive buffer and remembers how far it searched, so that a frame that arrives one byte
at a time costs no more than one that arrives whole; what comes out does not depend on how the bytes were split; a body
is copied once, when it is complete, and the buffer is let go then; every way in which a header can be wrong is a
`FramingError` with a stable `kind`, and after one the decoder is dead.
"""

from __future__ import annotations

import re
from typing import NoReturn

MAX_FRAME = 16 * 1024 * 1024
MAX_HEADER = 8 * 1024
MAX_JUNK = 64 * 1024

_BOM = b"\xef\xbb\xbf"
# The header that nearly everyone writes.
_FAST_HEADER = re.compile(rb"Content-Length: ([0-9]{1,19})\r\n\r\n").match
_NAMES = (b"content-length", b"content-type")
_SPACES = rb"[ \t]{0,32}"
_LONGEST_START = 14 + 32
_LONGEST_LENGTH = 19


def _prefix_of(name: bytes) -> bytes:
    """Return a pattern for the beginnings of a header name, and for all of it with spaces."""
    pattern = _SPACES
    for octet in reversed(name[1:]):
        pattern = b"(?:%b%b)?" % (re.escape(bytes([octet])), pattern)
    return name[:1] + pattern


_HEADER_START = re.compile(b"(?:%b)%b:" % (b"|".join(_NAMES), _SPACES), re.IGNORECASE)
_UNFINISHED_START = re.compile(rb"(?:%b)\Z" % b"|".join(map(_prefix_of, _NAMES)), re.IGNORECASE)
_BLANK_LINE = re.compile(rb"\r?\n\r?\n")


class FramingError(Exception):
    """The other side broke the framing; the connection cannot go on.

    Args:
        kind: stable name: `bom`, `header_too_large`, `junk_too_large`, `malformed_header`, `bad_length`,
            `conflicting_length`, `missing_length`, `bad_content_type`, `frame_too_large`, `truncated`.
        message: one sentence for a person, naming the bound or the value.
    """

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message


def encode_frame(body: bytes) -> bytes:
    """Return `body` (UTF-8 JSON) as one frame."""
    return b"Content-Length: %d\r\n\r\n%b" % (len(body), body)


class FrameDecoder:
    """Turns received bytes into frame bodies.

    Args:
        max_frame: largest body in bytes; a longer one is refused when its header has been read.
        max_header: largest header part in bytes, the blank line included.
        max_junk: how many bytes that are no header may stand before a frame.
    """

    def __init__(self, max_frame: int = MAX_FRAME, max_header: int = MAX_HEADER, max_junk: int = MAX_JUNK) -> None:
        self.max_frame = max_frame
        self.max_header = max_header
        self.max_junk = max_junk
        self._buffer: bytes | bytearray = b""
        self._position = 0
        self._searched = 0
        self._body_length = -1
        # Junk since the last frame: how much, and its last bytes, in which a byte order mark is looked for.
        self._junk_here = 0
        self._junk_end = b""
        self._junk = bytearray()
        self._error: FramingError | None = None

    def receive(self, data: bytes) -> None:
        """Add bytes that arrived. They are looked at by the next `next_frame`; a dead decoder drops them."""
        if self._error is not None:
            return
        if self._position == len(self._buffer):
            self._buffer = data
            self._searched = 0
        elif self._position or not isinstance(self._buffer, bytearray):
            rest = bytearray(memoryview(self._buffer)[self._position :])
            rest += data
            self._buffer = rest
            self._searched = max(0, self._searched - self._position)
        else:
            self._buffer += data
            return
        self._position = 0

    @property
    def buffered(self) -> int:
        """How many received bytes no frame has used yet."""
        return len(self._buffer) - self._position

    @property
    def inside_body(self) -> bool:
        """Whether the header of a frame has been used and its body has not arrived yet."""
        return self._body_length >= 0

    def take_junk(self) -> bytes:
        """Return what was skipped before headers since the last call, at most `max_junk` bytes, and forget it."""
        if not self._junk:
            return b""
        junk = bytes(self._junk)
        self._junk.clear()
        return junk

    def next_frame(self) -> bytes | None:
        """Return the next complete body, or None when more bytes are needed.

        Raises:
            FramingError: the header part is wrong or a bound is exceeded (PROTOCOL.md, "Framing"); every later call
                raises it again.
        """
        length = self._body_length
        if length < 0:
            header = _FAST_HEADER(self._buffer, self._position)
            if header is not None and not self._junk_here and header.end() - self._position <= self.max_header:
                self._position = header.end()
                length = int(header[1])
            else:
                length = self._guarded_header()
                if length < 0:
                    return None
            if length > self.max_frame:
                self._fail(
                    FramingError(
                        "frame_too_large", f"a frame of {length} bytes exceeds max_frame ({self.max_frame} bytes)"
                    )
                )
        buffer = self._buffer
        start = self._position
        end = start + length
        if end > len(buffer):
            self._body_length = length
            return None
        self._body_length = -1
        body = buffer[start:end] if isinstance(buffer, bytes) else bytes(memoryview(buffer)[start:end])
        if end == len(buffer):
            self._buffer = b""
            end = 0
        self._position = self._searched = end
        return body

    def end(self) -> None:
        """Say that no more bytes will come; to be called when `next_frame` has returned None.

        Raises:
            FramingError: `truncated`, the stream ended inside a header or a body; or the error that it died of.
        """
        if self._error is not None:
            raise self._error
        if self._body_length >= 0:
            self._fail(
                FramingError(
                    "truncated", f"the stream ended {self.buffered} bytes into a body of {self._body_length} bytes"
                )
            )
        if _HEADER_START.match(self._buffer, self._position):
            self._fail(FramingError("truncated", "the stream ended inside a header"))
        try:
            self._skip(len(self._buffer))
        except FramingError as error:
            self._fail(error)

    def _fail(self, error: FramingError) -> NoReturn:
        self._error = error
        self._buffer = b""
        self._position = self._searched = 0
        self._body_length = -1
        raise error

    def _guarded_header(self) -> int:
        if self._error is not None:
            raise self._error
        try:
            return self._slow_header()
        except FramingError as error:
            self._fail(error)

    def _slow_header(self) -> int:
        buffer = self._buffer
        start = self._find_header_start()
        if start < 0:
            return -1
        # The blank line's first byte may have arrived before its last: step back over what may begin one.
        blank = _BLANK_LINE.search(buffer, max(start, self._searched - 3))
        size = (blank.end() if blank else len(buffer)) - start
        if size > self.max_header:
            raise FramingError("header_too_large", f"a header part exceeds max_header ({self.max_header} bytes)")
        if blank is None:
            self._searched = len(buffer)
            return -1
        length = _parse_header(bytes(buffer[start : blank.start()]))
        self._position = self._searched = blank.end()
        self._junk_here = 0
        self._junk_end = b""
        return length

    def _find_header_start(self) -> int:
        """Skip junk; return where a header begins, or -1."""
        buffer = self._buffer
        match = _HEADER_START.search(buffer, self._position)
        if match is None:
            unfinished = _UNFINISHED_START.search(buffer, max(self._position, len(buffer) - _LONGEST_START))
            self._skip(unfinished.start() if unfinished else len(buffer))
            return -1
        start = match.start()
        self._skip(start)
        if self._junk_end == _BOM:
            raise FramingError("bom", "a byte order mark stands before a header; frames begin with none")
        return start

    def _skip(self, end: int) -> None:
        start = self._position
        if end == start:
            return
        buffer = self._buffer
        room = self.max_junk - max(self._junk_here, len(self._junk))
        if room > 0:
            self._junk += buffer[start : min(end, start + room)]
        self._junk_here += end - start
        self._junk_end = (self._junk_end + buffer[max(start, end - len(_BOM)) : end])[-len(_BOM) :]
        self._position = end
        if self._junk_here > self.max_junk:
            raise FramingError(
                "junk_too_large",
                f"more than max_junk ({self.max_junk} bytes) that belong to no frame; "
                "stdout is for frames, log to stderr",
            )


def _parse_header(block: bytes) -> int:
    length = -1
    for line in block.split(b"\n"):
        name, colon, value = line.rstrip(b"\r").partition(b":")
        if not colon:
            raise FramingError("malformed_header", f"a header line without a colon: {line[:80]!r}")
        field = name.strip(b" \t").lower()
        text = value.strip(b" \t")
        if field == b"content-length":
            found = _parse_length(text)
            if length not in (-1, found):
                raise FramingError("conflicting_length", f"two Content-Length headers differ: {length} and {found}")
            length = found
        elif field == b"content-type":
            _check_content_type(text)
        elif not field or b" " in field or b"\r" in line.rstrip(b"\r"):
            raise FramingError("malformed_header", f"not a header line: {line[:80]!r}")
    if length < 0:
        raise FramingError("missing_length", "a header part without Content-Length")
    return length


def _parse_length(text: bytes) -> int:
    if not text.isdigit():
        raise FramingError("bad_length", f"Content-Length is not a decimal count of bytes: {text[:40]!r}")
    digits = text.lstrip(b"0") or b"0"
    if len(digits) > _LONGEST_LENGTH:
        raise FramingError("frame_too_large", f"a Content-Length of {len(digits)} digits exceeds max_frame")
    return int(digits)


def _check_content_type(text: bytes) -> None:
    for parameter in text.split(b";")[1:]:
        key, _, value = parameter.partition(b"=")
        if key.strip().lower() != b"charset":
            continue
        if value.strip().strip(b'"').lower() not in (b"utf-8", b"utf8"):
            raise FramingError("bad_content_type", f"the charset must be utf-8, not {value.strip()[:40]!r}")
