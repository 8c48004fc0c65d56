"""The parts of the kit: what it starts and leaves, what it answers, what it reports."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from support.conformance import PATIENT, argv
from utter_protocol.errors import ErrorCode, RpcError
from utter_sdk.conformance.channel import Limits, StoppedError
from utter_sdk.conformance.desk import Desk
from utter_sdk.conformance.launch import LaunchError, Subject, marked
from utter_sdk.conformance.link import Link
from utter_sdk.conformance.plugin import check_plugin
from utter_sdk.conformance.plugin_methods import made_up
from utter_sdk.conformance.report import Check, Outcome, Report

TELLS = """
import json, os, sys
body = json.dumps({"jsonrpc": "2.0", "id": 1, "result": {
    "env": dict(os.environ), "cwd": os.getcwd(), "fds": len(os.listdir("/proc/self/fd")), "sid": os.getsid(0),
    "pid": os.getpid(), "tmp": os.stat(os.environ["TMPDIR"]).st_mode & 0o777,
}}).encode()
sys.stdout.buffer.write(b"Content-Length: %d\\r\\n\\r\\n%b" % (len(body), body))
sys.stdout.buffer.flush()
sys.stdin.read()
"""


def told(tmp_path: Path, **options: Any) -> dict[str, Any]:
    subject = Subject(argv=(sys.executable, "-I", "-S", "-c", TELLS), cwd=str(tmp_path), **options)
    with Link(subject, Limits(**PATIENT)) as link:
        link.expect(1)
        result = link.answer(1).result
        assert marked(result["env"]["UTTER_INSTANCE"]) == [link.pid]
    assert marked(result["env"]["UTTER_INSTANCE"]) == []
    assert not Path(result["env"]["TMPDIR"]).exists()
    return dict(result)


def test_a_plugin_gets_what_the_runner_promises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "1")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    found = told(tmp_path, env={"MORE": "x"})
    promised = {"PATH", "HOME", "USER", "LANG", "XDG_RUNTIME_DIR", "UTTER_INSTANCE", "TMPDIR", "MORE"}
    assert found["env"].keys() - {"LC_CTYPE"} <= promised
    assert (found["env"]["MORE"], found["env"]["XDG_RUNTIME_DIR"]) == ("x", str(tmp_path))
    assert found["cwd"] == str(tmp_path)
    assert (found["sid"], found["tmp"]) == (found["pid"], 0o700)
    # 0, 1, 2, and the one that lists them.
    assert found["fds"] == 4


def test_a_socket_lies_where_the_runner_puts_it_and_the_rest_stays_in_reach(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bus").write_text("")
    (tmp_path / "utter").mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    subject = Subject(argv=argv(transport="connect"), cwd=str(tmp_path), id="some-id", transport="connect")
    with Link(subject, Limits(**PATIENT)) as link:
        environ = Path(f"/proc/{link.pid}/environ").read_bytes().split(b"\0")
        env = dict(one.decode().split("=", 1) for one in environ if one)
        runtime = Path(env["XDG_RUNTIME_DIR"])
        assert env["UTTER_PLUGIN_SOCKET"] == str(runtime / "utter" / "plugins" / "some-id.sock")
        assert (runtime / "utter" / "plugins").stat().st_mode & 0o777 == 0o700
        assert (runtime / "bus").samefile(tmp_path / "bus")
        assert link.call("plugin.health").result == {"status": "ok", "detail": ""}
    assert not runtime.exists()
    assert (tmp_path / "bus").exists()


def test_what_cannot_be_started_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(LaunchError, match="there is no executable 'does-not-exist' in PATH"):
        Link(Subject(argv=("does-not-exist",)), Limits())
    with pytest.raises(LaunchError, match=r"working directory \S+nowhere does not exist"):
        Link(Subject(argv=("true",), cwd=str(tmp_path / "nowhere")), Limits())
    (tmp_path / "program").write_bytes(b"\0no program")
    (tmp_path / "program").chmod(0o755)
    with pytest.raises(LaunchError, match="cannot be started: Exec format error"):
        Link(Subject(argv=("./program",), cwd=str(tmp_path)), Limits())
    long = tmp_path / ("x" * 100)
    long.mkdir()
    monkeypatch.setenv("TMPDIR", str(long))
    monkeypatch.setattr("tempfile.tempdir", None)
    with pytest.raises(LaunchError, match="longer than 107 bytes"):
        Link(Subject(argv=argv(), transport="listen"), Limits())
    assert list(long.iterdir()) == []


def test_a_process_that_outlives_the_plugin_is_found_and_ended() -> None:
    with Link(Subject(argv=argv("leaves")), Limits(**{**PATIENT, "end": 0.2})) as link:
        link.call("plugin.health")
        link.end_input()
        assert link.wait_end(30) == 0
        assert [name[:6] for name in link.outlived()] == ["python"]
    assert link.outlived() == []


def test_a_run_can_be_given_up() -> None:
    limits = Limits(**PATIENT)
    limits.stop.set()
    with pytest.raises(StoppedError):
        check_plugin(Subject(argv=argv()), limits)


def test_a_plugin_without_a_manifest_may_choose_its_sockets_name() -> None:
    program = (
        "import os, socket, time\n"
        "path = os.path.dirname(os.environ['UTTER_PLUGIN_SOCKET']) + '/my-own-name.sock'\n"
        "own = socket.socket(socket.AF_UNIX); own.bind(path); own.listen(1)\n"
        "own.accept()[0].recv(1)\n"
    )
    subject = Subject(argv=(sys.executable, "-I", "-S", "-c", program), transport="listen")
    with Link(subject, Limits(**PATIENT)) as link:
        assert link.socket_mode & 0o700 == 0o700


# ---- What is answered to the plugin


def refusal(method: str, params: dict[str, Any]) -> int:
    with pytest.raises(RpcError) as caught:
        Desk().answer(method, params)
    return int(caught.value.code)


def test_the_desk_does_nothing_and_keeps_blobs() -> None:
    desk = Desk()
    made = desk.answer("handle.create", {"data": "hello"})
    assert made["sha256"] == "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"
    assert desk.answer("handle.create", {"data_b64": "aGVsbG8="}) == made
    assert desk.answer("handle.stat", {"handle": made["handle"]}) == made
    assert desk.answer("handle.fetch", {"handle": made["handle"]}) == {**made, "data_b64": "aGVsbG8="}
    big = desk.answer("handle.create", {"size": 65537})
    with pytest.raises(RpcError) as caught:
        desk.answer("handle.fetch", {"handle": big["handle"]})
    assert caught.value.code == ErrorCode.TOO_LARGE_INLINE
    assert desk.answer("host.confirm", {"text": "?"}) == {"approved": False}
    assert desk.answer("host.context", {}) == {"meta": {}}
    assert refusal("host.action", {"op": "media"}) == ErrorCode.NOT_PERMITTED
    assert refusal("host.invoke", {}) == ErrorCode.CAPABILITY_MISSING
    assert refusal("handle.create", {"data_b64": "?"}) == ErrorCode.INVALID_PARAMS
    assert refusal("handle.create", {"size": -1}) == ErrorCode.INVALID_PARAMS
    assert refusal("handle.stat", {"handle": "handle://0"}) == ErrorCode.INVALID_PARAMS
    assert refusal("fly", {}) == ErrorCode.METHOD_NOT_FOUND


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({}, None),
        ({"const": 7}, 7),
        ({"enum": ["on", "off"]}, "on"),
        ({"type": "integer", "minimum": 3}, 3),
        ({"type": "string", "minLength": 2}, "xx"),
        ({"type": "string", "pattern": "^a+$"}, None),
        ({"type": "boolean"}, False),
        ({"type": "array"}, []),
        ({"type": "array", "minItems": 1}, None),
        ({"type": "object"}, {}),
        ({"type": "object", "required": ["a"], "properties": {"a": {"default": 1}}}, {"a": 1}),
        ({"type": "object", "required": ["a"]}, None),
    ],
)
def test_arguments_are_made_up_only_where_the_schema_says_enough(schema: dict[str, Any], value: Any) -> None:
    assert made_up(schema) == value


# ---- The report


def test_a_report() -> None:
    must, should = Check("a.b", "It does.", "Framing"), Check("a.c", "It might.", "Messages", "should")
    other = Check("a.d", "It could.", "Streams")
    fails = Outcome(must, "fails", "It did not.", sent=("one", "two"), expected="three", got=("four",), seconds=1.23456)
    report = Report(
        "x", (fails, Outcome(should, "fails", "Not so."), Outcome(other, "skipped", "No."), Outcome(other, "holds"))
    )
    assert not report.ok
    assert Report("x", report.outcomes[1:]).ok
    assert report.text().splitlines() == [
        "fails  a.b: It does.",
        "    It did not.",
        '    see       PROTOCOL.md, "Framing"',
        "    expected  three",
        "    sent      one",
        "              two",
        "    came      four",
        "warning  a.c: It might.",
        "    Not so.",
        '    see       PROTOCOL.md, "Messages"',
        "not looked at  No. (a.d)",
        "x: 1 hold, 1 fail, 1 warnings, 1 not looked at",
    ]
    document = report.document()
    assert document["counts"] == {"holds": 1, "fails": 1, "warnings": 1, "skipped": 1}
    assert document["checks"][0] == {
        "id": "a.b", "title": "It does.", "section": "Framing", "level": "must", "verdict": "fails",
        "detail": "It did not.", "seconds": 1.235, "sent": ["one", "two"], "expected": "three", "got": ["four"],
    }  # fmt: skip
    assert "sent" not in document["checks"][3]
