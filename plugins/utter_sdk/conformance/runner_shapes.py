"""What the client API answers, as PROTOCOL.md describes it: what is there, and of which type.

Rules here: fields that a later version adds are no fault; a field that is missing or has another type is.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

Count = Annotated[int, Meta(ge=0)]
PluginName = Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9._-]{1,63}\Z")]
ProtocolVersion = Annotated[str, Meta(pattern=r"^(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)\Z")]


class Negotiated(msgspec.Struct):
    """The versions that hold between runner and plugin."""

    protocol: ProtocolVersion
    abi: Annotated[int, Meta(ge=1)]


class PluginEntry(msgspec.Struct):
    """An entry of `runner.plugins`."""

    id: PluginName
    kind: str
    version: str
    epoch: Count
    status: Literal["starting", "ready", "degraded", "backoff", "failed", "stopping", "stopped", "waiting"]
    detail: str
    pid: int | None
    transport: Literal["stdio", "connect", "listen"]
    provides: list[str]
    requires: list[str]
    missing_requires: list[str]
    permissions: list[str]
    negotiated: Negotiated | None
    methods: list[str]
    streams: list[str]
    ops: list[str]
    restarts: Count
    junk_bytes: Count
    late_replies: Count
    stderr_tail: str
    warnings: list[str]


class Plugins(msgspec.Struct):
    """The result of `runner.plugins`."""

    plugins: list[PluginEntry]


class Hotkeys(msgspec.Struct):
    """The keyboards."""

    available: bool
    devices: list[str]
    detail: str
    path: Literal["evdev", "portal", "none"] = "none"


class Audio(msgspec.Struct):
    """The microphone."""

    capture: str
    open: bool
    device: str
    faults: Count
    detail: str


class VoiceState(msgspec.Struct):
    """The spoken session."""

    state: Literal["idle", "listening", "recognising", "planning", "confirming", "acting"]
    session: str


class Status(msgspec.Struct):
    """The result of `runner.status`."""

    version: str
    protocol: ProtocolVersion
    abi: Annotated[int, Meta(ge=1)]
    pid: Annotated[int, Meta(ge=1)]
    uptime_s: Annotated[float, Meta(ge=0)]
    state: Literal["starting", "ready", "stopping"]
    socket_path: str
    plugins: list[PluginEntry]
    hotkeys: Hotkeys
    audio: Audio
    voice: VoiceState
    clients: Annotated[int, Meta(ge=1)]
    content_logging: bool
    warnings: list[str]


class Permission(msgspec.Struct):
    """How far a permission is enforced."""

    name: str
    enforced: bool
    advisory: bool


class Validation(msgspec.Struct):
    """The result of `runner.validate_plugin`."""

    ok: bool
    negotiated: Negotiated
    unknown_capabilities: list[str]
    missing_requires: list[str]
    permissions: list[Permission]
    status: str
    detail: str
    deprecations: list[Any]
    warnings: list[str]


class Explanation(msgspec.Struct):
    """The result of `policy.explain`."""

    op: str
    decision: Literal["allow", "confirm", "deny"]
    rule: Annotated[str, Meta(min_length=1)]
    detail: Annotated[str, Meta(min_length=1)]
    args: dict[str, Any]
    rules: Annotated[list[str], Meta(min_length=1)]
    plugin: str | None
    text: str
    data: dict[str, Any]


class Device(msgspec.Struct):
    """A microphone or an output."""

    name: Annotated[str, Meta(min_length=1)]
    description: str
    default: bool
    chosen: bool


class Devices(msgspec.Struct):
    """The result of `audio.devices`."""

    source: str
    inputs: list[Device]
    outputs: list[Device]
    detail: str


class Told(msgspec.Struct):
    """Where a field of the context comes from."""

    source: str
    age_ms: Annotated[float, Meta(ge=0)]
    provenance: Literal["screen"]


class Subscribed(msgspec.Struct):
    """The result of `stream.subscribe`."""

    stream_id: str
    mode: Literal["lossy", "reliable"]


class Item(msgspec.Struct):
    """The params of a stream's item."""

    stream_id: str
    seq: Count
    data: Any


class Stored(msgspec.Struct):
    """The result of `handle.create` and `handle.stat`."""

    handle: Annotated[str, Meta(pattern=r"^handle://[0-9a-f]{64}\Z")]
    sha256: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
    size: Count
