"""Frames that are almost right: messages of the protocol, changed in the body, in the header, and around it.

Rules here: frame number N of a seed is the same whatever was made before it, so that a failure is made again from two
numbers; most of what is made is valid, since what is refused at once reaches little code.
"""

from __future__ import annotations

import json
from random import Random
from typing import Any, Final

from utter_protocol.contracts import METHODS
from utter_protocol.framing import encode_frame

FRAMES_PER_STREAM: Final = 32

# What `Target`s serve, besides methods of the protocol.
SERVED: Final = ("fuzz.echo", "fuzz.error", "fuzz.raise", "fuzz.later", "fuzz.twice")
_ITEM = "fuzz.item"
_OTHERS: Final = ("stream.ack", "stream.stop", "$/cancel", "rpc.discover", "", "é\0")
_METHODS: Final = (*SERVED * 4, *sorted(METHODS), *[_ITEM] * 6, *_OTHERS)
_IDS: Final = (0, 1, 2, 3, -1, 7, 2**53, 2**63 - 1, -(2**63), "", "a", "0", "é", "\u2028", "i" * 1024)
_NO_IDS: Final = (None, True, 1.5, [], {}, 2**63, -(2**63) - 1, 10**40, "i" * 1025)
_TEXTS: Final = ("", "x", "content-length: 5", "\0", "\x1b[31m", "é" * 20, "\U0001f600", "x" * 3000, '"\\', "\ud800")
_NUMBERS: Final = (0, 1, -1, 1.5, -0.0, 1e308, 5e-324, 2**64, -(10**30), True, False, None)
_TOKENS: Final = (
    b"NaN",
    b"-Infinity",
    b"1e999",
    b"01",
    b"0x10",
    b"1" * 400,
    b"\\ud800",
    b"\\u12",
    b"\xff",
    b"\xc0\x80",
    b"\xed\xa0\x80",
    b"\xef\xbb\xbf",
    b"\0",
    b"\r\n\r\n",
    b"Content-Length: 2\r\n\r\n{}",
    b"[" * 300,
    b'{"a":' * 300,
    b"[" * 300 + b"]" * 300,
    b'"jsonrpc":"2.0",',
    b'"id":1,',
    b'"method":"fuzz.echo",',
    b"{}",
    b"[]",
    b"//",
    b"'",
    b",",
    b" ",
)
_JUNK: Final = (
    b"\n",
    b"\r\n\r\n",
    b"Loading model...\n",
    b"\x1b[0m",
    b"content-",
    b"Content-Length",
    b"Content-Length 5\r\n",
    b"CONTENT-TYPE ",
    b"X-Header: 1\r\n",
    b"\xef\xbb\xbf",
    b"\xef\xbb",
    b"\0" * 50,
    b"j" * 600,
    b"{}",
)
_LENGTHS: Final = (
    b"",
    b"-1",
    b"+5",
    b"1.5",
    b"0x10",
    b"5 5",
    b"9" * 19,
    b"9" * 20,
    b"0" * 30 + b"2",
    b"\xd9\xa1",
    b"1e2",
    b"999999",
)
_TYPES: Final = (
    b"application/vscode-jsonrpc; charset=utf-8",
    b'x; charset="UTF8"',
    b"",
    b";;;",
    b"text; charset=latin1",
    b"a; charset=utf-8; charset=utf-16",
)


def frame(seed: int, number: int) -> bytes:
    """Frame `number` of `seed`, with what stands before it."""
    random = Random(seed << 40 | number)
    body = _body(random)
    data = encode_frame(body) if random.random() < 0.85 else _framed(random, body)
    if random.random() < 0.08:
        data = (random.choice(_JUNK) if random.random() < 0.2 else random.choice(_JUNK[:5])) + data
    if random.random() < 0.01:
        data = _changed(random, data)
    return data


def stream(seed: int, number: int) -> bytes:
    """The frames `number` to `number` + 31 in a row."""
    return b"".join(frame(seed, number + offset) for offset in range(FRAMES_PER_STREAM))


def pieces(seed: int, number: int, data: bytes) -> list[bytes]:
    """`data` as it may arrive: whole, in a few pieces, or in many."""
    random = Random(~(seed << 40 | number))
    way = random.random()
    if way < 0.2:
        return [data]
    count = random.randrange(1, 6) if way < 0.8 else random.randrange(6, 400)
    cuts = sorted(random.randrange(len(data) + 1) for _ in range(count))
    return [part for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True) if (part := data[start:end])]


def _body(random: Random) -> bytes:
    message = _message(random)
    body = json.dumps(message, ensure_ascii=random.random() < 0.7).encode("utf-8", "surrogatepass")
    while random.random() < 0.2:
        body = _changed(random, body)
    return body


def _message(random: Random) -> Any:
    kind = random.random()
    message: dict[str, Any] = {"jsonrpc": "2.0"}
    if kind < 0.5:
        message["id"] = _id(random)
        message["method"] = random.choice(_METHODS)
    elif kind < 0.7:
        message["method"] = random.choice(_METHODS)
    elif kind < 0.85:
        message["id"] = _id(random)
        message["result"] = _value(random, 3)
    elif kind < 0.93:
        message["id"] = _id(random)
        message["error"] = {"code": random.choice((-32000, 1, 2**40, "x")), "message": random.choice(_TEXTS)}
    elif kind < 0.96:
        return [_message(random) for _ in range(random.randrange(3))]
    else:
        return _value(random, 3)
    if "method" in message and random.random() < 0.7:
        message["params"] = _params(random, message["method"])
    if random.random() < 0.05:
        message[random.choice(("jsonrpc", "id", "method", "params", "result", "error", "more"))] = _value(random, 2)
    if random.random() < 0.05:
        message = dict(reversed(message.items()))
    return message


def _id(random: Random) -> Any:
    return random.choice(_IDS) if random.random() < 0.93 else random.choice(_NO_IDS)


def _params(random: Random, method: str) -> Any:
    if method == "$/cancel":
        return {"id": _id(random)}
    if method == _ITEM or method.startswith("stream."):
        seq = random.randrange(100) if random.random() < 0.8 else random.choice(_NUMBERS)
        return {"stream_id": random.choice(_TEXTS), "seq": seq, "data": _value(random, 2)}
    if random.random() < 0.1:
        return _value(random, 1)
    names = ("utterance", "session", "op", "args", "text", "prompt", "sources", "settings", "protocol", "seq")
    return {random.choice(names): _value(random, 2) for _ in range(random.randrange(4))}


def _value(random: Random, depth: int) -> Any:
    kind = random.random()
    if depth and kind < 0.2:
        return [_value(random, depth - 1) for _ in range(random.randrange(4))]
    if depth and kind < 0.5:
        return {random.choice(_TEXTS): _value(random, depth - 1) for _ in range(random.randrange(4))}
    return random.choice(_TEXTS) if kind < 0.75 else random.choice(_NUMBERS)


def _changed(random: Random, data: bytes) -> bytes:
    """`data` with one change at a random place."""
    at = random.randrange(len(data) + 1)
    end = min(len(data), at + random.randrange(1, 9))
    way = random.randrange(6)
    if way == 0:
        return data[:at] + data[end:]
    if way == 1:
        return data[:end] + data[at:]
    if way == 2:
        return data[:at]
    if way == 3:
        return data[:at] + bytes([random.randrange(256)]) + data[at + 1 :]
    token = random.choice(_TOKENS)
    return data[:at] + token + (data[at:] if way == 4 else data[end:])


def _framed(random: Random, body: bytes) -> bytes:
    """`body` as a frame that is written in another way, often a wrong one."""
    size = len(body)
    if random.random() < 0.1:
        size = max(0, size + random.randrange(-5, 6))
    length = b"%d" % size if random.random() < 0.95 else random.choice(_LENGTHS)
    lines = [_header(random, b"Content-Length", length)]
    for _ in range(random.choice((0, 0, 0, 1, 2))):
        way = random.random()
        if way < 0.5:
            kind = _TYPES[0] if random.random() < 0.9 else random.choice(_TYPES)
            lines.append(_header(random, b"Content-Type", kind))
        elif way < 0.7:
            lines.append(_header(random, b"Content-Length", length if random.random() < 0.95 else b"7"))
        elif way < 0.98:
            lines.append(_header(random, b"X-Other", random.choice((b"1", b"", b"x" * 100, b"a: b"))))
        else:
            lines.append(random.choice((b"no colon", b": x", b"two words: 1", b"x" * 600 + b": 1")))
    random.shuffle(lines)
    end = b"\r\n" if random.random() < 0.8 else b"\n"
    return end.join([*lines, b"", body])


def _header(random: Random, name: bytes, value: bytes) -> bytes:
    way = random.random()
    if way < 0.5:
        return name + b": " + value
    if way < 0.7:
        name = name.lower() if way < 0.6 else name.upper()
    before, after = random.choice((b"", b" ", b"\t ")), random.choice((b"", b" ", b" \t"))
    return name + before + b":" + after + value + random.choice((b"", b"", b" "))
