"""What a stream of bytes means, as the codec says and as Python's own JSON library and the document say.

Rules here: the second opinion shares no code with the codec; where both disagree on a message, that is a failure.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any, Final, NoReturn

from msgspec import UNSET

from utter_protocol.framing import FrameDecoder, FramingError
from utter_protocol.messages import InvalidMessage, decode_item_message, decode_message

if TYPE_CHECKING:
    from collections.abc import Iterable

    from utter_runner.rpc.interface import Limits

MAX_DEPTH: Final = 256
_LONGEST_ID: Final = 1024
_INT64: Final = 2**63


class Meaning:
    """What came out of a stream.

    Attributes:
        bodies: the bodies of its frames.
        junk: what stood between them.
        framing: the kind of the framing error that ended it, "truncated" included; empty if none did.
        answers: how many answers each id has to get, by its JSON; without that for a framing error.
        verdicts: how many messages of each sort there were.
    """

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.junk = b""
        self.framing = ""
        self.answers: Counter[str] = Counter()
        self.verdicts: Counter[str] = Counter()


def split(pieces: Iterable[bytes], limits: Limits) -> Meaning:
    """Decode the framing."""
    decoder = FrameDecoder(limits.max_frame, limits.max_header, limits.max_junk)
    meaning = Meaning()
    junk = bytearray()
    try:
        for piece in pieces:
            decoder.receive(piece)
            while (body := decoder.next_frame()) is not None:
                meaning.bodies.append(body)
                junk += decoder.take_junk()
            junk += decoder.take_junk()
            most = limits.max_frame + limits.max_header + limits.max_junk + len(piece)
            assert decoder.buffered <= most, f"{decoder.buffered} bytes are buffered"
        decoder.end()
    except FramingError as error:
        meaning.framing = error.kind
    junk += decoder.take_junk()
    meaning.junk = bytes(junk)
    return meaning


def judge(meaning: Meaning) -> None:
    """Decode the messages, and ask for a second opinion on each."""
    for body in meaning.bodies:
        verdict, request_id = _verdict(body)
        other, other_id = _second_opinion(body)
        assert (verdict, _key(request_id)) == (other, _key(other_id)), (
            f"the codec says {verdict} {request_id!r}, the document {other} {other_id!r}: {body[:300]!r}"
        )
        item = decode_item_message(body)
        if item is not None:
            assert verdict == "notification", f"a {verdict} passes for an item of a stream: {body[:300]!r}"
            assert (item.method, item.params.stream_id, item.params.seq) == _item(body)
            meaning.verdicts["item of a stream"] += 1
        meaning.verdicts[verdict] += 1
        if verdict in ("request", "invalid", "no JSON"):
            meaning.answers[_key(request_id)] += 1


def _item(body: bytes) -> tuple[str, str, int]:
    value = json.loads(body)
    return value["method"], value["params"]["stream_id"], value["params"]["seq"]


def _key(request_id: Any) -> str:
    return json.dumps(request_id)


def _verdict(body: bytes) -> tuple[str, Any]:
    try:
        message = decode_message(body)
    except InvalidMessage as invalid:
        return "no JSON" if invalid.error.code == -32700 else "invalid", invalid.id
    request_id = None if message.id is UNSET else message.id
    if message.method is UNSET:
        return "answer", request_id
    return ("notification" if message.id is UNSET else "request"), request_id


def _second_opinion(body: bytes) -> tuple[str, Any]:
    try:
        value = json.loads(body.decode(), parse_constant=_refuse, parse_int=_integer)
    except (ValueError, RecursionError):
        return "no JSON", None
    if _depth(value) > MAX_DEPTH or _has_lone_surrogate(value):
        return "no JSON", None
    if not isinstance(value, dict):
        return "invalid", None
    has_id = "id" in value
    request_id = value.get("id") if _is_id(value.get("id")) else None
    is_answer = "method" not in value and ("result" in value or "error" in value)
    return _envelope(value, request_id, has_id=has_id, is_answer=is_answer)


def _envelope(value: dict[str, Any], request_id: Any, *, has_id: bool, is_answer: bool) -> tuple[str, Any]:
    """Judge an object. An answer that is wrong is never answered under its own id."""
    wrong = "invalid", None if is_answer else request_id
    if value.get("jsonrpc") != "2.0" or (has_id and value["id"] is not None and request_id is None):
        return wrong
    if "method" in value:
        if not isinstance(value["method"], str) or (has_id and request_id is None):
            return wrong
        if not isinstance(value.get("params", {}), dict | list):
            return wrong
        return ("request" if has_id else "notification"), request_id
    if not has_id or ("result" in value) == ("error" in value):
        return wrong
    return "answer", request_id


def _refuse(name: str) -> NoReturn:
    raise ValueError(name)


def _integer(digits: str) -> int:
    # Beyond any id, and Python would refuse thousands of digits.
    return int(digits) if len(digits) < 100 else 10**100


def _is_id(value: Any) -> bool:
    if isinstance(value, str):
        return len(value) <= _LONGEST_ID
    return isinstance(value, int) and not isinstance(value, bool) and -_INT64 <= value < _INT64


def _has_lone_surrogate(value: Any) -> bool:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return True
    return False


def _depth(value: Any) -> int:
    depth = 0
    level = [value]
    while level := [one for one in level if isinstance(one, dict | list)]:
        depth += 1
        level = [inner for one in level for inner in (one.values() if isinstance(one, dict) else one)]
    return depth
