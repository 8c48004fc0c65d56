"""Checks of what is recorded: what was installed, what is there now, and what was done.

Rules here: records are read by the functions that everybody uses; an unreadable one is a finding.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from utter_protocol.state import state_directory
from utter_runner.operate.doctor.model import Finding, broken, ok, warning
from utter_runner.operate.doctor.registry import check
from utter_runner.operate.doctor.words import place_of
from utter_runner.operate.drift import STARTED
from utter_runner.operate.errors import OperateError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from utter_runner.operate.doctor.look import Look


def drift_of(look: Look) -> list[dict[str, Any]]:
    """What no longer agrees with the lockfile: `{plugin, field, recorded, found, detail}` each.

    The runner knows, besides, what its plugins say; without it, what lies on disk is held against the record.
    Nobody who never recorded anything is told that nothing is.
    """
    told = look.status.get("drift")
    drift = [*look.drift()] if told is None else [dict(one) for one in told]
    if look.config.runner.locked:
        return drift
    with suppress(OperateError):
        if not look.record():
            return [one for one in drift if one.get("field") != "unrecorded"]
    return drift


@check("records.lockfile")
def locked(look: Look) -> Iterator[Finding]:
    """Whether what is installed is what was installed."""
    try:
        entries = look.record()
    except OperateError as error:
        yield broken(
            str(error),
            "It cannot be told whether a plugin was changed since it was installed.",
            place_of(str(error)) or "utter plugins lock",
        )
        return
    strict = look.config.runner.locked
    grave, why = warning, "Somebody has changed it since you agreed to it."
    if strict:
        grave, why = broken, f"{why} With [runner] locked = true it is not started."
    drift = drift_of(look)
    found = [one for one in drift if one.get("plugin") and one.get("field") != "unrecorded"]
    for one in found:
        name = one["plugin"]
        if one.get("field") == STARTED:
            yield warning(str(one.get("detail")), "What is installed does not take effect yet.", "utter reload")
            continue
        # One that is gone is forgotten; one that was installed and has changed is installed anew.
        anew = name in entries and entries[name].source and one.get("field") != "missing"
        yield grave(
            str(one.get("detail") or f"{name}: {one.get('field')} is not what was recorded."),
            why,
            f"utter plugins {'update' if anew else 'lock'} {name}",
        )
    unrecorded = [str(one.get("plugin")) for one in drift if one.get("field") == "unrecorded"]
    if unrecorded:
        yield grave(
            f"Configured and not recorded: {', '.join(unrecorded)}.",
            "Nobody has agreed to them, and it is not noticed when they change."
            + (" With [runner] locked = true they are not started." if strict else ""),
            "utter plugins lock",
        )
    if not found and not unrecorded:
        yield ok(f"Plugins on record: {len(entries)}; none has changed.")


@check("records.audit")
def audit(look: Look) -> Iterator[Finding]:
    """Whether what is done is recorded."""
    mode = look.config.log.audit
    told = look.status.get("audit") or {}
    path = str(told.get("path") or state_directory(look.outside.environ) / "audit.jsonl")
    if mode == "off":
        yield ok("What is done is not recorded: [log] audit is off.")
        return
    why = "Nothing is done while it cannot be recorded." if mode == "required" else "What is done leaves no trace."
    if detail := told.get("detail"):
        yield broken(f"The audit trail cannot be written. {detail}", why, f"ls -ld {path}")
    elif lost := told.get("lost"):
        yield warning(
            f"Of the audit trail {lost} lines were lost since the start.",
            "What they told is not known.",
            f"df -h {path}",
        )
    elif not told and (closed := _closed(look, path)):
        yield broken(
            f"The audit trail {path} could not be written: {closed} is not writable.", why, f"chmod u+w {closed}"
        )
    else:
        yield ok(f"What is done is recorded in {path}.")


def _closed(look: Look, path: str) -> str:
    """What keeps a file from being written: the file itself, or the nearest directory above it that is there."""
    place = path
    while place != "/":
        try:
            look.outside.stat(place)
        except OSError:
            place = os.path.dirname(place)  # noqa: PTH120 - text, as everything that goes through Outside
            continue
        return "" if look.outside.can_write(place) else place
    return ""
