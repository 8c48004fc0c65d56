"""The payloads with which clients change what a runner does: `runner.control` and `runner.reload`.

Rules here: Structs only; PROTOCOL.md says what each field means.
"""

from __future__ import annotations

from typing import Literal

import msgspec


class ControlParams(msgspec.Struct, kw_only=True):
    """`runner.control`: what is to become of a plugin, and how long to wait for that."""

    plugin: str
    action: Literal["start", "stop", "restart"]
    timeout_ms: int | None = None


class PluginChanges(msgspec.Struct, kw_only=True):
    """The ids of plugins that a reload has started, stopped for good, and started anew."""

    added: list[str] = []
    removed: list[str] = []
    restarted: list[str] = []


class ReloadResult(msgspec.Struct, kw_only=True):
    """`runner.reload`.

    Attributes:
        ok: whether the configuration is in effect now; if not, nothing has changed.
        changed: keys that are others than before, such as "voice.language"; what is in [[plugin]] is in `plugins`.
        needs_restart: keys that are others in the file and take effect when the runner is started again.
        problems: why it was refused, each with file and line; with `ok`, why plugins still cannot be run.
    """

    ok: bool
    changed: list[str] = []
    plugins: PluginChanges = msgspec.field(default_factory=PluginChanges)
    needs_restart: list[str] = []
    problems: list[str] = []
