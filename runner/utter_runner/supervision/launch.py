"""Starting a plugin's process with nothing inherited.

Rules here: no trio and nothing else that is slow to import, because the first epoch of every plugin is started before
the daemon has loaded itself, so that both start side by side. No descriptor of the runner is inherited, and only the
variables that are named.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from utter_runner.supervision.spec import PluginSpec

INSTANCE_VARIABLE = "UTTER_INSTANCE"
_INHERITED = ("PATH", "HOME", "USER", "LANG", "XDG_RUNTIME_DIR")


class Launched(NamedTuple):
    """A process that was started: three pipes, and the mark that all its descendants inherit."""

    process: subprocess.Popen[bytes]
    mark: str


class SpawnError(Exception):
    """The program cannot be started; the message names it and says why."""


def plugin_environment(
    environ: Mapping[str, str], instance: str, extra: Mapping[str, str], passed: Sequence[str] = ()
) -> dict[str, str]:
    """Return the environment of a plugin: six variables, and what the config names.

    Args:
        environ: the runner's own environment.
        instance: the mark that every descendant of the instance inherits.
        extra: variables to set (`env` of the plugin's config entry).
        passed: names to pass on as they are (`pass_env`).
    """
    env = {name: environ[name] for name in (*_INHERITED, *passed) if name in environ}
    env.setdefault("PATH", os.defpath)
    env.setdefault("LANG", "C.UTF-8")
    env.update(extra)
    env[INSTANCE_VARIABLE] = instance
    return env


@cache
def _setpriv() -> str | None:
    return shutil.which("setpriv")


def launch(spec: PluginSpec, epoch: int, environ: Mapping[str, str]) -> Launched:
    """Start a plugin's program in a session of its own, with three pipes and no other descriptor.

    It must be called on the main thread: the kernel ties the parent-death signal to the thread that forked.

    Args:
        spec: what to run; the program is looked up in the `PATH` that it will get, and it runs in `cwd` or the home
            directory.
        epoch: which incarnation this is.
        environ: the runner's own environment.

    Raises:
        SpawnError: no such program, not executable, no such directory.
    """
    mark = f"{spec.id}/{epoch}/{os.urandom(8).hex()}"
    env = plugin_environment(environ, mark, spec.env, spec.pass_env)
    directory = spec.cwd or env.get("HOME") or "/"
    program = shutil.which(spec.argv[0], path=env["PATH"])
    if program is None:
        raise SpawnError(f"there is no executable {spec.argv[0]!r} in PATH ({env['PATH']})")
    if not Path(directory).is_dir():
        raise SpawnError(f"the working directory {directory} does not exist")
    # setpriv exists everywhere util-linux does; it asks the kernel to kill the plugin should the runner be killed.
    setpriv = _setpriv()
    prefix = [setpriv, "--pdeathsig", "KILL", "--"] if setpriv else []
    try:
        process = subprocess.Popen(
            [*prefix, program, *spec.argv[1:]],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            env=env,
            cwd=directory,
            start_new_session=True,
        )
    except OSError as error:
        raise SpawnError(f"{program} cannot be started: {error.strerror}") from error
    return Launched(process, mark)
