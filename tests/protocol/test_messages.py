from __future__ import annotations

import json
import math
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import UNSET, Raw

from utter_protocol.errors import ErrorCode, RpcError
from utter_protocol.messages import (
    MAX_ID_LENGTH,
    InvalidMessage,
    Message,
    decode_error,
    decode_item,
    decode_item_message,
    decode_message,
    encode,
    error_body,
    id_bytes,
    notification_body,
    request_body,
    result_body,
)

EXAMPLES = settings(derandomize=True, database=None, deadline=None, max_examples=200)
PARSE_ERROR, INVALID_REQUEST = ErrorCode.PARSE_ERROR, ErrorCode.INVALID_REQUEST


def envelope(members: str) -> bytes:
    return ('{"jsonrpc":"2.0",' + members + "}").encode()


def refusal(body: bytes) -> InvalidMessage:
    with pytest.raises(InvalidMessage) as caught:
        decode_message(body)
    assert str(caught.value) == caught.value.error.message
    assert isinstance(caught.value.error.code, int)
    # Whatever was wrong can be answered.
    json.loads(error_body(caught.value.id, caught.value.error))
    return caught.value


# ---- what is a message


def test_a_request() -> None:
    message = decode_message(envelope('"id":7,"method":"plugin.health","params":{"a":[1, 2]}'))
    assert (message.id, message.method) == (7, "plugin.health")
    assert bytes(message.params or b"") == b'{"a":[1, 2]}'
    assert message.result is message.error is UNSET


def test_a_notification_has_no_id() -> None:
    message = decode_message(envelope('"method":"stt.partial","params":[]'))
    assert message.id is UNSET
    assert bytes(message.params or b"") == b"[]"


def test_params_may_be_left_out() -> None:
    assert decode_message(envelope('"id":1,"method":"x"')).params is UNSET


@pytest.mark.parametrize("result", ["null", "0", "false", '""', "{}", "[]", '"text"', "1.5e300"])
def test_an_answer_may_be_any_value(result: str) -> None:
    message = decode_message(envelope(f'"id":1,"result": {result} '))
    assert bytes(message.result or b"") == result.encode()
    assert message.method is UNSET


def test_an_error_answer() -> None:
    message = decode_message(envelope('"id":"a","error":{"code":-32000,"message":"m"}'))
    assert isinstance(message.error, Raw)
    assert decode_error(message.error).code == ErrorCode.PLUGIN_FAILED


def test_an_error_answer_may_have_a_null_id() -> None:
    assert decode_message(envelope('"id":null,"error":{"code":-32700,"message":"m"}')).id is None


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0),
        ("-0", 0),
        ("-1", -1),
        ("9223372036854775807", 2**63 - 1),
        ("-9223372036854775808", -(2**63)),
        ('""', ""),
        ('"0"', "0"),
        ('"日本"', "日本"),
        ('"\\ud83d\\ude00"', "😀"),
        ('"' + "x" * MAX_ID_LENGTH + '"', "x" * MAX_ID_LENGTH),
    ],
)
def test_ids_are_integers_and_strings_and_keep_their_type(text: str, value: int | str) -> None:
    message = decode_message(envelope(f'"id":{text},"method":"x"'))
    assert message.id == value
    assert type(message.id) is type(value)
    assert json.loads(id_bytes(value)) == value


def test_members_that_nobody_knows_are_passed_over() -> None:
    body = envelope('"id":1,"method":"x","trace":{"a":[null]},"n":' + "9" * 5000)
    assert decode_message(body).id == 1


def test_of_a_member_that_stands_twice_the_last_counts() -> None:
    assert decode_message(envelope('"id":1,"id":2,"method":"x","method":"y"')) == Message("2.0", 2, "y")


@pytest.mark.parametrize(
    ("members", "request_id"),
    [
        ('"id":1.5,"id":1,"method":"x"', 1),
        ('"id":null,"method":[],"id":"a","method":"x"', "a"),
        ('"jsonrpc":1,"jsonrpc":"2.0","id":0,"method":"x"', 0),
        ('"id":9223372036854775808,"params":{"a":1},"id":7,"method":"x"', 7),
    ],
)
def test_what_a_later_member_replaces_may_be_wrong(members: str, request_id: int | str) -> None:
    message = decode_message(envelope(members))
    assert (message.id, message.method) == (request_id, "x")


@pytest.mark.parametrize(
    ("members", "code", "request_id"),
    [
        ('"id":1,"id":1.5,"method":"x"', INVALID_REQUEST, None),
        ('"id":1.5,"id":1,"method":"x","method":7', INVALID_REQUEST, 1),
        ('"id":1.5,"id":1,"method":"x","params":7', INVALID_REQUEST, 1),
        ('"id":1.5,"id":1,"method":"x","params":{"a":}', PARSE_ERROR, None),
        ('"id":[],"id":1,"result":1,"error":{}', INVALID_REQUEST, None),
    ],
)
def test_a_wrong_member_that_counts_is_refused(members: str, code: int, request_id: int | str | None) -> None:
    found = refusal(envelope(members))
    assert (found.error.code, found.id) == (code, request_id)


def test_a_message_with_method_and_result_is_a_request() -> None:
    assert decode_message(envelope('"id":1,"method":"x","result":1')).method == "x"


def test_members_may_be_written_with_escapes_and_space_around() -> None:
    message = decode_message(b' \t\r\n{ "\\u006asonrpc" : "2\\u002e0" , "id" : 1 , "method" : "x" } \n')
    assert (message.id, message.method) == (1, "x")


@pytest.mark.parametrize("number", ["1e999", "-0.0", "123456789012345678901234567890", "1E-400"])
def test_numbers_that_python_cannot_hold_pass_through_as_they_are(number: str) -> None:
    assert bytes(decode_message(envelope(f'"method":"x","params":[{number}]')).params or b"") == f"[{number}]".encode()


# ---- what is none: (body, code, id to answer with)

WRONG = {
    "empty": (b"", PARSE_ERROR, None),
    "blank": (b"  \n", PARSE_ERROR, None),
    "no JSON": (b"hello", PARSE_ERROR, None),
    "cut off": (envelope('"id":3,"method":"x"')[:-1], PARSE_ERROR, None),
    "cut off in a string": (b'{"jsonrpc":"2.0","id":3,"method":"x', PARSE_ERROR, None),
    "trailing text": (envelope('"id":3,"method":"x"') + b"x", PARSE_ERROR, None),
    "two messages": (envelope('"id":3,"method":"x"') * 2, PARSE_ERROR, None),
    "trailing comma": (b'{"jsonrpc":"2.0","id":3,"method":"x",}', PARSE_ERROR, None),
    "single quotes": (b"{'jsonrpc':'2.0','id':3,'method':'x'}", PARSE_ERROR, None),
    "comment": (b'{"jsonrpc":"2.0","id":3,"method":"x"/**/}', PARSE_ERROR, None),
    "byte order mark": (b"\xef\xbb\xbf" + envelope('"id":3,"method":"x"'), PARSE_ERROR, None),
    "UTF-16": (envelope('"id":3,"method":"x"').decode().encode("utf-16"), PARSE_ERROR, None),
    "NaN": (envelope('"id":3,"method":"x","params":[NaN]'), PARSE_ERROR, None),
    "Infinity": (envelope('"id":3,"result":-Infinity'), PARSE_ERROR, None),
    "octal": (envelope('"id":3,"method":"x","params":[01]'), PARSE_ERROR, None),
    "plus": (envelope('"id":3,"method":"x","params":[+1]'), PARSE_ERROR, None),
    "raw control character": (envelope('"id":3,"method":"x","params":["\x01"]'), PARSE_ERROR, None),
    "raw line feed": (envelope('"id":3,"method":"x","params":["\n"]'), PARSE_ERROR, None),
    "unknown escape": (envelope('"id":3,"method":"x","params":["\\x41"]'), PARSE_ERROR, None),
    "half a surrogate pair in the id": (envelope('"id":"\\ud800","method":"x"'), PARSE_ERROR, None),
    "half a surrogate pair in the method": (envelope('"id":3,"method":"\\udc00"'), PARSE_ERROR, None),
    "invalid UTF-8 in params": (envelope('"method":"x","params":["?"]').replace(b"?", b"\xff"), PARSE_ERROR, None),
    "invalid UTF-8 in a result": (envelope('"id":3,"result":"?"').replace(b"?", b"\xc3"), PARSE_ERROR, None),
    "invalid UTF-8 in a key": (envelope('"id":3,"result":1,"?":1').replace(b"?", b"\x80"), PARSE_ERROR, None),
    "an encoded surrogate": (envelope('"id":3,"result":"?"').replace(b"?", b"\xed\xa0\x80"), PARSE_ERROR, None),
    "an overlong encoding": (envelope('"id":3,"result":"?"').replace(b"?", b"\xc0\xaf"), PARSE_ERROR, None),
    "nested arrays": (envelope('"id":3,"method":"x","params":' + "[" * 5000 + "]" * 5000), PARSE_ERROR, None),
    "nested objects": (envelope('"id":3,"result":' + '{"a":' * 5000 + "1" + "}" * 5000), PARSE_ERROR, None),
    "nesting in an unknown member": (envelope('"x":' + "[" * 5000 + "]" * 5000), PARSE_ERROR, None),
    "a nested batch": (b"[" * 5000 + b"]" * 5000, PARSE_ERROR, None),
    "a batch that is cut off": (b'[{"jsonrpc":"2.0"', PARSE_ERROR, None),
    "a wrong id before nonsense": (b'{"jsonrpc":"2.0","id":true,"method":nonsense', PARSE_ERROR, None),
    "a batch": (b"[" + envelope('"id":3,"method":"x"') + b"]", INVALID_REQUEST, None),
    "an empty batch": (b" \n[]", INVALID_REQUEST, None),
    "a string": (b'"jsonrpc"', INVALID_REQUEST, None),
    "a number": (b"5", INVALID_REQUEST, None),
    "null": (b"null", INVALID_REQUEST, None),
    "an empty object": (b"{}", INVALID_REQUEST, None),
    "no jsonrpc": (b'{"id":3,"method":"x"}', INVALID_REQUEST, 3),
    "jsonrpc 1.0": (b'{"jsonrpc":"1.0","id":3,"method":"x"}', INVALID_REQUEST, 3),
    "jsonrpc 2": (b'{"jsonrpc":"2","id":"a","method":"x"}', INVALID_REQUEST, "a"),
    "jsonrpc as a number": (b'{"jsonrpc":2.0,"id":0,"method":"x"}', INVALID_REQUEST, 0),
    "jsonrpc null": (b'{"jsonrpc":null,"id":3,"method":"x"}', INVALID_REQUEST, 3),
    "jsonrpc wrong at the end": (b'{"id":3,"method":"x","jsonrpc":"3.0"}', INVALID_REQUEST, 3),
    "nothing but an id": (envelope('"id":3'), INVALID_REQUEST, 3),
    "nothing but a version": (b'{"jsonrpc":"2.0"}', INVALID_REQUEST, None),
    "params without a method": (envelope('"id":3,"params":{}'), INVALID_REQUEST, 3),
    "method null": (envelope('"id":3,"method":null'), INVALID_REQUEST, 3),
    "method a number": (envelope('"id":3,"method":5'), INVALID_REQUEST, 3),
    "method an object": (envelope('"id":3,"method":{}'), INVALID_REQUEST, 3),
    "id null": (envelope('"id":null,"method":"x"'), INVALID_REQUEST, None),
    "id true": (envelope('"id":true,"method":"x"'), INVALID_REQUEST, None),
    "id false": (envelope('"id":false,"method":"x"'), INVALID_REQUEST, None),
    "id with a fraction": (envelope('"id":1.5,"method":"x"'), INVALID_REQUEST, None),
    "id written as a float": (envelope('"id":1.0,"method":"x"'), INVALID_REQUEST, None),
    "id with an exponent": (envelope('"id":1e3,"method":"x"'), INVALID_REQUEST, None),
    "id an array": (envelope('"id":[3],"method":"x"'), INVALID_REQUEST, None),
    "id an object": (envelope('"id":{"id":3},"method":"x"'), INVALID_REQUEST, None),
    "id of more than 64 bits": (envelope('"id":9223372036854775808,"method":"x"'), INVALID_REQUEST, None),
    "id of 5000 digits": (envelope('"id":' + "9" * 5000 + ',"method":"x"'), INVALID_REQUEST, None),
    "id too long": (envelope('"id":"' + "x" * (MAX_ID_LENGTH + 1) + '","method":"x"'), INVALID_REQUEST, None),
    "params null": (envelope('"id":3,"method":"x","params":null'), INVALID_REQUEST, 3),
    "params a string": (envelope('"id":3,"method":"x","params":"{}"'), INVALID_REQUEST, 3),
    "params a number": (envelope('"id":0,"method":"x","params":1'), INVALID_REQUEST, 0),
    "params true": (envelope('"id":3,"method":"x","params":true'), INVALID_REQUEST, 3),
    "params of a notification": (envelope('"method":"x","params":1'), INVALID_REQUEST, None),
    "an id after what is wrong": (envelope('"method":5,"id":3'), INVALID_REQUEST, 3),
}


@pytest.mark.parametrize(("body", "code", "request_id"), WRONG.values(), ids=WRONG.keys())
def test_what_is_no_message_is_refused(body: bytes, code: int, request_id: int | str | None) -> None:
    invalid = refusal(body)
    assert invalid.error.code == code
    assert invalid.id == request_id
    assert type(invalid.id) is type(request_id)
    assert invalid.answers is None
    assert len(invalid.error.message) < 300


@pytest.mark.parametrize(
    ("body", "request_id"),
    [
        (envelope('"id":3,"result":1,"error":{"code":1,"message":"m"}'), 3),
        (envelope('"id":3,"result":null,"error":null'), 3),
        (b'{"id":0,"result":1}', 0),
        (b'{"jsonrpc":"1.0","id":"a","error":{}}', "a"),
        (b'{"jsonrpc":2,"id":3,"result":{}}', 3),
        (envelope('"id":1.5,"result":1'), None),
        (envelope('"result":1'), None),
    ],
)
def test_an_answer_that_is_wrong_is_never_answered_under_its_id(body: bytes, request_id: int | str | None) -> None:
    """That id names a request of this end; the other end may have one of the same name in flight."""
    invalid = refusal(body)
    assert invalid.error.code == INVALID_REQUEST
    assert invalid.id is None
    assert invalid.answers == request_id


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"[]", "batches are not supported"),
        (b"\xef\xbb\xbf{}", "byte order mark"),
        (b"[" * 5000, "nested too deep"),
        (b'{"jsonrpc":"1.0"}', '"jsonrpc" must be "2.0"'),
        (envelope('"id":null,"method":"x"'), '"id" of a request must not be null'),
        (envelope('"id":1,"method":"x","params":1'), '"params" must be an object or an array'),
        (envelope('"id":1'), 'neither a request ("method") nor an answer'),
        (envelope('"id":1.5,"method":"x"'), "`$.id`"),
        (envelope('"id":1,"method":3'), "`$.method`"),
    ],
)
def test_the_refusal_says_what_is_wrong(body: bytes, says: str) -> None:
    assert says in refusal(body).error.message


@EXAMPLES
@given(st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
def test_any_bytes_are_a_message_or_refused(body: bytes) -> None:
    try:
        decode_message(body)
    except InvalidMessage as invalid:
        assert invalid.error.code in (PARSE_ERROR, INVALID_REQUEST)  # noqa: PT017 - some examples are messages


SCALARS = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=10)
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner))
MEMBERS = st.fixed_dictionaries(
    {},
    optional={
        "jsonrpc": st.sampled_from(["2.0", "2.0", "2.0", "1.0", 2.0]) | VALUES,
        "id": VALUES,
        "method": st.text(max_size=10) | VALUES,
        "params": VALUES,
        "result": VALUES,
        "error": VALUES,
    },
)


def is_message(value: dict[str, Any]) -> bool:
    """What JSON-RPC 2.0 says, in other words."""

    def is_id(candidate: object) -> bool:
        return isinstance(candidate, str) or (type(candidate) is int and -(2**63) <= candidate < 2**63)

    if value.get("jsonrpc") != "2.0" or type(value["jsonrpc"]) is not str:
        return False
    if "id" in value and not (value["id"] is None or is_id(value["id"])):
        return False
    if "method" in value:
        if type(value["method"]) is not str or value.get("id", 0) is None:
            return False
        return isinstance(value.get("params", {}), dict | list)
    return "id" in value and ("result" in value) != ("error" in value)


@EXAMPLES
@given(MEMBERS)
def test_an_object_is_a_message_exactly_when_json_rpc_says_so(value: dict[str, Any]) -> None:
    body = json.dumps(value).encode()
    standard = "NaN" not in body.decode() and "Infinity" not in body.decode()
    try:
        message = decode_message(body)
    except InvalidMessage:
        assert not (standard and is_message(value))
        return
    assert is_message(value)
    for name in ("params", "result", "error"):
        raw = getattr(message, name)
        if raw is not UNSET:
            assert json.loads(bytes(raw)) == value[name]
    assert message.id is UNSET or message.id == value["id"]


# ---- what is built is what is read

IDS = st.integers(-(2**63), 2**63 - 1) | st.text(max_size=20)
FINITE = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text(max_size=10)
FINITE |= st.floats(allow_nan=False, allow_infinity=False)
JSON = st.recursive(FINITE, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner))
PARAMS = st.dictionaries(st.text(max_size=5), JSON, max_size=4) | st.lists(JSON, max_size=4)


@EXAMPLES
@given(IDS, st.text(max_size=20), PARAMS)
def test_requests_and_notifications_go_round(request_id: int | str, method: str, params: Any) -> None:
    raw = encode(params)
    for body, expected in (
        (request_body(request_id, method, raw), request_id),
        (notification_body(method, Raw(raw)), UNSET),
    ):
        message = decode_message(body)
        assert (message.id, message.method) == (expected, method)
        assert type(message.id) is type(expected)
        assert bytes(message.params or b"") == raw
        assert json.loads(body)["method"] == method


@EXAMPLES
@given(IDS, JSON)
def test_results_go_round(request_id: int | str, result: Any) -> None:
    message = decode_message(result_body(request_id, encode(result)))
    assert message.id == request_id
    decoded = msgspec.json.decode(message.result or b"")
    assert decoded == result or (isinstance(result, float) and math.isclose(decoded, result))


@EXAMPLES
@given(IDS | st.none(), st.integers(), st.text(max_size=20), st.none() | st.dictionaries(st.text(max_size=5), JSON))
def test_errors_go_round(request_id: int | str | None, code: int, text: str, data: dict[str, Any] | None) -> None:
    message = decode_message(error_body(request_id, RpcError(code, text, data)))
    assert message.id == request_id
    assert isinstance(message.error, Raw)
    error = decode_error(message.error)
    assert (error.code, error.message) == (code, text)
    assert error.data == data


def test_an_error_without_data_has_no_such_member() -> None:
    assert json.loads(error_body(0, RpcError(1, "m"))) == {
        "jsonrpc": "2.0",
        "id": 0,
        "error": {"code": 1, "message": "m"},
    }


NESTED = b'{"code":1,"message":"m","data":' + b"[" * 5000 + b"]" * 5000 + b"}"


@pytest.mark.parametrize("raw", [b"null", b"5", b"[]", b"{}", b'{"code":"1","message":"m"}', b'{"code":1}', NESTED])
def test_a_malformed_error_becomes_one_that_says_so(raw: bytes) -> None:
    error = decode_error(Raw(raw))
    assert error.code == ErrorCode.INTERNAL_ERROR
    assert "malformed error" in error.message


def test_error_data_that_is_no_object_is_wrapped() -> None:
    assert decode_error(Raw(b'{"code":1,"message":"m","data":[1]}')).data == {"data": [1]}
    assert decode_error(Raw(b'{"code":1,"message":"m","data":null}')).data is None
    assert decode_error(Raw(b'{"code":1,"message":"m"}')).answered
    assert not decode_error(Raw(b'{"code":1}')).answered


@pytest.mark.parametrize(("message", "data"), [("\ud800", None), ("m", {"x": object()}), ("m", {"x": "\udcff"})])
def test_an_error_that_is_no_json_says_so(message: str, data: dict[str, Any] | None) -> None:
    with pytest.raises((TypeError, ValueError)):
        error_body(1, RpcError(1, message, data))


# ---- items of streams


def item(params: str, rest: str = "") -> bytes:
    return envelope(f'"method":"tick","params":{params}{rest}')


@pytest.mark.parametrize(
    ("body", "data"),
    [
        (item('{"stream_id":"s","seq":7,"data":{"a":[1.50,"\\u0041"]}}'), b'{"a":[1.50,"\\u0041"]}'),
        (item('{"data":null,"seq":7,"extra":{"seq":1},"stream_id":"s"}'), b"null"),
        (item('{"stream_id":"x","stream_id":"s","seq":1,"seq":7,"data":0,"data":1}'), b"1"),
        (b'{"params": {"data": 1, "seq": 7, "stream_id": "s"}, "method": "tick", "jsonrpc": "2.0"}', b"1"),
        (item('{"stream_id":"s","seq":7,"data":"\u00e4"}'), '"\u00e4"'.encode()),
    ],
)
def test_an_item_is_read_in_one_pass_as_in_two(body: bytes, data: bytes) -> None:
    message = decode_item_message(body)
    assert message is not None
    assert (message.method, message.params.stream_id, message.params.seq, bytes(message.params.data)) == (
        "tick", "s", 7, data,
    )  # fmt: skip
    envelope = decode_message(body)
    assert isinstance(envelope.params, Raw)
    assert decode_item(envelope.params) == message.params


@pytest.mark.parametrize(
    "body",
    [
        item('{"stream_id":"s","seq":7,"data":1}', ',"id":1'),
        item('{"stream_id":"s","seq":7,"data":1}', ',"id":null'),
        item('{"stream_id":"s","seq":7}'),
        item('{"stream_id":"s","data":1}'),
        item('{"stream_id":"s","seq":-1,"data":1}'),
        item('{"stream_id":"s","seq":7.5,"data":1}'),
        item('{"stream_id":"s","seq":9223372036854775808,"data":1}'),
        item('{"stream_id":5,"seq":7,"data":1}'),
        item('["stream_id"]'),
        item('{"session":"s","text":"stream_id"}'),
        envelope('"id":1,"result":{"stream_id":"s"}'),
        b'{"method":"tick","params":{"stream_id":"s","seq":7,"data":1}}',
        b'{"jsonrpc":"1.0","method":"tick","params":{"stream_id":"s","seq":7,"data":1}}',
        item('{"stream_id":"s","seq":7,"data":' + "[" * 256 + "]" * 256 + "}"),
        item('{"stream_id":"s","seq":7,"data":NaN}'),
        item('{"stream_id":"s","seq":7,"data":1')[:-1],
        item('{"stream_id":"s","seq":7,"data":"?"}').replace(b"?", b"\xff"),
        item('{"stream_id":"s","seq":7,"data":"?"}').replace(b"?", b"\xed\xa0\x80"),
        b"",
    ],
)
def test_what_is_not_an_item_for_certain_is_left_to_the_envelope(body: bytes) -> None:
    assert decode_item_message(body) is None


def test_an_item_whose_id_comes_late_is_left_to_the_envelope() -> None:
    params = '{"seq":7,"data":"' + "x" * 1000 + '","stream_id":"s"}'
    assert decode_item_message(item(params)) is None
    late = decode_item(Raw(params.encode()))
    assert late is not None
    assert (late.stream_id, late.seq) == ("s", 7)


@EXAMPLES
@given(st.binary(max_size=60), st.binary(max_size=60))
def test_no_bytes_make_an_item_that_the_envelope_refuses(before: bytes, after: bytes) -> None:
    body = b'{"jsonrpc":"2.0","method":"tick",' + before + b'"params":{"stream_id":"s",' + after + b"}}"
    found = decode_item_message(body)
    if found is not None:
        assert decode_message(body).method == found.method
