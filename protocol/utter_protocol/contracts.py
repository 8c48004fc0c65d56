"""What each kind of plugin answers and sends, as one table (PROTOCOL.md, "Methods").

Rules here: the table is data and the only list of which method or stream belongs to which kind and capability; whoever
checks a plugin, routes a request or documents a kind reads it from here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from utter_protocol import kinds, methods

if TYPE_CHECKING:
    from utter_protocol.methods import PluginKind

Mode = Literal["lossy", "reliable"]


class MethodContract(NamedTuple):
    """One method of a plugin.

    Attributes:
        kind: the kind that it belongs to; None for every plugin.
        capability: what a plugin that answers it provides; empty for every plugin.
        form: `request` and `notification` go to the plugin, an `announcement` comes from it.
        params: the Struct of its params, or `dict`.
        result: the Struct of its result; None where there is no answer.
    """

    name: str
    kind: PluginKind | None
    capability: str
    form: Literal["request", "notification", "announcement"]
    params: Any
    result: Any


class StreamContract(NamedTuple):
    """One stream of a plugin: `params` of its subscription, `data` of its items, and the mode if none is asked for."""

    name: str
    kind: PluginKind
    capability: str
    mode: Mode
    params: Any
    data: Any


_ANY = dict[str, Any]


def _request(name: str, kind: PluginKind | None, capability: str, params: Any, result: Any) -> MethodContract:
    return MethodContract(name, kind, capability, "request", params, result)


METHODS: dict[str, MethodContract] = {
    contract.name: contract
    for contract in (
        _request("protocol.hello", None, "", methods.HelloParams, methods.HelloResult),
        _request("plugin.describe", None, "", _ANY, methods.DescribeResult),
        _request("plugin.health", None, "", _ANY, methods.HealthResult),
        MethodContract("plugin.health_changed", None, "", "announcement", methods.HealthResult, None),
        _request("router.plan", "router", "router.plan@1", methods.PlanParams, methods.PlanResult),
        _request("router.hints", "router", "router.hints@1", _ANY, methods.HintsResult),
        MethodContract("router.hints_changed", "router", "router.hints@1", "announcement", _ANY, None),
        _request("knowledge.catalog", "knowledge", "knowledge.catalog@1", _ANY, methods.CatalogResult),
        _request("stt.start", "stt", "stt.transcribe@1", methods.SttStartParams, methods.SttStartResult),
        MethodContract("stt.feed", "stt", "stt.transcribe@1", "notification", methods.SttFeedParams, None),
        _request("stt.finish", "stt", "stt.transcribe@1", methods.SttSession, methods.Transcript),
        _request("stt.cancel", "stt", "stt.transcribe@1", methods.SttSession, _ANY),
        MethodContract("stt.partial", "stt", "stt.partial@1", "announcement", kinds.SttPartial, None),
        MethodContract("stt.final", "stt", "stt.final@1", "announcement", kinds.SttResult, None),
        _request("action.capabilities", "action", "action.invoke@1", _ANY, methods.CapabilitiesResult),
        _request("action.invoke", "action", "action.invoke@1", methods.InvokeParams, methods.ActionResult),
        _request("media.hold", "action", "media.hold@1", kinds.MediaSession, kinds.MediaHeld),
        _request("media.release", "action", "media.hold@1", kinds.MediaSession, kinds.MediaResumed),
        _request("tts.speak", "tts", "tts.speak@1", methods.SpeakParams, kinds.SpeakResult),
        _request("llm.complete", "llm", "llm.complete@1", kinds.LlmCompleteParams, kinds.LlmCompleteResult),
        _request("llm.choose", "llm", "llm.choose@1", kinds.LlmChooseParams, kinds.LlmChooseResult),
        _request("context.snapshot", "context", "context.snapshot@1", kinds.SnapshotParams, _ANY),
        MethodContract("context.changed", "context", "context.snapshot@1", "announcement", kinds.ContextChanged, None),
        _request(
            "perception.screenshot",
            "perceive",
            "perception.screenshot@1",
            kinds.ScreenshotParams,
            kinds.ScreenshotResult,
        ),
        _request("perception.tree", "perceive", "perception.tree@1", kinds.TreeParams, kinds.TreeResult),
        _request("perception.text", "perceive", "perception.text@1", kinds.TextParams, kinds.TextResult),
        _request("perception.tabs", "perceive", "perception.tabs@1", _ANY, kinds.TabsResult),
        _request("input.inject", "input", "input.inject@1", kinds.InjectParams, _ANY),
        _request("ui.render", "ui", "ui.render@1", kinds.RenderParams, _ANY),
    )
}
"""Every method that the protocol gives a meaning, by name."""

STREAMS: dict[str, StreamContract] = {
    contract.name: contract
    for contract in (
        StreamContract("context.live", "context", "context.live@1", "lossy", kinds.SnapshotParams, _ANY),
        StreamContract("llm.delta", "llm", "llm.complete@1", "lossy", kinds.LlmCompleteParams, kinds.LlmDelta),
        StreamContract("tts.audio", "tts", "tts.speak@1", "lossy", methods.SpeakParams, kinds.SpeechItem),
        StreamContract("input.keys", "input", "input.keys@1", "reliable", _ANY, kinds.KeyItem),
        StreamContract("ui.event", "ui", "ui.render@1", "reliable", _ANY, kinds.UiEvent),
    )
}
"""Every stream of plugins that the protocol gives a meaning, by name."""

RUNNER_STREAMS: dict[str, Mode] = {
    "runner.events": "lossy",
    "runner.log": "lossy",
    "audio.level": "lossy",
    "stt.partial": "lossy",
    "stt.final": "reliable",
}
"""The runner's own streams, and their mode if none is asked for."""

RESERVED = (
    "$/", "protocol.", "plugin.", "runner.", "host.", "stream.", "handle.", "fd.", "ptt.", "policy.", "audio.",
    *sorted({f"{name.partition('.')[0]}." for name in (*METHODS, *STREAMS)} - {"plugin.", "protocol."}),
)  # fmt: skip
"""Beginnings of method names that are the protocol's; everything else is free for plugins."""

FOR_THE_RUNNER = ("input.", "media.")
"""Beginnings of names that only the runner itself calls: no client and no plugin gets there through it."""


def methods_of(capability: str) -> frozenset[str]:
    """The requests that whoever provides `capability` answers; empty for a capability without methods of its own.

    A capability below `perception.` that the table does not know has one method of the same name.
    """
    found = frozenset(
        contract.name
        for contract in METHODS.values()
        if contract.capability == capability and contract.form == "request"
    )
    name = capability.partition("@")[0]
    return found or (frozenset({name}) if name.startswith("perception.") else frozenset())


def is_reserved(method: str) -> bool:
    """Whether a method's name is the protocol's to define."""
    return method.startswith(RESERVED)
