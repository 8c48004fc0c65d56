"""From the config's `[[plugin]]` entries to what the supervisor runs: finding manifests and uniting both.

Rules here: what the config says wins over the manifest, lists are united; a plugin that cannot be run is an error that
names its id and why, and never stops the others.
"""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from utter_protocol import PROTOCOL
from utter_protocol.manifest import (
    Manifest,
    ManifestError,
    current_platform,
    expand_entrypoint,
    load_manifest,
    platform_condition,
    protocol_condition,
    runner_condition,
)
from utter_runner import __version__
from utter_runner.rpc.endpoint import EndpointError
from utter_runner.supervision.plugin_socket import socket_path
from utter_runner.supervision.spec import PluginSpec

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from utter_runner.config import PluginConfig

MANIFEST_NAME = "utter-plugin.toml"
_NATIVE_REFUSED = (
    'runtime = "native" is refused: code loaded into the runner would share its memory and all its rights, and could '
    'take every other plugin down with it; use "subprocess"'
)


class ResolveError(Exception):
    """A configured plugin cannot be run; the message names it and says why."""


def bundled_directory() -> Path | None:
    """Return the directory of the plugins that ship with the runner, or None when they are not installed."""
    spec = find_spec("utter_plugins")
    locations = list(spec.submodule_search_locations or ()) if spec else []
    return Path(locations[0]) if locations else None


def resolve(
    entry: PluginConfig,
    plugin_dirs: Sequence[str],
    *,
    environ: Mapping[str, str] = os.environ,
    runner_socket: str | None = None,
) -> PluginSpec:
    """Return what to run for one config entry.

    Args:
        entry: the `[[plugin]]` entry.
        plugin_dirs: directories that hold plugin packages.
        environ: the runner's environment, which says where plugins' sockets are.
        runner_socket: the configured path of the clients' socket, for the same.

    Raises:
        ResolveError: no manifest and no entrypoint, a bad manifest, no place for its socket, or a plugin that this
            runner cannot run.
    """
    manifest, directory = _find_manifest(entry, plugin_dirs)
    runtime = entry.runtime or (manifest.runtime if manifest else "subprocess")
    transport = entry.transport or (manifest.transport if manifest else "stdio")
    if runtime == "native":
        raise ResolveError(f"Plugin {entry.id}: {_NATIVE_REFUSED}.")
    if runtime != "subprocess":
        raise ResolveError(f"Plugin {entry.id}: this runner does not run runtime {runtime!r}.")
    if transport == "stdio" and not entry.spawn:
        raise ResolveError(
            f"Plugin {entry.id}: spawn = false needs transport = "
            '"connect" or "listen", for the runner has no pipes to a program that somebody else starts.'
        )
    if manifest is not None:
        _check_conditions(entry, manifest)
    manifest_settings = manifest.settings if manifest else {}
    return PluginSpec(
        id=entry.id,
        argv=tuple(_argv(entry, manifest, directory)) if entry.spawn else (),
        kind=entry.kind or (manifest.kind if manifest else ""),
        version=manifest.version if manifest else "",
        transport=transport,
        socket_path="" if transport == "stdio" else _socket_path(entry, environ, runner_socket),
        spawn=entry.spawn,
        allow_binaries=tuple(entry.allow_binaries) if entry.allow_binaries is not None else None,
        cwd=entry.cwd or (str(directory) if directory is not None else None),
        env=entry.env,
        pass_env=tuple(entry.pass_env),
        provides=_union(manifest.provides if manifest else (), entry.provides),
        requires=_union(manifest.requires if manifest else (), entry.requires),
        permissions=_union(manifest.permissions if manifest else (), entry.permissions),
        restart=entry.restart,
        settings={**manifest_settings, **entry.settings},
        warnings=tuple(_warnings(entry)),
    )


def _argv(entry: PluginConfig, manifest: Manifest | None, directory: Path | None) -> list[str]:
    if entry.entrypoint:
        return _expand(entry, entry.entrypoint, directory)
    if manifest is not None and directory is not None:
        return expand_entrypoint(manifest, sys.executable, directory)
    raise ResolveError(
        f"Plugin {entry.id}: it has no entrypoint and no manifest, and no plugin of that id ships with the runner."
    )


def _socket_path(entry: PluginConfig, environ: Mapping[str, str], runner_socket: str | None) -> str:
    try:
        return str(socket_path(entry.id, environ, runner_socket))
    except EndpointError as error:
        raise ResolveError(f"Plugin {entry.id}: {error}") from None


def _warnings(entry: PluginConfig) -> Iterator[str]:
    if not entry.spawn and entry.allow_binaries is None:
        yield "Every program of this user may attach as this plugin: it has spawn = false and no allow_binaries."
    if entry.spawn and entry.allow_binaries is not None:
        yield "allow_binaries has no effect: it is for plugins with spawn = false."


def _find_manifest(entry: PluginConfig, plugin_dirs: Sequence[str]) -> tuple[Manifest | None, Path | None]:
    if entry.manifest is not None:
        path = Path(entry.manifest).expanduser()
        return _load(entry.id, path / MANIFEST_NAME if path.is_dir() else path)
    if entry.entrypoint is not None:
        return None, None
    bundled = bundled_directory()
    directories = [Path(one).expanduser() for one in plugin_dirs] + ([bundled] if bundled else [])
    for directory in directories:
        path = directory / entry.id / MANIFEST_NAME
        if path.is_file():
            return _load(entry.id, path)
    return None, None


def _load(plugin: str, path: Path) -> tuple[Manifest, Path]:
    try:
        manifest = load_manifest(path)
    except ManifestError as error:
        raise ResolveError(f"Plugin {plugin}: {error}") from None
    if manifest.name != plugin:
        raise ResolveError(f"Plugin {plugin}: the manifest {path} is of a plugin named {manifest.name}.")
    return manifest, path.parent


def _check_conditions(entry: PluginConfig, manifest: Manifest) -> None:
    # Not the manifest's runtime: the config may have put another in its place, and it was looked at already.
    reasons = (
        platform_condition(manifest, current_platform()),
        runner_condition(manifest, __version__),
        protocol_condition(manifest, PROTOCOL),
    )
    if any(reasons):
        raise ResolveError(f"Plugin {entry.id}: {' '.join(filter(None, reasons))}")


def _expand(entry: PluginConfig, entrypoint: Sequence[str], directory: Path | None) -> list[str]:
    """The config's own entrypoint, by the rules of a manifest's."""
    program, *arguments = [word.replace("${PYTHON}", sys.executable) for word in entrypoint]
    if "/" in program and not Path(program).is_absolute():
        base = directory or entry.cwd
        if base is None:
            raise ResolveError(
                f"Plugin {entry.id}: the program {program} is given relative to nothing; write an absolute path, or "
                "set cwd to the directory that it lies in."
            )
        program = str(Path(base).absolute() / program)
    return [program, *arguments]


def _union(first: Iterable[str], second: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*first, *second)))
