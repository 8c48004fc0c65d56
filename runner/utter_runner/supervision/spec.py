"""What the supervisor is told about one plugin, after config entry and manifest were united.

Rules here: plain data; where it came from is the business of whoever built it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import msgspec

from utter_runner.config.describe import without_values

if TYPE_CHECKING:
    from utter_protocol.manifest import Model
    from utter_runner.supervision.sandbox.wrappers import Sandbox


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


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """What a plugin's spec was made of, so that it can be held against what is there when it is started.

    Attributes:
        manifest: the manifest's path; empty without one.
        text_digest: the SHA-256 of the manifest's text, in hexadecimal; empty without one.
        command: the entrypoint that the config gives, as it stands there; empty if the manifest's is run.
        cwd: the working directory that the config gives.
    """

    manifest: str = ""
    text_digest: str = ""
    command: tuple[str, ...] = ()
    cwd: str | None = None


class PluginSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One plugin to run.

    Attributes:
        argv: program and arguments, every placeholder expanded; empty when somebody else starts it.
        socket_path: where runner and plugin meet; empty over stdio.
        spawn: whether the runner starts it, or waits until somebody else has.
        allow_binaries: the executables that may attach as one that somebody else started; None for any of this user.
        env: variables to set on top of the plugin environment; `pass_env` names those passed on as they are.
        secret_env: references to secrets, by the variable that is to hold each; empty once they are in `env`.
        secrets: what must not be logged of it.
        inherits_ring: whether its process inherits the audio ring.
        provides, requires, permissions: what config and manifest state; the handshake's are united with them.
        settings_schema: None when the manifest has none.
        package: the directory of its manifest.
        made_of: where the above comes from.
        visible: files that the config's own entrypoint names; it may read them, whatever its permissions are.
        read_paths, write_paths: what it may read and change beside what its permissions say.
        models: the files that it needs and does not ship; `model_store` is where they are kept, empty if it has none.
        confine: whether it may be put into a sandbox; `sandbox` is the one that it is put into.
    """

    id: str
    argv: tuple[str, ...]
    kind: str = ""
    version: str = ""
    transport: Literal["stdio", "connect", "listen"] = "stdio"
    socket_path: str = ""
    spawn: bool = True
    allow_binaries: tuple[str, ...] | None = None
    cwd: str | None = None
    env: dict[str, str] = {}
    secret_env: dict[str, str] = {}
    pass_env: tuple[str, ...] = ()
    inherits_ring: bool = False
    provides: tuple[str, ...] = ()
    requires: tuple[str, ...] = ()
    permissions: tuple[str, ...] = ()
    restart: Literal["always", "on-failure", "never"] = "always"
    settings: dict[str, Any] = {}
    settings_schema: SettingsSchema | None = None
    secrets: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    package: str | None = None
    made_of: Origin = Origin()
    visible: tuple[str, ...] = ()
    read_paths: tuple[str, ...] = ()
    write_paths: tuple[str, ...] = ()
    models: tuple[Model, ...] = ()
    model_store: str = ""
    confine: bool = True
    sandbox: Sandbox | None = None

    def __repr__(self) -> str:
        return without_values(self, "env", "secret_env", "settings", "secrets")


def same(one: PluginSpec, other: PluginSpec) -> bool:
    """Whether two specs are the same to the plugin.

    Its settings are JSON to it, where 1 is neither true nor 1.0. What people are warned of it does not know.
    """
    return _encoded(one) == _encoded(other)


def _encoded(spec: PluginSpec) -> bytes:
    return msgspec.json.encode(msgspec.structs.replace(spec, warnings=()), order="deterministic")


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
    dial_first: float = 0.01
    dial_most: float = 0.25
    absent_most: float = 2.0
    """The longest pause before a plugin that somebody else starts is dialled again."""
    identify: float = 2.0
    """How long it may take to find out who has connected."""
