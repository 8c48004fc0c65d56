"""Tests of the example in POSIX shell and awk, run by the real ones."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.conformance import PATIENT, broken
from support.examples import assert_ends_over, failure, invoke
from utter_protocol.errors import ErrorCode
from utter_protocol.framing import encode_frame
from utter_protocol.manifest import load_manifest
from utter_protocol.messages import decode_error
from utter_sdk.conformance.plugin import Limits, Subject, check_plugin
from utter_sdk.testing import PluginProcess

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = Path(__file__).parents[2] / "plugins" / "examples" / "shell-hello"
MANIFEST = load_manifest(HERE / "utter-plugin.toml")
SHELLS = [name for name in ("sh", "dash", "bash", "ksh") if shutil.which(name)]

pytestmark = pytest.mark.skipif(shutil.which("awk") is None, reason="awk is not installed")


@pytest.fixture(params=SHELLS)
def process(request: pytest.FixtureRequest) -> Iterator[PluginProcess]:
    with PluginProcess([request.param, *MANIFEST.entrypoint[1:]], cwd=HERE) as started:
        yield started


def test_it_keeps_to_the_protocol() -> None:
    report = check_plugin(Subject.from_manifest(HERE), Limits(**PATIENT))
    assert broken(report) == set(), report.text()


def test_the_handshake_is_the_manifests(process: PluginProcess) -> None:
    said = process.hello
    assert (said.plugin.name, said.plugin.version, said.plugin.kind) == (MANIFEST.name, MANIFEST.version, MANIFEST.kind)
    assert (said.provides, said.transport) == (MANIFEST.provides, MANIFEST.transport)
    assert MANIFEST.entrypoint[0] == "sh"
    assert process.close() == 0
    assert process.stderr == ""


def test_hello(process: PluginProcess) -> None:
    for name in ("Ada", "Zoë 🎤", 'a "b" \\ c', "line\nbreak\t\x01", "\u2028", "%s %d \\n $(id)", "'; exit; '", "-n"):
        expected = {"ok": True, "detail": f"Hello, {name}!", "data": {}}
        assert process.call("action.invoke", invoke("hello", name=name)) == expected
        assert process.call("action.invoke", invoke("action.hello", name=name)) == expected


def test_how_much_room_is_left(process: PluginProcess) -> None:
    answer = process.call("action.invoke", invoke("disk_free"))
    assert answer["ok"] is True
    assert answer["detail"].endswith(" gigabytes are free.")
    assert 0 <= int(answer["detail"].split()[0]) <= shutil.disk_usage(Path.home()).total / 1e9


def test_where_the_room_cannot_be_found_out() -> None:
    with PluginProcess(MANIFEST.entrypoint, cwd=HERE, env={"HOME": "/does/not/exist"}) as process:
        answer = process.call("action.invoke", invoke("disk_free"))
        assert (answer["ok"], answer["detail"]) == (False, "The room that is left could not be found out.")


def test_errors(process: PluginProcess) -> None:
    assert failure(process, "stt.start").code == ErrorCode.METHOD_NOT_FOUND
    for params, field in (
        ({"op": "fly"}, "op"),
        ({"op": 7}, "op"),
        ({}, "op"),
        ({"op": "hello"}, "args.name"),
        (invoke("hello", name=7), "args.name"),
    ):
        error = failure(process, "action.invoke", params)
        assert (error.code, error.data) == (ErrorCode.INVALID_PARAMS, {"field": field})


def test_the_ops_are_listed_with_their_schemas(process: PluginProcess) -> None:
    listed = {op["op"]: op for op in process.call("action.capabilities")["ops"]}
    assert set(listed) == {"hello", "disk_free"}
    assert listed["hello"]["schema"]["required"] == ["name"]


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b"x" * 79 + b"\n" + b"x" * 79 * 900 + b"\n", "junk_too_large"),
        (b"\xef\xbb\xbfContent-Length: 1\r\n\r\n", "bom"),
        (b"Content-Length: -1\r\n\r\n", "bad_length"),
        (b"Content-Length:\r\n\r\n", "bad_length"),
        (b"Content-Length: 0x1\r\n\r\n", "bad_length"),
        (b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n", "conflicting_length"),
        (b"Content-Type: text/plain\r\n\r\n", "missing_length"),
        (b"Content-Length: 1\r\nno colon\r\n\r\n", "malformed_header"),
        (b"Content-Length: 1\r\na b: c\r\n\r\n", "malformed_header"),
        (b"Content-Length: 1\r\n: c\r\n\r\n", "malformed_header"),
        (b"Content-Type: text/plain; charset=latin1\r\nContent-Length: 1\r\n\r\n", "bad_content_type"),
        (b"Content-Length: 16777217\r\n\r\n", "frame_too_large"),
        (b"Content-Length: 99999999999999999999999\r\n\r\n", "frame_too_large"),
        (b"Content-Length: 1\r\n" + b"X: y\r\n" * 2000, "header_too_large"),
    ],
)
def test_what_cannot_be_repaired_ends_it(data: bytes, kind: str) -> None:
    with PluginProcess(MANIFEST.entrypoint, cwd=HERE) as process:
        assert_ends_over(process, data, kind, kind)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


def test_any_json_is_read_as_json() -> None:
    with PluginProcess(MANIFEST.entrypoint, cwd=HERE) as process:

        @settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
        @given(JSON, st.text(max_size=40).filter(lambda text: "\ufffd" not in text), st.booleans())
        def check(value: Any, name: str, ascii_only: bool) -> None:
            params = {"more": value, **invoke("hello", name=name)}
            message = {"x": value, "jsonrpc": "2.0", "id": "a", "method": "action.invoke", "params": params}
            process.write(encode_frame(_written(message, ascii_only=ascii_only)))
            answer = process.unmatched()
            assert isinstance(answer.result, msgspec.Raw)
            assert msgspec.json.decode(answer.result)["detail"] == f"Hello, {name}!"

        check()


def _written(message: dict[str, Any], *, ascii_only: bool) -> bytes:
    import json  # noqa: PLC0415 - another writer than msgspec, which escapes more

    return json.dumps(message, ensure_ascii=ascii_only, indent=None if ascii_only else 1).encode()


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{", b"}", b'{"a"}', b'{"a":}', b'{"a":1,}', b"{,}", b"[1,]", b"[1 2]", b"01", b"+1", b".5", b"1.", b"1e",
        b"-", b"nul", b"truex", b"NaN", b"'a'", b'"\x01"', b'"\n"', b'"a', b'"\\x"', b'"\\u12g4"', b'"\xc0\x80"',
        b'"\xed\xa0\x80"', b'"\xf4\x90\x80\x80"', b'"\xff"', b'"\xe2\x82"', b"{}{}", b'{"a":1 "b":2}',
    ],
)  # fmt: skip
def test_what_is_no_json_is_told_apart(body: bytes) -> None:
    with PluginProcess(MANIFEST.entrypoint, cwd=HERE) as process:
        process.write(encode_frame(body))
        answer = process.unmatched()
        assert answer.id is None
        assert isinstance(answer.error, msgspec.Raw)
        assert decode_error(answer.error).code == ErrorCode.PARSE_ERROR
        assert process.call("plugin.health")["status"] == "ok"
