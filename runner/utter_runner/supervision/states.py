"""The life of a plugin instance as a transition table.

Rules here: the table is data; whoever changes an instance's status goes through `next_status`; the diagram in the docs
is generated from it.
"""

from __future__ import annotations

from typing import Literal, Protocol, TypeAlias

Status: TypeAlias = Literal["waiting", "starting", "ready", "degraded", "backoff", "failed", "stopping", "stopped"]
Event: TypeAlias = Literal["await", "spawn", "admit", "degrade", "recover", "die", "give_up", "stop", "stopped"]

TRANSITIONS: dict[tuple[Status, Event], Status] = {
    ("stopped", "spawn"): "starting",
    ("backoff", "spawn"): "starting",
    ("failed", "spawn"): "starting",
    ("stopped", "await"): "waiting",
    ("backoff", "await"): "waiting",
    ("failed", "await"): "waiting",
    ("waiting", "spawn"): "starting",
    ("starting", "admit"): "ready",
    ("ready", "degrade"): "degraded",
    ("degraded", "recover"): "ready",
    # It is as it was, for another reason.
    ("degraded", "degrade"): "degraded",
    ("ready", "recover"): "ready",
    ("starting", "die"): "backoff",
    ("ready", "die"): "backoff",
    ("degraded", "die"): "backoff",
    ("backoff", "give_up"): "failed",
    ("starting", "give_up"): "failed",
    ("waiting", "give_up"): "failed",
    ("waiting", "stop"): "stopping",
    ("starting", "stop"): "stopping",
    ("ready", "stop"): "stopping",
    ("degraded", "stop"): "stopping",
    ("backoff", "stop"): "stopping",
    ("failed", "stop"): "stopping",
    ("stopped", "stop"): "stopping",
    ("stopping", "stopped"): "stopped",
}

RUNNING: frozenset[Status] = frozenset({"ready", "degraded"})
GONE: frozenset[Status] = frozenset({"waiting", "failed", "stopping", "stopped"})
"""The runner does not bring these back: it has given them up, or somebody else starts them."""


def next_status(status: Status, event: Event) -> Status:
    """Return the status after `event`.

    Raises:
        ValueError: the table has no such transition; a defect of the caller.
    """
    try:
        return TRANSITIONS[status, event]
    except KeyError:
        raise ValueError(f"a plugin that is {status} cannot {event}") from None


class Living(Protocol):
    """What has a status."""

    @property
    def status(self) -> Status:
        """Where it is in its life."""

    @property
    def running(self) -> bool:
        """Whether requests may be sent to it."""

    @property
    def returning(self) -> bool:
        """Whether it is stopped only to be started again at once."""


def is_gone(plugin: Living) -> bool:
    """Whether the runner does not bring it back."""
    return plugin.status in GONE and not (plugin.returning and plugin.status in {"stopping", "stopped"})


def readiness(plugin: Living) -> int:
    """Order plugins by how soon they can serve: the running, those coming up, the others."""
    if plugin.running:
        return 0
    return 2 if is_gone(plugin) else 1


def diagram() -> str:
    """Return the table as a Mermaid state diagram."""
    lines = ["stateDiagram-v2", "    [*] --> stopped"]
    lines += [f"    {status} --> {target}: {event}" for (status, event), target in TRANSITIONS.items()]
    return "\n".join(lines)
