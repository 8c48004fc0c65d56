"""The audit trail as the configuration wants it: begun when it is wanted for the first time, and kept from then on.

Rules here: with the same trail its file is locked once, and what waits to be written is written, whatever is reloaded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from utter_runner.actions.audit import AuditTrail
from utter_runner.actions.audit_file import AuditFile

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import trio

    from utter_runner.config import LogConfig


class Auditing:
    """Has the one trail, if there is one.

    Args:
        directory: where its files lie.
        log: the section of the configuration that holds.
        warn: told of what goes wrong, and of its end.
    """

    def __init__(self, directory: Path, log: LogConfig, warn: Callable[[str], None]) -> None:
        self._directory = directory
        self._warn = warn
        self._trail: AuditTrail | None = None
        self._nursery: trio.Nursery | None = None
        self.auditor: AuditTrail | None = None
        self.reconfigure(log)

    async def begin(self, nursery: trio.Nursery) -> None:
        """Have the trail written in `nursery`; return when it is open, or has said why it is not."""
        self._nursery = nursery
        if self._trail is not None:
            await nursery.start(self._trail.run)

    def reconfigure(self, log: LogConfig) -> AuditTrail | None:
        """Return the trail as it is to be from now on, None for none."""
        required = log.audit == "required"
        if log.audit == "off":
            self.auditor = None
        elif self._trail is None:
            self.auditor = self._begin(log, required=required)
        else:
            self.auditor = self._trail
            self._trail.reconfigure(required=required, content=log.content, limit=log.audit_bytes)
        return self.auditor

    def status(self) -> dict[str, Any]:
        """What `runner.status` says of it beside its mode."""
        return self.auditor.status() if self.auditor is not None else {}

    def _begin(self, log: LogConfig, *, required: bool) -> AuditTrail:
        file = AuditFile(self._directory, log.audit_bytes)
        self._trail = AuditTrail(file, required=required, content=log.content, warn=self._warn)
        if self._nursery is not None:
            self._nursery.start_soon(self._trail.run)
        return self._trail
