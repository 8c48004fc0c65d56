"""Tests of the example in Node, run by the real node."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.conformance import PATIENT
from support.examples import assert_ends_over, assert_greets_as, failure, invoke
from utter_protocol.errors import ErrorCode, RpcError
from utter_protocol.framing import encode_frame
from utter_protocol.manifest import load_manifest
from utter_protocol.messages import decode_error, request_body
from utter_sdk.conformance.plugin import Limits, Subject, check_plugin
from utter_sdk.testing import PluginDiedError, PluginProcess

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = Path(__file__).parents[2] / "plugins" / "examples" / "node-hello"
MANIFEST = load_manifest(HERE / "utter-plugin.toml")

pytestmark = pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")


@pytest.fixture
def process() -> Iterator[PluginProcess]:
    with PluginProcess(MANIFEST.entrypoint, cwd=HERE) as started:
        yield started


def hello(request_id: str, name: str) -> bytes:
    params = msgspec.json.encode(invoke("hello", name=name))
    return encode_frame(request_body(request_id, "action.invoke", params))


def details(process: PluginProcess, count: int) -> dict[Any, str]:
    found = {}
    for _ in range(count):
        answer = process.unmatched()
        assert isinstance(answer.result, msgspec.Raw)
        found[answer.id] = msgspec.json.decode(answer.result)["detail"]
    return found


def refused(process: PluginProcess, data: bytes) -> tuple[Any, int]:
    process.write(data)
    answer = process.unmatched()
    assert isinstance(answer.error, msgspec.Raw)
    return answer.id, decode_error(answer.error).code


def test_the_handshake_is_the_manifests(process: PluginProcess) -> None:
    assert_greets_as(process, MANIFEST)


def test_ops_are_listed_with_their_schemas(process: PluginProcess) -> None:
    listed = {op["op"]: op for op in process.call("action.capabilities")["ops"]}
    assert set(listed) == {"hello", "hello_later"}
    assert listed["hello"] == {
        "op": "hello",
        "side_effect": "none",
        "needs_confirm": False,
        "description": "Greets someone.",
        "schema": {
            "type": "object",
            "properties": {"name": {"type": "string", "minLength": 1, "maxLength": 200}},
            "required": ["name"],
            "additionalProperties": False,
        },
    }


def test_hello(process: PluginProcess) -> None:
    expected = {"ok": True, "detail": "Hello, Zoë 🎤!", "data": {}}
    assert process.call("action.invoke", invoke("hello", name="Zoë 🎤")) == expected
    assert process.call("action.invoke", invoke("action.hello", name="Zoë 🎤")) == expected
    assert (
        process.call("action.invoke", invoke("hello_later", name="Ada", seconds=0))["detail"] == "Hello at last, Ada!"
    )


def test_errors(process: PluginProcess) -> None:
    assert failure(process, "stt.start").code == ErrorCode.METHOD_NOT_FOUND
    assert failure(process, "toString").code == ErrorCode.METHOD_NOT_FOUND
    for op in ("fly", "toString", 7, None):
        error = failure(process, "action.invoke", {"op": op})
        assert (error.code, error.data) == (ErrorCode.INVALID_PARAMS, {"field": "op"})
    error = failure(process, "action.invoke", {"op": "hello", "args": None})
    assert error.code == ErrorCode.INTERNAL_ERROR
    assert error.message.startswith("TypeError: ")
    assert "TypeError" in process.stderr


def test_byte_by_byte(process: PluginProcess) -> None:
    for byte in hello("a", "Zoë") + hello("b", "Ada"):
        process.write(bytes([byte]))
    assert details(process, 2) == {"a": "Hello, Zoë!", "b": "Hello, Ada!"}


def test_a_frame_and_a_part_of_the_next(process: PluginProcess) -> None:
    second = hello("b", "Ada")
    process.write(hello("a", "Zoë") + second[:30])
    assert details(process, 1) == {"a": "Hello, Zoë!"}
    process.write(second[30:] + hello("c", "Bob"))
    assert details(process, 2) == {"b": "Hello, Ada!", "c": "Hello, Bob!"}


def test_any_cut_gives_the_same_answers(process: PluginProcess) -> None:
    @settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(st.lists(st.text(min_size=1, max_size=20), min_size=1, max_size=4), st.data())
    def check(names: list[str], data: st.DataObject) -> None:
        stream = b"".join(hello(str(n), name) for n, name in enumerate(names))
        cuts = sorted(data.draw(st.sets(st.integers(0, len(stream)), max_size=5)))
        for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
            process.write(stream[start:end])
        assert details(process, len(names)) == {str(n): f"Hello, {name}!" for n, name in enumerate(names)}

    check()


def test_large_frames(process: PluginProcess) -> None:
    name = "ü" * 2_000_000
    answer = process.call("action.invoke", invoke("hello", name=name), 30)
    assert answer["detail"] == f"Hello, {name}!"


def test_headers_as_others_write_them(process: PluginProcess) -> None:
    body = request_body("a", "action.invoke", msgspec.json.encode(invoke("hello", name="Ada")))
    for header in (
        b"content-length:%d\r\n\r\n",
        b"Content-Type: application/vscode-jsonrpc; charset=utf-8\r\nContent-Length:   %d  \r\n\r\n",
        b"CONTENT-LENGTH: %d\ncontent-type: application/json\n\n",
    ):
        process.write(header % len(body) + body)
        assert details(process, 1) == {"a": "Hello, Ada!"}


def test_junk_between_frames_is_skipped_and_logged(process: PluginProcess) -> None:
    process.write(b"junk\r\n\x1b[0m" + hello("a", "Ada"))
    assert details(process, 1) == {"a": "Hello, Ada!"}
    process.wait_stderr("skipped 10 bytes on stdin that belong to no frame")


@pytest.mark.parametrize(
    ("data", "kind", "why"),
    [
        (b"x" * 70_000, "junk_too_large", "too many bytes that belong to no frame"),
        (b"\xef\xbb\xbfContent-Length: 1\r\n\r\n", "bom", "a byte order mark stands before a header"),
        (b"Content-Length: -1\r\n\r\n", "bad_length", "not a length: -1"),
        (b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n", "conflicting_length", "two Content-Length headers differ"),
        (b"Content-Type: text/plain\r\n\r\n", "missing_length", "a header part without Content-Length"),
        (b"Content-Length: 1\r\nno colon\r\n\r\n", "malformed_header", "not a header line: no colon"),
        (b"Content-Length: 1\r\na b: c\r\n\r\n", "malformed_header", "not a header line: a b: c"),
        (
            b"Content-Type: text/plain; charset=latin1\r\nContent-Length: 1\r\n\r\n",
            "bad_content_type",
            "the charset must be utf-8, not latin1",
        ),
        (b"Content-Length: 99999999\r\n\r\n", "frame_too_large", "a frame of 99999999 bytes is too large"),
        (
            b"Content-Length: 1\r\n" + b"X: y\r\n" * 2000,
            "header_too_large",
            "the header part of a frame is too long",
        ),
    ],
)
def test_what_cannot_be_repaired_ends_it(process: PluginProcess, data: bytes, kind: str, why: str) -> None:
    assert_ends_over(process, data, kind, why)


def test_frames_that_are_no_requests(process: PluginProcess) -> None:
    for body, expected in (
        (b"{", (None, ErrorCode.PARSE_ERROR)),
        (b'"\xff"', (None, ErrorCode.PARSE_ERROR)),
        (b"\xef\xbb\xbf{}", (None, ErrorCode.PARSE_ERROR)),
        (b"[]", (None, ErrorCode.INVALID_REQUEST)),
        (b"null", (None, ErrorCode.INVALID_REQUEST)),
        (b'{"jsonrpc":"2.0","id":1.5,"method":"plugin.health"}', (None, ErrorCode.INVALID_REQUEST)),
        (b'{"jsonrpc":"1.0","id":"a","method":"plugin.health"}', ("a", ErrorCode.INVALID_REQUEST)),
        (b'{"jsonrpc":"2.0","id":"a","method":"plugin.health","params":[]}', ("a", ErrorCode.INVALID_PARAMS)),
    ):
        assert refused(process, encode_frame(body)) == expected
    process.notify("router.unknown", {})
    assert process.call("plugin.health")["status"] == "ok"


def test_cancelling_a_slow_op(process: PluginProcess) -> None:
    slow = process.send("action.invoke", invoke("hello_later", name="Ada", seconds=60))
    quick = process.call("action.invoke", invoke("hello", name="Bob"))
    assert quick["detail"] == "Hello, Bob!"
    slow.cancel()
    with pytest.raises(RpcError) as caught:
        slow.result()
    assert (caught.value.code, caught.value.message) == (ErrorCode.CANCELLED, "the request was cancelled")
    slow.cancel()
    process.notify("$/cancel", {"id": "never seen"})
    assert process.call("plugin.health")["status"] == "ok"


def test_an_id_in_use_is_refused(process: PluginProcess) -> None:
    params = msgspec.json.encode(invoke("hello_later", name="Ada", seconds=60))
    process.write(encode_frame(request_body("a", "action.invoke", params)))
    assert refused(process, hello("a", "Ada")) == ("a", ErrorCode.INVALID_REQUEST)
    process.notify("$/cancel", {"id": "a"})
    answer = process.unmatched()
    assert isinstance(answer.error, msgspec.Raw)
    assert decode_error(answer.error).code == ErrorCode.CANCELLED


@pytest.mark.parametrize("how", ["EOF", "SIGTERM"])
def test_it_ends_even_in_the_middle_of_an_op(process: PluginProcess, how: str) -> None:
    process.send("action.invoke", invoke("hello_later", name="Ada", seconds=60))
    process.call("plugin.health")
    if how == "EOF":
        process.close_stdin()
    else:
        process.kill(2)
        process.call("plugin.health")
        process.kill(15)
    assert process.wait() == 0
    assert process.stderr == ""


def test_a_crash_in_the_middle_is_seen_by_the_caller(process: PluginProcess) -> None:
    slow = process.send("action.invoke", invoke("hello_later", name="Ada", seconds=60))
    process.kill()
    with pytest.raises(PluginDiedError) as caught:
        slow.result()
    assert caught.value.code == -9


def test_the_file_needs_no_packages() -> None:
    source = (HERE / "node-hello.mjs").read_text()
    assert "import " not in source
    assert "require(" not in source
    subprocess.run(["node", "--check", str(HERE / "node-hello.mjs")], check=True, timeout=30)


def test_it_keeps_to_the_protocol() -> None:
    report = check_plugin(Subject.from_manifest(HERE), Limits(**PATIENT))
    # JavaScript rounds integers beyond 2^53, so such an id is refused; no runner counts that far.
    assert [one.check.id for one in report.outcomes if one.verdict == "fails"] == ["messages.ids-64bit"], report.text()
    assert report.ok
