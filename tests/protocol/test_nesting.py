from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from utter_protocol.nesting import MAX_DEPTH, nests_too_deep


def depth(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + max((depth(one) for one in value.values()), default=0)
    if isinstance(value, list):
        return 1 + max((depth(one) for one in value), default=0)
    return 0


def wrapped(value: Any, levels: int) -> Any:
    for level in range(levels):
        value = {"k": value} if level % 2 else [1, value]
    return value


JSON = st.recursive(
    st.none() | st.integers() | st.text(alphabet='[]{}"\\a'),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(alphabet='[{"\\', max_size=3), inner, max_size=3)
    ),
    max_leaves=20,
)


@given(JSON, st.integers(0, MAX_DEPTH + 5))
def test_it_is_the_depth_that_counts_and_not_what_strings_hold(value: Any, levels: int) -> None:
    value = wrapped(value, levels)
    assert nests_too_deep(json.dumps(value).encode()) == (depth(value) > MAX_DEPTH)


@pytest.mark.parametrize("extra", [0, 1])
def test_the_bound_is_exact(extra: int) -> None:
    levels = MAX_DEPTH + extra
    assert nests_too_deep(b"[" * levels + b"]" * levels) == bool(extra)
    assert nests_too_deep(b'{"a":' * levels + b"1" + b"}" * levels) == bool(extra)


@pytest.mark.parametrize("width", [1, 1000, 200_000])
def test_wide_documents_are_not_deep(width: int) -> None:
    assert not nests_too_deep(b"[" + b",".join([b'[{"a":"[["}]'] * width) + b"]")


def test_depth_is_carried_over_long_documents() -> None:
    wide = b"[]," * 50_000
    deep = b"[" * 200 + wide + b"[" * 57
    assert nests_too_deep(deep)
    assert not nests_too_deep(b"[" * 200 + wide + b"[" * 56)


@given(st.binary(max_size=400))
def test_what_is_no_json_is_judged_without_an_error(body: bytes) -> None:
    nests_too_deep(body)
    nests_too_deep(b"[" * MAX_DEPTH + body)


@given(JSON, st.integers(0, MAX_DEPTH + 5), st.integers(1000, 1100))
def test_length_does_not_matter(value: Any, levels: int, length: int) -> None:
    """Short documents are counted, long ones searched: both ways say the same."""
    padded = ["x" * length, wrapped(value, levels)]
    assert nests_too_deep(json.dumps(padded).encode()) == (depth(padded) > MAX_DEPTH)


@pytest.mark.parametrize("bracket", [b"[", b'{"a":'])
@pytest.mark.parametrize("count", [15, 16, 17, 18, MAX_DEPTH, MAX_DEPTH + 1])
def test_few_brackets_are_never_deep_and_many_are_looked_at(bracket: bytes, count: int) -> None:
    assert nests_too_deep(b" " * 2000 + bracket * count) == (count > MAX_DEPTH)
