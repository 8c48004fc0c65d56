"""Tests of the codec between processes: however the bytes are cut, the plugin answers the same."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from utter_protocol.framing import encode_frame
from utter_protocol.messages import Message, request_body

if TYPE_CHECKING:
    from collections.abc import Callable

    from utter_sdk.testing import PluginProcess

    RunPlugin = Callable[..., PluginProcess]

ECHO = """
@plugin.method("echo")
def echo(params: dict) -> dict:
    return params
"""

# One plugin serves all examples: each leaves it as it was.
SHARED = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])

json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=10,
)


def echoes(process: PluginProcess, count: int) -> list[tuple[Any, Any]]:
    found = []
    for _ in range(count):
        answer = process.unmatched()
        assert isinstance(answer.result, msgspec.Raw)
        found.append((answer.id, msgspec.json.decode(answer.result)))
    return found


def requests(*texts: str) -> bytes:
    return b"".join(
        encode_frame(request_body(f"id-{n}", "echo", msgspec.json.encode({"text": text})))
        for n, text in enumerate(texts)
    )


def test_byte_by_byte(run_plugin: RunPlugin) -> None:
    process = run_plugin(ECHO)
    for byte in requests("one", "zwölf 🎤"):
        process.write(bytes([byte]))
    assert echoes(process, 2) == [("id-0", {"text": "one"}), ("id-1", {"text": "zwölf 🎤"})]


def test_headers_as_others_write_them(run_plugin: RunPlugin) -> None:
    process = run_plugin(ECHO)
    body = request_body("id-0", "echo", b'{"text":"x"}')
    for header in (
        b"content-length:%d\r\n\r\n",
        b"Content-Type: application/vscode-jsonrpc; charset=utf-8\r\nContent-Length:   %d  \r\n\r\n",
        b"CONTENT-LENGTH: %d\ncontent-type: application/json\n\n",
    ):
        process.write(header % len(body) + body)
        assert echoes(process, 1) == [("id-0", {"text": "x"})]


def test_any_cut_gives_the_same_answers(run_plugin: RunPlugin) -> None:
    process = run_plugin(ECHO)

    @SHARED
    @given(st.lists(st.text(max_size=30), min_size=1, max_size=4), st.data())
    def check(texts: list[str], data: st.DataObject) -> None:
        stream = requests(*texts)
        cuts = sorted(data.draw(st.sets(st.integers(0, len(stream)), max_size=6)))
        for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
            process.write(stream[start:end])
        assert echoes(process, len(texts)) == [(f"id-{n}", {"text": text}) for n, text in enumerate(texts)]

    check()


def test_no_message_ends_the_plugin(run_plugin: RunPlugin) -> None:
    process = run_plugin(ECHO)
    members = st.fixed_dictionaries(
        {},
        optional={
            "jsonrpc": st.just("2.0") | json_values,
            "id": st.text(max_size=5) | json_values,
            "method": st.sampled_from(["echo", "protocol.hello", "action.invoke", "$/cancel"]) | json_values,
            "params": json_values,
            "result": json_values,
        },
    )

    @SHARED
    @given(members | json_values)
    def check(message: Any) -> None:
        process.write(encode_frame(msgspec.json.encode(message)))
        process.write(requests("still there"))
        answer: Message = process.unmatched()
        while not (answer.id == "id-0" and answer.result is not msgspec.UNSET):
            answer = process.unmatched()

    check()
    assert process.close() == 0
