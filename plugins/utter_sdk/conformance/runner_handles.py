"""Checks: does the runner keep blobs and hand over descriptors as the document says?

Rules here: what is stored is small, and goes with the connection.
"""

from __future__ import annotations

import base64
import hashlib
import os
from typing import TYPE_CHECKING, Any

from utter_protocol.errors import ErrorCode
from utter_sdk.conformance.lab import decoded, refused, result_of
from utter_sdk.conformance.report import CheckFailed, NotApplicable
from utter_sdk.conformance.runner_lab import Table
from utter_sdk.conformance.runner_shapes import Stored

if TYPE_CHECKING:
    from utter_sdk.conformance.runner_lab import RunnerLab
    from utter_sdk.conformance.runner_link import RunnerLink

RUNNER_HANDLES = Table()
_SECTION = "Handles"
_CREATE, _FETCH, _STAT, _PASS = "handle.create", "handle.fetch", "handle.stat", "fd.pass"
_INLINE = 65_536
_TEXT = "conformance: ünï€"
_NONE = "handle://" + "0" * 64


def _create(link: RunnerLink, **params: Any) -> Stored:
    answer = link.call(_CREATE, params)
    if answer.code == ErrorCode.METHOD_NOT_FOUND:
        raise NotApplicable("The runner keeps no handles.")
    found: Stored = decoded(result_of(answer, _CREATE), Stored, _CREATE)
    return found


def _matches(stored: Stored, content: bytes) -> None:
    digest = hashlib.sha256(content).hexdigest()
    if (stored.handle, stored.sha256, stored.size) != (f"handle://{digest}", digest, len(content)):
        raise CheckFailed(f"the answer is {stored}", expected=f"handle://{digest} with {len(content)} bytes")


@RUNNER_HANDLES.enter(
    "handles.create",
    "A handle is named by the SHA-256 of its content, given as text, base64 or size.",
    _SECTION,
    needs="access",
)
def _created(lab: RunnerLab) -> None:
    with lab.fresh() as link:
        _matches(_create(link, data=_TEXT), _TEXT.encode())
        _matches(_create(link, data_b64=base64.b64encode(b"\0\xff").decode()), b"\0\xff")
        _matches(_create(link, size=3), b"\0\0\0")
        _matches(_create(link, data=""), b"")


@RUNNER_HANDLES.enter("handles.fetch", "What was stored can be fetched and looked up.", _SECTION, needs="access")
def _fetched(lab: RunnerLab) -> None:
    with lab.fresh() as link:
        stored = _create(link, data=_TEXT)
        found = result_of(link.call(_FETCH, {"handle": stored.handle}), _FETCH)
        _matches(decoded(found, Stored, _FETCH), _TEXT.encode())
        if base64.b64decode(found.get("data_b64", "")) != _TEXT.encode():
            raise CheckFailed("another content was fetched", expected="what was stored")
        looked_up = result_of(link.call(_STAT, {"handle": stored.handle}), _STAT)
        _matches(decoded(looked_up, Stored, _STAT), _TEXT.encode())


@RUNNER_HANDLES.enter(
    "handles.inline", "More than 64 KiB are not fetched inline: -32007 with the bound.", _SECTION, needs="access"
)
def _inline(lab: RunnerLab) -> None:
    with lab.fresh() as link:
        fits = _create(link, size=_INLINE)
        result_of(link.call(_FETCH, {"handle": fits.handle}), _FETCH)
        answer = link.call(_FETCH, {"handle": _create(link, size=_INLINE + 1).handle})
        refused(answer, "65,537 bytes", ErrorCode.TOO_LARGE_INLINE)
        if (answer.error.get("data") or {}).get("limit") != _INLINE:
            raise CheckFailed("the refusal does not name the bound", expected=f"data {{bound, limit: {_INLINE}}}")


@RUNNER_HANDLES.enter(
    "handles.unknown",
    "A handle that the caller does not have, or that is none, is -32602, whoever else has it.",
    _SECTION,
    needs="access",
)
def _unknown(lab: RunnerLab) -> None:
    with lab.fresh() as link, lab.fresh() as other:
        stored = _create(link, data=f"{_TEXT} of one client")
        for method in (_FETCH, _STAT):
            for handle in (stored.handle, _NONE, "handle://../../etc/passwd", "/etc/passwd", "", _NONE.upper()):
                refused(other.call(method, {"handle": handle}), f"{method} {handle}", ErrorCode.INVALID_PARAMS)


@RUNNER_HANDLES.enter(
    "handles.descriptor",
    "fd.pass hands over exactly one descriptor of the blob, which is read-only.",
    "fd.pass",
    needs="access",
)
def _descriptor(lab: RunnerLab) -> None:
    with lab.fresh() as link:
        stored = _create(link, data=_TEXT)
        for _ in range(2):
            result_of(link.call(_PASS, {"kind": "handle", "meta": {"handle": stored.handle}}), _PASS)
            fd = _one(link)
            try:
                content = os.pread(fd, len(_TEXT.encode()) + 1, 0)
                if content != _TEXT.encode():
                    raise CheckFailed(f"the descriptor reads {content!r}", expected="what was stored")
                if _writes(fd):
                    raise CheckFailed("the descriptor can be written to", expected="a read-only descriptor")
            finally:
                os.close(fd)


@RUNNER_HANDLES.enter("handles.memfd", "fd.pass hands over a new memfd with data or a size.", "fd.pass", needs="access")
def _memfd(lab: RunnerLab) -> None:
    with lab.fresh() as link:
        _create(link, size=0)
        for meta, content in (({"size": 5}, b"\0" * 5), ({"data": _TEXT}, _TEXT.encode())):
            result_of(link.call(_PASS, {"kind": "memfd", "meta": meta}), _PASS)
            fd = _one(link)
            try:
                found = os.pread(fd, len(content) + 1, 0)
            finally:
                os.close(fd)
            if found != content:
                raise CheckFailed(f"the memfd for {meta} reads {found!r}", expected=f"{len(content)} bytes")


@RUNNER_HANDLES.enter(
    "handles.bad-pass", "fd.pass of what is not there is -32602, and no descriptor comes.", "fd.pass", needs="access"
)
def _bad_pass(lab: RunnerLab) -> None:
    with lab.fresh() as link:
        _create(link, size=0)
        for params in (
            {"kind": "handle", "meta": {"handle": _NONE}},
            {"kind": "conformance", "meta": {}},
            {"kind": "memfd", "meta": {"size": -1}},
            {},
        ):
            refused(link.call(_PASS, params), f"fd.pass {params}", ErrorCode.INVALID_PARAMS)
        lab.ask(link)
        if link.descriptors:
            raise CheckFailed("a descriptor came with an error", expected="no descriptor")


def _one(link: RunnerLink) -> int:
    if len(link.descriptors) != 1:
        raise CheckFailed(f"{len(link.descriptors)} descriptors came with the answer", expected="exactly one")
    return link.descriptors.popleft()


def _writes(fd: int) -> bool:
    try:
        os.pwrite(fd, b"x", 0)
    except OSError:
        return False
    return True
