"""Tests of what a handler takes and what errors become."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from utter_protocol.errors import ErrorCode, RpcError
from utter_sdk import Cancelled
from utter_sdk.handlers import Handler, describe, invalid_params, wire_error


class Inner(msgspec.Struct, forbid_unknown_fields=True):
    number: int


class Outer(msgspec.Struct):
    inner: Inner
    many: list[Inner] = []
    table: dict[str, Inner] = {}


def take(params: Outer) -> Outer:
    return params


def handler() -> Handler:
    made = Handler("take", take, None)
    made.prepare()
    return made


@pytest.mark.parametrize(
    ("raw", "field"),
    [
        (b"{}", "inner"),
        (b'{"inner":{}}', "inner.number"),
        (b'{"inner":{"number":"x"}}', "inner.number"),
        (b'{"inner":{"number":1,"extra":1}}', "inner.extra"),
        (b'{"inner":{"number":1},"many":[{"number":1},{}]}', "many[1].number"),
        (b'{"inner":{"number":1},"table":{"a":{"number":null}}}', "table[...].number"),
        (b"[]", ""),
    ],
)
def test_the_field_that_is_wrong_is_named(raw: bytes, field: str) -> None:
    with pytest.raises(RpcError) as caught:
        handler().decode(raw)
    assert (caught.value.code, caught.value.data) == (ErrorCode.INVALID_PARAMS, {"field": field})
    assert caught.value.message.startswith("take: ")
    prefixed = f"args.{field}" if field else "args"
    with pytest.raises(RpcError) as caught:
        handler().convert(msgspec.json.decode(raw), "args")
    assert (caught.value.code, caught.value.data) == (ErrorCode.INVALID_PARAMS, {"field": prefixed})


@given(st.text())
def test_any_message_of_msgspec_becomes_an_error(text: str) -> None:
    error = invalid_params("x", msgspec.ValidationError(text))
    assert error.code == ErrorCode.INVALID_PARAMS
    assert error.data is not None
    assert isinstance(error.data["field"], str)


@given(st.text(st.characters(exclude_categories=())))
def test_every_exception_can_be_described_in_utf8(text: str) -> None:
    described = describe(ValueError(text))
    described.encode()
    assert described.startswith("ValueError")


def test_what_exceptions_become() -> None:
    own = RpcError(-32003, "no")
    assert wire_error(own) is own
    assert wire_error(Cancelled()).code == ErrorCode.CANCELLED
    assert wire_error(ZeroDivisionError("x")).message == "ZeroDivisionError: x"
