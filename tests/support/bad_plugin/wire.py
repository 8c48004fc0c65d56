"""The wire of the plugin: bytes to bodies and back, by a codec of its own.

Rules here: standard library only, and as little of it as will do, because the plugin is started very often; `WITH` has
the defects that the command line names.
"""

from __future__ import annotations

import json
import os
import re
import sys
from contextlib import suppress
from typing import Any

WITH = set(sys.argv[1:])
MAX_FRAME, MAX_HEADER, MAX_JUNK = 16 * 1024 * 1024, 8 * 1024, 64 * 1024
START = re.compile(rb"content-(?:length|type)[ \t]*:", re.IGNORECASE)
CASED = re.compile(rb"Content-(?:Length|Type)[ \t]*:")
CRLF = re.compile(rb"\r\n\r\n")
BOUNDED = "no-bounds" not in WITH
BLANK = re.compile(rb"\r?\n\r?\n")


class FramingError(Exception):
    """The position in the stream is lost."""


class Wire:
    """Two descriptors: stdin and stdout, or a socket."""

    def __init__(self) -> None:
        transport = next((one.partition("=")[2] for one in WITH if one.startswith("transport=")), "stdio")
        self.transport = transport
        self.read_fd, self.write_fd = 0, 1
        if transport == "stdio":
            return
        import socket  # noqa: PLC0415 - it starts very often, and each import counts

        path = os.environ["UTTER_PLUGIN_SOCKET"]
        own = socket.socket(socket.AF_UNIX)
        if transport == "connect":
            own.connect(path)
            self.connection = own
        else:
            os.umask(0 if "socket-mode" in WITH else 0o077)
            own.bind(path)
            own.listen(1)
            self.connection, _ = own.accept()
            own.close()
        self.read_fd = self.write_fd = self.connection.fileno()

    def write(self, data: bytes) -> None:
        """Write all of it."""
        if "loses" in WITH:
            os.set_blocking(self.write_fd, False)
            with suppress(BlockingIOError):
                os.write(self.write_fd, data)
            return
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(self.write_fd, rest) :]

    def send(self, message: dict[str, Any]) -> None:
        """Write a message as a frame."""
        message = {"jsonrpc": "2.0", **message}
        if "no-version" in WITH:
            del message["jsonrpc"]
        text = json.dumps(message, ensure_ascii="characters" not in WITH)
        body = text.encode()
        length = len(text) if "characters" in WITH else len(body)
        header = b"Content-Length: %d\r\n\r\n" % length
        if "writes-lf" in WITH:
            header = header.replace(b"\r", b"")
        if "bom-out" in WITH:
            body = b"\xef\xbb\xbf" + body
            header = b"Content-Length: %d\r\n\r\n" % len(body)
        self.write(header + body)
        if "prints" in WITH:
            self.write(b"sent something\n")


class Frames:
    """Cuts bytes into bodies."""

    def __init__(self) -> None:
        self.buffer = bytearray()
        self.wanted = 0

    def feed(self, data: bytes) -> list[bytes]:
        """The bodies that are complete."""
        self.buffer += data
        if len(self.buffer) < self.wanted:
            return []
        bodies = []
        while (body := self._next()) is not None:
            bodies.append(body)
        return bodies[:8] if "few-per-read" in WITH else bodies

    def _next(self) -> bytes | None:
        start = CASED.search(self.buffer) if "case" in WITH else START.search(self.buffer)
        junk = start.start() if start else len(self.buffer) - 48
        if junk > MAX_JUNK and BOUNDED:
            raise FramingError("junk_too_large")
        if start is None:
            return None
        self._check_junk(junk)
        blank = (CRLF if "crlf" in WITH else BLANK).search(self.buffer, junk)
        if (blank.end() if blank else len(self.buffer)) - junk > MAX_HEADER and BOUNDED:
            raise FramingError("header_too_large")
        if blank is None:
            if "impatient" in WITH:
                raise FramingError("a part of a header")
            return None
        length = _length(bytes(self.buffer[junk : blank.start()]))
        if length > MAX_FRAME and "huge" not in WITH:
            raise FramingError("frame_too_large")
        return self._body(blank.end(), length)

    def _check_junk(self, junk: int) -> None:
        if "strict-junk" in WITH and junk:
            raise FramingError("junk")
        if self.buffer[max(0, junk - 3) : junk] == b"\xef\xbb\xbf" and "lenient" not in WITH:
            raise FramingError("bom")

    def _body(self, start: int, length: int) -> bytes | None:
        if len(self.buffer) < start + length:
            if "whole-only" in WITH:
                raise FramingError("a part of a frame")
            self.wanted = start + length
            return None
        body = bytes(self.buffer[start : start + length])
        del self.buffer[: None if "one-per-read" in WITH else start + length]
        self.wanted = 0
        return body


def _length(header: bytes) -> int:
    lengths: list[int] = []
    for line in header.split(b"\n"):
        name, colon, value = line.rstrip(b"\r").partition(b":")
        name = name.lower() if "spaces" in WITH else name.strip(b" \t").lower()
        if not colon and "lenient" not in WITH:
            raise FramingError("malformed_header")
        if name == b"content-length":
            lengths.append(_number(value))
        elif name == b"content-type":
            _check_type(value)
        elif "strict-headers" in WITH:
            raise FramingError("malformed_header")
    if len(lengths) > 1 and "once" in WITH:
        raise FramingError("conflicting_length")
    if len(set(lengths)) > 1 and "guess" not in WITH:
        raise FramingError("conflicting_length")
    if not lengths and "guess" not in WITH:
        raise FramingError("missing_length")
    return lengths[0] if lengths else 0


def _number(value: bytes) -> int:
    if not re.fullmatch(rb"[ \t]*[0-9]{1,19}[ \t]*", value) and "guess" not in WITH:
        raise FramingError("bad_length")
    return max(0, int(value))


def _check_type(value: bytes) -> None:
    if "no-type" in WITH:
        raise FramingError("malformed_header")
    charset = re.search(rb"charset *= *\"?([^\";]*)", value)
    if charset and charset[1].lower() not in (b"utf-8", b"utf8") and "lenient" not in WITH:
        raise FramingError("bad_content_type")
