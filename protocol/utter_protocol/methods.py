"""Typed payloads of the methods that cross the wire (PROTOCOL.md, "Methods").

Rules here: one Struct per params or result object; unknown fields are ignored on input (LSP's rule), so that a newer
peer can be understood; every default is the one PROTOCOL.md states.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

Provenance = Literal["user", "screen"]
SideEffect = Literal["none", "local", "external", "destructive"]
PluginKind = Literal[
    "stt", "router", "knowledge", "llm", "perceive", "action", "input", "tts", "context", "ui", "bundle"
]
PermissionName = str


class HelloParams(msgspec.Struct, kw_only=True):
    """runner -> plugin `protocol.hello`. `settings` is the plugin's own table of the runner's config."""

    protocol: str
    abi: int
    runner: str
    epoch: int
    settings: dict[str, Any] = {}


class PluginInfo(msgspec.Struct, kw_only=True):
    """Who a plugin says that it is."""

    name: str
    version: str
    kind: str


class HelloResult(msgspec.Struct, kw_only=True, omit_defaults=True):
    """plugin -> runner, the answer to `protocol.hello`."""

    protocol: str
    abi: int
    plugin: PluginInfo
    transport: str = "stdio"
    provides: list[str] = []
    requires: list[str] = []
    permissions: list[str] = []


class DescribeResult(msgspec.Struct, kw_only=True):
    """Answer to `plugin.describe`."""

    methods: list[str] = []
    streams: list[str] = []


class HealthResult(msgspec.Struct, kw_only=True):
    """Answer to `plugin.health`."""

    status: Literal["ok", "degraded"] = "ok"
    detail: str = ""


class PlanParams(msgspec.Struct, kw_only=True):
    """`router.plan`."""

    utterance: str
    context: dict[str, Any] = {}


class PlannedStep(msgspec.Struct, kw_only=True):
    """One step of a plan. A step without provenance counts as `screen`: trust is stated, never assumed.

    `arg_provenance` names arguments whose provenance differs from the step's. `confirm` can only add a confirmation.
    """

    op: str
    args: dict[str, Any] = {}
    provenance: Provenance = "screen"
    arg_provenance: dict[str, Provenance] = {}
    confirm: bool = False


class PlanResult(msgspec.Struct, kw_only=True):
    """Answer to `router.plan`. No steps means "not understood", and `detail` may say why in one sentence."""

    steps: list[PlannedStep] = []
    detail: str = ""
    matched: str = ""
    score: float | None = None


class HintsResult(msgspec.Struct, kw_only=True):
    """Answer to `router.hints {}`: phrases that the recogniser may bias on."""

    phrases: list[str] = []


class Op(msgspec.Struct, kw_only=True):
    """One op of `action.capabilities`. `schema` is a JSON Schema for `args`, enforced by the runner."""

    op: str
    side_effect: SideEffect = "external"
    needs_confirm: bool = False
    schema: dict[str, Any] | None = None
    description: str = ""


class CapabilitiesResult(msgspec.Struct, kw_only=True):
    """Answer to `action.capabilities {}`."""

    ops: list[Op] = []


class InvokeParams(msgspec.Struct, kw_only=True):
    """`action.invoke`, as the plugin receives it: canonical arguments only."""

    op: str
    args: dict[str, Any] = {}
    provenance: Provenance = "user"


class ActionResult(msgspec.Struct, kw_only=True):
    """Answer to `action.invoke`. `detail` is one sentence for the user; `data` whatever the op returns."""

    ok: bool
    detail: str = ""
    data: dict[str, Any] = {}


class Candidate(msgspec.Struct, kw_only=True):
    """A thing that may be picked by id under screen provenance. `value` becomes the argument.

    `plugin` is for `knowledge.catalog`: the id of the only plugin whose ops may be given the value.
    """

    id: str
    value: Any
    label: str = ""
    plugin: str | msgspec.UnsetType = msgspec.UNSET


class CatalogResult(msgspec.Struct, kw_only=True):
    """Answer to `knowledge.catalog {}`."""

    candidates: list[Candidate] = []


class AudioFormat(msgspec.Struct, kw_only=True, frozen=True):
    """PCM format. Always little-endian float32, interleaved; the runner feeds 16 kHz mono."""

    encoding: Literal["f32le"] = "f32le"
    rate: int = 16_000
    channels: int = 1


class SttStartParams(msgspec.Struct, kw_only=True):
    """`stt.start`: a session opens. `hints` are phrases that are likely to be said."""

    session: str
    format: AudioFormat = AudioFormat()
    hints: list[str] = []
    language: str = "en"


class SttStartResult(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Answer to `stt.start`. `ring`: the plugin has the audio ring, and can read there what it is fed."""

    ring: bool = False


class RingFrames(msgspec.Struct, kw_only=True):
    """The frames `[start, start + count)` of the audio ring."""

    start: Annotated[int, msgspec.Meta(ge=0, le=2**53)]
    count: Annotated[int, msgspec.Meta(ge=1, le=2**31)]


class SttFeedParams(msgspec.Struct, kw_only=True, omit_defaults=True):
    """`stt.feed`, a notification: the next frames, in exactly one of two ways.

    `seq` counts from 0. `data_b64` holds whole frames; `frames` says where they lie in the audio ring.
    """

    session: str
    seq: int
    data_b64: str | None = None
    frames: RingFrames | None = None

    def __post_init__(self) -> None:
        if (self.data_b64 is None) == (self.frames is None):
            raise ValueError("stt.feed has exactly one of data_b64 and frames")


class SttSession(msgspec.Struct, kw_only=True):
    """`stt.finish` and `stt.cancel`."""

    session: str


class Transcript(msgspec.Struct, kw_only=True):
    """Answer to `stt.finish`. Empty text means that nothing was said. Durations are milliseconds."""

    text: str
    confidence: float | None = None
    audio_ms: int | None = None


class SpeakParams(msgspec.Struct, kw_only=True):
    """`tts.speak`."""

    text: str
    voice: str = ""


class SpeakRequest(msgspec.Struct, kw_only=True):
    """`runner.speak`."""

    text: str
    voice: str = ""
    timeout_ms: int | None = None


class ConfirmParams(msgspec.Struct, kw_only=True):
    """runner -> client `host.confirm`. `text` is what a person must read; `digest` the hash of the canonical step."""

    id: str
    text: str
    op: str
    args: dict[str, Any]
    provenance: Provenance
    digest: str
    timeout_ms: int


class ConfirmResult(msgspec.Struct, kw_only=True):
    """Answer to `host.confirm`. `digest` is that of the step that was shown; empty where a client does not say."""

    approved: bool = False
    digest: str = ""


class ConfirmElsewhere(msgspec.Struct, kw_only=True):
    """runner -> client `confirm.elsewhere`: others are asked about what this client asked for."""

    id: str
    text: str
    timeout_ms: int


class OpenQuestion(msgspec.Struct, kw_only=True):
    """A question that has no answer yet. `left_ms` is how long one counts; None while it waits for its turn."""

    id: str
    text: str
    op: str
    provenance: Provenance
    session: str
    state: Literal["asked", "waiting"]
    left_ms: int | None = None


class QuestionsResult(msgspec.Struct, kw_only=True):
    """Answer to `confirm.list {}` and `confirm.attend {}`, in the order in which they are asked."""

    questions: list[OpenQuestion]


class AuthParams(msgspec.Struct, kw_only=True):
    """`runner.auth`."""

    token: str


class CommandParams(msgspec.Struct, kw_only=True):
    """`runner.command`."""

    utterance: str
    provenance: Provenance = "user"
    context: dict[str, Any] = {}
    timeout_ms: int | None = None


class WireError(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A JSON-RPC error object."""

    code: int
    message: str
    data: Any = None


class StepResult(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What became of one step. `decision` is allow, confirm or deny; `args` the canonical arguments."""

    op: str
    ok: bool
    detail: str
    error: WireError | None = None
    args: dict[str, Any] = {}
    decision: str = ""
    data: dict[str, Any] = {}


class CommandResult(msgspec.Struct, kw_only=True):
    """Answer to `runner.command`. `latency_ms` has the keys router, policy, confirm, action (those that happened)."""

    results: list[StepResult]
    understood: bool = True
    detail: str = ""
    latency_ms: dict[str, float] = {}


class ListenParams(msgspec.Struct, kw_only=True):
    """`runner.listen`: one spoken session from a recording, exactly as if it had come from the microphone.

    `wav_b64` is a whole WAV file (PCM 16/24/32 bit or float, any rate, mono or stereo, at most 60 s).
    Without `act` it is only recognised.
    """

    wav_b64: str
    act: bool = True
    timeout_ms: int | None = None


class SessionReport(msgspec.Struct, kw_only=True):
    """What one spoken session did: answer to `runner.listen`, and the `session` event's last state.

    `outcome`: done, failed, not_understood, nothing_heard, blocked, cancelled, tap, unavailable.
    `latency_ms`: capture (key up to the last audio frame), stt, router, policy, confirm, action, total.
    """

    session: str
    outcome: str
    heard: str = ""
    results: list[StepResult] = []
    detail: str = ""
    latency_ms: dict[str, float] = {}


class AudioLevel(msgspec.Struct, kw_only=True):
    """An item of the stream `audio.level`, in dB of full scale, -120 for silence; `clipped`: the peak is at its end."""

    rms_db: float
    peak_db: float
    clipped: bool


class AudioDevice(msgspec.Struct, kw_only=True):
    """A microphone or an output. `name` is what `[audio] device` or `output_device` takes for it.

    `default`: what is used if the config names none. `chosen`: what the config comes to.
    """

    name: str
    description: str = ""
    default: bool = False
    chosen: bool = False


class AudioDevices(msgspec.Struct, kw_only=True):
    """Answer to `audio.devices {}`. `source` is that of the config; `detail` says what is missing or to be known."""

    source: str
    inputs: list[AudioDevice] = []
    outputs: list[AudioDevice] = []
    detail: str = ""


class AudioOpened(msgspec.Struct, kw_only=True):
    """Answer to `audio.open {}`. `device` is what a person calls the microphone."""

    device: str
    open: bool = True


class HotkeysAsked(msgspec.Struct, kw_only=True):
    """Answer to `hotkeys.bind {}`. `asked`: whether the desktop is asked; `detail`: what to expect, or why not."""

    asked: bool
    detail: str


class RunnerInvokeParams(msgspec.Struct, kw_only=True):
    """`runner.invoke`. `params` is forwarded unparsed unless the method has side effects."""

    plugin: str
    method: str
    params: msgspec.Raw = msgspec.Raw(b"{}")
    timeout_ms: int | None = None


class ValidateParams(msgspec.Struct, kw_only=True):
    """`runner.validate_plugin`."""

    plugin: str


LOG_LEVELS = ("debug", "info", "warning", "error")
"""The levels of the log, the lowest first."""
LogLevel = Literal["debug", "info", "warning", "error"]
MAX_LOG_LINES = 2_000
"""`log_backlog_lines`: how many lines of its log the runner can tell again."""


class LogsParams(msgspec.Struct, kw_only=True):
    """client -> runner `runner.logs`: the last lines of this plugin, and of this level or above."""

    plugin: str | None = None
    last: Annotated[int, msgspec.Meta(ge=1, le=MAX_LOG_LINES)] = 100
    level: LogLevel = "debug"


class LogLine(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One line of the log. `seq` counts all of them; a line of a traceback is one of its own, with the same `time`."""

    seq: int
    time: str
    level: LogLevel
    logger: str
    text: str
    plugin: str | None = None
    epoch: int | None = None
    session: str | None = None


class LogsResult(msgspec.Struct, kw_only=True):
    """What `runner.logs` answers: the lines, the oldest first, and how many older ones are not kept any more."""

    lines: list[LogLine]
    lost: int = 0


class ExplainParams(msgspec.Struct, kw_only=True):
    """client -> runner `policy.explain`: a step, and what the runner would know of where it came from."""

    op: str
    args: dict[str, Any] = {}
    provenance: Provenance = "user"
    arg_provenance: dict[str, Provenance] = {}
    sources: list[str] = []
    session: str = ""
    llm: bool = False


class Explanation(msgspec.Struct, kw_only=True):
    """Answer to `policy.explain`. `rules` are all that want a confirmation, else the one that decided."""

    op: str
    decision: Literal["allow", "confirm", "deny"]
    rule: str
    detail: str
    args: dict[str, Any]
    rules: list[str]
    plugin: str | None = None
    text: str = ""
    data: dict[str, Any] = {}


class OpState(msgspec.Struct, kw_only=True):
    """One op in the answer to `policy.list`: what becomes of a step of the user's own, whatever its arguments.

    `key` is the key of the configuration that made it so; empty where none did. `provider` is whether the plugin runs
    the op when nobody names one; an op that nobody offers has no plugin.
    """

    op: str
    plugin: str | None
    provider: bool
    side_effect: SideEffect | None
    state: Literal["on", "off", "asks"]
    rule: str
    key: str = ""
    rate: str | None = None


class PolicyListResult(msgspec.Struct, kw_only=True):
    """Answer to `policy.list {}`."""

    ops: list[OpState]


class PermissionState(msgspec.Struct, kw_only=True):
    """How far a permission is enforced: exactly one of the two is true."""

    name: str
    enforced: bool
    advisory: bool


class SandboxState(msgspec.Struct, kw_only=True):
    """What holds a plugin, in `runner.plugins` and `runner.validate_plugin`."""

    wrappers: list[str] = []
    """The outermost first; none where no sandbox holds it."""
    permissions: list[PermissionState] = []
    besides: list[PermissionState] = []
    """What no plugin gets, in the same form."""
    reasons: dict[str, str] = {}
    """For each of both, by name, what was found out."""


class ValidateResult(msgspec.Struct, kw_only=True):
    """Answer to `runner.validate_plugin`."""

    ok: bool
    negotiated: dict[str, Any]
    status: str
    detail: str
    error: WireError | None
    unknown_capabilities: list[str]
    missing_requires: list[str]
    deprecations: list[dict[str, Any]]
    warnings: list[str]
    permissions: list[PermissionState]
    sandbox: SandboxState


class SubscribeParams(msgspec.Struct, kw_only=True):
    """`stream.subscribe`. `plugin` is a subscriber's choice among several; `window` the runner's, towards a plugin."""

    method: str
    params: msgspec.Raw = msgspec.Raw(b"{}")
    mode: Literal["lossy", "reliable"] | None = None
    plugin: str | None = None
    window: int | None = None


class SubscribeResult(msgspec.Struct, kw_only=True):
    """Answer to `stream.subscribe`."""

    stream_id: str
    mode: Literal["lossy", "reliable"]


class StreamAckParams(msgspec.Struct, kw_only=True):
    """`stream.ack`."""

    stream_id: str
    seq: int


class StreamStopParams(msgspec.Struct, kw_only=True):
    """`stream.stop`."""

    stream_id: str


class StreamClosedParams(msgspec.Struct, kw_only=True):
    """`stream.closed`, a notification of whoever sends the stream's items: there will be no more of them."""

    stream_id: str
    reason: str


class StreamData(msgspec.Struct, kw_only=True):
    """A notification `<method> {stream_id, seq, data}`."""

    stream_id: str
    seq: int
    data: Any
