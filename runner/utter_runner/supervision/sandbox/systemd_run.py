"""The arguments of `systemd-run`: a plugin in a cgroup of its own, with bounds.

Rules here: pure composition. A scope can be bounded, counted and killed as a whole; the properties with which systemd
confines services are not there for scopes, so this wrapper alone enforces no permission.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_TASKS = 1024
"""Processes and threads of one plugin (PROTOCOL.md, "Bounds": `max_tasks`)."""

_UNSAFE = re.compile(r"[^A-Za-z0-9:_.]")


def scope_name(plugin: str, key: str) -> str:
    """The unit of one epoch of a plugin. `-` separates the parts of a unit's name, so that it is escaped in an id."""
    escaped = _UNSAFE.sub(lambda found: f"\\x{ord(found[0]):02x}", plugin)
    return f"utter-{escaped}-{key}.scope"


def systemd_run_argv(program: str, plugin: str, key: str, argv: Sequence[str]) -> list[str]:
    """Return what starts `argv` in a scope of its own.

    Args:
        program: path of systemd-run.
        plugin: the plugin's id.
        key: tells this epoch from all others.
        argv: what to run; it becomes this very process.
    """
    options = ["--user", "--scope", "--quiet", "--collect", f"--unit={scope_name(plugin, key)}"]
    return [program, *options, f"--property=TasksMax={MAX_TASKS}", "--property=OOMPolicy=continue", "--", *argv]
