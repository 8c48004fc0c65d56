"""From the configuration to plugins that are confined: which sandbox, for whom, and who is not run without one.

Rules here: with `[security] enforce = true` a plugin that the runner starts is confined, or switched off from being so
by its own `sandbox = false`, with a warning, or not run at all. No one is run unconfined because something is missing.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from utter_protocol.state import state_directory
from utter_runner.rpc.endpoint import EndpointError, check_length
from utter_runner.supervision.sandbox.wrappers import NoSandboxError, find_sandbox

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from utter_runner.config import Config
    from utter_runner.supervision.spec import PluginSpec

_BARE_LANDLOCK = (
    "It may read your home directory, and Landlock alone keeps nothing back in there: it can read the runner's "
    'configuration and secrets, too. Install the package "bubblewrap".'
)
_REACHES_OUT = {
    "session.bus": "it can ask other programs over the session bus, systemd among them, to do what the sandbox refuses",
    "files.write": "it can change files that are run outside of the sandbox, such as those of your shell and session",
    "screen": "it can read and, on X11, drive every other window",
}


def confine(
    specs: Sequence[PluginSpec], config: Config, environ: Mapping[str, str], secret_files: Sequence[str] = ()
) -> tuple[list[PluginSpec], list[str]]:
    """Return the plugins to run, with their sandboxes, and a sentence for everything that cannot be run.

    Args:
        specs: the plugins.
        config: says whether, and in what.
        environ: the runner's.
        secret_files: the files that the plugins' secrets were read from, besides those of `config`.
    """
    if not config.security.enforce:
        return list(specs), []
    try:
        sandbox = find_sandbox(config.security.sandbox, environ, hidden_files(config, environ, secret_files))
    except NoSandboxError as error:
        why = f"[security] enforce = true, and {error}"
        return (
            [_unconfined(one) for one in specs if not _confinable(one)],
            [f"Plugin {one.id} is not run: {why}." for one in specs if _confinable(one)],
        )
    confined, problems = [], []
    for spec in specs:
        if not _confinable(spec):
            confined.append(_unconfined(spec))
            continue
        try:
            path = _private_path(spec)
        except EndpointError as error:
            problems.append(f"Plugin {spec.id}: {error}")
            continue
        warnings = (
            f"It has the permission {name}: {what}." for name, what in _REACHES_OUT.items() if name in spec.permissions
        )
        bare = "bubblewrap" not in sandbox.wrappers and {"files.read", "files.write"} & set(spec.permissions)
        more = (*spec.warnings, *warnings, *([_BARE_LANDLOCK] if bare else []))
        confined.append(msgspec.structs.replace(spec, sandbox=sandbox, socket_path=path, warnings=more))
    return confined, problems


def _confinable(spec: PluginSpec) -> bool:
    return spec.spawn and spec.confine


def _unconfined(spec: PluginSpec) -> PluginSpec:
    why = "its [[plugin]] table says sandbox = false" if spec.spawn else "somebody else starts it (spawn = false)"
    warning = f"No sandbox holds it, although [security] enforce = true: {why}. It has all of your rights."
    return msgspec.structs.replace(spec, warnings=(*spec.warnings, warning))


def _private_path(spec: PluginSpec) -> str:
    """The socket of a plugin that listens lies in a directory of its own, so that it cannot take another's place."""
    if spec.transport != "listen":
        return spec.socket_path
    path = Path(spec.socket_path)
    private = path.parent / spec.id / path.name
    check_length(private, 'Give the plugin a shorter id, or use transport = "stdio".')
    return str(private)


def hidden_files(config: Config, environ: Mapping[str, str], secret_files: Sequence[str] = ()) -> tuple[str, ...]:
    """What the runner keeps for itself: its configuration, which may hold a token, its secrets, and its state.

    Each under the name that it is known by and, where that is a link or lies behind one, where it is.
    """
    configuration = (str(Path(config.path).absolute()),) if config.path else ()
    named = (*configuration, *config.secret_files, *secret_files, str(state_directory(environ)))
    return tuple(dict.fromkeys(name for one in named for name in (one, os.path.realpath(one))))
