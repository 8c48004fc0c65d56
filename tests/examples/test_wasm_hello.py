"""Tests of the example module: in the host by itself, beside the runner's own codec, and in the real daemon."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.conformance import broken, check_shipped
from support.daemon import Daemon
from support.examples import assert_greets_as, failure, invoke
from utter_protocol.errors import ErrorCode, RpcError
from utter_protocol.framing import FrameDecoder, FramingError, encode_frame
from utter_protocol.manifest import load_manifest
from utter_protocol.messages import InvalidMessage, decode_error, decode_message
from utter_runner.config import PluginConfig
from utter_runner.supervision.resolve import resolve
from utter_sdk.testing import PluginProcess

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = Path(__file__).parents[2] / "plugins" / "examples" / "wasm-hello"
MANIFEST = load_manifest(HERE / "utter-plugin.toml")
HOST = [sys.executable, "-P", "-m", "utter_runner.wasm", "--", "hello.wat"]
HEALTH = b'{"jsonrpc":"2.0","id":%s,"method":"plugin.health"}'
PROPERTY = settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def plugin(home: Path, **options: Any) -> PluginProcess:
    return PluginProcess(HOST, cwd=HERE, env={"HOME": str(home)}, **options)


@pytest.fixture
def process(tmp_path: Path) -> Iterator[PluginProcess]:
    with plugin(tmp_path) as started:
        yield started


def answer(process: PluginProcess, data: bytes) -> tuple[Any, int]:
    """What is answered to raw bytes: the id, and the code of the error, or 0."""
    process.write(data)
    got = process.unmatched()
    return got.id, decode_error(got.error).code if isinstance(got.error, msgspec.Raw) else 0


# ---- what it does


def test_the_handshake_is_the_manifests(process: PluginProcess) -> None:
    assert_greets_as(process, MANIFEST)


@pytest.mark.parametrize("name", ["Ada", 'a "quoted" \\ name', "Zoë", "\U0001f600\n\x00", "é" * 200])
def test_it_greets(process: PluginProcess, name: str) -> None:
    assert process.call("action.invoke", invoke("hello", name=name)) == {
        "ok": True,
        "detail": f"Hello, {name}!",
        "data": {},
    }


@pytest.mark.parametrize(
    ("params", "field"),
    [
        ({}, "op"),
        ({"op": 3}, "op"),
        ({"op": "goodbye"}, "op"),
        ({"op": "hello"}, "args.name"),
        ({"op": "hello", "args": [1]}, "args"),
        ({"op": "hello", "args": {"name": 3}}, "args.name"),
        ({"op": "hello", "args": {"name": ""}}, "args.name"),
        ({"op": "hello", "args": {"name": "\x80" * 201}}, "args.name"),
        ([], "params"),
    ],
)
def test_wrong_params_name_the_field(process: PluginProcess, params: Any, field: str) -> None:
    error = failure(process, "action.invoke", params)
    assert (error.code, error.data) == (ErrorCode.INVALID_PARAMS, {"field": field})


def test_what_it_does_not_know_is_refused_and_named(process: PluginProcess) -> None:
    error = failure(process, "router.plan", {"utterance": "x"})
    assert (error.code, error.data) == (ErrorCode.METHOD_NOT_FOUND, {"method": "router.plan"})
    assert failure(process, "x" * 10_000).data == {"method": None}
    process.notify("router.plan", {})
    process.notify("$/cancel", {"id": 1})
    assert process.call("plugin.health")["status"] == "ok"


def test_hello_comes_first(tmp_path: Path) -> None:
    with plugin(tmp_path, handshake=False) as process:
        for method in ("plugin.health", "no.such.method"):
            assert failure(process, method).code == ErrorCode.INVALID_REQUEST
        for params, field in (({}, "protocol"), ({"protocol": "1.0"}, "abi"), ({"protocol": "1.0", "abi": "1"}, "abi")):
            assert failure(process, "protocol.hello", params).data == {"field": field}
        process.shake_hands()
        assert process.call("plugin.health")["status"] == "ok"


def test_it_ends_with_its_input(process: PluginProcess) -> None:
    process.close_stdin()
    assert process.wait() == 0
    assert (process.stderr, process.junk) == ("", b"")


def test_it_ends_in_the_middle_of_a_frame_too(process: PluginProcess) -> None:
    process.write(b"Content-Length: 100\r\n\r\n{")
    process.close_stdin()
    assert process.wait() == 0


# ---- how it reads


def test_frames_may_be_cut_anywhere_and_come_together(process: PluginProcess) -> None:
    first, second = encode_frame(HEALTH % b"1"), encode_frame(HEALTH % b'"two"')
    for byte in first:
        process.write(bytes([byte]))
    assert answer(process, b"") == (1, 0)
    process.write(second + first + second[:30])
    assert [answer(process, b"")[0], answer(process, second[30:])[0], answer(process, b"")[0]] == ["two", 1, "two"]


def test_frames_may_be_as_long_as_the_protocol_allows(process: PluginProcess) -> None:
    body = (HEALTH % b"1").ljust(16 * 1024 * 1024)
    assert answer(process, encode_frame(body)) == (1, 0)
    assert answer(process, encode_frame(body)) == (1, 0)


@pytest.mark.parametrize(
    "header",
    [
        b"content-LENGTH \t:  %d \r\n\r\n",
        b"Content-Length:%d\n\n",
        b"Content-Type: application/vscode-jsonrpc; charset=utf-8\r\nContent-Length: %d\r\n\r\n",
        b'Content-Length: %d\r\nContent-Type: a/b; x=y; Charset = "UTF8"\r\n\r\n',
        b"Content-Length: %d\r\nX-Other: yes\r\n\r\n",
        b"Content-Length: %d\r\nContent-Length: 0050\r\n\r\n",
        b"a print\r\n\x1b[31mContent-Length: %d\r\n\r\n",
        b"\r\n\r\nContent-Length: %d\r\n\r\n",
    ],
)
def test_headers_may_be_written_in_several_ways(process: PluginProcess, header: bytes) -> None:
    body = (HEALTH % b"1").ljust(50)
    assert answer(process, header % len(body) + body) == (1, 0)


def framing_error(data: bytes) -> str:
    """What the runner's own decoder says; empty if it would wait for more."""
    decoder = FrameDecoder()
    decoder.receive(data)
    try:
        while decoder.next_frame() is not None:
            pass
    except FramingError as error:
        return error.kind
    return ""


@pytest.mark.parametrize(
    "data",
    [
        b"Content-Type: a/b\r\n\r\n",
        b"Content-Length: \r\n\r\n",
        b"Content-Length: -1\r\n\r\n",
        b"Content-Length: 1.0\r\n\r\n",
        b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"Content-Length: 1\r\nno colon\r\n\r\n",
        b"Content-Length: 1\r\n : x\r\n\r\n",
        b"Content-Length: 1\r\na b: x\r\n\r\n",
        b"Content-Length: 1\r\nContent-Type: a/b; charset=latin-1\r\n\r\n",
        b"\xef\xbb\xbfContent-Length: 1\r\n\r\n",
        b"Content-Length: 1\r\nX: " + b"y" * 8192 + b"\r\n\r\n",
        b"Content-Length: 16777217\r\n\r\n",
        b"x" * 65_600,
        b"x" * 65_537 + b"Content-Length: 1\r\n\r\n1",
    ],
)
def test_broken_framing_is_named_and_ends_it(process: PluginProcess, data: bytes) -> None:
    kind = framing_error(data)
    assert kind
    process.write(data)
    got = process.unmatched()
    assert isinstance(got.error, msgspec.Raw)
    error = decode_error(got.error)
    assert (got.id, error.code, error.data) == (None, ErrorCode.INVALID_REQUEST, {"framing": kind})
    assert process.wait() == 1


# ---- beside the runner's own codec


JSON_VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
NAMES = st.sampled_from(["plugin.health", "plugin.describe", "no.such.method", "$/cancel", ""])
MESSAGES = st.fixed_dictionaries(
    {},
    optional={
        "jsonrpc": st.sampled_from(["2.0", "2.0", "2.0", "1.0", 2.0, None]),
        "id": st.integers(-(2**64), 2**64) | st.text(max_size=8) | JSON_VALUES,
        "method": NAMES | NAMES | JSON_VALUES,
        "params": st.just({}) | st.dictionaries(st.text(max_size=3), JSON_VALUES, max_size=2) | JSON_VALUES,
        "result": JSON_VALUES,
        "error": JSON_VALUES,
        "more": JSON_VALUES,
    },
)


def written(value: Any, ascii_only: bool, indent: int | None) -> bytes:
    # A lone half of a pair is JSON, and no text.
    return json.dumps(value, ensure_ascii=ascii_only, indent=indent).encode("utf-8", "replace")


BODIES = st.builds(written, MESSAGES | JSON_VALUES, st.booleans(), st.sampled_from([None, 1]))


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """A body in which some bytes are other ones, or missing, or too many."""
    body = bytearray(draw(BODIES))
    for _ in range(draw(st.integers(0, 2))):
        at = draw(st.integers(0, len(body)))
        body[at : at + draw(st.integers(0, 2))] = draw(
            st.sampled_from([b"", b"\xff", b'"', b"\\", b"{", b"}", b",", b"0", b"\x00", b"\xc3", b"\xe2\x82", b" "])
        )
    return bytes(body)


def expected(body: bytes) -> tuple[Any, int] | None:
    """What PROTOCOL.md wants, found with the runner's codec: id and code, 0 for a result; None for no answer."""
    try:
        message = decode_message(body)
    except InvalidMessage as error:
        return error.id, error.error.code
    if message.method is msgspec.UNSET or message.id is msgspec.UNSET:
        return None
    if message.method not in {"plugin.health", "plugin.describe"}:
        return message.id, ErrorCode.METHOD_NOT_FOUND
    fits = message.params is msgspec.UNSET or bytes(message.params).lstrip(b" \t\r\n").startswith(b"{")
    return message.id, 0 if fits else ErrorCode.INVALID_PARAMS


def test_it_reads_messages_as_the_runner_does(process: PluginProcess) -> None:
    @PROPERTY
    @given(damaged())
    def check(body: bytes) -> None:
        # What is sent behind it shows when everything has been answered.
        process.write(encode_frame(body) + encode_frame(HEALTH % b'"the last one"'))
        answers = list(iter(lambda: answer(process, b""), ("the last one", 0)))
        wanted = expected(body)
        assert answers == ([] if wanted is None else [wanted])

    check()


def test_it_keeps_to_the_protocol(tmp_path: Path) -> None:
    report = check_shipped(HERE / "utter-plugin.toml", env={"HOME": str(tmp_path)})
    assert broken(report) == set(), report.text()


# ---- in the daemon


ENTRY = f'[[plugin]]\nid = "wasm-hello"\nmanifest = "{HERE}"\n'


def test_the_daemon_runs_it_and_ends_it(tmp_path: Path) -> None:
    with Daemon(tmp_path, ENTRY + "memory_mib = 8\n") as daemon, daemon.client() as client:
        (shown,) = client.call("runner.plugins", {}, 10)["plugins"]
        assert (shown["status"], shown["ops"], shown["version"]) == ("ready", ["hello"], MANIFEST.version)
        call = {"plugin": "wasm-hello", "method": "action.invoke", "params": invoke("hello", name="Ada")}
        assert client.call("runner.invoke", call, 10)["detail"] == "Hello, Ada!"
        call["params"] = invoke("hello", name="x" * 201)
        with pytest.raises(RpcError, match="name"):
            client.call("runner.invoke", call, 10)


def test_the_daemon_gives_up_on_a_module_that_cannot_run(tmp_path: Path) -> None:
    package = tmp_path / "plugins" / "wasm-hello"
    package.mkdir(parents=True)
    (package / "utter-plugin.toml").write_text((HERE / "utter-plugin.toml").read_text())
    with Daemon(tmp_path, '[runner]\nplugin_dirs = ["plugins"]\n[[plugin]]\nid = "wasm-hello"\n') as daemon:
        with daemon.client() as client:
            (shown,) = client.call("runner.plugins", {}, 10)["plugins"]
        assert (shown["status"], shown["restarts"]) == ("failed", 0)
        assert f"The module {package}/hello.wat cannot be read: No such file or directory." in shown["detail"]
        assert "exit code 125 asks not to be restarted" in shown["detail"]


def test_its_command_is_what_these_tests_run() -> None:
    argv = resolve(PluginConfig(id="wasm-hello", manifest=str(HERE)), []).argv
    assert list(argv) == [*HOST[:-1], str(HERE / "hello.wat")]
