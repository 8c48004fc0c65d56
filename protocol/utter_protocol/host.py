"""Typed payloads of what a plugin asks of the runner (PROTOCOL.md, "Host callbacks").

Rules here: every request may name, as `request`, the id of the runner's request that the plugin is working on; that is
how trust, depth, deadline and cancellation of the one reach the other.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from utter_protocol.methods import Provenance  # noqa: TC001 - msgspec resolves the annotations at run time

MAX_DEPTH = 8
"""How many requests may stand one upon the other: runner to plugin, plugin to the next, and so on."""
MAX_HOST_CALLS = 64
"""How many requests of one plugin may be in flight, of every kind."""
MAX_QUESTION = 500
"""The longest text of `host.confirm`, in characters."""

RequestRef = int | str | None


class HostContextParams(msgspec.Struct, kw_only=True):
    """`host.context`."""

    sources: list[str] = []
    request: RequestRef = None


class HostPerceiveParams(msgspec.Struct, kw_only=True):
    """`host.perceive`: `what` is the last part of a method `perception.<what>`."""

    what: str
    params: msgspec.Raw = msgspec.Raw(b"{}")
    timeout_ms: int | None = None
    request: RequestRef = None


class HostActionParams(msgspec.Struct, kw_only=True):
    """`host.action`: a step, judged like every other."""

    op: str
    args: dict[str, Any] = {}
    provenance: Provenance = "screen"
    arg_provenance: dict[str, Provenance] = {}
    timeout_ms: int | None = None
    request: RequestRef = None


class HostConfirmParams(msgspec.Struct, kw_only=True):
    """`host.confirm` of a plugin: a question of its own."""

    text: Annotated[str, Meta(min_length=1, max_length=MAX_QUESTION)]
    request: RequestRef = None


class HostEmitParams(msgspec.Struct, kw_only=True):
    """`host.emit`: an item for everybody who subscribed to the plugin's stream `method`."""

    method: str
    data: msgspec.Raw
    request: RequestRef = None


class HostInvokeParams(msgspec.Struct, kw_only=True):
    """`host.invoke`: asks whoever provides `capability`, which must be in the plugin's `requires`."""

    capability: str
    method: str
    params: msgspec.Raw = msgspec.Raw(b"{}")
    timeout_ms: int | None = None
    request: RequestRef = None
