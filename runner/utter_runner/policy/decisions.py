"""What can be decided about a step, and what ties an answer to the step that it was given for.

Rules here: values only; `decide` makes them, and nobody else.
"""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

from utter_protocol.methods import Provenance  # noqa: TC001 - the annotations below resolve to it

_ENCODER = msgspec.json.Encoder(order="sorted")


class Allow(msgspec.Struct, kw_only=True, frozen=True, tag="allow"):
    """Run it now.

    Attributes:
        op: the canonical name (no prefix); `invoke_as` is the name that the plugin advertised, to send to it.
        args: canonical arguments, a new object: candidates resolved, URLs canonical. Only these may be sent.
        provenance: the lowest grade in the step, for `action.invoke`.
        plugin: who runs it.
        digest: `step_digest` of the four above, hex.
        rule: the rule that decided; `detail` says it in a sentence.
    """

    op: str
    invoke_as: str
    args: dict[str, Any]
    provenance: Provenance
    plugin: str
    digest: str
    rule: str
    detail: str


class Confirm(msgspec.Struct, kw_only=True, frozen=True, tag="confirm"):
    """Run it if a person who read `text` says yes. The other attributes are those of `Allow`.

    Attributes:
        text: what the person must read, from `render.confirmation`; harmless on every surface.
        rules: every rule that wants the confirmation; `rule` is the first of them.
    """

    op: str
    invoke_as: str
    args: dict[str, Any]
    provenance: Provenance
    plugin: str
    digest: str
    rule: str
    detail: str
    text: str
    rules: tuple[str, ...]


class Deny(msgspec.Struct, kw_only=True, frozen=True, tag="deny"):
    """Do not run it. `code`, `detail` and `data` make the wire error; `data` always has "rule" and "op"."""

    op: str
    code: int
    rule: str
    detail: str
    data: dict[str, Any]


Decision = Allow | Confirm | Deny


def step_digest(op: str, args: dict[str, Any], provenance: Provenance, plugin: str) -> str:
    """SHA-256, hex, over the canonical JSON (sorted keys, no whitespace, UTF-8) of {args, op, plugin, provenance}."""
    step = {"args": args, "op": op, "plugin": plugin, "provenance": provenance}
    return hashlib.sha256(_ENCODER.encode(step)).hexdigest()
