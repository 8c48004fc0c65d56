"""Checks: does the runner read frames however they are written and cut, and refuse by name what is none?"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from utter_protocol.errors import ErrorCode
from utter_sdk.conformance.lab import refused
from utter_sdk.conformance.report import CheckFailed
from utter_sdk.conformance.runner_lab import HARMLESS, Table
from utter_sdk.conformance.wire import MAX_FRAME, MAX_HEADER, MAX_JUNK, frame, request

if TYPE_CHECKING:
    from collections.abc import Callable

    from utter_sdk.conformance.runner_lab import RunnerLab
    from utter_sdk.conformance.runner_link import RunnerLink
    from utter_sdk.conformance.wire import Message

RUNNER_FRAMING = Table()
_SECTION = "Framing"


def _ask(lab: RunnerLab, header: str, *, end: str = "\r\n") -> None:
    """Ask below a header part (`{}` is the length), and again below a plain one; both are answered."""
    link = lab.link()
    for written in (header, "Content-Length: {}"):
        request_id = link.next_id()
        body = request(request_id, HARMLESS, {})
        link.expect(request_id)
        lines = written.format(len(body)).split("\n")
        ending = end if written == header else "\r\n"
        link.send("".join(f"{line}{ending}" for line in (*lines, "")).encode() + body)
        lab.settled(link.answer(request_id, HARMLESS))


@RUNNER_FRAMING.enter("framing.byte-by-byte", "A frame that arrives one byte at a time is understood.", _SECTION)
def _byte_by_byte(lab: RunnerLab) -> None:
    link = lab.link()
    request_id = link.next_id()
    link.expect(request_id)
    link.pieces(*(bytes([byte]) for byte in frame(request(request_id, HARMLESS, {}))))
    lab.settled(link.answer(request_id, HARMLESS))


@RUNNER_FRAMING.enter(
    "framing.split", "Frames may be cut anywhere: inside a header, inside a body, across two frames.", _SECTION
)
def _split(lab: RunnerLab) -> None:
    link = lab.link()
    ids = [link.next_id() for _ in range(3)]
    link.expect(*ids)
    whole = b"".join(frame(request(one, HARMLESS, {})) for one in ids)
    size = len(whole) // 3
    cuts = [0, 9, 17, size - 1, size + 20, 2 * size - 3, 2 * size + 2, len(whole)]
    link.pieces(*(whole[start:end] for start, end in pairwise(cuts)))
    for one in ids:
        lab.settled(link.answer(one, HARMLESS))


@RUNNER_FRAMING.enter("framing.many", "Many frames in one write are all answered, each once.", _SECTION)
def _many(lab: RunnerLab) -> None:
    link = lab.link()
    for one in link.requests([(HARMLESS, {})] * 100, f"100 times {HARMLESS}"):
        lab.settled(link.answer(one, HARMLESS))


@RUNNER_FRAMING.enter("framing.bytes", "The length counts bytes, not characters.", _SECTION)
def _bytes(lab: RunnerLab) -> None:
    link = lab.link()
    name = "ünï€😀"
    second = link.next_id()
    link.expect(name, second)
    link.send(frame(request(name, HARMLESS, {"note": "€" * 50})) + frame(request(second, HARMLESS, {})))
    lab.settled(link.answer(name, HARMLESS))
    lab.settled(link.answer(second, HARMLESS))


@RUNNER_FRAMING.enter("framing.header-case", "Header names are read in any mixture of upper and lower case.", _SECTION)
def _header_case(lab: RunnerLab) -> None:
    _ask(lab, "content-length: {}")
    _ask(lab, "CONTENT-LENGTH: {}")
    _ask(lab, "cOnTeNt-lEnGtH: {}")


@RUNNER_FRAMING.enter(
    "framing.header-spaces", "Spaces and tabs before the colon and around the value are ignored.", _SECTION
)
def _header_spaces(lab: RunnerLab) -> None:
    _ask(lab, "Content-Length:{}")
    _ask(lab, "Content-Length \t:  \t{} \t")


@RUNNER_FRAMING.enter("framing.bare-lf", "Header lines may end in a bare line feed.", _SECTION)
def _bare_lf(lab: RunnerLab) -> None:
    _ask(lab, "Content-Length: {}", end="\n")


@RUNNER_FRAMING.enter(
    "framing.content-type",
    "Content-Type is accepted before and after the length, with UTF-8 in any spelling.",
    _SECTION,
)
def _content_type(lab: RunnerLab) -> None:
    _ask(lab, "Content-Type: application/vscode-jsonrpc; charset=utf-8\nContent-Length: {}")
    _ask(lab, 'Content-Length: {}\nContent-Type: application/vscode-jsonrpc; charset="UTF-8"')
    _ask(lab, "Content-Length: {}\ncontent-type: application/json;charset=utf8")
    _ask(lab, "Content-Type: text/plain\nContent-Length: {}")


@RUNNER_FRAMING.enter("framing.other-headers", "Headers with other names are ignored.", _SECTION)
def _other_headers(lab: RunnerLab) -> None:
    _ask(lab, "Content-Length: {}\nX-Trace: a: b; c=1")


@RUNNER_FRAMING.enter(
    "framing.repeated-length", "Content-Length may be given twice, if the numbers are the same.", _SECTION
)
def _repeated_length(lab: RunnerLab) -> None:
    _ask(lab, "Content-Length: {0}\nContent-Length: {0}")


@RUNNER_FRAMING.enter("framing.junk", "Bytes before a header that belong to no frame are skipped.", _SECTION)
def _junk(lab: RunnerLab) -> None:
    _ask(lab, "\x1b[0mWarning: a stray print\n\nContent-Length: {}")
    _ask(lab, "no line end before the header: Content-Length: {}")


@RUNNER_FRAMING.enter("framing.large", "A frame of 1 MiB is understood.", _SECTION)
def _large(lab: RunnerLab) -> None:
    link = lab.link()
    request_id = link.next_id()
    short = request(request_id, HARMLESS, {"padding": ""})
    link.expect(request_id)
    padding = "x" * (1024 * 1024 - len(short))
    link.body(request(request_id, HARMLESS, {"padding": padding}), f"{short.decode()} padded to 1 MiB")
    lab.settled(link.answer(request_id, HARMLESS))


def _goodbye(link: RunnerLink) -> Message:
    """Wait for the answer to a framing error and the end of the connection; nothing else may come."""
    answer = link.answer(None, "the framing error")
    refused(answer, "the framing error", ErrorCode.INVALID_REQUEST)
    link.wait_closed()
    return answer


def _refusal(kind: str, data: bytes, note: str = "") -> Callable[[RunnerLab], None]:
    def check(lab: RunnerLab) -> None:
        with lab.fresh() as link:
            link.expect(None)
            # The request behind it must not be answered: nobody knows where it begins.
            link.send(data + frame(request(link.next_id(), HARMLESS, {})), note)
            answer = _goodbye(link)
            named = (answer.error.get("data") or {}).get("framing")
            if named != kind:
                raise CheckFailed(f"data.framing is {named!r}", expected=f'data.framing is "{kind}"')
            # Whoever else is connected goes on.
            lab.ask(lab.link())

    return check


def _lines(count: int) -> bytes:
    return b"".join(b"%-62s\r\n" % b"X-Padding: x" for _ in range(count))


_PLAIN = b"Content-Length: %d\r\n\r\n"
_JSON = b'{"jsonrpc":"2.0","method":"conformance.nothing"}'
_HUGE = 10**18
_ERRORS: tuple[tuple[str, str, bytes, str], ...] = (
    ("missing_length", "", b"Content-Type: application/vscode-jsonrpc; charset=utf-8\r\n\r\n" + _JSON, ""),
    ("bad_length", "negative", b"Content-Length: -1\r\n\r\n" + _JSON, ""),
    ("bad_length", "empty", b"Content-Length:\r\n\r\n" + _JSON, ""),
    ("bad_length", "sign", b"Content-Length: +%d\r\n\r\n%b" % (len(_JSON), _JSON), ""),
    ("bad_length", "fraction", b"Content-Length: 2.0\r\n\r\n{}", ""),
    ("bad_length", "hexadecimal", b"Content-Length: 0x2\r\n\r\n{}", ""),
    ("conflicting_length", "", b"Content-Length: %d\r\nContent-Length: 7\r\n\r\n%b" % (len(_JSON), _JSON), ""),
    ("malformed_header", "", b"Content-Length: %d\r\nno colon\r\n\r\n%b" % (len(_JSON), _JSON), ""),
    ("bad_content_type", "", b"Content-Type: text/plain; charset=latin1\r\n" + _PLAIN % len(_JSON) + _JSON, ""),
    ("bom", "", b"\xef\xbb\xbf" + _PLAIN % len(_JSON) + _JSON, ""),
    (
        "header_too_large",
        "",
        b"Content-Length: %d\r\n%b\r\n%b" % (len(_JSON), _lines(MAX_HEADER // 64 + 4), _JSON),
        "a header part of 8.5 KiB",
    ),
    ("frame_too_large", "", _PLAIN % _HUGE, ""),
    (
        "junk_too_large",
        "",
        (b"%-62s\r\n" % b"a line that belongs to no frame") * (MAX_JUNK // 64 + 16),
        "65 KiB of lines that belong to no frame",
    ),
)
for _kind, _variant, _data, _note in _ERRORS:
    RUNNER_FRAMING.enter(
        f"framing.error.{_kind}" + (f".{_variant}" if _variant else ""),
        f"The framing error {_kind}{f' ({_variant})' if _variant else ''} is answered with its name, and ends the "
        "connection and nothing else.",
        _SECTION,
    )(_refusal(_kind, _data, _note))


@RUNNER_FRAMING.enter(
    "framing.early",
    "A frame that is too large is refused when its header has been read, before the body.",
    _SECTION,
)
def _early(lab: RunnerLab) -> None:
    with lab.fresh() as link:
        link.expect(None)
        link.send(_PLAIN % _HUGE)
        _goodbye(link)


@RUNNER_FRAMING.enter(
    "framing.largest", "A frame of exactly max_frame (16 MiB) is understood.", "Bounds", level="should"
)
def _largest(lab: RunnerLab) -> None:
    with lab.fresh() as link:
        request_id = link.next_id()
        short = request(request_id, HARMLESS, {"padding": ""})
        link.expect(request_id)
        padding = "x" * (MAX_FRAME - len(short))
        link.body(request(request_id, HARMLESS, {"padding": padding}), f"{short.decode()} padded to {MAX_FRAME} bytes")
        lab.settled(link.answer(request_id, HARMLESS))


@RUNNER_FRAMING.enter(
    "framing.truncated",
    "A stream that ends inside a frame ends the connection; the part of a frame is no request.",
    _SECTION,
)
def _truncated(lab: RunnerLab) -> None:
    for cut in (5, 40):
        with lab.fresh() as link:
            # It may still say what was wrong.
            link.expect(None)
            link.send(frame(request(link.next_id(), HARMLESS, {}))[:-cut])
            link.half_close()
            link.wait_closed()
    lab.ask(lab.link())
