"""Checks: does the plugin read frames however they are written and cut, and give up where it must?"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from utter_protocol.errors import ErrorCode
from utter_sdk.conformance.lab import Table, refused, result_of
from utter_sdk.conformance.report import CheckFailed
from utter_sdk.conformance.wire import MAX_FRAME, MAX_HEADER, MAX_JUNK, frame, request

if TYPE_CHECKING:
    from collections.abc import Callable

    from utter_sdk.conformance.lab import Lab
    from utter_sdk.conformance.link import Link

FRAMING = Table()
_SECTION = "Framing"
_HEALTH = "plugin.health"


def _ask(lab: Lab, header: str, *, end: str = "\r\n") -> None:
    """Send `plugin.health` below a header part (`{}` is the length), and again below a plain one; both are answered."""
    link = lab.link()
    for written in (header, "Content-Length: {}"):
        request_id = link.next_id()
        body = request(request_id, _HEALTH, {})
        link.expect(request_id)
        lines = written.format(len(body)).split("\n")
        ending = end if written == header else "\r\n"
        link.send("".join(f"{line}{ending}" for line in (*lines, "")).encode() + body)
        result_of(link.answer(request_id, _HEALTH), _HEALTH)


@FRAMING.enter("framing.byte-by-byte", "A frame that arrives one byte at a time is understood.", _SECTION)
def _byte_by_byte(lab: Lab) -> None:
    link = lab.link()
    request_id = link.next_id()
    link.expect(request_id)
    link.pieces(*(bytes([byte]) for byte in frame(request(request_id, _HEALTH, {}))))
    result_of(link.answer(request_id, _HEALTH), _HEALTH)


@FRAMING.enter(
    "framing.split", "Frames may be cut anywhere: inside a header, inside a body, across two frames.", _SECTION
)
def _split(lab: Lab) -> None:
    link = lab.link()
    ids = [link.next_id() for _ in range(3)]
    link.expect(*ids)
    whole = b"".join(frame(request(one, _HEALTH, {})) for one in ids)
    size = len(whole) // 3
    cuts = [0, 9, 17, size - 1, size + 20, 2 * size - 3, 2 * size + 2, len(whole)]
    link.pieces(*(whole[start:end] for start, end in pairwise(cuts)))
    for one in ids:
        result_of(link.answer(one, _HEALTH), _HEALTH)


@FRAMING.enter("framing.many", "Many frames in one write are all answered, each once.", _SECTION)
def _many(lab: Lab) -> None:
    link = lab.link()
    for one in link.requests([(_HEALTH, {})] * 100, f"100 times {_HEALTH}"):
        result_of(link.answer(one, _HEALTH), _HEALTH)


@FRAMING.enter("framing.bytes", "The length counts bytes, not characters.", _SECTION)
def _bytes(lab: Lab) -> None:
    link = lab.link()
    name = "ünï€😀"
    second = link.next_id()
    link.expect(name, second)
    link.send(frame(request(name, _HEALTH, {"note": "€" * 50})) + frame(request(second, _HEALTH, {})))
    result_of(link.answer(name, _HEALTH), _HEALTH)
    result_of(link.answer(second, _HEALTH), _HEALTH)


@FRAMING.enter("framing.header-case", "Header names are read in any mixture of upper and lower case.", _SECTION)
def _header_case(lab: Lab) -> None:
    _ask(lab, "content-length: {}")
    _ask(lab, "CONTENT-LENGTH: {}")
    _ask(lab, "cOnTeNt-lEnGtH: {}")


@FRAMING.enter("framing.header-spaces", "Spaces and tabs before the colon and around the value are ignored.", _SECTION)
def _header_spaces(lab: Lab) -> None:
    _ask(lab, "Content-Length:{}")
    _ask(lab, "Content-Length \t:  \t{} \t")


@FRAMING.enter("framing.bare-lf", "Header lines may end in a bare line feed.", _SECTION)
def _bare_lf(lab: Lab) -> None:
    _ask(lab, "Content-Length: {}", end="\n")


@FRAMING.enter(
    "framing.content-type",
    "Content-Type is accepted before and after the length, with UTF-8 in any spelling.",
    _SECTION,
)
def _content_type(lab: Lab) -> None:
    _ask(lab, "Content-Type: application/vscode-jsonrpc; charset=utf-8\nContent-Length: {}")
    _ask(lab, 'Content-Length: {}\nContent-Type: application/vscode-jsonrpc; charset="UTF-8"')
    _ask(lab, "Content-Length: {}\ncontent-type: application/json;charset=utf8")
    _ask(lab, "Content-Type: text/plain\nContent-Length: {}")


@FRAMING.enter("framing.other-headers", "Headers with other names are ignored.", _SECTION)
def _other_headers(lab: Lab) -> None:
    _ask(lab, "Content-Length: {}\nX-Trace: a: b; c=1")


@FRAMING.enter("framing.repeated-length", "Content-Length may be given twice, if the numbers are the same.", _SECTION)
def _repeated_length(lab: Lab) -> None:
    _ask(lab, "Content-Length: {0}\nContent-Length: {0}")


@FRAMING.enter("framing.junk", "Bytes before a header that belong to no frame are skipped.", _SECTION)
def _junk(lab: Lab) -> None:
    _ask(lab, "\x1b[0mWarning: a stray print\n\nContent-Length: {}")
    _ask(lab, "no line end before the header: Content-Length: {}")


@FRAMING.enter("framing.large", "A frame of 1 MiB is understood.", _SECTION)
def _large(lab: Lab) -> None:
    _padded(lab.link(), 1024 * 1024, lab.limits.answer)


@FRAMING.enter(
    "framing.largest", "A frame of exactly max_frame (16 MiB) is understood.", "Bounds", level="should", alone=True
)
def _largest(lab: Lab) -> None:
    with lab.fresh() as link:
        _padded(link, MAX_FRAME, lab.limits.work)


def _padded(link: Link, size: int, seconds: float) -> None:
    request_id = link.next_id()
    short = request(request_id, _HEALTH, {"padding": ""})
    link.expect(request_id)
    padding = "x" * (size - len(short))
    link.body(request(request_id, _HEALTH, {"padding": padding}), f"{short.decode()} padded to {size} bytes")
    result_of(link.answer(request_id, _HEALTH, seconds), _HEALTH)


@FRAMING.enter(
    "framing.empty-body", "A frame with a length of 0 is no message, and the next one is understood.", "Messages"
)
def _empty_body(lab: Lab) -> None:
    link = lab.link()
    link.allow(None)
    link.send(frame(b""))
    link.barrier()


@FRAMING.enter(
    "framing.truncated", "When its input ends inside a frame, it ends and answers nothing.", _SECTION, alone=True
)
def _truncated(lab: Lab) -> None:
    with lab.fresh() as link:
        before = len(link.messages)
        link.send(frame(request(link.next_id(), _HEALTH, {}))[:-5])
        link.end_input()
        link.wait_end()
        if any(message.is_answer for message in link.messages[before:]):
            raise CheckFailed("it answered half a frame", expected="no answer")


def _broken(data: bytes, note: str = "") -> Callable[[Lab], None]:
    def check(lab: Lab) -> None:
        with lab.fresh() as link:
            link.allow(None)
            link.send(data, note)
            # A request, so that whoever took the bytes for a part of something waits for no more.
            request_id = link.next_id()
            link.allow(request_id)
            link.body(request(request_id, _HEALTH, {}))
            link.wait_closed(request_id)

    return check


def _lines(count: int) -> bytes:
    return b"".join(b"%-62s\r\n" % b"X-Padding: x" for _ in range(count))


_PLAIN = b"Content-Length: %d\r\n\r\n"
_JSON = b'{"jsonrpc":"2.0","method":"conformance.nothing"}'
_ERRORS: tuple[tuple[str, str, bytes, str], ...] = (
    ("missing_length", "must", b"Content-Type: application/vscode-jsonrpc; charset=utf-8\r\n\r\n" + _JSON, ""),
    ("bad_length", "must", b"Content-Length: -1\r\n\r\n" + _JSON, ""),
    (
        "conflicting_length",
        "must",
        b"Content-Length: %d\r\nContent-Length: 7\r\n\r\n%b" % (len(_JSON), _JSON),
        "",
    ),
    ("frame_too_large", "must", _PLAIN % (MAX_FRAME + 1), ""),
    (
        "header_too_large",
        "must",
        b"Content-Length: %d\r\n%b\r\n%b" % (len(_JSON), _lines(MAX_HEADER // 64 + 4), _JSON),
        "a header part of 8.5 KiB",
    ),
    (
        "junk_too_large",
        "must",
        (b"%-62s\r\n" % b"a line that belongs to no frame") * (MAX_JUNK // 64 + 16),
        "65 KiB of lines that belong to no frame",
    ),
    ("malformed_header", "should", b"Content-Length: %d\r\nno colon\r\n\r\n%b" % (len(_JSON), _JSON), ""),
    (
        "bad_content_type",
        "should",
        b"Content-Type: text/plain; charset=latin1\r\n" + _PLAIN % len(_JSON) + _JSON,
        "",
    ),
    ("bom", "should", b"\xef\xbb\xbf" + _PLAIN % len(_JSON) + _JSON, ""),
)
for _kind, _level, _data, _note in _ERRORS:
    FRAMING.enter(
        f"framing.error.{_kind}",
        f"After the framing error {_kind} it closes the connection.",
        _SECTION,
        level="must" if _level == "must" else "should",
        alone=True,
    )(_broken(_data, _note))


@FRAMING.enter(
    "framing.huge", "A length of 19 digits is refused, and no memory is set aside for it.", _SECTION, alone=True
)
def _huge(lab: Lab) -> None:
    _broken(_PLAIN % (10**19 - 1))(lab)


@FRAMING.enter(
    "framing.error-answer",
    "A framing error is answered -32600 with its name in data.framing and the id null.",
    _SECTION,
    level="should",
    alone=True,
)
def _error_answer(lab: Lab) -> None:
    with lab.fresh() as link:
        link.expect(None)
        link.send(_PLAIN % (MAX_FRAME + 1))
        answer = link.answer(None, "the framing error")
        refused(answer, "the framing error", ErrorCode.INVALID_REQUEST)
        named = (answer.error.get("data") or {}).get("framing")
        if named != "frame_too_large":
            raise CheckFailed(f"data.framing is {named!r}", expected='data.framing is "frame_too_large"')
