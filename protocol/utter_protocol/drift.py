"""What the record of plugins says against what is found: the words in which runner and `utter` tell each other.

Rules here: pure; a digest of an op is over everything that the plugin advertises of it, so that a changed sentence for
a language model is seen like a changed schema.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
from msgspec import Meta

from utter_protocol.methods import SideEffect  # noqa: TC001 - the Struct below needs it to read a file

if TYPE_CHECKING:
    from utter_protocol.methods import Op

Digest = Annotated[str, Meta(pattern=r"^sha256:[0-9a-f]{64}\Z")]
DriftField = Literal[
    "version",
    "protocol",
    "abi",
    "digest",
    "permissions",
    "tools",
    "started",
    "renamed",
    "missing",
    "unrecorded",
    "lockfile",
]


class Tool(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One op as a plugin advertises it; `digest` is over all of it, `schema` and `description` included."""

    side_effect: SideEffect
    needs_confirm: bool
    digest: Digest


class Announced(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a plugin's process says of itself.

    `permissions` are those beyond the manifest's and the configuration's; `tools` are its ops by their canonical names.
    """

    version: str
    protocol: str
    abi: int
    permissions: list[str]
    tools: dict[str, Tool] = {}


class Drift(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is not what is recorded. `detail` is a sentence; `plugin` is empty for the record itself."""

    plugin: str
    field: DriftField
    recorded: str
    found: str
    detail: str


class DriftResult(msgspec.Struct, kw_only=True):
    """Answer to `runner.drift {}`: whether drifted plugins are refused, the drift, and what the processes say."""

    locked: bool
    drift: list[Drift]
    announced: dict[str, Announced]


def tool_of(op: Op) -> Tool:
    """What is recorded of an op. The digest is SHA-256 over its JSON with sorted keys and without white space."""
    whole = msgspec.json.encode(op, order="sorted")
    digest = f"sha256:{hashlib.sha256(whole).hexdigest()}"
    return Tool(side_effect=op.side_effect, needs_confirm=op.needs_confirm, digest=digest)
