from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from utter_protocol import framing
from utter_protocol.framing import FrameDecoder, FramingError, encode_frame

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

BOM = b"\xef\xbb\xbf"
EXAMPLES = settings(derandomize=True, database=None, deadline=None, max_examples=200)


class Outcome:
    """What became of a stream: the bodies, the junk before them, and the kind of the error that ended it."""

    def __init__(self, frames: list[bytes], junk: bytes, error: str | None) -> None:
        self.frames = frames
        self.junk = junk
        self.error = error

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Outcome) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash((tuple(self.frames), self.junk, self.error))

    def __repr__(self) -> str:
        return f"Outcome({self.frames!r}, junk={self.junk!r}, error={self.error!r})"


def feed(pieces: Iterable[bytes], *, end: bool = True, **bounds: int) -> Outcome:
    decoder = FrameDecoder(**bounds)
    frames: list[bytes] = []
    junk = bytearray()
    error = None
    try:
        for piece in pieces:
            decoder.receive(piece)
            while (body := decoder.next_frame()) is not None:
                assert type(body) is bytes
                frames.append(body)
                junk += decoder.take_junk()
            junk += decoder.take_junk()
        if end:
            decoder.end()
    except FramingError as raised:
        error = raised.kind
    junk += decoder.take_junk()
    return Outcome(frames, bytes(junk), error)


def single_bytes(data: bytes) -> Iterator[bytes]:
    return (data[index : index + 1] for index in range(len(data)))


def every_way(data: bytes, **bounds: int) -> Outcome:
    """Decode `data` whole, byte by byte, cut once at every place, and with a frame behind it."""
    whole = feed([data], **bounds)
    assert feed(single_bytes(data), **bounds) == whole
    for cut in range(1, min(len(data), 200)):
        assert feed([data[:cut], data[cut:]], **bounds) == whole, cut
    if whole.error != "truncated":
        trailing = encode_frame(b"[1]")
        after = feed([data + trailing], **bounds)
        assert after.error == whole.error
        assert after.frames == (whole.frames if whole.error else [*whole.frames, b"[1]"])
        assert feed(single_bytes(data + trailing), **bounds) == after
    return whole


# ---- frames


@pytest.mark.parametrize(
    "body", [b"", b"{}", b'"\xc3\xa9"', BOM, b"\r\n\r\n", b"Content-Length: 9\r\n\r\n", b"\0" * 300]
)
def test_a_frame_comes_out_as_it_went_in(body: bytes) -> None:
    assert every_way(encode_frame(body)) == Outcome([body], b"", None)


def test_lengths_count_bytes_not_characters() -> None:
    body = '"日本語"'.encode()
    assert encode_frame(body) == b"Content-Length: 11\r\n\r\n" + body


HEADERS = {
    "lower case": b"content-length: 2\r\n\r\n",
    "upper case": b"CONTENT-LENGTH: 2\r\n\r\n",
    "mixed case": b"cOnTeNt-LeNgTh: 2\r\n\r\n",
    "no space": b"Content-Length:2\r\n\r\n",
    "spaces around": b"Content-Length: \t  2 \t \r\n\r\n",
    "space before the colon": b"Content-Length \t: 2\r\n\r\n",
    "as many spaces as are looked for": b"Content-Length" + b" " * 32 + b": 2\r\n\r\n",
    "bare line feeds": b"Content-Length: 2\n\n",
    "a line feed after a CRLF": b"Content-Length: 2\r\n\n",
    "a CRLF after a line feed": b"Content-Length: 2\n\r\n",
    "mixed endings": b"Content-Type: a/b\nContent-Length: 2\r\n\r\n",
    "type after": b"Content-Length: 2\r\nContent-Type: application/vscode-jsonrpc; charset=utf-8\r\n\r\n",
    "type before": b"Content-Type: application/vscode-jsonrpc; charset=utf-8\r\nContent-Length: 2\r\n\r\n",
    "utf8": b"Content-Type: application/json; charset=utf8\r\nContent-Length: 2\r\n\r\n",
    "any case of the charset": b"Content-Length: 2\r\ncontent-type: x/y ; Charset = UTF-8\r\n\r\n",
    "quoted charset": b'Content-Length: 2\r\ncontent-type: x/y; charset="utf-8"; q=1\r\n\r\n',
    "no charset": b"Content-Length: 2\r\nContent-Type: application/json\r\n\r\n",
    "an unknown header": b"Content-Length: 2\r\nX-Trace: a: b\r\n\r\n",
    "leading zeros": b"Content-Length: 0002\r\n\r\n",
    "very many leading zeros": b"Content-Length: " + b"0" * 60 + b"2\r\n\r\n",
    "the same length twice": b"Content-Length: 2\r\nContent-Length: 02\r\n\r\n",
}


@pytest.mark.parametrize("header", HEADERS.values(), ids=HEADERS.keys())
def test_a_header_may_be_written_like_this(header: bytes) -> None:
    assert every_way(header + b"{}") == Outcome([b"{}"], b"", None)


BROKEN = {
    "plus": (b"Content-Length: +5\r\n\r\n", "bad_length"),
    "minus": (b"Content-Length: -5\r\n\r\n", "bad_length"),
    "empty": (b"Content-Length:\r\n\r\n", "bad_length"),
    "blank": (b"Content-Length:  \r\n\r\n", "bad_length"),
    "hexadecimal": (b"Content-Length: 0x10\r\n\r\n", "bad_length"),
    "hexadecimal digits": (b"Content-Length: ff\r\n\r\n", "bad_length"),
    "decimal point": (b"Content-Length: 5.0\r\n\r\n", "bad_length"),
    "exponent": (b"Content-Length: 1e3\r\n\r\n", "bad_length"),
    "underscore": (b"Content-Length: 1_0\r\n\r\n", "bad_length"),
    "space inside": (b"Content-Length: 1 0\r\n\r\n", "bad_length"),
    "list": (b"Content-Length: 5, 5\r\n\r\n", "bad_length"),
    "digits of another script": ("Content-Length: \u0665\r\n\r\n".encode(), "bad_length"),
    "superscript": ("Content-Length: \u00b2\r\n\r\n".encode(), "bad_length"),
    "nul": (b"Content-Length: 5\0\r\n\r\n", "bad_length"),
    "carriage return inside": (b"Content-Length: 5\r6\r\n\r\n", "bad_length"),
    "huge, in machine range": (b"Content-Length: 9223372036854775807\r\n\r\n", "frame_too_large"),
    "huge, beyond machine range": (b"Content-Length: 9223372036854775808\r\n\r\n", "frame_too_large"),
    "huge beyond all printing": (b"Content-Length: " + b"9" * 5000 + b"\r\n\r\n", "frame_too_large"),
    "huge with zeros before it": (b"Content-Length: 000" + b"1" * 30 + b"\r\n\r\n", "frame_too_large"),
    "conflict": (b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n", "conflicting_length"),
    "conflict with a bad one": (b"Content-Length: 2\r\nContent-Length: -2\r\n\r\n", "bad_length"),
    "no length": (b"Content-Type: application/json\r\n\r\n", "missing_length"),
    "other charset": (b"Content-Length: 2\r\nContent-Type: a/b; charset=latin-1\r\n\r\n", "bad_content_type"),
    "utf-16": (b"Content-Type: a/b; charset=utf-16\r\nContent-Length: 2\r\n\r\n", "bad_content_type"),
    "empty charset": (b"Content-Length: 2\r\nContent-Type: a/b; charset=\r\n\r\n", "bad_content_type"),
    "line without a colon": (b"Content-Length: 2\r\nnonsense\r\n\r\n", "malformed_header"),
    "line without a name": (b"Content-Length: 2\r\n: x\r\n\r\n", "malformed_header"),
    "name with a space": (b"Content-Length: 2\r\nX Y: z\r\n\r\n", "malformed_header"),
    "line with a carriage return": (b"Content-Length: 2\r\nX: y\rz\r\n\r\n", "malformed_header"),
    "byte order mark": (BOM + b"Content-Length: 2\r\n\r\n", "bom"),
    "byte order mark after junk": (b"hello" + BOM + b"Content-Length: 2\r\n\r\n", "bom"),
    "byte order mark before a type": (BOM + b"Content-Type: a/b\r\nContent-Length: 2\r\n\r\n", "bom"),
}


@pytest.mark.parametrize(("header", "kind"), BROKEN.values(), ids=BROKEN.keys())
def test_a_broken_header_is_named(header: bytes, kind: str) -> None:
    good = encode_frame(b"[0]")
    outcome = every_way(good + header + b"{}")
    assert outcome.frames == [b"[0]"]
    assert outcome.error == kind


def test_every_kind_of_the_source_is_documented_and_provoked_here() -> None:
    source = {kind for _, kind in BROKEN.values()} | {"header_too_large", "junk_too_large", "truncated"}
    assert source == set(re.findall(r"`(\w+)`", (FramingError.__doc__ or "").split("stable name:")[1]))


def test_the_message_names_value_and_bound() -> None:
    decoder = FrameDecoder(max_frame=10)
    decoder.receive(b"Content-Length: 11\r\n\r\n")
    with pytest.raises(FramingError, match=r"11 bytes exceeds max_frame \(10 bytes\)"):
        decoder.next_frame()
    decoder = FrameDecoder()
    decoder.receive(b"Content-Length: ten\r\n\r\n")
    with pytest.raises(FramingError, match="b'ten'"):
        decoder.next_frame()


def test_a_wild_value_does_not_fill_the_message() -> None:
    decoder = FrameDecoder()
    decoder.receive(b"Content-Length: " + b"x" * 8000 + b"\r\n\r\n")
    with pytest.raises(FramingError) as caught:
        decoder.next_frame()
    assert len(caught.value.message) < 200
    assert str(caught.value) == caught.value.message


# ---- bounds


def test_a_frame_of_exactly_max_frame_is_taken_and_one_byte_more_is_not() -> None:
    assert every_way(encode_frame(b"x" * 10), max_frame=10) == Outcome([b"x" * 10], b"", None)
    assert every_way(encode_frame(b"x" * 11), max_frame=10).error == "frame_too_large"


def test_a_frame_too_large_is_refused_before_its_body_is_there() -> None:
    decoder = FrameDecoder(max_frame=10)
    decoder.receive(b"Content-Length: 11\r\n\r")
    assert decoder.next_frame() is None
    decoder.receive(b"\n")
    with pytest.raises(FramingError) as caught:
        decoder.next_frame()
    assert caught.value.kind == "frame_too_large"


def header_of(size: int) -> bytes:
    start, end = b"Content-Length: 2\r\nX: ", b"\r\n\r\n"
    return start + b"y" * (size - len(start) - len(end)) + end


def test_a_header_of_exactly_max_header_is_taken_and_one_byte_more_is_not() -> None:
    assert every_way(header_of(100) + b"{}", max_header=100) == Outcome([b"{}"], b"", None)
    assert every_way(header_of(101) + b"{}", max_header=100).error == "header_too_large"
    assert feed([header_of(framing.MAX_HEADER) + b"{}"]) == Outcome([b"{}"], b"", None)
    assert feed([header_of(framing.MAX_HEADER + 1)]).error == "header_too_large"


def test_the_shortest_header_obeys_the_bound_too() -> None:
    frame = encode_frame(b"{}")
    size = len(frame) - 2
    assert every_way(frame, max_header=size).error is None
    assert every_way(frame, max_header=size - 1).error == "header_too_large"


def test_a_header_that_never_ends_is_refused_while_it_arrives() -> None:
    decoder = FrameDecoder(max_header=100)
    for piece in single_bytes((b"Content-Length: 2\r\nX: " + b"y" * 1000)[:100]):
        decoder.receive(piece)
        assert decoder.next_frame() is None
    decoder.receive(b"y")
    with pytest.raises(FramingError) as caught:
        decoder.next_frame()
    assert caught.value.kind == "header_too_large"


@pytest.mark.parametrize("letter", [b".", b"c", b"C", b"\n", b"\xef", BOM, b"content-", b"Content-Length"])
def test_junk_of_exactly_max_junk_is_skipped_and_one_byte_more_is_not(letter: bytes) -> None:
    junk = (letter * 200)[:99]
    frame = b"\ncontent-length: 2\r\n\r\n{}"
    assert every_way(junk + frame, max_junk=100) == Outcome([b"{}"], junk + b"\n", None)
    over = every_way(b"." + junk + frame, max_junk=100)
    assert over.error == "junk_too_large"
    assert over.junk == (b"." + junk)[:100]


def test_junk_at_the_bound_may_be_followed_by_a_header_in_tiny_pieces() -> None:
    junk = b"j" * framing.MAX_JUNK
    for size in (1, 7, 64, 4096):
        data = junk + encode_frame(b"{}")
        pieces = (data[index : index + size] for index in range(0, len(data), size))
        assert feed(pieces) == Outcome([b"{}"], junk, None)
    assert feed(single_bytes(b"j" + junk)).error == "junk_too_large"


def test_the_junk_bound_counts_between_frames_not_in_all() -> None:
    one = b"j" * 80 + encode_frame(b"{}")
    assert feed([one] * 5, max_junk=100).frames == [b"{}"] * 5


def test_the_junk_bound_tells_what_to_do() -> None:
    decoder = FrameDecoder(max_junk=10)
    decoder.receive(b"x" * 11)
    with pytest.raises(FramingError, match=r"max_junk \(10 bytes\).*stdout is for frames, log to stderr"):
        decoder.next_frame()


def test_what_is_kept_is_bounded() -> None:
    decoder = FrameDecoder(max_junk=1000)
    for _ in range(200):
        decoder.receive(b"Content-Leng" + b"j" * 400 + encode_frame(b"{}"))
        assert decoder.next_frame() == b"{}"
        assert decoder.next_frame() is None
        assert decoder.buffered == 0
    assert len(decoder.take_junk()) == 1000
    assert decoder.take_junk() == b""


def test_the_buffer_of_a_large_frame_is_let_go() -> None:
    decoder = FrameDecoder()
    frame = encode_frame(b"x" * 1_000_000)
    decoder.receive(frame[:500_000])
    assert decoder.next_frame() is None
    decoder.receive(frame[500_000:])
    assert decoder.next_frame() == frame[-1_000_000:]
    assert len(decoder._buffer) == 0


# ---- junk

JUNK = {
    "a line": b"Loading model...\n",
    "glued to the header": b"no newline",
    "ANSI": b"\x1b[31mred\x1b[0m",
    "blank lines": b"\r\n\r\n",
    "binary": bytes(range(256)),
    "another header first": b"X-First: 1\r\n",
    "the beginning of a header": b"Content-Lengt",
    "a name without a colon": b"content-length 5\r\n\r\n",
    "a name with too many spaces": b"content-length" + b" " * 33 + b": 5\r\n\r\n",
    "a beginning right before": b"content-typecontent-",
    "a BOM that is not before the header": BOM + b"\n",
    "JSON": b'{"jsonrpc":"2.0"}\n',
}


@pytest.mark.parametrize("junk", JUNK.values(), ids=JUNK.keys())
def test_junk_before_a_header_is_skipped_and_handed_over(junk: bytes) -> None:
    data = encode_frame(b"[0]") + junk + encode_frame(b"{}") + junk
    assert every_way(junk + encode_frame(b"{}")) == Outcome([b"{}"], junk, None)
    assert feed(single_bytes(data)) == feed([data]) == Outcome([b"[0]", b"{}"], junk * 2, None)


def test_bytes_of_a_byte_order_mark_around_a_frame_are_junk() -> None:
    data = b"\xef\xbb" + encode_frame(b"[0]") + b"\xbf" + encode_frame(b"{}")
    assert every_way(data) == Outcome([b"[0]", b"{}"], BOM, None)


@pytest.mark.parametrize("size", range(1, 15))
def test_the_beginning_of_a_header_at_the_end_of_the_buffer_is_not_junk_yet(size: int) -> None:
    decoder = FrameDecoder()
    frame = encode_frame(b"{}")
    decoder.receive(b"junk" + frame[:size])
    assert decoder.next_frame() is None
    assert decoder.take_junk() == b"junk"
    assert decoder.buffered == size
    decoder.receive(frame[size:])
    assert decoder.next_frame() == b"{}"
    assert decoder.take_junk() == b""


def test_junk_is_handed_over_as_it_comes() -> None:
    decoder = FrameDecoder()
    decoder.receive(b"hello")
    assert decoder.next_frame() is None
    assert decoder.take_junk() == b"hello"


# ---- the end

TRUNCATED = {
    "in a body": b"Content-Length: 5\r\n\r\n{}",
    "before a body": b"Content-Length: 5\r\n\r\n",
    "in the blank line": b"Content-Length: 5\r\n\r",
    "after the first line": b"Content-Length: 5\r\n",
    "in the value": b"Content-Length: ",
    "after the colon": b"Content-Length:",
    "after the type": b"content-type : application/json\n",
}


@pytest.mark.parametrize("data", TRUNCATED.values(), ids=TRUNCATED.keys())
def test_an_end_inside_a_frame_is_named(data: bytes) -> None:
    assert every_way(data).error == "truncated"
    assert every_way(b"junk" + encode_frame(b"[0]") + data) == Outcome([b"[0]"], b"junk", "truncated")


def test_the_message_tells_how_much_was_there() -> None:
    decoder = FrameDecoder()
    decoder.receive(b"Content-Length: 50\r\n\r\n" + b"x" * 20)
    assert decoder.next_frame() is None
    with pytest.raises(FramingError, match="20 bytes into a body of 50 bytes"):
        decoder.end()


@pytest.mark.parametrize("junk", [b"", b"bye\n", b"Content-Leng", b"c"])
def test_an_end_between_frames_is_harmless(junk: bytes) -> None:
    assert every_way(encode_frame(b"{}") + junk) == Outcome([b"{}"], junk, None)


def test_the_end_counts_the_last_junk() -> None:
    assert feed([b"x" * 90 + b"content-leng"], max_junk=100) == Outcome([], b"x" * 90 + b"content-le", "junk_too_large")


# ---- dead


@pytest.mark.parametrize("broken", [header for header, _ in BROKEN.values()], ids=BROKEN.keys())
def test_after_an_error_the_decoder_is_dead_and_keeps_nothing(broken: bytes) -> None:
    decoder = FrameDecoder()
    decoder.receive(broken + b"{}")
    with pytest.raises(FramingError) as first:
        decoder.next_frame()
    for _ in range(3):
        decoder.receive(encode_frame(b"{}") * 100)
        with pytest.raises(FramingError) as again:
            decoder.next_frame()
        assert again.value is first.value
        with pytest.raises(FramingError):
            decoder.end()
        assert decoder.buffered == 0


def test_a_truncated_stream_cannot_go_on() -> None:
    decoder = FrameDecoder()
    decoder.receive(b"Content-Length: 5\r\n\r\n{")
    assert decoder.next_frame() is None
    with pytest.raises(FramingError):
        decoder.end()
    decoder.receive(b"{}}}")
    with pytest.raises(FramingError, match="ended"):
        decoder.next_frame()


# ---- any stream, however it is split

NAMES = st.sampled_from([b"Content-Length", b"content-length", b"CONTENT-LENGTH", b"cOnTENT-lENGTH"])
SPACE = st.sampled_from([b"", b" ", b"\t", b"  \t"])
ENDINGS = st.sampled_from([b"\r\n", b"\n"])
TYPES = st.sampled_from([b"application/json", b"a/b; charset=utf-8", b'a/b;charset="UTF8"'])
# What junk may hold without being a header or a byte order mark before one.
HARMLESS = st.binary(max_size=40).map(lambda data: data.replace(b":", b";").replace(b"\xbf", b"?")) | st.sampled_from(
    [b"content-", b"Content-Length", b"content-type  ", b"c", b"\x1b[0m", b"\r\n\r\n"]
)


@st.composite
def frames(draw: st.DrawFn) -> tuple[bytes, bytes, bytes]:
    """Return junk, body, and header with body."""
    body = draw(st.binary(max_size=60))
    lines = [draw(NAMES) + draw(SPACE) + b":" + draw(SPACE) + b"%d" % len(body) + draw(SPACE)]
    if draw(st.booleans()):
        lines.insert(draw(st.integers(0, 1)), b"Content-Type:" + draw(SPACE) + draw(TYPES))
    header = b"".join(line + draw(ENDINGS) for line in lines) + draw(ENDINGS)
    return draw(HARMLESS), body, header + body


@st.composite
def cuts(draw: st.DrawFn, data: bytes) -> list[bytes]:
    places = sorted(draw(st.lists(st.integers(0, len(data)), max_size=12)))
    return [data[start:end] for start, end in zip([0, *places], [*places, len(data)], strict=True)]


@EXAMPLES
@given(st.lists(frames(), max_size=5), st.data())
def test_frames_come_out_of_any_stream_in_any_pieces(
    items: list[tuple[bytes, bytes, bytes]], data: st.DataObject
) -> None:
    stream = b"".join(junk + frame for junk, _, frame in items)
    expected = Outcome([body for _, body, _ in items], b"".join(junk for junk, _, _ in items), None)
    assert feed([stream]) == expected
    assert feed(single_bytes(stream)) == expected
    assert feed(data.draw(cuts(stream))) == expected


FRAGMENTS = b"Content-Length|content-type|:| |\r|\n|\r\n|\r\n\r\n|5|12|-1|{}|c|cont|; charset=|utf-8|\xef|\xef\xbb\xbf"
LONGER = [b"\t" * 33, b"x" * 50, b"9" * 20, encode_frame(b"{}"), b"Content-Length: 3\n\n[1]"]
SHARDS = st.sampled_from([*FRAGMENTS.split(b"|"), *LONGER])


@EXAMPLES
@given(st.lists(SHARDS | st.binary(max_size=8), max_size=25).map(b"".join), st.data())
def test_nothing_depends_on_the_pieces_even_in_nonsense(stream: bytes, data: st.DataObject) -> None:
    bounds = {"max_frame": 60, "max_header": 70, "max_junk": 90}
    whole = feed([stream], **bounds)
    assert feed(single_bytes(stream), **bounds) == whole
    assert feed(data.draw(cuts(stream)), **bounds) == whole
    assert feed([stream], end=False, **bounds).frames == whole.frames


# ---- cost


def cost_ratio(run: Callable[[int], None], small: int, factor: int) -> float:
    """How many times more CPU `factor` times the size takes, the best of three of each."""

    def cost(size: int) -> float:
        best = float("inf")
        for _ in range(3):
            start = time.thread_time()
            run(size)
            best = min(best, time.thread_time() - start)
        return best

    return cost(small * factor) / cost(small)


def drip(data: bytes, piece: int, **bounds: int) -> Outcome:
    return feed((data[index : index + piece] for index in range(0, len(data), piece)), **bounds)


@pytest.mark.parametrize("kind", ["body", "header", "junk", "beginnings"])
def test_a_stream_in_tiny_pieces_costs_as_much_as_it_is_long(kind: str) -> None:
    def run(size: int) -> None:
        if kind == "body":
            outcome = drip(encode_frame(b"x" * size), 16)
        elif kind == "header":
            outcome = drip(header_of(size) + b"{}", 16, max_header=size)
        elif kind == "junk":
            outcome = drip(b"x" * size + encode_frame(b"{}"), 16, max_junk=size)
        else:
            outcome = drip(b"content-length " * (size // 15) + encode_frame(b"{}"), 16, max_junk=size)
        assert len(outcome.frames) == 1

    # Eight times the length costs eight times as much, or 64 times where every piece copies or searches everything.
    assert cost_ratio(run, 128 * 1024, 8) < 24


def test_a_body_byte_by_byte_is_never_moved() -> None:
    decoder = FrameDecoder()
    frame = encode_frame(b"x" * 1024 * 1024)
    moves = 0
    buffer: object = None
    for piece in single_bytes(frame):
        decoder.receive(piece)
        decoder.next_frame()
        moves += decoder._buffer is not buffer
        buffer = decoder._buffer
    assert decoder.buffered == 0
    # The first two bytes of the header, the first two of the body, and once when the buffer is let go.
    assert moves <= 5
