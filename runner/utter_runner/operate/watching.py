"""The running daemon's eye on the record: what has drifted, and with `[runner] locked` what is refused because of it.

Rules here: files are read in threads and never in the loop, and only when there is a reason: after the start, before an
epoch with `locked`, after a plugin was met, and when somebody asks. What is refused is said with field, recorded and
found. Without `locked` nothing is refused and nothing waits.
"""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

import msgspec
import trio

from utter_protocol.drift import Drift, DriftResult
from utter_runner.operate import lockfile
from utter_runner.operate.contents import drop_left_out
from utter_runner.operate.drift import Found, compare, differences, mends, of_process, sentences, unreadable
from utter_runner.operate.errors import OperateError
from utter_runner.operate.found import Subject, look, survey, why
from utter_runner.operate.places import Places

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from utter_protocol.drift import Announced
    from utter_runner.config import Config
    from utter_runner.operate.lockfile import Entry

MAX_SAID: Final = 200
"""How many characters of a version or a permission are kept of what a process says."""

logger = logging.getLogger(__name__)


class Origin(Protocol):
    """What a plugin's spec was made of."""

    @property
    def manifest(self) -> str:
        """The path of its manifest; empty without one."""

    @property
    def text_digest(self) -> str:
        """The SHA-256 of the manifest's text, in hexadecimal."""

    @property
    def command(self) -> tuple[str, ...]:
        """The entrypoint that the config gives."""

    @property
    def cwd(self) -> str | None:
        """The working directory that the config gives."""


class DriftError(Exception):
    """A plugin is not what is recorded, and is refused.

    Attributes:
        drift: the first difference.
    """

    def __init__(self, drift: Drift, mend: str = "") -> None:
        values = f" (field {drift.field}, recorded {drift.recorded!r}, found {drift.found!r})" if drift.plugin else ""
        super().__init__(
            f"With [runner] locked = true it may not run: {drift.detail}{values}{f' {mend}' if mend else ''}"
        )
        self.drift = drift


class DriftWatch:
    """What is recorded, what is there, and what has been met.

    Args:
        config: returns the configuration that holds now.
        environ: the runner's, which says where the record is.
        on_change: told when there is another drift than before.
    """

    def __init__(
        self, config: Callable[[], Config], environ: Mapping[str, str], on_change: Callable[[], object]
    ) -> None:
        self._config = config
        self._environ = environ
        self._on_change = on_change
        self._one_at_a_time = trio.Lock()
        self._begun = 0
        self._again = trio.Event()
        self._record: dict[str, Entry] = {}
        self._unreadable = ""
        self._found: dict[str, Found] | None = None
        self._announced: dict[str, Announced] = {}
        # By plugin, the manifest that its process was started by; and those whose process has not ended.
        self._started_by: dict[str, str] = {}
        self._running: set[str] = set()
        self._checked: dict[str, Entry] = {}
        self._drift: list[Drift] = []
        self._warned: list[str] = []

    @property
    def locked(self) -> bool:
        """Whether what has drifted is refused."""
        return self._config().runner.locked

    @property
    def drift(self) -> list[Drift]:
        """What was found the last time."""
        return list(self._drift)

    def warnings(self) -> list[str]:
        """The same in words, with what mends it. Nobody who never recorded anything is told that nothing is."""
        told = self._record or self.locked
        return sentences((one for one in self._drift if told or one.field != "unrecorded"), self._record)

    def result(self) -> DriftResult:
        """What `runner.drift` answers."""
        found = self._found or {}
        announced = {name: one for name, one in self._announced.items() if not self._is_outdated(name, found.get(name))}
        return DriftResult(locked=self.locked, drift=self.drift, announced=announced)

    # ---- looking

    async def run(self) -> None:
        """Look once, and again whenever `look_soon` was called."""
        while True:
            self._again = trio.Event()
            await self.look()
            await self._again.wait()

    def look_soon(self) -> None:
        """Have `run` look again."""
        self._again.set()

    async def look(self) -> None:
        """Read the record, and look at what is there. Nothing that fails here is more than drift."""
        asked = self._begun
        async with self._one_at_a_time:
            if self._begun > asked:
                # One that began since has just ended.
                return
            self._begun += 1
            self._record, self._unreadable, self._found = await trio.to_thread.run_sync(self._look)
        self._compare()

    def _look(self) -> tuple[dict[str, Entry], str, dict[str, Found] | None]:
        try:
            places = Places.of(self._environ)
            record = lockfile.read(places.lockfile)
        except OperateError as error:
            return {}, str(error), None
        return record, "", survey(self._config(), self._environ, places, record)

    def _compare(self) -> None:
        if self._unreadable:
            drift = [unreadable(self._unreadable)]
        elif self._found is not None:
            drift = compare(self._record, {name: self._with_said(name, one) for name, one in self._found.items()})
        else:
            return
        if drift == self._drift:
            return
        self._drift = drift
        before, self._warned = self._warned, self.warnings()
        for text in self._warned:
            if text not in before:
                logger.warning("%s", text)
        self._on_change()

    def _with_said(self, name: str, found: Found) -> Found:
        if self._is_outdated(name, found):
            # What it says is no difference to what was recorded since.
            return msgspec.structs.replace(found, outdated=name in self._running)
        return msgspec.structs.replace(found, announced=self._announced.get(name))

    def _is_outdated(self, name: str, found: Found | None) -> bool:
        """Whether the process that was met last was started by another manifest than was found."""
        return (
            found is not None and bool(found.manifest) and self._started_by.get(name, found.manifest) != found.manifest
        )

    # ---- starting

    async def check(self, plugin: str, origin: Origin) -> None:
        """Hold a plugin that is about to be started against the record, if `locked` says so.

        What is no part of its package is deleted first, and its manifest has to be the one that it is started by.

        Raises:
            DriftError: it is not what is recorded.
        """
        self._checked.pop(plugin, None)
        if self.locked:
            self._checked[plugin] = await trio.to_thread.run_sync(partial(self._check, plugin, origin, clean=True))

    async def check_again(self, plugin: str, origin: Origin) -> None:
        """Hold a plugin that was started after `check`, and has loaded its files since, against the same entry.

        Raises:
            DriftError: the record, or what is there, has changed meanwhile.
        """
        entry = self._checked.get(plugin)
        if not self.locked or entry is None:
            return
        now = await trio.to_thread.run_sync(partial(self._check, plugin, origin, clean=False))
        if now != entry:
            what = f"The record of {plugin} was changed while it was started."
            drift = Drift(plugin=plugin, field="digest", recorded=entry.digest, found=now.digest, detail=what)
            raise DriftError(drift, f"`utter plugins start {plugin}` starts it anew.")

    def _check(self, plugin: str, origin: Origin, *, clean: bool) -> Entry:
        try:
            entry = lockfile.read(Places.of(self._environ).lockfile).get(plugin)
        except OperateError as error:
            raise DriftError(unreadable(str(error))) from None
        subject = Subject(Path(origin.manifest) if origin.manifest else None, origin.command, origin.cwd)
        try:
            if subject.manifest is not None and clean:
                drop_left_out(subject.manifest.parent)
            found = look(plugin, subject, self._environ)
        except (OSError, ValueError, OperateError) as error:
            found = Found(problem=why(error))
        drift = differences(plugin, entry, found)
        if drift or entry is None:
            raise DriftError(drift[0], mends(plugin, entry))
        if found.manifest != origin.text_digest and subject.manifest is not None:
            what = f"{subject.manifest} is not what it was when the runner read it for the start."
            was, now = f"sha256:{origin.text_digest}", f"sha256:{found.manifest}"
            drifted = Drift(plugin=plugin, field="digest", recorded=was, found=now, detail=what)
            raise DriftError(drifted, "`utter reload`, or a restart of the runner, reads it again.")
        return entry

    def meet(self, plugin: str, announced: Announced, origin: Origin) -> None:
        """A plugin that was started has said what it is; it is not admitted yet.

        Raises:
            DriftError: with `locked`, it says something else than is recorded.
        """
        self._announced[plugin] = announced
        self._started_by[plugin] = origin.text_digest
        self._running.add(plugin)
        self.look_soon()
        entry = self._checked.get(plugin)
        if self.locked and entry is not None:
            for drift in of_process(plugin, entry, announced):
                raise DriftError(drift, mends(plugin, entry))

    def ended(self, plugin: str) -> None:
        """The process of a plugin has ended, or is about to, and no other one is started by the same manifest."""
        if plugin in self._running:
            self._running.remove(plugin)
            self._compare()
