"""Taking over a configuration that has changed, while everything runs.

Rules here: one reload at a time, none before the start is over; the files are read on a thread and all of them are
judged before anything changes; then everything is taken over in one turn of the loop, or nothing is. What is refused is
what a start would refuse or leave out, except for plugins that are left out already: those take nothing with them.
"""

from __future__ import annotations

import logging
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import trio

from utter_protocol.control import PluginChanges, ReloadResult
from utter_runner.actions.rules import policy_rules
from utter_runner.config import ConfigError, place_in
from utter_runner.config.changes import changed_keys, keeping, takes_effect
from utter_runner.voice.build import VoiceError, hotkey_bindings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from typing import TypeAlias

    from utter_runner.config import Config
    from utter_runner.policy import PolicyRules
    from utter_runner.setup import Setup
    from utter_runner.supervision.life import Changes

    # Reads the setup from the disk, with the configuration as the function makes it. Raises ConfigError. Blocks.
    Read: TypeAlias = Callable[[Callable[[Config], Config]], Setup]

logger = logging.getLogger("utter_runner")

READ_SECONDS = 30.0
"""What reading may take, with all secrets and the trial of a sandbox: `reload_timeout`."""
MAX_TOLD = 5
"""So many problems are told in the status; the log and the answer have all."""


class Found(NamedTuple):
    """What was read and is in order.

    Attributes:
        setup: with the old values of the keys that need a restart.
        rules: those of its `[policy]`.
        changed: the keys that are others, and can be taken over.
        needs_restart: the keys that are others and cannot.
    """

    setup: Setup
    rules: PolicyRules
    changed: list[str]
    needs_restart: list[str]


class Reloads:
    """Reads the configuration again whenever somebody wants it.

    Args:
        setup: what the daemon was started with.
        read: reads the configuration.
        take_over: has everything go by what was found, in one turn; raises nothing.
        on_over: called after each reload, taken over or refused, when `warnings` is as it is from then on.
        around: makes a context manager for each reload, so that a service manager can be told of it.
    """

    def __init__(
        self,
        setup: Setup,
        read: Read,
        *,
        take_over: Callable[[Found], Changes],
        on_over: Callable[[], object],
        around: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        self._setup = setup
        self._read = read
        self._take_over = take_over
        self._on_over = on_over
        self._around = around
        self._one_at_a_time = trio.Lock()
        self._started = trio.Event()
        self._problems: list[str] = []
        self._needs_restart: list[str] = []

    def begin(self) -> None:
        """The start is over: what waits for that may go on."""
        self._started.set()

    def warnings(self) -> Iterator[str]:
        """Yield what a person is to know of the configuration on the disk: that it does not hold, or not all of it."""
        for problem in self._problems[:MAX_TOLD]:
            yield f"The changed configuration is not in effect, the one before it is: {problem}"
        if len(self._problems) > MAX_TOLD:
            yield f"The changed configuration has {len(self._problems) - MAX_TOLD} more problems: see the log."
        if self._needs_restart:
            yield f"Changed, and not in effect until the runner is restarted: {', '.join(self._needs_restart)}."

    async def reload(self) -> ReloadResult:
        """Read the configuration again, and take it over if it is in order; say what came of it."""
        await self._started.wait()
        async with self._one_at_a_time:
            with self._around():
                return await self._reload()

    async def _reload(self) -> ReloadResult:
        found = await self._look()
        return self._refuse(found) if isinstance(found, list) else self._accept(found)

    async def _look(self) -> Found | list[str]:
        """Return what was found, or the problems for which it is refused."""
        look_now = partial(look, self._read, self._setup)
        with trio.move_on_after(READ_SECONDS):
            try:
                # What reads from a pipe, or a disk that has gone, is left behind; it changes nothing.
                return await trio.to_thread.run_sync(look_now, abandon_on_cancel=True)
            except ConfigError as error:
                return list(error.problems)
        path = self._setup.config.path
        return [f"{path}: The configuration could not be read within reload_timeout ({READ_SECONDS:g} s)."]

    def _refuse(self, problems: list[str]) -> ReloadResult:
        self._problems = problems
        for problem in problems:
            logger.error("not reloaded: %s", problem)
        self._on_over()
        return ReloadResult(ok=False, needs_restart=self._needs_restart, problems=problems)

    def _accept(self, found: Found) -> ReloadResult:
        changes = self._take_over(found)
        self._setup = found.setup
        self._problems, self._needs_restart = [], found.needs_restart
        plugins = PluginChanges(
            added=list(changes.added), removed=list(changes.removed), restarted=list(changes.restarted)
        )
        logger.info(
            "reloaded: changed: %s; plugins added: %s; removed: %s; restarted: %s%s",
            *(", ".join(names) or "-" for names in (found.changed, changes.added, changes.removed, changes.restarted)),
            f"; needs a restart: {', '.join(found.needs_restart)}" if found.needs_restart else "",
        )
        for problem in found.setup.problems:
            logger.warning("%s", problem)
        self._on_over()
        return ReloadResult(
            ok=True,
            changed=found.changed,
            plugins=plugins,
            needs_restart=found.needs_restart,
            problems=found.setup.problems,
        )


def look(read: Read, old: Setup) -> Found:
    """Read and judge everything. Blocks.

    Raises:
        ConfigError: it is not to be taken over.
    """
    needs_restart: list[str] = []

    def keep_what_stays(new: Config) -> Config:
        needs_restart[:] = [key for key in changed_keys(old.config, new) if not takes_effect(key)]
        return keeping(old.config, new, needs_restart)

    setup = read(keep_what_stays)
    config = setup.config
    problems = setup.problems if setup.left_out - old.left_out else []
    if config.hotkeys.enabled:
        try:
            hotkey_bindings(config.hotkeys)
        except VoiceError as error:
            problems = [*problems, f"{place_in(config, ('hotkeys',))}: {error}"]
    if problems:
        raise ConfigError(problems)
    return Found(setup, policy_rules(config.policy), changed_keys(old.config, config), needs_restart)
