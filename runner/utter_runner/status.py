"""What `runner.status` answers, put together of what the rooms say of themselves.

Rules here: it is asked for at each change of state, so that nothing here waits, reads a file or calls a plugin.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from utter_protocol import ABI, PROTOCOL
from utter_runner import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from utter_runner.actions.auditing import Auditing
    from utter_runner.clients.api import ClientApi
    from utter_runner.clients.server import ClientServer
    from utter_runner.clients.tokens import TokenStore
    from utter_runner.config import Config
    from utter_runner.operate.notify import ServiceManager
    from utter_runner.policy import OpRegistry
    from utter_runner.recorded import Recorded
    from utter_runner.rpc.endpoint import Endpoint
    from utter_runner.supervision.instance import Instance
    from utter_runner.supervision.sandbox.assurance import Assurance
    from utter_runner.supervision.supervisor import Supervisor
    from utter_runner.voice.build import Voice


class Status:
    """Asks the rooms.

    Args:
        config: returns the configuration that holds now.
        endpoint: where clients connect.
        manager: the service manager.
        supervisor: of the plugins.
        ops: which ops they offer.
        assurance: what of their permissions is enforced.
        voice: hotkeys, microphone and speech.
        api: knows when a client was the key.
        server: counts the clients.
        tokens: of clients.
        auditing: the audit trail.
        recorded: the record of plugins.
        warnings: what was warned of, in the order in which it is told.
    """

    def __init__(
        self,
        *,
        config: Callable[[], Config],
        endpoint: Endpoint,
        manager: ServiceManager,
        supervisor: Supervisor,
        ops: OpRegistry,
        assurance: Assurance,
        voice: Voice,
        api: ClientApi,
        server: ClientServer,
        tokens: TokenStore,
        auditing: Auditing,
        recorded: Recorded,
        warnings: Callable[[], Iterable[str]],
    ) -> None:
        self._config = config
        self._endpoint = endpoint
        self._manager = manager
        self._supervisor = supervisor
        self._ops = ops
        self._assurance = assurance
        self._voice = voice
        self._api = api
        self._server = server
        self._tokens = tokens
        self._auditing = auditing
        self._recorded = recorded
        self._warnings = warnings
        self._started = time.monotonic()

    def plugin(self, instance: Instance) -> dict[str, Any]:
        """Return what it says of one plugin."""
        sandbox = self._assurance.describe(instance.id, instance.permissions)
        return {**instance.status_report(), "ops": list(self._ops.ops(instance.id)), "sandbox": sandbox}

    def runner(self, state: str) -> dict[str, Any]:
        """Return all of it, for a runner in the state `state`."""
        config = self._config()
        return {
            "version": __version__,
            "protocol": PROTOCOL,
            "abi": ABI,
            "pid": os.getpid(),
            "uptime_s": round(time.monotonic() - self._started, 3),
            "state": state,
            "socket_path": str(self._endpoint.path),
            "config": {"path": str(Path(config.path).absolute()), "digest": config.digest},
            "plugins": [self.plugin(instance) for instance in self._supervisor.instances],
            **self._voice.status(self._api.ptt_at),
            "clients": self._server.count,
            "content_logging": config.log.content,
            "audit": {"mode": config.log.audit, **self._auditing.status()},
            **self._recorded.status(),
            "warnings": [*self._warnings(), *self._socket_warnings(), *self._recorded.warnings()],
            "service": {
                "manager": self._manager.present,
                "watchdog_s": self._manager.watchdog,
                "socket_activated": self._endpoint.activated,
            },
        }

    def _socket_warnings(self) -> Iterator[str]:
        if self._tokens.problem is not None:
            yield self._tokens.problem
        if not self._endpoint.in_place():
            yield f"The socket file {self._endpoint.path} is gone or another one lies there: restart the runner."
