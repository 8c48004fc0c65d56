"""What the supervisor is told about one plugin, after config entry and manifest were united.

Rules here: plain data; where it came from is the business of whoever built it.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec


class SettingsSchema(msgspec.Struct, frozen=True, kw_only=True):
    """What a plugin's settings have to fit.

    Attributes:
        schema: the `config_schema` of its manifest.
        manifest: the manifest's path.
        configured: the settings that are the config's own; the others are the manifest's.
    """

    schema: dict[str, Any]
    manifest: str
    configured: frozenset[str]


class PluginSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One plugin to run.

    Attributes:
        argv: program and arguments, every placeholder expanded.
        env: variables to set on top of the plugin environment; `pass_env` names those passed on as they are.
        provides, requires, permissions: what config and manifest state; the handshake's are united with them.
        settings_schema: None when the manifest has none.
    """

    id: str
    argv: tuple[str, ...]
    kind: str = ""
    version: str = ""
    transport: Literal["stdio"] = "stdio"
    cwd: str | None = None
    env: dict[str, str] = {}
    pass_env: tuple[str, ...] = ()
    provides: tuple[str, ...] = ()
    requires: tuple[str, ...] = ()
    permissions: tuple[str, ...] = ()
    restart: Literal["always", "on-failure", "never"] = "always"
    settings: dict[str, Any] = {}
    settings_schema: SettingsSchema | None = None
    warnings: tuple[str, ...] = ()


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds of supervision, in seconds (PROTOCOL.md, "Bounds")."""

    handshake: float = 10.0
    health_interval: float = 30.0
    health_timeout: float = 5.0
    stop: float = 2.0
    backoff_first: float = 0.2
    backoff_most: float = 30.0
    healthy_after: float = 60.0
    restart_window: float = 60.0
    restarts_in_window: int = 5
