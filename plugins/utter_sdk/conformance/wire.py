"""What a plugin writes, read with suspicion, and frames for it, well made or not (PROTOCOL.md, "Framing", "Messages").

Rules here: without I/O, and without the codec that the runner and the SDK use, so that a defect in that one is seen;
a `Reader` goes on as long as it can and reports everything that a sender must not do as a `Fault`.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_FRAME: Final = 16 * 1024 * 1024
MAX_HEADER: Final = 8 * 1024
MAX_JUNK: Final = 64 * 1024
MAX_IN_FLIGHT: Final = 1024
INT64: Final = 2**63

FaultKind = Literal["junk", "header", "body", "message", "answer", "early"]
"""Bytes outside of frames; a header or a length; a body that is not JSON; JSON that is no message; an answer that
nobody waits for; something before the answer to `protocol.hello`."""

_START = re.compile(rb"content-(?:length|type)[ \t]{0,32}:", re.IGNORECASE)
_LONGEST_START = 14 + 32
_BLANK = re.compile(rb"\r?\n\r?\n")
_PLAIN = re.compile(
    rb"(?:Content-Type: application/vscode-jsonrpc; charset=utf-8\r\n)?"
    rb"Content-Length: (?:0|[1-9][0-9]*)\r\n"
    rb"(?:Content-Type: application/vscode-jsonrpc; charset=utf-8\r\n)?\r\n"
)
_LENGTH = re.compile(rb"^content-length[ \t]*:[ \t]*([0-9]{1,19})[ \t]*\r?$", re.IGNORECASE | re.MULTILINE)
_SHOWN = 300


class _Missing:
    """The value of a member that a message does not have."""

    def __repr__(self) -> str:
        return "(missing)"


MISSING: Final = _Missing()


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that a plugin wrote and must not write; `text` is a sentence."""

    kind: FaultKind
    text: str


@dataclass(frozen=True, slots=True)
class Message:
    """A message of the plugin; a member that it does not have is `MISSING`."""

    id: Any = MISSING
    method: Any = MISSING
    params: Any = MISSING
    result: Any = MISSING
    error: Any = MISSING

    @property
    def is_answer(self) -> bool:
        """Whether it answers a request."""
        return self.method is MISSING

    @property
    def code(self) -> int | None:
        """The code of an error; None for everything else."""
        return self.error["code"] if isinstance(self.error, dict) else None


def shown(data: bytes, limit: int = _SHOWN) -> str:
    """Bytes for people, on one line; what is long is cut in the middle."""
    cut = data if len(data) <= limit else data[: limit - 100] + b" ... " + data[-60:]
    text = cut.decode("utf-8", "backslashreplace")
    text = "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)
    return text if cut is data else f"{text} ({len(data)} bytes)"


def dumps(value: Any) -> bytes:
    """JSON in UTF-8 without spaces."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")


def frame(body: bytes) -> bytes:
    """A frame as a sender writes it."""
    return b"Content-Length: %d\r\n\r\n%b" % (len(body), body)


def request(request_id: Any, method: str, params: Any = MISSING) -> bytes:
    """The body of a request."""
    message = {"jsonrpc": "2.0", "id": request_id, "method": method}
    return dumps(message if params is MISSING else {**message, "params": params})


def notification(method: str, params: Any = MISSING) -> bytes:
    """The body of a notification."""
    message = {"jsonrpc": "2.0", "method": method}
    return dumps(message if params is MISSING else {**message, "params": params})


def key_of(request_id: Any) -> str:
    """An id as a key that tells 1, "1", 1.0 and true apart."""
    return json.dumps(request_id)


def read_message(body: bytes) -> Message | Fault:
    """The message in a body, or what is wrong with it."""
    if body.startswith(b"\xef\xbb\xbf"):
        return Fault("body", f"A body begins with a byte order mark: {shown(body)}")
    try:
        value = json.loads(body.decode(), parse_constant=_refuse_constant)
    except UnicodeDecodeError as error:
        return Fault("body", f"A body is not UTF-8 ({error.reason} at byte {error.start}): {shown(body)}")
    except RecursionError:
        return Fault("body", f"A body nests too deep: {shown(body)}")
    except ValueError as error:
        return Fault("body", f"A body is not JSON ({error}): {shown(body)}")
    problem = _problem(value)
    if problem:
        return Fault("message", f"{problem}: {shown(body)}")
    members = ("id", "method", "params", "result", "error")
    return Message(**{name: value.get(name, MISSING) for name in members})


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")


def _is_id(value: Any) -> bool:
    if isinstance(value, str):
        return len(value) <= 1024  # noqa: PLR2004 - PROTOCOL.md, "Bounds"
    return isinstance(value, int) and not isinstance(value, bool) and -INT64 <= value < INT64


def _problem(value: Any) -> str:  # noqa: PLR0911 - one return for each rule of JSON-RPC
    if not isinstance(value, dict):
        return "A body is JSON and no object"
    if value.get("jsonrpc") != "2.0":
        return 'A message without "jsonrpc": "2.0"'
    if "method" in value:
        if not isinstance(value["method"], str):
            return "A message whose method is not a string"
        if "id" in value and not _is_id(value["id"]):
            return "A request whose id is neither a string nor a 64-bit integer"
        if not isinstance(value.get("params", {}), dict):
            return "A message whose params are no object"
        return ""
    if "id" not in value or not (value["id"] is None or _is_id(value["id"])):
        return "A message with neither a method nor the id of a request"
    if ("result" in value) == ("error" in value):
        return 'An answer with not exactly one of "result" and "error"'
    return _error_problem(value["error"]) if "error" in value else ""


def _error_problem(error: Any) -> str:
    if not isinstance(error, dict):
        return "An error that is no object"
    code = error.get("code")
    if not isinstance(code, int) or isinstance(code, bool):
        return "An error whose code is not an integer"
    if not isinstance(error.get("message"), str):
        return "An error whose message is not a string"
    if not isinstance(error.get("data", {}), dict):
        return "An error whose data is no object"
    return ""


class Reader:
    """Cuts what a plugin writes into bodies, and reports each departure from what a sender writes."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._length = -1
        self._lost = False

    def feed(self, data: bytes) -> Iterator[bytes | Fault]:
        """The bodies that are complete now, and the faults among them, in their order."""
        self._buffer += data
        while not self._lost:
            if self._length < 0:
                yield from self._skip()
                header = self._take_header()
                if header is None:
                    return
                yield from self._judge(header)
                continue
            if len(self._buffer) < self._length:
                return
            body = bytes(self._buffer[: self._length])
            del self._buffer[: self._length]
            self._length = -1
            yield body

    def end(self) -> Iterator[Fault]:
        """What is wrong with an end of the stream here."""
        if self._lost:
            return
        if self._length >= 0:
            yield Fault("header", f"The stream ends {len(self._buffer)} bytes into a body of {self._length} bytes")
        elif self._buffer:
            yield Fault("junk", f"Bytes that belong to no frame: {shown(bytes(self._buffer))}")
        self._buffer.clear()

    def _skip(self) -> Iterator[Fault]:
        found = _START.search(self._buffer)
        if found:
            end = found.start()
        elif b"content-".startswith(bytes(self._buffer[:8]).lower()):
            end = 0
        else:
            end = max(0, len(self._buffer) - _LONGEST_START)
        if end:
            yield Fault("junk", f"Bytes that belong to no frame: {shown(bytes(self._buffer[:end]))}")
            del self._buffer[:end]

    def _take_header(self) -> bytes | None:
        blank = _BLANK.search(self._buffer) if _START.match(self._buffer) else None
        if blank is None:
            return None
        header = bytes(self._buffer[: blank.end()])
        del self._buffer[: blank.end()]
        return header

    def _judge(self, header: bytes) -> Iterator[Fault]:
        if not _PLAIN.fullmatch(header):
            yield Fault("header", f"A header part that no sender writes: {shown(header)}")
        lengths = set(_LENGTH.findall(header))
        length = int(lengths.pop()) if len(lengths) == 1 else -1
        if not 0 <= length <= MAX_FRAME:
            self._lost = True
            yield Fault("header", f"A header part without a usable length: {shown(header)}")
        self._length = length
