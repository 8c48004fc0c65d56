"""PROTOCOL.md against the code: examples decode, and tables and bounds say what the code does."""

from __future__ import annotations

import inspect
import json
import re
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
from msgspec import UNSET

from utter_protocol import ABI, PROTOCOL, blobs, contracts, control, drift, framing, host, kinds, methods, nesting
from utter_protocol.audit import MAX_ARGS, AuditEntry, Chain
from utter_protocol.capabilities import MAX_DECLARED, MAX_LENGTH, load_registry
from utter_protocol.contracts import RUNNER_STREAMS
from utter_protocol.descriptors import MAX_FDS_PER_MESSAGE
from utter_protocol.errors import ErrorCode
from utter_protocol.framing import FrameDecoder, FramingError
from utter_protocol.json_schema import MAX_SCHEMA_BYTES
from utter_protocol.manifest import MAX_FILE, PERMISSIONS, Manifest, load_manifest, unmet_conditions
from utter_protocol.messages import MAX_ID_LENGTH, decode_message
from utter_protocol.ring import parse_header
from utter_runner.actions.audit import MAX_WAITING
from utter_runner.clients import logs
from utter_runner.clients.server import ACCEPTS_PER_S, AUTH_BYTES, AUTH_MESSAGES, REVOKED_SECONDS
from utter_runner.config import LogConfig, RunnerConfig, SocketConfig, VoiceConfig
from utter_runner.config.secret import MAX_SECRET
from utter_runner.config.tokens import MAX_TOKENS
from utter_runner.confirm.confirmer import MAX_QUESTIONS
from utter_runner.dataplane.hub import MAX_STREAMS_PER_PEER
from utter_runner.dataplane.service import MAX_CARRIED
from utter_runner.dataplane.streams import RELIABLE_HOLD
from utter_runner.dataplane.wakers import MAX_WAKERS
from utter_runner.host.context import MAX_CONTEXT_BYTES, MAX_FIELD_BYTES, MAX_FIELDS
from utter_runner.host.relay import MAX_REASON
from utter_runner.host.upstream import MAX_STREAM_ID
from utter_runner.operate import lockfile, tree
from utter_runner.operate.tree import Limits as PackageLimits
from utter_runner.operate.watching import MAX_SAID
from utter_runner.policy.rates import MAX_COUNT
from utter_runner.reload import READ_SECONDS
from utter_runner.rpc import bus, descriptors
from utter_runner.rpc.interface import TIMEOUT_CAP, Limits
from utter_runner.supervision.sandbox.assurance import MAX_CACHE
from utter_runner.supervision.sandbox.systemd_run import MAX_TASKS
from utter_runner.supervision.spec import Timing
from utter_runner.supervision.states import TRANSITIONS, diagram
from utter_runner.supervision.words import MAX_LINE
from utter_runner.voice.hotkeys import merge, portal, portal_bus, shortcut_keys, watch
from utter_runner.voice.media import CALL_SECONDS
from utter_runner.voice.speaker import MAX_SPOKEN
from utter_runner.voice.vad.screen import BACKLOG_MS
from utter_runner.wasm import host as wasm

REPOSITORY = Path(__file__).parents[2]
TEXT = (REPOSITORY / "protocol/PROTOCOL.md").read_text()
NOTHING = dict[str, Any]


def item(data: type[msgspec.Struct]) -> Any:
    """The params of a stream's items."""
    return msgspec.defstruct(f"{data.__name__}Item", [("stream_id", str), ("seq", int), ("data", data)], kw_only=True)


# `host.confirm` goes both ways, with different params.
FROM_PLUGIN = "host.confirm, from a plugin"

# What the payloads of each method are. None: the method has no answer.
PAYLOADS: dict[str, tuple[Any, Any]] = {
    "protocol.hello": (methods.HelloParams, methods.HelloResult),
    "plugin.describe": (NOTHING, methods.DescribeResult),
    "plugin.health": (NOTHING, methods.HealthResult),
    "router.plan": (methods.PlanParams, methods.PlanResult),
    "router.hints": (NOTHING, methods.HintsResult),
    "router.hints_changed": (NOTHING, None),
    "plugin.health_changed": (methods.HealthResult, None),
    "knowledge.catalog": (NOTHING, methods.CatalogResult),
    "action.capabilities": (NOTHING, methods.CapabilitiesResult),
    "action.invoke": (methods.InvokeParams, methods.ActionResult),
    "stt.start": (methods.SttStartParams, methods.SttStartResult),
    "stt.feed": (methods.SttFeedParams, None),
    "stt.partial": (kinds.SttPartial, None),
    "audio.level": (item(methods.AudioLevel), None),
    "runner.log": (item(methods.LogLine), None),
    "stt.finish": (methods.SttSession, methods.Transcript),
    "stt.cancel": (methods.SttSession, NOTHING),
    "stt.final": (kinds.SttResult, None),
    "media.hold": (kinds.MediaSession, kinds.MediaHeld),
    "media.release": (kinds.MediaSession, kinds.MediaResumed),
    "tts.speak": (methods.SpeakParams, kinds.SpeakResult),
    "tts.audio": (item(kinds.SpeechItem), None),
    "llm.complete": (kinds.LlmCompleteParams, kinds.LlmCompleteResult),
    "llm.delta": (item(kinds.LlmDelta), None),
    "llm.choose": (kinds.LlmChooseParams, kinds.LlmChooseResult),
    "context.snapshot": (kinds.SnapshotParams, NOTHING),
    "context.changed": (kinds.ContextChanged, None),
    "context.live": (methods.StreamData, None),
    "perception.screenshot": (kinds.ScreenshotParams, kinds.ScreenshotResult),
    "perception.tree": (kinds.TreeParams, kinds.TreeResult),
    "perception.text": (kinds.TextParams, kinds.TextResult),
    "perception.tabs": (NOTHING, kinds.TabsResult),
    "input.inject": (kinds.InjectParams, NOTHING),
    "input.keys": (item(kinds.KeyItem), None),
    "ui.render": (kinds.RenderParams, NOTHING),
    "ui.event": (item(kinds.UiEvent), None),
    "host.confirm": (methods.ConfirmParams, methods.ConfirmResult),
    "confirm.elsewhere": (methods.ConfirmElsewhere, None),
    "confirm.list": (NOTHING, methods.QuestionsResult),
    "confirm.attend": (NOTHING, methods.QuestionsResult),
    FROM_PLUGIN: (host.HostConfirmParams, methods.ConfirmResult),
    "host.context": (host.HostContextParams, NOTHING),
    "host.perceive": (host.HostPerceiveParams, NOTHING),
    "host.action": (host.HostActionParams, methods.ActionResult),
    "host.emit": (host.HostEmitParams, NOTHING),
    "host.invoke": (host.HostInvokeParams, NOTHING),
    "runner.speak": (methods.SpeakRequest, kinds.SpeakResult),
    "runner.hush": (NOTHING, NOTHING),
    "runner.auth": (methods.AuthParams, NOTHING),
    "runner.status": (NOTHING, NOTHING),
    "runner.plugins": (NOTHING, NOTHING),
    "runner.drift": (NOTHING, drift.DriftResult),
    "runner.command": (methods.CommandParams, methods.CommandResult),
    "runner.invoke": (methods.RunnerInvokeParams, NOTHING),
    "runner.logs": (methods.LogsParams, methods.LogsResult),
    "runner.validate_plugin": (methods.ValidateParams, methods.ValidateResult),
    "runner.control": (control.ControlParams, NOTHING),
    "runner.reload": (NOTHING, control.ReloadResult),
    "runner.listen": (methods.ListenParams, methods.SessionReport),
    "runner.events": (methods.StreamData, None),
    "ptt.press": (NOTHING, NOTHING),
    "ptt.release": (NOTHING, NOTHING),
    "ptt.toggle": (NOTHING, NOTHING),
    "ptt.cancel": (NOTHING, NOTHING),
    "hotkeys.bind": (NOTHING, methods.HotkeysAsked),
    "audio.devices": (NOTHING, methods.AudioDevices),
    "audio.open": (NOTHING, methods.AudioOpened),
    "audio.close": (NOTHING, NOTHING),
    "policy.explain": (methods.ExplainParams, methods.Explanation),
    "policy.list": (NOTHING, methods.PolicyListResult),
    "stream.subscribe": (methods.SubscribeParams, methods.SubscribeResult),
    "stream.ack": (methods.StreamAckParams, NOTHING),
    "stream.stop": (methods.StreamStopParams, NOTHING),
    "stream.closed": (methods.StreamClosedParams, None),
    "example.ticks": (methods.StreamData, None),
    "handle.create": (blobs.HandleCreateParams, blobs.HandleInfo),
    "handle.fetch": (blobs.HandleParams, blobs.HandleData),
    "handle.stat": (blobs.HandleParams, blobs.HandleInfo),
    "handle.retain": (blobs.HandleParams, NOTHING),
    "handle.release": (blobs.HandleParams, NOTHING),
    "handle.grant": (blobs.HandleGrantParams, NOTHING),
    "fd.pass": (blobs.FdPassParams, NOTHING),
    "$/cancel": (NOTHING, None),
}
# What the items of the runner's own streams are.
ITEMS = {
    "runner.log": methods.LogLine,
    "audio.level": methods.AudioLevel,
    "stt.partial": kinds.SttPartial,
    "stt.final": kinds.SttResult,
}
# By kind: the `meta` of `fd.pass`, and its result.
PASSED: dict[str, tuple[Any, Any]] = {
    "handle": (blobs.FdHandleMeta, NOTHING),
    "memfd": (blobs.FdMemfdMeta, blobs.FdMemfdResult),
    "memfd.ring": (blobs.FdRingMeta, blobs.FdRingResult),
}
# In the document only, until a release implements them; and one that an example calls because it does not exist.
SPECIFIED = {"router.replan"}


class Example(NamedTuple):
    line: int
    values: list[Any]


def blocks(language: str) -> list[tuple[int, str]]:
    return [
        (TEXT.count("\n", 0, found.start()) + 2, found[1])
        for found in re.finditer(rf"(?m)^```{language}\n(.*?)^```$", TEXT, re.DOTALL)
    ]


def texts(block: str) -> list[Any]:
    """The JSON texts of a block, which stand one after the other."""
    values: list[Any] = []
    decoder = json.JSONDecoder()
    position = 0
    while block[position:].strip():
        position += len(block[position:]) - len(block[position:].lstrip())
        value, position = decoder.raw_decode(block, position)
        values.append(value)
    return values


EXAMPLES = [Example(line, texts(block)) for line, block in blocks("json")]
MESSAGES = [message for example in EXAMPLES for message in example.values]


def decode(value: Any, expected: Any) -> None:
    """Decode like a receiver, and refuse fields that the Struct lacks: a receiver would ignore a misspelt one."""
    json_bytes = json.dumps(value).encode()
    decoded = msgspec.json.decode(json_bytes, type=expected)
    if isinstance(decoded, msgspec.Struct):
        unknown = value.keys() - {field.encode_name for field in msgspec.structs.fields(decoded)}
        assert not unknown, f"{type(decoded).__name__} has no {unknown}"
        again = json.loads(msgspec.json.encode(decoded))
        assert all(contains(again[name], child) for name, child in value.items() if name in again)


def contains(whole: Any, part: Any) -> bool:
    """Whether everything that `part` says is still in `whole`, at every depth."""
    if isinstance(part, dict):
        return isinstance(whole, dict) and all(key in whole and contains(whole[key], part[key]) for key in part)
    if isinstance(part, list):
        return isinstance(whole, list) and len(whole) == len(part) and all(map(contains, whole, part))
    return bool(whole == part)


def rows(heading: str) -> list[list[str]]:
    """The cells of the first table below a heading, without its two head rows."""
    start = TEXT.index(f"\n{heading}\n")
    table = re.search(r"(?m)(?:^\|.*\n)+", TEXT[start:])
    assert table
    lines = table[0].splitlines()[2:]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip("|"))] for line in lines]


def anchor(heading: str) -> str:
    return re.sub(r"[^a-z0-9 _-]", "", heading.lower()).replace(" ", "-")


HEADINGS = re.findall(r"(?m)^#+ (.*)$", TEXT)


# --- the examples


# Announcements of plugins that the runner passes on as streams of its own.
STREAMED = {"stt.partial": item(kinds.SttPartial), "stt.final": item(kinds.SttResult)}


def method_of(message: Any) -> str:
    """Which entry of PAYLOADS a request or notification belongs to."""
    method: str = message["method"]
    return FROM_PLUGIN if method == "host.confirm" and "digest" not in message["params"] else method


def test_there_are_examples() -> None:
    assert len(EXAMPLES) > 25
    assert all(example.values for example in EXAMPLES)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: f"line-{example.line}")
def test_every_example_is_an_exchange_that_decodes(example: Example) -> None:
    requests: dict[Any, str] = {}
    invalid = {value["id"] for value in example.values if value.get("error", {}).get("code") == -32602}
    for value in example.values:
        message = decode_message(json.dumps(value).encode())
        if message.method is not UNSET:
            method = method_of(value)
            assert method in PAYLOADS or method in SPECIFIED, method
            if message.id is not UNSET:
                requests[message.id] = method
            if message.id in invalid:
                with pytest.raises(msgspec.ValidationError):
                    decode(value["params"], PAYLOADS[method][0])
            elif method in STREAMED and "stream_id" in value["params"]:
                decode(value["params"], STREAMED[method])
            elif method in PAYLOADS:
                decode(value.get("params", {}), PAYLOADS[method][0])
        elif message.error is not UNSET:
            decode(value["error"], methods.WireError)
            assert value["error"]["code"] in {code.value for code in ErrorCode}
            assert message.id is None or message.id in requests
        else:
            method = requests[message.id]
            if method in PAYLOADS:
                assert PAYLOADS[method][1] is not None, f"{method} has no answer"
                decode(value["result"], PAYLOADS[method][1])


def test_the_lines_of_the_audit_trail_are_such_and_every_member_is_described() -> None:
    ((_, block),) = blocks("jsonl")
    chain = Chain()
    for line in block.splitlines():
        entry, findings = chain.take(line.encode())
        assert entry is not None
        assert findings == []
    assert (chain.entries, chain.end(whole=True)) == (2, [])
    start = TEXT.index("\n### The audit trail\n")
    words = set(re.findall(r"`(\w+)`", TEXT[start : TEXT.index("```jsonl", start)]))
    assert {*AuditEntry.__struct_fields__, "hash"} <= words


def test_every_kind_of_descriptor_has_an_example_that_decodes() -> None:
    results = {value["id"]: value["result"] for value in MESSAGES if "result" in value}
    shown = set()
    for message in MESSAGES:
        if message.get("method") == "fd.pass" and message["id"] in results:
            meta, result = PASSED[message["params"]["kind"]]
            decode(message["params"]["meta"], meta)
            decode(results[message["id"]], result)
            shown.add(message["params"]["kind"])
    assert shown == PASSED.keys() == {row[0].strip("`") for row in rows("### fd.pass")}


def test_the_ends_that_descriptors_make_are_those_of_the_code() -> None:
    named = set(re.findall(r'"descriptors": "(\w+)"', inspect.getsource(descriptors)))
    assert {row[0].strip("`") for row in rows("### Descriptors and frames")} == named


def test_every_request_of_an_example_is_answered_in_it() -> None:
    for example in EXAMPLES:
        asked = [value["id"] for value in example.values if "method" in value and "id" in value]
        answered = [value["id"] for value in example.values if "method" not in value and value["id"] is not None]
        assert sorted(map(str, asked)) == sorted(map(str, answered)), f"line {example.line}"


def test_every_method_has_an_example() -> None:
    assert PAYLOADS.keys() - {method_of(message) for message in MESSAGES if "method" in message} == set()


def test_every_payload_struct_belongs_to_a_method() -> None:
    """A Struct that is added to methods.py must appear here, and so in the document."""
    used: set[type] = set()
    todo = [type_ for pair in (*PAYLOADS.values(), *PASSED.values()) for type_ in pair] + [*ITEMS.values()]
    while todo:
        type_ = todo.pop()
        if inspect.isclass(type_) and issubclass(type_, msgspec.Struct):
            if type_ not in used:
                used.add(type_)
                todo += [field.type for field in msgspec.structs.fields(type_)]
        else:
            todo += getattr(type_, "__args__", ())
    defined = {
        value
        for module in (methods, kinds, host, blobs, control)
        for value in vars(module).values()
        if inspect.isclass(value) and value.__module__ == module.__name__
    }
    assert defined - used == set()


def test_every_method_and_every_field_is_described() -> None:
    prose = re.sub(r"(?ms)^```.*?^```$", "", TEXT)
    words = set(re.findall(r"[A-Za-z_0-9]+", " ".join(re.findall(r"`[^`]+`", prose))))
    for method, pair in (PAYLOADS | PASSED).items():
        assert method in prose
        for type_ in pair:
            if inspect.isclass(type_) and issubclass(type_, msgspec.Struct):
                fields = {field.encode_name for field in msgspec.structs.fields(type_)}
                assert fields - words == set(), f"{method}: {type_.__name__}"


def test_the_table_of_the_runners_own_streams_is_that_of_the_code() -> None:
    assert {row[0].strip("`"): row[1] for row in rows("### The runner's own streams")} == RUNNER_STREAMS
    for method, type_ in ITEMS.items():
        data = [one["params"]["data"] for one in MESSAGES if one.get("method") == method and "data" in one["params"]]
        assert data, method
        for one in data:
            decode(one, type_)


def test_the_frame_is_a_frame() -> None:
    shown = re.search(r"(?m)^ {4}Content-Length.*\n(?: {4}.*\n)+", TEXT)
    assert shown
    lines = [line.removeprefix("    ") for line in shown[0].splitlines()]
    decoder = FrameDecoder()
    decoder.receive("".join(line.replace(r"\r\n", "\r\n") for line in lines).encode())
    body = decoder.next_frame()
    assert body is not None
    assert decode_message(body).method == "plugin.health"
    assert decoder.buffered == 0


def test_the_manifest_is_one(tmp_path: Path) -> None:
    ((_, text),) = blocks("toml")
    path = tmp_path / "utter-plugin.toml"
    path.write_text(text)
    manifest = load_manifest(path)
    assert unmet_conditions(manifest, runner="0.1.0", protocol=PROTOCOL, platform="linux-x86_64") == []
    hello = next(message for message in MESSAGES if message.get("method") == "protocol.hello")
    assert manifest.settings == hello["params"]["settings"]


# --- the tables


def test_the_versions_are_current() -> None:
    assert f"Version {PROTOCOL} of the protocol, ABI {ABI}." in TEXT


def test_the_error_table_has_every_code_once() -> None:
    assert sorted(int(row[0]) for row in rows("## Errors")) == sorted(code.value for code in ErrorCode)


def test_the_capability_table_is_the_registry() -> None:
    assert {row[0].strip("`") for row in rows("## Capabilities")} == {str(entry) for entry in load_registry().entries}


def test_the_manifest_table_has_every_field() -> None:
    names = {name for row in rows("## Manifest") for name in re.findall(r"`(\w+)`", row[0])}
    assert names == {field.name for field in msgspec.structs.fields(Manifest)}
    required = {name for row in rows("## Manifest") if "required" in row[1] for name in re.findall(r"`(\w+)`", row[0])}
    assert required == {field.name for field in msgspec.structs.fields(Manifest) if field.required}


def test_the_permission_table_is_that_of_the_code() -> None:
    assert {row[0].strip("`"): row[1] for row in rows("## Permissions")} == PERMISSIONS


def test_the_framing_errors_are_those_of_the_code() -> None:
    raised = set(re.findall(r'FramingError\(\s*"(\w+)"', inspect.getsource(framing)))
    assert {row[0].strip("`") for row in rows("## Framing")} == raised
    assert issubclass(FramingError, Exception)


def test_the_life_of_an_instance_is_that_of_the_code() -> None:
    statuses = {status for status, _ in TRANSITIONS} | set(TRANSITIONS.values())
    assert {row[0].strip("`") for row in rows("## The life of an instance")} == statuses
    ((_, drawn),) = blocks("mermaid")
    assert drawn.strip() == diagram().strip()


def test_the_outcomes_of_a_session_are_those_of_the_code() -> None:
    documented = {row[0].strip("`") for row in rows("### runner.listen")}
    listed = re.search(r"`outcome`: ([a-z_, ]+)\.", methods.SessionReport.__doc__ or "")
    assert listed
    assert documented == set(listed[1].split(", "))


def test_the_ring_table_is_what_the_reader_takes() -> None:
    sizes = {"8 bytes": 8, "24 bytes": 24, "40 bytes": 40, "u32": 4, "u64": 8}
    values: dict[str, int | bytes] = {
        "magic": b"UTTRRING",
        "version": 1,
        "header_size": 128,
        "format": 1,
        "rate": 16_000,
        "channels": 1,
    }
    values |= {"frame_size": 4, "capacity": 100}
    header = b""
    for offset, type_, field, _ in rows("### The audio ring"):
        assert int(offset) == len(header)
        value = values.get(field.strip("`"), 0)
        header += value if isinstance(value, bytes) else value.to_bytes(sizes[type_], "little")
    layout = parse_header(header, 128 + 400)
    assert (len(header), layout.rate, layout.channels, layout.capacity) == (128, 16_000, 1, 100)


# --- the bounds


def test_configurable_bounds_have_the_defaults_of_the_config() -> None:
    sections = {"runner": RunnerConfig(), "socket": SocketConfig(), "voice": VoiceConfig(), "log": LogConfig()}
    seen = set()
    for name, key, value, _ in rows("## Bounds"):
        found = re.fullmatch(r"`\[(\w+)\] (\w+)`", key)
        if found:
            assert int(value.split("`")[1]) == getattr(sections[found[1]], found[2]), name
            seen.add(found[2])
    numbers = {field for field in RunnerConfig.__struct_fields__ if type(getattr(RunnerConfig(), field)) is int}
    assert seen >= numbers


def test_fixed_bounds_have_the_values_of_the_code() -> None:
    timing = Timing()
    code = {
        "header part": [framing.MAX_HEADER],
        "confirmations that wait for a person (`max_questions`)": [MAX_QUESTIONS],
        "lines of the audit trail that wait for the disk (`max_audit_lines`)": [MAX_WAITING],
        "arguments in a line of the audit trail (`max_audit_args`)": [MAX_ARGS],
        "a secret that is read (`max_secret`)": [MAX_SECRET],
        "a line of a plugin's stderr, and of the log that is told again (`max_log_line`)": [MAX_LINE],
        "lines of the log that can be told again (`log_backlog_lines`)": [methods.MAX_LOG_LINES],
        "characters of them together (`log_backlog_bytes`)": [logs.MAX_BYTES],
        "nesting of arrays and objects (`max_depth`)": [nesting.MAX_DEPTH],
        "characters of a string id": [MAX_ID_LENGTH],
        "junk before a frame (`max_junk`)": [framing.MAX_JUNK],
        "body of a frame": [framing.MAX_FRAME],
        "requests in flight, per peer and direction": [Limits().max_in_flight],
        "bytes that wait for a peer": [Limits().max_queued_bytes],
        "deadline of a request, at most, in ms": [TIMEOUT_CAP * 1000],
        "handshake, and each answer before admission, in ms": [timing.handshake * 1000],
        "pause between two `plugin.health`, in ms": [timing.health_interval * 1000],
        "time to answer `plugin.health`, in ms": [timing.health_timeout * 1000],
        "files, directories and links of a package (`max_package_files`)": [PackageLimits().max_package_files],
        "bytes of a package, of its archive, and of the files that a command names (`max_package_bytes`)": [
            PackageLimits().max_package_bytes
        ],
        "bytes of the record (`max_lockfile`)": [lockfile.MAX_BYTES],
        "characters of a version or a permission that a process says, as they are recorded": [MAX_SAID],
        "times its own size that an archive may become, beyond 1 MiB (`max_package_ratio`)": [
            PackageLimits().max_package_ratio
        ],
        "bytes of a path in a package, of one of its parts, and parts": [tree.MAX_PATH, tree.MAX_NAME, tree.MAX_DEPTH],
        "from end of input to SIGTERM, and on to SIGKILL, in ms": [timing.stop * 1000],
        "first and longest pause before a plugin is dialled again, in ms": [
            timing.dial_first * 1000,
            timing.dial_most * 1000,
        ],
        "longest such pause if somebody else starts it, in ms": [timing.absent_most * 1000],
        "time to find out who has connected, in ms": [timing.identify * 1000],
        "first and longest pause before a restart, in ms": [timing.backoff_first * 1000, timing.backoff_most * 1000],
        "healthy time after which the pause is short again, in ms": [timing.healthy_after * 1000],
        "restarts within 60 s": [timing.restarts_in_window],
        "messages before authentication (`max_unauthenticated_messages`)": [AUTH_MESSAGES],
        "bytes before authentication (`max_unauthenticated_bytes`)": [AUTH_BYTES],
        "connections that are accepted per second": [ACCEPTS_PER_S],
        "tokens that `utter token` made (`max_tokens`)": [MAX_TOKENS],
        "time until a revoked token's connections are closed, in ms": [REVOKED_SECONDS * 1000],
        "time to read a changed configuration (`reload_timeout`), in ms": [READ_SECONDS * 1000],
        "processes and threads of a plugin, where systemd makes its cgroup (`max_tasks`)": [MAX_TASKS],
        "findings about the sandbox that are read again": [MAX_CACHE],
        "streams per connection (`max_streams`)": [MAX_STREAMS_PER_PEER],
        "items behind the window, of a reliable stream that is not asked for": [RELIABLE_HOLD],
        "characters of a stream id that a plugin makes": [MAX_STREAM_ID],
        "characters of a reason in a plugin's `stream.closed`": [MAX_REASON],
        "capabilities in one list": [MAX_DECLARED],
        "characters of a capability": [MAX_LENGTH],
        "manifest": [MAX_FILE],
        "runs of an op within a second, minute or hour (`rate`), at most; none unless configured": [MAX_COUNT],
        "requests that stand upon each other (`max_depth_of_requests`)": [host.MAX_DEPTH],
        "requests of one plugin in flight, of every kind (`max_host_calls`)": [host.MAX_HOST_CALLS],
        "characters of a plugin's question": [host.MAX_QUESTION],
        "fields of the context": [MAX_FIELDS],
        "a field of the context, with its name": [MAX_FIELD_BYTES],
        "the whole context": [MAX_CONTEXT_BYTES],
        "candidates of `llm.choose`": [kinds.MAX_CANDIDATES],
        "nodes and levels of a view": [kinds.MAX_UI_NODES, kinds.MAX_UI_DEPTH],
        "signals of the session bus that are kept while one is waited for": [bus.MAX_SIGNALS],
        "a message on the session bus (`max_bus_message`)": [bus.MAX_MESSAGE],
        "time to make a session of shortcuts, in ms": [portal_bus.RESPONSE_SECONDS * 1000],
        "first and longest pause before the desktop's portal is tried again, in ms": [
            portal.FIRST_PAUSE * 1000,
            portal.LONGEST_PAUSE * 1000,
        ],
        "time after which a session of shortcuts that ends is bound again, in ms": [portal.HEALTHY_SECONDS * 1000],
        "dialogs of the desktop in a row that end without an answer": [portal.MAX_UNANSWERED],
        "time without a keyboard until the desktop is asked in its place, in ms": [watch.GRACE_SECONDS * 1000],
        "time in which both ways of a key tell of it, in ms": [merge.ECHO_SECONDS * 1000],
        "time in which a shortcut that is held repeats, in ms": [shortcut_keys.REPEAT_SECONDS * 1000],
        "characters of a trigger's description": [portal_bus.MAX_TRIGGER],
        "time to answer `media.hold` and `media.release`, in ms": [round(CALL_SECONDS * 1000)],
        "characters that are spoken": [MAX_SPOKEN],
        "schema of the settings": [MAX_SCHEMA_BYTES],
        "memory of a module, in MiB": [wasm.DEFAULT_MEMORY_MIB],
        "stack of a module": [wasm.MAX_STACK],
        "data inline (`max_inline`)": [blobs.MAX_INLINE],
        "characters of the name of a part of a scope": [blobs.MAX_PART],
        "handles that one message takes along": [MAX_CARRIED],
        "descriptors on a frame to the runner (`max_fds_per_message`)": [MAX_FDS_PER_MESSAGE],
        "descriptors under way, per peer and direction (`max_unread_fds`)": [descriptors.MAX_UNREAD_FDS],
        "readers of the audio ring that asked to be woken (`max_ring_wakers`)": [MAX_WAKERS],
        "module": [wasm.MAX_MODULE],
        "audio that waits for voice activity detection, in ms": [BACKLOG_MS],
    }
    documented = {row[0]: [int(number) for number in re.findall(r"`([0-9]+)`", row[2])] for row in rows("## Bounds")}
    assert {name: documented.get(name) for name in code} == code
    assert all(documented.values())


# --- references


def test_links_lead_somewhere() -> None:
    anchors = {anchor(heading) for heading in HEADINGS}
    links = set(re.findall(r"\]\(#([^)]+)\)", TEXT))
    assert len(links) > 10
    assert links - anchors == set()


def test_every_method_and_stream_of_the_contracts_is_described_under_its_capability() -> None:
    table = {row[0].strip("`"): row[1] for row in rows("## Capabilities")}
    for contract in (*contracts.METHODS.values(), *contracts.STREAMS.values()):
        assert f"`{contract.name}" in TEXT
        if contract.capability:
            family = contract.capability.partition(".")[0] + ".*@1"
            assert contract.capability in table or family in table
    streams = {contract.capability for contract in contracts.STREAMS.values()}
    assert streams - table.keys() == {"input.keys@1"}


def test_no_heading_occurs_twice() -> None:
    assert len(set(map(anchor, HEADINGS))) == len(HEADINGS)


def test_what_the_code_cites_is_there() -> None:
    cited = {}
    for root in ("protocol", "runner", "plugins"):
        for source in (REPOSITORY / root).rglob("*.py"):
            for heading in re.findall(r'PROTOCOL\.md,?\s+\(?"([^"]+)"', source.read_text()):
                cited[" ".join(heading.split())] = source
    assert cited
    assert cited.keys() - set(HEADINGS) == set()


def test_the_document_keeps_to_plain_text() -> None:
    assert "\t" not in TEXT
    assert [line for line in TEXT.splitlines() if line != line.rstrip()] == []
    assert TEXT.endswith("\n")
