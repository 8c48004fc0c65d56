"""Answers and streams of the OpenAI API, whole and in pieces, right and wrong."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from utter_plugins.llm.chat import (
    MAX_DETAIL,
    MAX_EVENT,
    ChatError,
    EventReader,
    describe_error,
    read_completion,
    read_models,
)


def test_an_answer_is_read_whatever_else_it_holds() -> None:
    body = {
        "choices": [
            {"message": {"content": "Hi", "tool_calls": 5}, "finish_reason": "length", "x": {}},
            {"message": {}},
        ],
        "usage": {"completion_tokens": 3, "prompt_tokens": 9},
        "timings": [],
    }
    completion = read_completion(json.dumps(body).encode())
    assert (completion.text, completion.finish, completion.logprobs) == ("Hi", "length", None)
    assert completion.usage is not None
    assert completion.usage.completion_tokens == 3


def test_an_answer_without_a_text_is_empty() -> None:
    body = b'{"choices":[{"message":{"content":null,"reasoning_content":"hm"},"finish_reason":"tool_calls"}]}'
    assert (read_completion(body).text, read_completion(body).finish) == ("", "stop")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>",
        b"[]",
        b"{}",
        b'{"choices":[]}',
        b'{"choices":[{}]}',
        b'{"choices":[{"message":{"content":5}}]}',
        b'{"choices":[{"message":{"content":"\xff"}}]}',
        b"[" * 100_000,
    ],
)
def test_what_is_no_answer_is_refused(body: bytes) -> None:
    with pytest.raises(ChatError):
        read_completion(body)


def test_models() -> None:
    assert read_models(b'{"object":"list","data":[{"id":"a","owned_by":"x"},{"id":"b"}]}') == ["a", "b"]
    with pytest.raises(ChatError):
        read_models(b'{"models":[]}')


STREAM = (
    b": keep-alive\n\n"
    b'event: message\r\nid: 1\r\ndata: {"choices":[{"delta":{"role":"assistant"}}]}\r\n\r\n'
    b'data:{"choices":[{"delta":{"content":"\xc3\xa4b"},"finish_reason":null}]}\n\n'
    b'data: {"choices":\ndata: [{"delta":{"content":"c"},"finish_reason":"stop"}]}\n\n'
    b'data: {"choices":[],"usage":{}}\n\n'
    b"data: [DONE]\n\n"
    b'data: {"choices":[{"delta":{"content":"late"}}]}\n\n'
)


@given(cuts=st.lists(st.integers(0, len(STREAM)), max_size=20))
def test_a_stream_may_be_cut_anywhere(cuts: list[int]) -> None:
    reader, found = EventReader(), []
    places = sorted({0, *cuts, len(STREAM)})
    for start, end in pairwise(places):
        found += reader.feed(STREAM[start:end])
    assert [choice.delta.content for piece in found for choice in piece.choices] == [None, "äb", "c"]
    assert [choice.finish_reason for piece in found for choice in piece.choices] == [None, None, "stop"]
    assert reader.done


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"data: {\n\n", "not what the API has there"),
        (b'data: {"choices":5}\n\n', "not what the API has there"),
        (b'data: {"error":{"message":"out of memory"}}\n\n', r"the server gave up: out of memory"),
        (b'data: {"error":{}}\n\n', r"the server gave up: it does not say why"),
        (b"data: " + b"x" * MAX_EVENT, "longer than"),
        (b"data: " + b"x" * 1000 + b"\n" + b"data: " + b"x" * MAX_EVENT, "longer than"),
    ],
)
def test_a_broken_stream_is_refused(data: bytes, why: str) -> None:
    with pytest.raises(ChatError, match=why):
        EventReader().feed(data)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        ({"error": {"message": "no such model", "code": 404}}, "no such model"),
        ({"error": "no such model"}, "no such model"),
        ({"message": "a\n\x1b[31mb"}, "a [31mb"),
        ({"detail": [{"input": "secret"}]}, ""),
        ({"error": {"error": {"message": "deep"}}}, "deep"),
        ([], ""),
        (None, ""),
        ("x" * 1000, "x" * (MAX_DETAIL - 1) + "…"),
    ],
)
def test_what_a_server_says_is_one_short_line(error: Any, said: str) -> None:
    assert describe_error(error) == said
