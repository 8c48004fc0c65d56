"""A plugin as it is served: what outlives a connection, and is the same in a process and in a test.

Rules here: start hooks run once per process; again only when a new connection brings other settings, or the last start
failed; `connection` is the one whose runner greets now, and None between two.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from utter_protocol.errors import RpcError
from utter_protocol.methods import HealthResult
from utter_sdk.connection import exit_code
from utter_sdk.handlers import Handler, describe, log_traceback
from utter_sdk.stdio import log

if TYPE_CHECKING:
    from utter_sdk.connection import Connection
    from utter_sdk.lanes import Lanes
    from utter_sdk.microphone import InheritedRing
    from utter_sdk.plugin import Plugin


class Service:
    """One plugin being served."""

    def __init__(self, plugin: Plugin, lanes: Lanes) -> None:
        self.plugin = plugin
        self.lanes = lanes
        self.connection: Connection | None = None
        self.start_failed = ""
        """Why the plugin could not start, in one sentence; empty if it could."""
        self.methods = {**plugin.methods, "plugin.describe": Handler("plugin.describe", plugin.describe, None)}
        if plugin.ops:
            self.methods["action.capabilities"] = Handler("action.capabilities", plugin.capabilities, None)
        self.inherited_ring: InheritedRing | None = None
        """The audio ring, if this process inherited it."""
        self._settings: dict[str, Any] | None = None

    def prepare(self) -> None:
        """Resolve all annotations.

        Raises:
            TypeError: one cannot be resolved, or names a type that msgspec cannot decode.
        """
        plugin = self.plugin
        groups = (self.methods, plugin.notifications, plugin.ops, plugin.streams)
        for handler in (*(handler for group in groups for handler in group.values()), *plugin.start_hooks):
            handler.prepare()

    def greeted_connection(self, what: str) -> Connection:
        """The connection to send on.

        Raises:
            RuntimeError: `protocol.hello` has not been answered; the message begins with `what`.
        """
        connection = self.connection
        if connection is None or not connection.greeted:
            raise RuntimeError(f"{what}: protocol.hello has not been answered yet")
        return connection

    def end(self, code: int) -> NoReturn:
        """End the process, from any thread, after the `on_cancel` callbacks."""
        raise NotImplementedError

    def broken(self, connection: Connection) -> None:
        """Hear that nothing can be sent any more."""
        raise NotImplementedError

    def health(self) -> HealthResult:
        """Answer `plugin.health`."""
        if self.start_failed:
            return HealthResult(status="degraded", detail=self.start_failed)
        return self.plugin.current_health

    def start(self, settings: dict[str, Any]) -> None:
        """Run the start hooks, if these settings are new."""
        if settings == self._settings and not self.start_failed:
            return
        self._settings = settings
        self.start_failed = ""
        for hook in self.plugin.start_hooks:
            if hook.is_async:
                self.lanes.spawn(self._run_hook_async(hook, settings))
            elif hook.lane is not None:
                self.lanes.run(hook.lane, partial(self._run_hook, hook, settings))
            else:
                self._run_hook(hook, settings)

    def _run_hook(self, hook: Handler, settings: dict[str, Any]) -> None:
        try:
            hook.function(*hook.convert(settings, ""))
        except SystemExit as stop:
            self.end(exit_code(stop))
        except BaseException as error:  # noqa: BLE001 - a plugin's code may raise anything
            self.fail_start(error)

    async def _run_hook_async(self, hook: Handler, settings: dict[str, Any]) -> None:
        try:
            await hook.function(*hook.convert(settings, ""))
        except SystemExit as stop:
            self.end(exit_code(stop))
        except BaseException as error:  # noqa: BLE001 - a plugin's code may raise anything
            self.fail_start(error)

    def fail_start(self, error: BaseException) -> None:
        """Take note that a start hook has raised."""
        why = error.message if isinstance(error, RpcError) else describe(error)
        self.start_failed = f"{self.plugin.hello.plugin.name} could not start: {why}"
        log(self.start_failed)
        # What it said of itself before, such as that it is loading, is no longer so.
        if self.connection is not None and self.connection.greeted:
            self.connection.notify("plugin.health_changed", self.health())
        if not isinstance(error, RpcError):
            log_traceback(error)
