"""What the doctor answers: findings, and the report that `utter doctor --json` prints.

Rules here: pure. Fields once given out keep their names and meaning. A finding that is not ok says what is so, why it
matters, and one command or one edit that mends it; nothing in it is a secret, or was said or shown.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, Literal

import msgspec

Status = Literal["ok", "warning", "broken"]
RunnerState = Literal["up", "down", "stale", "wedged", "refused", "unreachable"]


class Health(IntEnum):
    """The exit code of `utter doctor`."""

    FINE = 0
    WARNINGS = 1
    BROKEN = 2


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """What one check found.

    Attributes:
        check: the id of the check, such as `sound.microphone`.
        status: how it is.
        what: what is so, in a sentence or two.
        why: why it matters; empty if it is ok.
        mend: the one command, or the one edit, that mends it; empty if it is ok.
    """

    check: str = ""
    status: Status
    what: str
    why: str = ""
    mend: str = ""


def ok(what: str) -> Finding:
    """All is well."""
    return Finding(status="ok", what=what)


def warning(what: str, why: str, mend: str) -> Finding:
    """It works, and somebody should know this."""
    return Finding(status="warning", what=what, why=why, mend=mend)


def broken(what: str, why: str, mend: str) -> Finding:
    """Something that the configuration wants does not work."""
    return Finding(status="broken", what=what, why=why, mend=mend)


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """What the runner says that it is; null where no runner answers."""

    protocol: str | None = None
    abi: int | None = None
    version: str | None = None


class Negotiated(msgspec.Struct, frozen=True, kw_only=True):
    """What the runner and a plugin agreed to speak."""

    protocol: str
    abi: int


class Permission(msgspec.Struct, frozen=True, kw_only=True):
    """How far a permission is enforced, as a probe has found: one of the two is true, or both are null if none ran."""

    name: str
    enforced: bool | None = None
    advisory: bool | None = None


class Deprecated(msgspec.Struct, frozen=True, kw_only=True):
    """A capability that a plugin declares and that has a successor."""

    capability: str
    since: str
    replacement: str
    removed: str = ""


class PluginReport(msgspec.Struct, frozen=True, kw_only=True):
    """One configured plugin. `epoch`, `status` and `negotiated` are null where no runner tells them."""

    id: str
    kind: str = ""
    epoch: int | None = None
    status: str | None = None
    negotiated: Negotiated | None = None
    unknown_capabilities: list[str] = []
    missing_requires: list[str] = []
    permissions: list[Permission] = []
    deprecations: list[Deprecated] = []


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """All that the doctor answers.

    Attributes:
        ok: whether nothing is broken and nothing is warned of.
        exit: the exit code: 0 fine, 1 warnings, 2 broken.
        utter: the version of this doctor.
        state: whether the runner answers.
        socket: the path that was tried; empty if there is none.
        runner: what answers.
        plugins: those that are configured, in that order.
        drift: what installed plugins no longer agree with the lockfile in, as `runner.status` has it.
        findings: broken ones first, then warnings.
    """

    ok: bool
    exit: int
    utter: str
    state: RunnerState
    socket: str
    runner: Identity
    plugins: list[PluginReport]
    drift: list[dict[str, Any]]
    findings: list[Finding]
