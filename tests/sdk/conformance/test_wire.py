"""What the kit takes for frames and messages: everything that a sender must not write is a fault."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from utter_protocol.framing import encode_frame
from utter_sdk.conformance.wire import (
    MISSING,
    Fault,
    Message,
    Reader,
    frame,
    key_of,
    notification,
    read_message,
    request,
    shown,
)

BODY = b'{"jsonrpc":"2.0","id":1,"result":{}}'


def read(data: bytes) -> list[bytes | str]:
    """The bodies, and the kinds of the faults."""
    reader = Reader()
    found = [*reader.feed(data), *reader.end()]
    return [one.kind if isinstance(one, Fault) else one for one in found]


def test_frames_are_those_of_the_shipped_codec() -> None:
    assert frame(BODY) == encode_frame(BODY)
    assert request(1, "a.b", {}) == b'{"jsonrpc":"2.0","id":1,"method":"a.b","params":{}}'
    assert request("ü", "a.b") == '{"jsonrpc":"2.0","id":"ü","method":"a.b"}'.encode()
    assert notification("a.b", {"x": 1}) == b'{"jsonrpc":"2.0","method":"a.b","params":{"x":1}}'


@given(st.lists(st.binary(max_size=40), max_size=5), st.data())
def test_any_cut_gives_the_same_bodies(bodies: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(map(frame, bodies))
    cuts = sorted(data.draw(st.sets(st.integers(0, len(stream)))))
    reader = Reader()
    found = []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        found += reader.feed(stream[start:end])
    assert [*found, *reader.end()] == bodies


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (frame(BODY) + frame(BODY), [BODY, BODY]),
        (b"Content-Type: application/vscode-jsonrpc; charset=utf-8\r\n" + frame(BODY), [BODY]),
        (b"junk" + frame(BODY), ["junk", BODY]),
        (frame(BODY) + b"\n" + frame(BODY), [BODY, "junk", BODY]),
        (frame(BODY) + b"bye", [BODY, "junk"]),
        (frame(BODY).replace(b"\r", b""), ["header", BODY]),
        (frame(BODY).replace(b"Content", b"content"), ["header", BODY]),
        (frame(BODY).replace(b": ", b":", 1), ["header", BODY]),
        (frame(BODY).replace(b": ", b": 0", 1), ["header", BODY]),
        (b"X: y\r\n" + frame(BODY), ["junk", BODY]),
        (b"Content-Length: 36\r\nX: y\r\n\r\n" + BODY, ["header", BODY]),
        (b"Content-Length: 36\r\nContent-Length: 35\r\n\r\n" + BODY, ["header", "header"]),
        (b"Content-Length: x\r\n\r\n" + BODY, ["header", "header"]),
        (b"Content-Length: 16777217\r\n\r\n", ["header"]),
        (frame(BODY)[:-1], ["header"]),
        (frame(BODY)[:10], ["junk"]),
        (b"", []),
    ],
)
def test_what_a_sender_must_not_write(data: bytes, expected: list[bytes | str]) -> None:
    assert read(data) == expected


def test_junk_is_told_while_it_comes() -> None:
    reader = Reader()
    (told,) = reader.feed(b"x" * 1000)
    assert isinstance(told, Fault)
    # What may be the beginning of a header is kept back.
    found = [*reader.feed(b"x Content-Len"), *reader.feed(frame(BODY)[11:])]
    assert found[-1] == BODY
    assert {one.kind for one in found[:-1] if isinstance(one, Fault)} == {"junk"}


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"\xef\xbb\xbf" + BODY, "body"),
        (b"{", "body"),
        (b"\xff", "body"),
        (b'{"jsonrpc":"2.0","id":1,"result":NaN}', "body"),
        (b"[" * 100_000, "body"),
        (b"[]", "message"),
        (b"7", "message"),
        (b'{"id":1,"result":{}}', "message"),
        (b'{"jsonrpc":"2.0","id":1}', "message"),
        (b'{"jsonrpc":"2.0","result":{}}', "message"),
        (b'{"jsonrpc":"2.0","id":1,"result":{},"error":{"code":1,"message":""}}', "message"),
        (b'{"jsonrpc":"2.0","id":1.0,"result":{}}', "message"),
        (b'{"jsonrpc":"2.0","id":true,"result":{}}', "message"),
        (b'{"jsonrpc":"2.0","id":9223372036854775808,"result":{}}', "message"),
        (b'{"jsonrpc":"2.0","id":1,"error":"no"}', "message"),
        (b'{"jsonrpc":"2.0","id":1,"error":{"code":"1","message":""}}', "message"),
        (b'{"jsonrpc":"2.0","id":1,"error":{"code":1}}', "message"),
        (b'{"jsonrpc":"2.0","id":1,"error":{"code":1,"message":"","data":[]}}', "message"),
        (b'{"jsonrpc":"2.0","method":5}', "message"),
        (b'{"jsonrpc":"2.0","id":null,"method":"a"}', "message"),
        (b'{"jsonrpc":"2.0","method":"a","params":[]}', "message"),
    ],
)
def test_what_is_no_message(body: bytes, kind: str) -> None:
    found = read_message(body)
    assert isinstance(found, Fault)
    assert found.kind == kind


def test_messages() -> None:
    assert read_message(BODY) == Message(id=1, result={})
    answer = read_message(b'{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"no"}}')
    assert isinstance(answer, Message)
    assert (answer.code, answer.is_answer) == (-32700, True)
    asked = read_message(b'{"jsonrpc":"2.0","id":"a","method":"b"}')
    assert isinstance(asked, Message)
    assert (asked.params, asked.is_answer, asked.code) == (MISSING, False, None)


def test_ids_are_told_apart() -> None:
    assert len({key_of(one) for one in (1, "1", 1.0, True, None, [1])}) == 6


def test_what_is_shown_is_one_harmless_line() -> None:
    assert shown(b"a\x1b[31m\n\xff\xe2\x80\xae") == r"a\x1b[31m\n\xff\u202e"
    assert shown(b"x" * 1000).endswith("xxx (1000 bytes)")
    assert len(shown(b"x" * 1000)) < 320
