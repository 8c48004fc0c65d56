"""Where the plugins that are found are not those that are recorded.

Rules here: pure; nothing of it runs, reads or writes. A detail is one sentence that holds without the rest; which
command mends it is said in `mends`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from utter_protocol.drift import Drift
from utter_runner.operate.lockfile import Entry

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from utter_protocol.drift import Announced, DriftField, Tool

UNREADABLE: Final = "lockfile"
STARTED: Final = "started"
_NOTHING: Final = "nothing"


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """What is there of one plugin.

    Attributes:
        version, protocol, abi, permissions: of its manifest; empty, and 0, without one.
        digest: of its package, or of the command that the configuration gives; empty if that cannot be told.
        code: of its package without the manifest; empty if there is none.
        manifest: the SHA-256 of the manifest that lies in its package, in hexadecimal; empty without one.
        announced: what its process says; None if that is not known.
        outdated: whether its process runs by another manifest than that.
        problem: why it cannot be told what is there, in one sentence; empty if it can.
    """

    version: str = ""
    protocol: str = ""
    abi: int = 0
    permissions: tuple[str, ...] = ()
    digest: str = ""
    code: str = ""
    manifest: str = ""
    announced: Announced | None = None
    outdated: bool = False
    problem: str = ""


def compare(record: Mapping[str, Entry], found: Mapping[str, Found]) -> list[Drift]:
    """Every difference, by plugin. None if all that is found is recorded as it is, and all that is recorded is found.

    What a process says is compared if it is known; its ops, if it was recorded what it said.

    Args:
        record: what is recorded, by the plugins' ids.
        found: what is there; what is recorded and has no part in it is gone.
    """
    known = _known_again(record, found)
    drift: list[Drift] = []
    for name in sorted({*record, *found}):
        entry, there = record.get(name), found.get(name)
        if there is None:
            if name not in known.values():
                what = f"{name} is recorded, and there is no such plugin any more."
                drift.append(_drift(name, "missing", record[name].version or "recorded", _NOTHING, what))
        elif entry is not None:
            drift += differences(name, entry, there)
        elif name in known:
            what = f"{name} is what is recorded as {known[name]}: it has another name."
            drift.append(_drift(name, "renamed", known[name], name, what))
        else:
            drift.append(_unrecorded(name, there))
    return drift


def _known_again(record: Mapping[str, Entry], found: Mapping[str, Found]) -> dict[str, str]:
    """The old name of each plugin that is not recorded under its name, and is under one that is gone."""
    names = {}
    for name in sorted(found.keys() - record.keys()):
        there = found[name]
        for old in sorted(record.keys() - found.keys()):
            entry = record[old]
            if there.digest == entry.digest or (there.code and there.code == entry.code):
                names[name] = old
                break
    return names


def differences(name: str, entry: Entry | None, found: Found) -> list[Drift]:
    """As `compare`, for one plugin and without a look at other names."""
    if entry is None:
        return [_unrecorded(name, found)]
    process = [*of_process(name, entry, found.announced)] if found.announced else []
    if found.outdated:
        what = f"{name} runs by another manifest than there is now."
        process.append(_drift(name, STARTED, "the manifest that is there", "another manifest", what))
    return [*_of_package(name, entry, found), *process]


def _unrecorded(name: str, found: Found) -> Drift:
    what = f"{name} is configured and not recorded."
    return _drift(name, "unrecorded", _NOTHING, found.version or found.digest or "configured", what)


def unreadable(message: str) -> Drift:
    """The drift of a record that cannot be read, from the sentence that says why."""
    return _drift("", UNREADABLE, "", "", message)


def _of_package(name: str, entry: Entry, found: Found) -> Iterator[Drift]:
    if found.problem:
        yield _drift(name, "digest", entry.digest, "", f"What {name} is made of cannot be told: {found.problem}")
        return
    for field in ("version", "protocol", "abi"):
        recorded, now = getattr(entry, field), getattr(found, field)
        if recorded != now:
            yield _changed(name, field, recorded, now, f"The {field} in the manifest of {name}")
    if entry.digest != found.digest:
        what = f"What {name} is made of has changed since it was recorded."
        yield _drift(name, "digest", entry.digest, found.digest, what)
    yield from _of_permissions(name, entry.permissions, found.permissions, "The manifest")


def of_process(name: str, entry: Entry, said: Announced) -> Iterator[Drift]:
    """As `differences`, of what its process says: held against what was agreed to, and before that, its manifest."""
    agreed = entry.process
    for field in ("version", "protocol", "abi"):
        recorded = getattr(agreed or entry, field)
        if recorded != getattr(said, field) and (agreed or recorded):
            yield _changed(name, field, recorded, getattr(said, field), f"The {field} that the process of {name} says")
    before = agreed.permissions if agreed else []
    # One that the manifest has come to name is not one more.
    yield from _of_permissions(name, before, said.permissions, "The process", besides=entry.permissions)
    if agreed:
        yield from _of_tools(name, agreed.tools, said.tools)


def _of_permissions(
    name: str, recorded: Sequence[str], now: Sequence[str], who: str, besides: Sequence[str] = ()
) -> Iterator[Drift]:
    more = sorted({*now} - {*recorded} - {*besides})
    less = sorted({*recorded} - {*now})
    if more or less:
        parts = [f"asks for more permissions than are recorded: {', '.join(more)}"] if more else []
        parts += [f"no longer asks for {', '.join(less)}"] if less else []
        what = f"{who} of {name} {', and it '.join(parts)}."
        yield _drift(name, "permissions", ", ".join(recorded) or _NOTHING, ", ".join(now) or _NOTHING, what)


def _of_tools(name: str, recorded: Mapping[str, Tool], now: Mapping[str, Tool]) -> Iterator[Drift]:
    for op in sorted({*recorded, *now}):
        old, new = recorded.get(op), now.get(op)
        if old == new:
            continue
        if old is None:
            what = f"{name} offers an op {op}, which is not recorded."
        elif new is None:
            what = f"{name} no longer offers the op {op}."
        elif old.side_effect != new.side_effect:
            what = f"The op {op} of {name} has the side effect {new.side_effect}, and {old.side_effect} is recorded."
        elif old.needs_confirm != new.needs_confirm:
            what = f"The op {op} of {name} {'now wants' if new.needs_confirm else 'no longer wants'} a confirmation."
        else:
            what = f"The op {op} of {name} has another schema or description than is recorded."
        yield _drift(name, "tools", _tool(op, old), _tool(op, new), what)


def _tool(op: str, tool: Tool | None) -> str:
    if tool is None:
        return _NOTHING
    return f"{op} {tool.side_effect}{' confirmed' if tool.needs_confirm else ''} {tool.digest}"


def _changed(name: str, field: DriftField, recorded: object, now: object, what: str) -> Drift:
    return _drift(name, field, f"{recorded}", f"{now}", f"{what} is {now or _NOTHING}, and {recorded} is recorded.")


def _drift(plugin: str, field: DriftField, recorded: str, found: str, detail: str) -> Drift:
    return Drift(plugin=plugin, field=field, recorded=recorded, found=found, detail=detail)


def widened(entry: Entry | None, found: Found) -> list[str]:
    """The permissions that a plugin asks for, in its manifest or by its process, and that are not recorded."""
    known = {*entry.permissions, *(entry.process.permissions if entry.process else ())} if entry else set()
    asked = (*found.permissions, *(found.announced.permissions if found.announced else ()))
    return [name for name in dict.fromkeys(asked) if name not in known]


def recorded_as(found: Found, before: Entry | None) -> Entry:
    """The entry for what is there, to take the place of another.

    Where that was installed from and who signed it stays; so does what its process said, if it says nothing now.
    """
    return Entry(
        version=found.version,
        protocol=found.protocol,
        abi=found.abi,
        digest=found.digest,
        permissions=list(found.permissions),
        source=before.source if before else "",
        signed_by=before.signed_by if before else "",
        code=found.code,
        process=found.announced or (before.process if before else None),
    )


def mends(plugin: str, entry: Entry | None, fields: Collection[str] = ()) -> str:
    """The command that mends the drift of a plugin, which is in these fields."""
    if fields and {*fields} == {STARTED}:
        return "`utter reload` starts it anew."
    if entry is not None and entry.source:
        return f"`utter plugins update {plugin}` installs it anew; `utter plugins lock {plugin}` agrees to it as it is."
    return f"`utter plugins lock {plugin}` agrees to it."


def sentences(drift: Iterable[Drift], record: Mapping[str, Entry]) -> list[str]:
    """What to tell a person: a sentence for each plugin, with the command that mends it, and one for all unrecorded."""
    by_plugin: dict[str, list[Drift]] = {}
    unrecorded = []
    for one in drift:
        if one.field == "unrecorded":
            unrecorded.append(one.plugin)
        else:
            by_plugin.setdefault(one.plugin, []).append(one)
    said = []
    for plugin, found in by_plugin.items():
        mend = [mends(plugin, record.get(plugin), [one.field for one in found])] if plugin else []
        said.append(" ".join([*(one.detail for one in found), *mend]))
    if unrecorded:
        which = f"{', '.join(unrecorded)} {'is' if len(unrecorded) == 1 else 'are'}"
        said.append(f"{which} configured and not recorded. `utter plugins lock` records what is there.")
    return said
