"""Typed payloads of `handle.*` and `fd.pass`, and the name of a handle (PROTOCOL.md, "Data plane").

Rules here: a handle names content and nothing else; no function here makes a path of one. Sizes are bytes. `request` is
the id of the runner's request that a plugin is working on, as in `host.*`; the runner ignores that of a client.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from utter_protocol.host import RequestRef  # noqa: TC001 - msgspec resolves the annotations at run time
from utter_protocol.methods import Provenance  # noqa: TC001 - likewise

MAX_INLINE = 64 * 1024
"""The largest blob that `handle.fetch` returns."""
MAX_PART = 128
"""The longest name of a part of a scope, in characters."""

_PREFIX = "handle://"
_HANDLE = re.compile(r"handle://[0-9a-f]{64}")
_MENTION = re.compile(rb"handle://([0-9a-f]{64})(?![0-9a-f])")

Size = Annotated[int, Meta(ge=0, le=2**53)]
Part = Annotated[str, Meta(max_length=MAX_PART)]


class HandleCreateParams(msgspec.Struct, kw_only=True):
    """`handle.create`: exactly one of `data_b64`, `data`, `size` (that many zeros) and `fd` (a sealed memfd).

    `provenance` is the most trust that the content may have; without it that is the request's for a plugin, and
    `screen` for a client.
    """

    data_b64: str | UnsetType = UNSET
    data: str | UnsetType = UNSET
    size: Size | UnsetType = UNSET
    fd: bool = False
    scope: Part = ""
    provenance: Provenance | None = None
    request: RequestRef = None


class HandleParams(msgspec.Struct, kw_only=True):
    """`handle.fetch`, `handle.stat`, `handle.retain` and `handle.release`."""

    handle: str
    scope: Part = ""
    request: RequestRef = None


class HandleGrantParams(msgspec.Struct, kw_only=True):
    """`handle.grant`: `scope` is the id of the plugin that gets the handle."""

    handle: str
    scope: str
    request: RequestRef = None


class HandleInfo(msgspec.Struct, kw_only=True):
    """Answer to `handle.create` and `handle.stat`."""

    handle: str
    sha256: str
    size: int
    provenance: Provenance = "screen"


class HandleData(msgspec.Struct, kw_only=True):
    """Answer to `handle.fetch`."""

    handle: str
    sha256: str
    size: int
    data_b64: str
    provenance: Provenance = "screen"


class FdPassParams(msgspec.Struct, kw_only=True):
    """`fd.pass`: `meta` is an `FdHandleMeta`, an `FdMemfdMeta` or an `FdRingMeta`."""

    kind: Literal["handle", "memfd", "memfd.ring"]
    meta: msgspec.Raw = msgspec.Raw(b"{}")
    request: RequestRef = None


class FdHandleMeta(msgspec.Struct, kw_only=True):
    """`meta` of the kind `handle`."""

    handle: str
    scope: Part = ""


class FdMemfdMeta(msgspec.Struct, kw_only=True):
    """`meta` of the kind `memfd`: exactly one of `size`, `data` and `data_b64`."""

    size: Size | UnsetType = UNSET
    data: str | UnsetType = UNSET
    data_b64: str | UnsetType = UNSET


class FdRingMeta(msgspec.Struct, kw_only=True):
    """`meta` of the kind `memfd.ring`."""

    wake: bool = False


class FdMemfdResult(msgspec.Struct, kw_only=True):
    """Answer to `fd.pass` of the kind `memfd`."""

    size: int


class FdRingResult(msgspec.Struct, kw_only=True):
    """Answer to `fd.pass` of the kind `memfd.ring`."""

    rate: int
    channels: int
    capacity: int
    header_size: int


def handle_of(sha256: str) -> str:
    """Return the handle of the content with this SHA-256 in hexadecimal."""
    return _PREFIX + sha256


def sha256_of(handle: str) -> str | None:
    """Return the SHA-256 that a handle names, or None for what is no handle."""
    return handle[len(_PREFIX) :] if _HANDLE.fullmatch(handle) else None


def mentioned(data: bytes | bytearray | memoryview | msgspec.Raw, most: int) -> list[str]:
    """Return the SHA-256 of the handles that stand in a piece of JSON, each once, at most `most` of them."""
    found: dict[str, None] = {}
    for match in _MENTION.finditer(data):
        found[match[1].decode()] = None
        if len(found) == most:
            break
    return list(found)
