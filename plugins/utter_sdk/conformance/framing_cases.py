"""What both kits try of framing: what has to be understood however it is written and cut, and what is no frame at all.

Rules here: a table each; who is asked what, and what comes of it, is up to the checks that go through them.
"""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

from utter_sdk.conformance.wire import MAX_HEADER, MAX_JUNK, frame, request

if TYPE_CHECKING:
    from collections.abc import Callable

    from utter_sdk.conformance.talk import Talk
    from utter_sdk.conformance.wire import Message

FRAMING_SECTION: Final = "Framing"


class Asker(NamedTuple):
    """How the other side is asked something that it always answers.

    Attributes:
        link: a connection on which it answers.
        method: what it is asked, with no params that it must have.
        judge: goes on only if an answer is the right one.
    """

    link: Talk
    method: str
    judge: Callable[[Message], object]

    def take(self, request_id: int | str, seconds: float | None = None) -> None:
        """Wait for an answer and judge it.

        Raises:
            CheckFailed: none came, or a wrong one.
        """
        self.judge(self.link.answer(request_id, self.method, seconds))

    def ask_padded(self, size: int, seconds: float | None = None) -> None:
        """Ask in a body of so many bytes.

        Raises:
            CheckFailed: it is not answered, or wrongly.
        """
        request_id = self.link.next_id()
        short = request(request_id, self.method, {"padding": ""})
        self.link.expect(request_id)
        padding = "x" * (size - len(short))
        body = request(request_id, self.method, {"padding": padding})
        self.link.body(body, f"{short.decode()} padded to {size} bytes")
        self.take(request_id, seconds)


class Understood(NamedTuple):
    """Something that everybody has to understand: the id and the title of its check, and what tries it."""

    check_id: str
    title: str
    attempt: Callable[[Asker], None]


class NoFrame(NamedTuple):
    """Bytes that end a connection: the framing error's name, which way of making it this is, and the bytes.

    `note` says for people what is too long to be shown.
    """

    kind: str
    variant: str
    data: bytes
    note: str = ""


def _below(*headers: str, end: str = "\r\n") -> Callable[[Asker], None]:
    """Ask below each of these header parts (`{}` is the length), and each time again below a plain one."""

    def attempt(asker: Asker) -> None:
        link = asker.link
        for header in headers:
            for written, ending in ((header, end), ("Content-Length: {}", "\r\n")):
                request_id = link.next_id()
                body = request(request_id, asker.method, {})
                link.expect(request_id)
                lines = written.format(len(body)).split("\n")
                link.send("".join(f"{line}{ending}" for line in (*lines, "")).encode() + body)
                asker.take(request_id)

    return attempt


def _byte_by_byte(asker: Asker) -> None:
    request_id = asker.link.next_id()
    asker.link.expect(request_id)
    asker.link.pieces(*(bytes([byte]) for byte in frame(request(request_id, asker.method, {}))))
    asker.take(request_id)


def _split(asker: Asker) -> None:
    ids = [asker.link.next_id() for _ in range(3)]
    asker.link.expect(*ids)
    whole = b"".join(frame(request(one, asker.method, {})) for one in ids)
    size = len(whole) // 3
    cuts = [0, 9, 17, size - 1, size + 20, 2 * size - 3, 2 * size + 2, len(whole)]
    asker.link.pieces(*(whole[start:end] for start, end in pairwise(cuts)))
    for one in ids:
        asker.take(one)


def _many(asker: Asker) -> None:
    for one in asker.link.requests([(asker.method, {})] * 100, f"100 times {asker.method}"):
        asker.take(one)


def _bytes(asker: Asker) -> None:
    name = "ünï€😀"
    second = asker.link.next_id()
    asker.link.expect(name, second)
    noted = request(name, asker.method, {"note": "€" * 50})
    asker.link.send(frame(noted) + frame(request(second, asker.method, {})))
    asker.take(name)
    asker.take(second)


UNDERSTOOD: Final = (
    Understood("framing.byte-by-byte", "A frame that arrives one byte at a time is understood.", _byte_by_byte),
    Understood(
        "framing.split", "Frames may be cut anywhere: inside a header, inside a body, across two frames.", _split
    ),
    Understood("framing.many", "Many frames in one write are all answered, each once.", _many),
    Understood("framing.bytes", "The length counts bytes, not characters.", _bytes),
    Understood(
        "framing.header-case",
        "Header names are read in any mixture of upper and lower case.",
        _below("content-length: {}", "CONTENT-LENGTH: {}", "cOnTeNt-lEnGtH: {}"),
    ),
    Understood(
        "framing.header-spaces",
        "Spaces and tabs before the colon and around the value are ignored.",
        _below("Content-Length:{}", "Content-Length \t:  \t{} \t"),
    ),
    Understood("framing.bare-lf", "Header lines may end in a bare line feed.", _below("Content-Length: {}", end="\n")),
    Understood(
        "framing.content-type",
        "Content-Type is accepted before and after the length, with UTF-8 in any spelling.",
        _below(
            "Content-Type: application/vscode-jsonrpc; charset=utf-8\nContent-Length: {}",
            'Content-Length: {}\nContent-Type: application/vscode-jsonrpc; charset="UTF-8"',
            "Content-Length: {}\ncontent-type: application/json;charset=utf8",
            "Content-Type: text/plain\nContent-Length: {}",
        ),
    ),
    Understood(
        "framing.other-headers",
        "Headers with other names are ignored.",
        _below("Content-Length: {}\nX-Trace: a: b; c=1"),
    ),
    Understood(
        "framing.repeated-length",
        "Content-Length may be given twice, if the numbers are the same.",
        _below("Content-Length: {0}\nContent-Length: {0}"),
    ),
    Understood(
        "framing.junk",
        "Bytes before a header that belong to no frame are skipped.",
        _below(
            "\x1b[0mWarning: a stray print\n\nContent-Length: {}",
            "no line end before the header: Content-Length: {}",
        ),
    ),
    Understood("framing.large", "A frame of 1 MiB is understood.", partial(Asker.ask_padded, size=1024 * 1024)),
)


def length_line(length: int) -> bytes:
    """A header part that says nothing but a length."""
    return b"Content-Length: %d\r\n\r\n" % length


def _lines(count: int) -> bytes:
    return b"".join(b"%-62s\r\n" % b"X-Padding: x" for _ in range(count))


_JSON = b'{"jsonrpc":"2.0","method":"conformance.nothing"}'
_PLAIN = length_line(len(_JSON)) + _JSON
# frame_too_large is not among them: a runner's bound may be set higher than the usual one.
NO_FRAMES: Final = (
    NoFrame("missing_length", "", b"Content-Type: application/vscode-jsonrpc; charset=utf-8\r\n\r\n" + _JSON),
    NoFrame("bad_length", "negative", b"Content-Length: -1\r\n\r\n" + _JSON),
    NoFrame("bad_length", "empty", b"Content-Length:\r\n\r\n" + _JSON),
    NoFrame("bad_length", "sign", b"Content-Length: +%d\r\n\r\n%b" % (len(_JSON), _JSON)),
    NoFrame("bad_length", "fraction", b"Content-Length: 2.0\r\n\r\n{}"),
    NoFrame("bad_length", "hexadecimal", b"Content-Length: 0x2\r\n\r\n{}"),
    NoFrame("conflicting_length", "", b"Content-Length: %d\r\nContent-Length: 7\r\n\r\n%b" % (len(_JSON), _JSON)),
    NoFrame("malformed_header", "", b"Content-Length: %d\r\nno colon\r\n\r\n%b" % (len(_JSON), _JSON)),
    NoFrame("bad_content_type", "", b"Content-Type: text/plain; charset=latin1\r\n" + _PLAIN),
    NoFrame("bom", "", b"\xef\xbb\xbf" + _PLAIN),
    NoFrame(
        "header_too_large",
        "",
        b"Content-Length: %d\r\n%b\r\n%b" % (len(_JSON), _lines(MAX_HEADER // 64 + 4), _JSON),
        "a header part of 8.5 KiB",
    ),
    NoFrame(
        "junk_too_large",
        "",
        (b"%-62s\r\n" % b"a line that belongs to no frame") * (MAX_JUNK // 64 + 16),
        "65 KiB of lines that belong to no frame",
    ),
)
