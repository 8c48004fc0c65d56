"""The commands plugin on the wire: router.plan, router.hints, knowledge.catalog, and router.hints_changed.

Rules here: nothing heavy is imported before the handshake is answered; what is taught is read on the worker lane, so
that requests wait for it and health does not. A reload replaces the whole of it at once.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

import msgspec

from utter_protocol.errors import ErrorCode, RpcError
from utter_protocol.methods import CatalogResult, HintsResult, PlanParams, PlanResult
from utter_sdk import Plugin

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .asking import Adviser
    from .teaching import Taught, Teacher

VERSION = "0.1.0"
PROVIDES = ("router.plan@1", "router.hints@1", "knowledge.catalog@1")
PERMISSIONS = ("files.read",)
NEEDED = "Install the extra utter-runner[commands] (hassil, jellyfish, rapidfuzz) for the runner's Python"


class Commands:
    """What is taught at present."""

    def __init__(self, plugin: Plugin, env: Mapping[str, str]) -> None:
        self._plugin = plugin
        self._env = env
        self._teacher: Teacher | None = None
        self._taught: Taught | None = None
        self._adviser: Adviser | None = None
        self._failed: RpcError | None = None
        # The worker lane reads first, the watcher's thread again.
        self._reading = threading.Lock()

    def start(self, settings: dict[str, object]) -> None:
        """Read everything and begin to watch the files.

        Raises:
            RpcError: a library is missing, or the settings are wrong.
        """
        self._plugin.health("degraded", "The phrases are being read.")
        try:
            self._teacher = self._make_teacher(settings)
        except RpcError as error:
            # For the requests that are waiting already.
            self._failed = error
            raise
        self._watch(self._teacher)
        self._read()

    def reload(self) -> None:
        """Read everything again, and tell the runner if what may be said changed."""
        before = self._taught
        self._read()
        if before and self._taught and self._taught.router.hints() != before.router.hints():
            self._plugin.notify("router.hints_changed", {})

    def plan(self, params: PlanParams) -> PlanResult:
        """Answer router.plan."""
        router = self._now().router
        plan = router.plan(params.utterance)
        if plan.steps or self._adviser is None:
            return plan
        choices = router.choices(params.utterance)
        return (self._adviser.advise(params.utterance, choices) if choices else None) or plan

    def hints(self) -> HintsResult:
        """Answer router.hints."""
        return HintsResult(phrases=self._now().router.hints())

    def catalog(self) -> CatalogResult:
        """Answer knowledge.catalog."""
        return CatalogResult(candidates=list(self._now().candidates))

    def _now(self) -> Taught:
        if self._taught is None:
            raise self._failed or RpcError(ErrorCode.PLUGIN_FAILED, "The phrases could not be read; see the log.")
        return self._taught

    def _make_teacher(self, settings: dict[str, object]) -> Teacher:
        try:
            from .teaching import Settings, Teacher  # noqa: PLC0415 - hassil and rapidfuzz, after the handshake
        except ImportError as error:
            raise RpcError(ErrorCode.PLUGIN_FAILED, f"{NEEDED}: {error}.") from error
        try:
            taken = msgspec.convert(settings, Settings)
            if taken.use_llm:
                from .asking import Adviser  # noqa: PLC0415 - most users do not ask a model

                self._adviser = Adviser(
                    self._plugin,
                    min_probability=taken.llm_min_probability,
                    timeout_s=taken.llm_timeout_ms / 1000,
                )
            return Teacher(taken, self._env)
        except msgspec.ValidationError as error:
            raise RpcError(ErrorCode.PLUGIN_FAILED, f"The settings of the plugin commands: {error}.") from error

    def _watch(self, teacher: Teacher) -> None:
        """Begin to watch before the first reading, so that no change falls between the two."""
        from .watch import Watcher  # noqa: PLC0415 - with the rest

        try:
            Watcher(teacher.files, teacher.folders, self.reload).start()
        except OSError as error:
            self._plugin.log(f"Changed phrase files are only read after a restart: {error}.")

    def _read(self) -> None:
        if self._teacher is None:
            return
        with self._reading:
            taught = self._taught = self._teacher.teach()
            self._plugin.health("degraded" if taught.problems else "ok", " ".join(taught.problems))
            for problem in taught.problems:
                self._plugin.log(problem)


def build(env: Mapping[str, str] = os.environ) -> Plugin:
    """The plugin, ready to run."""
    plugin = Plugin(
        "commands",
        version=VERSION,
        kind="bundle",
        provides=PROVIDES,
        permissions=PERMISSIONS,
        streams=["router.hints_changed"],
    )
    commands = Commands(plugin, env)
    plugin.on_start(blocking=True)(commands.start)
    plugin.method("router.plan", blocking=True)(commands.plan)
    plugin.method("router.hints", blocking=True)(commands.hints)
    plugin.method("knowledge.catalog", blocking=True)(commands.catalog)
    return plugin
