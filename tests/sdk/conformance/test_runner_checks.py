"""The kit for runners: all holds with the real daemon, and each defect is seen by the check that is about it."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.bad_runner import BadRunner, Defect, Message
from support.daemon import Daemon
from utter_runner.cli import main
from utter_sdk.conformance.report import Report
from utter_sdk.conformance.runner_checks import CHECKS, check_runner

PLUGIN = Path(__file__).parents[2] / "spec_client" / "plugin.py"
WORDS = "correct-horse-battery-staple"
SECONDS = 4.0
Change = Callable[[str, Message], Message | list[Message] | None]


def config() -> str:
    words = ", ".join(f"'{word}'" for word in (sys.executable, "-S", "-E", PLUGIN, "bundle", "stdio"))
    return f'[[plugin]]\nid = "bundle"\nentrypoint = [{words}]\n'


@pytest.fixture(scope="module")
def open_runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon that asks for no token."""
    with Daemon(tmp_path_factory.mktemp("open"), config()) as daemon:
        yield daemon


@pytest.fixture(scope="module")
def closed_runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon that asks for a token."""
    with Daemon(tmp_path_factory.mktemp("closed"), f'[socket]\ntoken = "{WORDS}"\n' + config()) as daemon:
        yield daemon


def broken(report: Report) -> set[str]:
    return {one.check.id for one in report.outcomes if one.verdict == "fails"}


def skipped(report: Report) -> set[str]:
    return {one.check.id for one in report.outcomes if one.verdict == "skipped"}


# ---- a runner that is right


def test_all_holds_with_the_daemon(open_runner: Daemon) -> None:
    report = check_runner(str(open_runner.socket), timeout=30)
    assert broken(report) == set(), report.text()
    assert skipped(report) == {check.id for check in CHECKS if check.id.startswith("auth.")} - {"auth.any-token"}
    assert len(report.outcomes) == len(CHECKS)


def test_all_holds_with_a_token(closed_runner: Daemon) -> None:
    report = check_runner(str(closed_runner.socket), token=WORDS, timeout=30)
    assert broken(report) == set(), report.text()
    assert skipped(report) == {"auth.any-token"}


def test_a_stranger_can_check_the_wire_and_who_may_ask(closed_runner: Daemon) -> None:
    report = check_runner(str(closed_runner.socket), timeout=30, only=["auth.", "framing.", "messages."])
    assert broken(report) == set(), report.text()
    # What is for clients that were let in, and what is more than others may send.
    assert skipped(report) == {
        "auth.any-token",
        "auth.token",
        "framing.large",
        "framing.largest",
        "framing.many",
        "messages.arrays",
        "messages.cancel",
        "messages.duplicate-id",
        "messages.in-flight",
        "messages.pipelined",
        "messages.unknown-method",
    }
    assert len(report.outcomes) == 60


def test_the_proxy_of_these_tests_adds_no_defect(open_runner: Daemon, tmp_path: Path) -> None:
    with BadRunner(open_runner.socket, tmp_path / "p", Defect(message=lambda _method, message: message)) as runner:
        report = check_runner(str(runner.path), timeout=30)
    assert broken(report) == set(), report.text()


def test_ids_titles_and_sections(open_runner: Daemon) -> None:
    page = (Path(__file__).parents[3] / "protocol" / "PROTOCOL.md").read_text()
    headings = set(re.findall(r"^#+ (.*)$", page, re.MULTILINE))
    ids = [check.id for check in CHECKS]
    assert len(set(ids)) == len(ids)
    assert {check.section for check in CHECKS} <= headings
    assert all(check.title.endswith(".") for check in CHECKS)


def test_the_command(open_runner: Daemon, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["conformance", "--runner", str(open_runner.socket), "--only", "streams.", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["ok"], report["counts"]["fails"]) == (True, 0)
    assert report["counts"]["holds"] == sum(check.id.startswith("streams.") for check in CHECKS)


# ---- none at all


def test_nobody_there(tmp_path: Path) -> None:
    report = check_runner(str(tmp_path / "none.sock"), timeout=5)
    assert broken(report) == {"connect.answers"}
    (outcome,) = (one for one in report.outcomes if one.verdict == "fails")
    assert "No such file or directory" in outcome.detail
    assert len(skipped(report)) == len(CHECKS) - 1


def test_a_wrong_token(closed_runner: Daemon) -> None:
    report = check_runner(str(closed_runner.socket), token="wrong", timeout=10)  # noqa: S106 - it is none
    assert broken(report) == {"connect.answers"}


# ---- defects


def close_if(pattern: bytes) -> Defect:
    """Give up on bytes that a receiver must take."""
    wanted = re.compile(pattern)
    return Defect(bytes_of_client=lambda data: None if wanted.search(data) else data)


def changes(change: Change, *methods: str) -> Defect:
    """Change the answers to some methods, or to all."""

    def message(method: str, message: Message) -> Message | list[Message] | None:
        if "method" in message or (methods and method not in methods):
            return message
        return change(method, message)

    return Defect(message=message)


def recode(old: int, new: int, *methods: str) -> Defect:
    """Answer another code."""

    def change(_method: str, message: Message) -> Message:
        if message.get("error", {}).get("code") == old:
            message["error"]["code"] = new
        return message

    return changes(change, *methods)


def accept(old: int, result: Any, *methods: str) -> Defect:
    """Answer a result in place of an error."""

    def change(_method: str, message: Message) -> Message:
        if message.get("error", {}).get("code") == old:
            return {"jsonrpc": "2.0", "id": message["id"], "result": result}
        return message

    return changes(change, *methods)


def results(change: Callable[[Any], Any], *methods: str) -> Defect:
    """Change results in place."""

    def changed(_method: str, message: Message) -> Message:
        if "result" in message:
            change(message["result"])
        return message

    return changes(changed, *methods)


def at_error(code: int, more: Callable[[Message], Message | list[Message] | None]) -> Defect:
    """Change errors with a code."""
    return changes(lambda _method, one: more(one) if one.get("error", {}).get("code") == code else one)


def every(number: int, change: Callable[[Message], list[Message]]) -> Defect:
    """Change one answer of so many."""
    count = 0

    def changed(_method: str, message: Message) -> list[Message]:
        nonlocal count
        count += 1
        return change(message) if count % number == 0 else [message]

    return changes(changed)


def says(pattern: bytes, message: Message) -> Defect:
    """Say something more when the client has sent something."""
    wanted = re.compile(pattern)
    return Defect(besides=lambda data: [{"jsonrpc": "2.0", **message}] if wanted.search(data) else [])


def items(change: Callable[[Message], Message | list[Message] | None]) -> Defect:
    """Change notifications."""
    return Defect(message=lambda _method, one: change(one) if "method" in one and "id" not in one else one)


def hold_back_subscriptions() -> Defect:
    """Send the first item before the answer."""
    held: list[Message] = []

    def change(method: str, message: Message) -> list[Message]:
        if method == "stream.subscribe" and "result" in message:
            held.append(message)
            return []
        later, held[:] = list(held), []
        return [message, *later]

    return Defect(message=change)


def frames_of_one_read(data: bytes) -> bytes:
    return data if b"\r\n\r\n" in data else b""


def first_frame(data: bytes) -> bytes:
    found = re.match(rb"Content-Length: (\d+)\r\n\r\n", data)
    return data[: found.end() + int(found[1])] if found else data


def without(*names: str) -> Callable[[Any], None]:
    def change(result: Any) -> None:
        for name in names:
            result.pop(name)

    return change


def setting(**values: Any) -> Callable[[Any], None]:
    return lambda result: result.update(values)


def for_plugins(change: Callable[[list[Any]], Any]) -> Callable[[Any], None]:
    return lambda result: change(result["plugins"])


def another_error(message: Message) -> Message:
    return {**message, "error": {**message["error"], "data": {"framing": "oops"}}}


def twice(message: Message) -> list[Message]:
    return [message, message]


def unnamed(message: Message) -> Message:
    return {"jsonrpc": "2.0", "id": message["id"], "error": {"code": -32600, "message": "too many"}}


def never_null(message: Message) -> Message:
    return {**message, "id": 0} if message["id"] is None else message


def doubled(fds: list[int]) -> list[int]:
    return [*fds, *map(os.dup, fds)]


def lost(fds: list[int]) -> list[int]:
    for fd in fds:
        os.close(fd)
    return []


def swapped(fds: list[int]) -> list[int]:
    """Another file, which can be written to."""
    replaced = []
    for fd in fds:
        memory = os.memfd_create("other")
        os.write(memory, os.pread(fd, 1 << 16, 0))
        os.close(fd)
        replaced.append(memory)
    return replaced


def item_number(seq: int) -> Callable[[Message], Message]:
    return lambda message: {**message, "params": {**message["params"], "seq": seq}}


def all_granted(result: Any) -> None:
    for permission in result["permissions"]:
        permission["advisory"] = permission["enforced"]


DEVICE = {"description": "", "default": False, "chosen": False}
LATE = {"id": None, "error": {"code": -32600, "message": "what was that?"}}
DEFECTS: dict[str, tuple[str, Defect]] = {
    # framing
    "a frame is what one read brings": ("framing.byte-by-byte", Defect(bytes_of_client=frames_of_one_read)),
    "a frame may not be cut": ("framing.split", Defect(bytes_of_client=frames_of_one_read)),
    "only the first frame of a read is read": ("framing.many", Defect(bytes_of_client=first_frame)),
    "characters are counted": ("framing.bytes", close_if(rb"[\x80-\xff]")),
    "header names in one spelling": ("framing.header-case", close_if(rb"content-length|CONTENT|cOnT")),
    "headers with one space": ("framing.header-spaces", close_if(rb"Content-Length(?!: \d)")),
    "lines end in CR LF only": ("framing.bare-lf", close_if(rb"[^\r]\n")),
    "no content type": ("framing.content-type", close_if(rb"(?i)content-type")),
    "no other headers": ("framing.other-headers", close_if(rb"X-Trace")),
    "a header stands once": ("framing.repeated-length", close_if(rb"Content-Length: \d+\r\nContent-Length")),
    "no junk": ("framing.junk", close_if(rb"stray print")),
    "no large frames": ("framing.large", close_if(rb"x{100000}")),
    "no frames of the largest size": ("framing.largest", close_if(rb"Content-Length: 16777216")),
    "framing errors without their name": ("framing.error.bom", at_error(-32600, another_error)),
    "framing errors have a code of their own": ("framing.error.missing_length", recode(-32600, -32700)),
    "framing errors are not said": ("framing.error.conflicting_length", at_error(-32600, lambda _one: None)),
    "it goes on after a framing error": ("framing.error.bad_length.negative", Defect(never_end=True)),
    "a request behind a framing error is answered": (
        "framing.error.junk_too_large",
        at_error(-32600, lambda one: [one, {"jsonrpc": "2.0", "id": 1, "result": {}}]),
    ),
    "a framing error is said twice": ("framing.error.malformed_header", at_error(-32600, twice)),
    "a body is read before it is refused": (
        "framing.early",
        Defect(bytes_of_client=lambda data: b"" if data == b"Content-Length: %d\r\n\r\n" % 10**18 else data),
    ),
    "half a frame is waited for": ("framing.truncated", Defect(ignore_half_close=True)),
    # messages
    "0 is no id": ("messages.ids", changes(lambda _method, one: None if one["id"] == 0 else one)),
    "ids are texts": (
        "messages.id-types",
        changes(lambda _method, one: {**one, "id": 7} if one["id"] == "7" else one),
    ),
    "an id is made up": ("messages.bad-ids", changes(lambda _method, one: never_null(one))),
    "a batch is answered for each": ("messages.batch", at_error(-32600, twice)),
    "what is nothing is passed over": ("messages.neither", at_error(-32600, lambda _one: None)),
    "what is no JSON has another code": ("messages.parse-error", recode(-32700, -32600)),
    "what is no UTF-8 is not answered": ("messages.utf-8", at_error(-32700, lambda _one: None)),
    "NaN is a number": ("messages.numbers", at_error(-32700, lambda _one: None)),
    "half a pair is a character": ("messages.surrogates", at_error(-32700, lambda _one: None)),
    "deep JSON kills it": ("messages.too-deep", close_if(rb"\[{1000}")),
    "not so deep": ("messages.deep", close_if(rb"\[{200}")),
    "a bad request is refused without its id": (
        "messages.bad-envelope",
        at_error(-32600, lambda one: {**one, "id": None}),
    ),
    "the first key counts": (
        "messages.last-key",
        Defect(bytes_of_client=lambda data: data.replace(b'"id":"last"', b'"no":"last"')),
    ),
    "unknown members are refused": (
        "messages.unknown-members",
        says(rb'"trace"', {"id": "more", "error": {"code": -32600, "message": "trace?"}}),
    ),
    "params must be there": ("messages.no-params", close_if(rb'"method":"runner.status"\}')),
    "unknown methods have another code": ("messages.unknown-method", recode(-32601, -32603)),
    "an error has no message": (
        "messages.unknown-method",
        at_error(-32601, lambda one: {**one, "error": {"code": -32601}}),
    ),
    "arrays are another error": ("messages.arrays", recode(-32602, -32600)),
    "a notification is answered": ("messages.notifications", says(rb'"conformance.nothing"', LATE)),
    "a late answer is answered": ("messages.stray-answers", says(rb'"late"', LATE)),
    "a wrong answer is answered under its id": (
        "messages.wrong-answers",
        at_error(-32600, lambda one: {**one, "id": 1} if one["id"] is None else one),
    ),
    "one answer in 500 is lost": ("messages.pipelined", every(500, lambda _one: [])),
    "one answer in 500 comes twice": ("messages.pipelined", every(500, twice)),
    "the bound is not named": ("messages.in-flight", every(100, lambda one: [unnamed(one)])),
    "a second request with an id is served": ("messages.duplicate-id", recode(-32600, -32000)),
    "a cancellation is an answer": (
        "messages.cancel",
        says(rb"\$/cancel", {"id": "cancelled", "error": {"code": -32002, "message": "cancelled"}}),
    ),
    "nothing cannot be cancelled": ("messages.cancel-nothing", says(rb"\$/cancel", LATE)),
    # connections
    "the socket is everybody's": ("connect.socket-mode", Defect(socket_mode=0o666)),
    "the directory is everybody's": ("connect.directory-mode", Defect(directory_mode=0o755)),
    "who connects is never forgotten": ("connect.bare", Defect(most_connections=10)),
    "who vanishes is never forgotten": ("connect.vanish", Defect(most_connections=3)),
    "who sends no more is gone": ("connect.half-close", Defect(end_at_half_close=True)),
    "who sends no more is kept": ("connect.half-close", Defect(ignore_half_close=True)),
    "who does not read holds up all": ("connect.slow-reader", Defect(one_writer=True)),
    "who does not read fills the memory": ("connect.slow-reader", Defect(hoard=True)),
    "a token must be right where none is needed": ("auth.any-token", results(setting(ok=False), "runner.auth")),
    # the API
    "the status has no age": ("api.status", results(without("uptime_s"), "runner.status")),
    "the clients are not counted": ("api.status", results(setting(clients=1), "runner.status")),
    "the state is another": ("api.status", results(setting(state="fine"), "runner.status")),
    "a plugin stands twice": ("api.plugins", results(for_plugins(lambda found: found.append(found[0])))),
    "a plugin has no epoch": ("api.plugins", results(for_plugins(lambda found: found[0].update(epoch=0)))),
    "a plugin has no streams": ("api.plugins", results(for_plugins(lambda found: found[0].pop("streams")))),
    "the status has other plugins": ("api.plugins", results(setting(plugins=[]), "runner.status")),
    "a permission is neither": ("api.validate", results(all_granted, "runner.validate_plugin")),
    "an unknown plugin is an invalid param": ("api.unknown-plugin", recode(-32005, -32602)),
    "nothing is invalid": ("api.invalid-params", accept(-32602, {})),
    "an answer is wrapped": ("api.invoke", results(lambda result: result.update(status="fine"), "runner.invoke")),
    "any time will do": ("api.timeout", accept(-32602, {"status": "ok"}, "runner.invoke")),
    "anything can be called": ("api.forbidden-methods", accept(-32003, {}, "runner.invoke")),
    "the screen may author": ("api.gate", accept(-32006, {"ok": True}, "runner.invoke")),
    "nobody states a provenance": ("api.gate", accept(-32003, {"ok": True}, "runner.invoke")),
    "a rule has another name": ("api.explain", results(setting(rule="because"), "policy.explain")),
    "what is denied is shown": ("api.explain", results(setting(args={"command": "true"}), "policy.explain")),
    "addresses are shown as they came": (
        "api.explain-url",
        results(lambda one: one["args"] and one["args"].update(url="HTTPS://Example.ORG"), "policy.explain"),
    ),
    "the context has no origin": ("api.context", results(setting(meta={}), "context.snapshot")),
    "the context is the user's": (
        "api.context",
        results(lambda one: [told.update(provenance="user") for told in one["meta"].values()], "context.snapshot"),
    ),
    "a device has no name": (
        "api.audio-devices",
        results(setting(inputs=[{**DEVICE, "name": ""}]), "audio.devices"),
    ),
    "a device stands twice": (
        "api.audio-devices",
        results(setting(outputs=2 * [{**DEVICE, "name": "a"}]), "audio.devices"),
    ),
    "two devices are chosen": (
        "api.audio-devices",
        results(
            setting(inputs=[{**DEVICE, "name": name, "chosen": True} for name in ("a", "b")]),
            "audio.devices",
        ),
    ),
    "what was not opened cannot be closed": (
        "api.audio-close",
        changes(lambda _method, one: unnamed(one), "audio.close"),
    ),
    "closing says more than it should": ("api.audio-close", results(setting(closed=True), "audio.close")),
    # streams
    "an item comes before the answer": ("streams.state-first", hold_back_subscriptions()),
    "items count from 1": ("streams.state-first", items(item_number(1))),
    "no state comes first": (
        "streams.state-first",
        items(lambda one: {**one, "params": {**one["params"], "data": {"event": "plugin"}}}),
    ),
    "no item comes": ("streams.state-first", items(lambda _one: None)),
    "every stream is reliable": ("streams.modes", results(setting(mode="reliable"), "stream.subscribe")),
    "every stream has one id": ("streams.ids", results(setting(stream_id="stream-number-one"), "stream.subscribe")),
    "any stream is there": (
        "streams.unknown",
        accept(-32601, {"stream_id": "x" * 20, "mode": "lossy"}, "stream.subscribe"),
    ),
    "streams take anything": ("streams.invalid", accept(-32602, {})),
    "an acknowledgement is answered": ("streams.ack", says(rb'^[^{]*\{"jsonrpc":"2.0","method":"stream.ack"', LATE)),
    "an acknowledgement has a result": ("streams.ack", results(setting(ok=True), "stream.ack")),
    "no stream cannot be stopped": ("streams.stop", results(setting(stopped=False), "stream.stop")),
    "streams without a bound": (
        "streams.bound",
        accept(-32600, {"stream_id": "x" * 20, "mode": "lossy"}, "stream.subscribe"),
    ),
    "streams are everybody's": (
        "streams.foreign",
        accept(-32600, {"stream_id": "x" * 20, "mode": "lossy"}, "stream.subscribe"),
    ),
    "the keyboard is for everybody": ("streams.input", recode(-32003, -32601, "stream.subscribe")),
    # handles
    "a handle is a number": ("handles.create", results(setting(handle="handle://1"), "handle.create")),
    "a handle is another's": ("handles.create", results(setting(size=1), "handle.create")),
    "another content": ("handles.fetch", results(setting(data_b64="AAAA"), "handle.fetch")),
    "everything is inline": ("handles.inline", accept(-32007, {}, "handle.fetch")),
    "handles of others": ("handles.unknown", accept(-32602, {}, "handle.stat")),
    "two descriptors": ("handles.descriptor", Defect(descriptors=doubled)),
    "no descriptor": ("handles.descriptor", Defect(descriptors=lost)),
    "a descriptor to write to": ("handles.descriptor", Defect(descriptors=swapped)),
    "no memory": ("handles.memfd", Defect(descriptors=lost)),
    "anything is handed over": ("handles.bad-pass", recode(-32602, -32603, "fd.pass")),
}
CLOSED_DEFECTS: dict[str, tuple[str, Defect]] = {
    "some methods are for all": ("auth.first", accept(-32003, {"plugins": []}, "runner.plugins")),
    "methods can be probed": (
        "auth.nothing-learnt",
        changes(
            lambda method, one: (
                {**one, "error": {"code": -32003, "message": f"{method} is not for you"}} if "error" in one else one
            )
        ),
    ),
    "any token is right": ("auth.wrong", accept(-32003, {"ok": True}, "runner.auth")),
    "as many tries as one likes": ("auth.tries", Defect(never_end=True)),
    "little time": ("auth.time", Defect(end_after=3.0)),
    "all the time in the world": ("auth.time", Defect(never_end=True)),
    "the right token is not said to be": ("auth.token", results(setting(ok=False), "runner.auth")),
}


@pytest.mark.parametrize("name", DEFECTS)
def test_a_defect_is_seen(open_runner: Daemon, tmp_path: Path, name: str) -> None:
    check, defect = DEFECTS[name]
    with BadRunner(open_runner.socket, tmp_path / "p", defect) as runner:
        report = check_runner(str(runner.path), timeout=SECONDS, only=[check])
    expected = check if name != "who does not read fills the memory" else "connect.slow-reader-left"
    assert expected in broken(report), report.text()


@pytest.mark.parametrize("name", CLOSED_DEFECTS)
def test_a_defect_of_authentication_is_seen(closed_runner: Daemon, tmp_path: Path, name: str) -> None:
    check, defect = CLOSED_DEFECTS[name]
    with BadRunner(closed_runner.socket, tmp_path / "p", defect) as runner:
        report = check_runner(str(runner.path), token=WORDS, timeout=SECONDS, only=[check])
    assert broken(report) == {check}, report.text()


def test_every_check_has_a_defect() -> None:
    """But the variants of framing errors, which share a function; the first has no runner, above."""
    tried = {check for check, _ in (*DEFECTS.values(), *CLOSED_DEFECTS.values())}
    left = {check.id for check in CHECKS if not check.id.startswith("framing.error.")} - tried
    assert left == {"connect.answers", "connect.slow-reader-left"}


def test_the_bound_of_requests_in_flight_is_met_and_named(tmp_path: Path) -> None:
    with Daemon(tmp_path, "[runner]\nmax_in_flight = 8\n" + config()) as daemon:
        right = check_runner(str(daemon.socket), timeout=30, only=["messages."])
        assert broken(right) == set(), right.text()
        defect = at_error(-32600, unnamed)
        with BadRunner(daemon.socket, tmp_path / "p", defect) as runner:
            wrong = check_runner(str(runner.path), timeout=SECONDS, only=["messages.in-flight"])
    assert broken(wrong) == {"messages.in-flight"}


def test_what_was_sent_and_what_came_is_told(open_runner: Daemon, tmp_path: Path) -> None:
    defect = recode(-32601, -32603)
    with BadRunner(open_runner.socket, tmp_path / "p", defect) as runner:
        report = check_runner(str(runner.path), timeout=SECONDS, only=["messages.unknown-method"])
    (outcome,) = report.outcomes
    assert outcome.detail == "The method 'conformance.nothing' was answered with the error -32603."
    assert any('"method":"conformance.nothing"' in line for line in outcome.sent)
    assert any("-32603" in line for line in outcome.got)
    assert json.loads(json.dumps(report.document()))["ok"] is False
