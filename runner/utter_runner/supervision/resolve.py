"""From the config's `[[plugin]]` entries to what the supervisor runs: finding manifests and uniting both.

Rules here: what the config says wins over the manifest, lists are united; a plugin that cannot be run is an error that
names its id and why, and never stops the others. Whether the settings fit is looked at in `settings.py`.
"""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from utter_protocol import PROTOCOL
from utter_protocol.inherited import MICROPHONE, RING_CAPABILITY
from utter_protocol.manifest import (
    Manifest,
    ManifestError,
    current_platform,
    expand_entrypoint,
    load_with_text,
    module_command,
    unmet_conditions,
)
from utter_protocol.models import model_name_problems, models_directory, united
from utter_protocol.packages import PackageError, manifest_for, missing_for
from utter_runner import __version__
from utter_runner.rpc.endpoint import EndpointError
from utter_runner.supervision.plugin_socket import socket_path
from utter_runner.supervision.spec import Origin, PluginSpec, SettingsSchema

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from utter_protocol.manifest import Model
    from utter_runner.config import PluginConfig

Runtime = Literal["subprocess", "wasm", "native"]

_NATIVE_REFUSED = (
    'runtime = "native" is refused: code loaded into the runner would share its memory and all its rights, and could '
    'take every other plugin down with it; use "subprocess"'
)


class ResolveError(Exception):
    """A configured plugin cannot be run; the message names it and says why."""


def resolve(
    entry: PluginConfig,
    plugin_dirs: Sequence[str | Path],
    *,
    environ: Mapping[str, str] = os.environ,
    runner_socket: str | None = None,
) -> PluginSpec:
    """Return what to run for one config entry.

    Args:
        entry: the `[[plugin]]` table.
        plugin_dirs: where packages are looked for by id, before those that ship with the runner.
        environ: the runner's environment, which says where plugins' sockets are.
        runner_socket: the configured path of the clients' socket, for the same.

    Raises:
        ResolveError: no manifest and no entrypoint, a bad manifest, no place for its socket, or a plugin that this
            runner cannot run.
    """
    manifest, path, text = _find_manifest(entry, plugin_dirs)
    directory = path.parent if manifest else None
    runtime = entry.runtime or (manifest.runtime if manifest else "subprocess")
    transport = entry.transport or (manifest.transport if manifest else "stdio")
    if runtime == "native":
        raise ResolveError(f"Plugin {entry.id}: {_NATIVE_REFUSED}.")
    if transport == "stdio" and not entry.spawn:
        raise ResolveError(
            f"Plugin {entry.id}: spawn = false needs transport = "
            '"connect" or "listen", for the runner has no pipes to a program that somebody else starts.'
        )
    if manifest is not None:
        _check_conditions(entry, manifest)
    if runtime == "wasm":
        _check_wasm(entry, transport)
    elif entry.memory_mib is not None:
        raise ResolveError(f'Plugin {entry.id}: memory_mib is for runtime = "wasm", and this one is {runtime}.')
    argv = _command(entry, manifest, directory, runtime) if entry.spawn else []
    if argv is None:
        raise ResolveError(_nothing_to_run(entry, plugin_dirs))
    settings = {**(manifest.settings if manifest else {}), **entry.settings}
    requires = _union(manifest.requires if manifest else (), entry.requires)
    permissions = _union(manifest.permissions if manifest else (), entry.permissions)
    wants_ring = transport == "stdio" and RING_CAPABILITY in requires
    no_ring = _no_ring(runtime, permissions) if wants_ring else ""
    models = _models(entry, manifest)
    return PluginSpec(
        id=entry.id,
        argv=tuple(argv),
        kind=entry.kind or (manifest.kind if manifest else ""),
        version=manifest.version if manifest else "",
        transport=transport,
        socket_path="" if transport == "stdio" else _socket_path(entry, environ, runner_socket),
        spawn=entry.spawn,
        allow_binaries=tuple(entry.allow_binaries) if entry.allow_binaries is not None else None,
        cwd=entry.cwd or (str(directory) if directory is not None else None),
        env=entry.env,
        secret_env=entry.secret_env,
        pass_env=tuple(entry.pass_env),
        inherits_ring=wants_ring and not no_ring,
        provides=_union(manifest.provides if manifest else (), entry.provides),
        requires=requires,
        permissions=permissions,
        restart=entry.restart,
        settings=settings,
        settings_schema=(
            SettingsSchema(schema=manifest.config_schema, manifest=str(path), configured=frozenset(entry.settings))
            if manifest is not None and manifest.config_schema
            else None
        ),
        warnings=(*_warnings(entry), *filter(None, [no_ring, _no_models(runtime) if models else ""])),
        package=str(directory.absolute()) if directory is not None else None,
        made_of=Origin(
            manifest=str(path.absolute()) if manifest is not None else "",
            text_digest=hashlib.sha256(text.encode()).hexdigest() if manifest is not None else "",
            command=tuple(entry.entrypoint or ()),
            cwd=entry.cwd,
        ),
        visible=_named_files(argv) if entry.entrypoint is not None else (),
        read_paths=tuple(entry.read_paths),
        write_paths=tuple(entry.write_paths),
        models=models,
        model_store=str(models_directory(environ)) if models else "",
        confine=entry.sandbox,
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


def _no_ring(runtime: Runtime, permissions: Iterable[str]) -> str:
    """Why a plugin over stdio that requires the audio ring does not get it, or nothing."""
    if runtime == "wasm":
        return f'It requires {RING_CAPABILITY}, but a module (runtime = "wasm") cannot be given the audio ring.'
    if MICROPHONE not in permissions:
        return (
            f"It requires {RING_CAPABILITY} and does not get the audio ring, for it lacks the permission "
            f'"{MICROPHONE}". Add that to permissions in its manifest or its [[plugin]] table.'
        )
    return ""


def _models(entry: PluginConfig, manifest: Manifest | None) -> tuple[Model, ...]:
    models = united(manifest.models if manifest else (), entry.models)
    if problems := model_name_problems(models):
        raise ResolveError(f"Plugin {entry.id}: {problems[0][1]}")
    return tuple(models)


def _no_models(runtime: Runtime) -> str:
    if runtime != "wasm":
        return ""
    return 'It names models, but a module (runtime = "wasm") can open no files, and does not get them.'


def _find_manifest(entry: PluginConfig, plugin_dirs: Sequence[str | Path]) -> tuple[Manifest | None, Path, str]:
    """The plugin's manifest, its path and its text; without one, None, the path of nothing and no text."""
    try:
        path = manifest_for(entry.id, entry.manifest, plugin_dirs, own_command=entry.entrypoint is not None)
        if path is None:
            return None, Path(), ""
        manifest, text = load_with_text(path)
    except (PackageError, ManifestError, OSError) as error:
        raise ResolveError(f"Plugin {entry.id}: {error}") from None
    if manifest.name != entry.id:
        raise ResolveError(f"Plugin {entry.id}: the manifest {path} is of a plugin named {manifest.name}.")
    return manifest, path, text


def _check_conditions(entry: PluginConfig, manifest: Manifest) -> None:
    reasons = unmet_conditions(manifest, runner=__version__, protocol=PROTOCOL, platform=current_platform())
    if reasons:
        raise ResolveError(f"Plugin {entry.id}: {' '.join(reasons)}")


def _check_wasm(entry: PluginConfig, transport: str) -> None:
    if transport != "stdio":
        raise ResolveError(f'Plugin {entry.id}: runtime = "wasm" speaks stdio only, and its transport is {transport}.')
    if missing := missing_for("wasm"):
        raise ResolveError(f"Plugin {entry.id}: {missing}")


def _command(
    entry: PluginConfig, manifest: Manifest | None, directory: Path | None, runtime: Runtime
) -> list[str] | None:
    """What starts the plugin; None when neither the config nor a manifest says it."""
    # A module sees the variables that the config names. Their values stay out of what everybody can read.
    options = [word for name in dict.fromkeys((*entry.env, *entry.pass_env)) for word in ("--env", name)]
    if entry.memory_mib is not None:
        options += ["--memory-mib", str(entry.memory_mib)]
    if entry.entrypoint is None:
        if manifest is None or directory is None:
            return None
        return expand_entrypoint(
            msgspec.structs.replace(manifest, runtime=runtime), sys.executable, directory, module_options=options
        )
    argv = _expand(entry, entry.entrypoint, directory)
    if runtime == "wasm":
        # Unlike a program, a module is not looked for in PATH.
        return module_command(sys.executable, [_absolute(entry, argv[0], directory), *argv[1:]], options)
    return argv


def _nothing_to_run(entry: PluginConfig, plugin_dirs: Sequence[str | Path]) -> str:
    looked = ", ".join(map(str, plugin_dirs)) or "no directory"
    return (
        f"Plugin {entry.id}: it has no entrypoint and no manifest, and no plugin of that id ships with the runner or "
        f"lies in {looked}."
    )


def _expand(entry: PluginConfig, entrypoint: Sequence[str], directory: Path | None) -> list[str]:
    """The config's own entrypoint, by the rules of a manifest's."""
    program, *arguments = [word.replace("${PYTHON}", sys.executable) for word in entrypoint]
    return [_absolute(entry, program, directory) if "/" in program else program, *arguments]


def _named_files(argv: Sequence[str]) -> tuple[str, ...]:
    """The files that the user's own command names. A manifest's words are not the user's."""
    return tuple(word for word in argv[1:] if word.startswith("/") and Path(word).is_file())


def _absolute(entry: PluginConfig, path: str, directory: Path | None) -> str:
    """A relative path lies beside the manifest, else in `cwd`."""
    base = directory or entry.cwd
    if base is None and not Path(path).is_absolute():
        raise ResolveError(
            f"Plugin {entry.id}: the program {path} is given relative to nothing; write an absolute path, or "
            "set cwd to the directory that it lies in."
        )
    return str(Path(base or "/").absolute() / path)


def _union(first: Iterable[str], second: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*first, *second)))
