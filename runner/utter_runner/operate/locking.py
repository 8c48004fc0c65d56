"""What `utter plugins lock` would record: what changed since, plugin by plugin, and the record that follows from it.

Rules here: who agrees to a proposal agrees to exactly what is then written; nothing of a plugin is run. What a process
says is taken from the running runner or left as it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec

from utter_protocol.manifest import permission_sentence
from utter_runner.operate import lockfile
from utter_runner.operate.drift import Found, compare, recorded_as, widened
from utter_runner.operate.errors import OperateError
from utter_runner.operate.found import survey
from utter_runner.operate.staging import held, recovered

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from utter_protocol.drift import Announced, Drift
    from utter_runner.config import Config
    from utter_runner.operate.lockfile import Entry
    from utter_runner.operate.places import Places

_WIDTH = 16


class Proposal(NamedTuple):
    """A plugin whose record is not what it would be made now.

    Attributes:
        plugin: its id.
        before: what is recorded; None if nothing is.
        after: what would be; None if it is gone.
        drift: the differences that matter; none if there is only more to record than before.
        new_permissions: those that are not recorded.
    """

    plugin: str
    before: Entry | None
    after: Entry | None
    drift: list[Drift]
    new_permissions: list[str]

    def lines(self) -> Iterator[str]:
        """What a person should know before agreeing."""
        yield f"{self.plugin}{self._versions()}"
        for one in self.drift:
            if one.field not in {"version", "permissions", "unrecorded"}:
                yield f"  {one.field:<{_WIDTH}}{one.recorded} -> {one.found}"
                if one.field in {"tools", "missing", "renamed"}:
                    yield f"  {'':<{_WIDTH}}{one.detail}"
            elif one.field == "version" and self.before and self.after and self.before.version == self.after.version:
                yield f"  {one.field:<{_WIDTH}}{one.recorded} -> {one.found}, as its process says"
        if self.before is None and self.after is not None:
            yield f"  {'digest':<{_WIDTH}}{self.after.digest}"
        for name in self.new_permissions:
            label = "NEW PERMISSION" if self.before else "permissions"
            yield f"  {label:<{_WIDTH}}{name}: {permission_sentence(name)}"
        for name in self._dropped():
            yield f"  {'permissions':<{_WIDTH}}{name}: It is no longer asked for."
        if self.after is not None and self.after.process and not (self.before and self.before.process):
            ops = ", ".join(sorted(self.after.process.tools)) or "none"
            yield f"  {'ops':<{_WIDTH}}{ops}: recorded for the first time"

    def _versions(self) -> str:
        old = self.before.version if self.before else ""
        new = self.after.version if self.after else ""
        if self.before is None:
            return f"{f' {new}' if new else ''}, not recorded before"
        return f" {old} -> {new}" if old != new else f" {new}" if new else ""

    def _dropped(self) -> list[str]:
        before = _permissions(self.before)
        return [name for name in before if name not in _permissions(self.after)] if self.after else []


def _permissions(entry: Entry | None) -> list[str]:
    if entry is None:
        return []
    return list(dict.fromkeys((*entry.permissions, *(entry.process.permissions if entry.process else ()))))


class Lock(NamedTuple):
    """The record as it is, what is there, and what would be recorded.

    Attributes:
        places: where the record is.
        record: what it says.
        drift: where the two differ.
        proposals: what would be changed.
        unclear: why something could not be looked at, by plugin; nothing is changed there.
        silent: the configured plugins of which it is not known what their processes say.
    """

    places: Places
    record: dict[str, Entry]
    drift: list[Drift]
    proposals: list[Proposal]
    unclear: dict[str, str]
    silent: list[str]

    def accept(self) -> None:
        """Write it.

        Raises:
            OperateError: the record is not what it was when this was proposed, or would be too long.
            OSError: it cannot be written.
        """
        changed = dict(self.record)
        for one in self.proposals:
            if one.after is None:
                changed.pop(one.plugin, None)
            else:
                changed[one.plugin] = one.after
        with held(self.places):
            if lockfile.read(self.places.lockfile) != self.record:
                raise OperateError("Another command has changed the record meanwhile: look again.")
            lockfile.write(self.places.lockfile, changed)


def examine(
    config: Config,
    environ: Mapping[str, str],
    places: Places,
    announced: Mapping[str, Announced],
    plugins: Collection[str] = (),
) -> Lock:
    """Look at the record and at what is there.

    Args:
        config: the runner's configuration.
        environ: the user's environment.
        places: where the record is.
        announced: what the processes of the running runner say.
        plugins: the ids that count; empty for all.

    Raises:
        OperateError: the record cannot be used, or one of the ids is neither configured nor recorded.
        OSError: the directories cannot be made.
    """
    with held(places):
        recovered(places)
        record = lockfile.read(places.lockfile)
    found = {
        name: msgspec.structs.replace(one, announced=announced.get(name))
        for name, one in survey(config, environ, places, record).items()
    }
    configured = [entry.id for entry in config.plugin]
    for name in plugins:
        if name not in {*configured, *record}:
            raise OperateError(f"{name} is neither in the configuration nor recorded.")
    drift = compare(record, found)
    chosen = {*plugins} or {*found, *record, *configured}
    # A name and the one that it takes the place of go together.
    chosen |= {one.recorded for one in drift if one.field == "renamed" and one.plugin in chosen}
    unclear = {name: found[name].problem for name in sorted(chosen & found.keys()) if found[name].problem}
    unclear |= {
        name: "It has no entrypoint, and no package of it is found."
        for name in configured
        if name in chosen and name not in found and name not in record
    }
    return Lock(
        places,
        record,
        drift,
        [one for name in sorted(chosen - unclear.keys()) if (one := _proposal(name, record, found, drift))],
        unclear,
        [name for name in configured if name in chosen and name in found and name not in announced],
    )


def _proposal(
    name: str, record: Mapping[str, Entry], found: Mapping[str, Found], drift: list[Drift]
) -> Proposal | None:
    before, there = record.get(name), found.get(name)
    own = [one for one in drift if one.plugin == name]
    if there is None:
        return Proposal(name, before, None, own, []) if before else None
    renamed = next((record[one.recorded] for one in own if one.field == "renamed"), None)
    # What was installed under another name was not installed under this one.
    base = before or (msgspec.structs.replace(renamed, source="") if renamed else None)
    after = recorded_as(there, base)
    return Proposal(name, before, after, own, widened(base, there)) if after != before else None
