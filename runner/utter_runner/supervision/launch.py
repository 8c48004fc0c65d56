"""Starting a plugin's process with nothing inherited but what was made for it.

Rules here: no trio and nothing else that is slow to import, because the first epoch of every plugin is started before
the daemon has loaded itself, so that both start side by side. No descriptor of the runner is inherited but those that
are handed in for this one process, and only the variables that are named. A plugin that connects finds its socket: it
is made before the process.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from utter_protocol.models import MODELS_VARIABLE, plugin_models
from utter_runner.rpc.endpoint import Endpoint, EndpointError, make_directory, remove_stale
from utter_runner.supervision.scratch import Scratch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from utter_runner.supervision.spec import PluginSpec

INSTANCE_VARIABLE = "UTTER_INSTANCE"
SOCKET_VARIABLE = "UTTER_PLUGIN_SOCKET"
_INHERITED = ("PATH", "HOME", "USER", "LANG", "XDG_RUNTIME_DIR")


class Launched(NamedTuple):
    """A process that was started, the mark that all its descendants inherit, and its temporary directory.

    Over stdio it has three pipes. Over a socket it has two, stdout and stderr being one, and with `connect` the
    listening `endpoint`, which may be that of an earlier epoch.
    """

    process: subprocess.Popen[bytes]
    mark: str
    tmp: Scratch
    """Its temporary directory, to be removed when it is gone."""
    endpoint: Endpoint | None = None
    wrapped: bool = False
    """Whether a wrapper stands before it, whose exit code is 128 and the number of the signal that ended the plugin."""


class Inherited(NamedTuple):
    """Descriptors that one process is to inherit beside its pipes, for one epoch.

    Attributes:
        fds: by the variable in which the process finds the number; whoever starts it closes them when it has them.
        end: to be called once, when the epoch is over, or when there will be none.
    """

    fds: Mapping[str, int]
    end: Callable[[], object]


NOTHING = Inherited({}, lambda: None)


class SpawnError(Exception):
    """The program cannot be started; the message names it and says why."""


def plugin_environment(
    environ: Mapping[str, str], instance: str, extra: Mapping[str, str], passed: Sequence[str] = (), socket: str = ""
) -> dict[str, str]:
    """Return the environment of a plugin: seven variables, the path of its socket, and what the config names.

    Args:
        environ: the runner's own environment.
        instance: the mark that every descendant of the instance inherits.
        extra: variables to set (TMPDIR, and `env` of the plugin's config entry).
        passed: names to pass on as they are (`pass_env`).
        socket: path of the plugin's socket; empty over stdio.
    """
    env = {name: environ[name] for name in (*_INHERITED, *passed) if name in environ}
    env.setdefault("PATH", os.defpath)
    env.setdefault("LANG", "C.UTF-8")
    env.update(extra)
    env[INSTANCE_VARIABLE] = instance
    if socket:
        env[SOCKET_VARIABLE] = socket
    return env


@cache
def _setpriv() -> str | None:
    return shutil.which("setpriv")


def listen_for(spec: PluginSpec) -> Endpoint:
    """Make the socket that a plugin with the transport `connect` dials.

    Raises:
        SpawnError: it cannot be made; the message names the path.
    """
    try:
        return Endpoint(Path(spec.socket_path), f"give the plugin another id than {spec.id}")
    except EndpointError as error:
        raise SpawnError(str(error)) from None


def make_way(spec: PluginSpec) -> None:
    """Make the directory in which a plugin with the transport `listen` makes its socket, and remove a stale one.

    Raises:
        SpawnError: something else is in the way, or somebody listens there.
    """
    path = Path(spec.socket_path)
    try:
        make_directory(path.parent)
        remove_stale(path, f"give the plugin another id than {spec.id}")
    except EndpointError as error:
        raise SpawnError(str(error)) from None


def launch(
    spec: PluginSpec,
    epoch: int,
    environ: Mapping[str, str],
    endpoint: Endpoint | None = None,
    fds: Mapping[str, int] = NOTHING.fds,
) -> Launched:
    """Start a plugin's program in a session of its own, with pipes for 0, 1 and 2 and no descriptor that is not named.

    It must be called on the main thread: the kernel ties the parent-death signal to the thread that forked.

    Args:
        spec: what to run; the program is looked up in the `PATH` that it will get, and it runs in `cwd` or the home
            directory.
        epoch: which incarnation this is.
        environ: the runner's own environment.
        endpoint: what a plugin with the transport `connect` dials, if it was made for an earlier epoch.
        fds: what it inherits beside its pipes, by the variable that names the number; they stay the caller's.

    Raises:
        SpawnError: no such program, not executable, no such directory, or its socket or temporary directory cannot be
            made.
    """
    key = os.urandom(16).hex()
    mark = f"{spec.id}/{epoch}/{key}"
    if spec.transport == "listen":
        make_way(spec)
    made = (endpoint or listen_for(spec)) if spec.transport == "connect" else None
    tmp: Scratch | None = None
    try:
        tmp = _make_tmp(spec, environ)
        wrapped = spec.sandbox is not None and "bubblewrap" in spec.sandbox.wrappers
        return Launched(_spawn(spec, mark, tmp.path, environ, fds), mark, tmp, made, wrapped)
    except SpawnError:
        if tmp is not None:
            tmp.remove()
        if made is not None and made is not endpoint:
            made.close()
        raise


def _make_tmp(spec: PluginSpec, environ: Mapping[str, str]) -> Scratch:
    try:
        return Scratch(spec.id, environ)
    except OSError as error:
        text = f"its temporary directory {error.filename} cannot be made: {error.strerror}"
        raise SpawnError(text) from None


def abandon(launched: Launched) -> None:
    """End a process that nobody can watch over, with all that was made for it but its endpoint."""
    process = launched.process
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            stream.close()
    launched.tmp.remove()


def _spawn(
    spec: PluginSpec, mark: str, tmp: str, environ: Mapping[str, str], fds: Mapping[str, int]
) -> subprocess.Popen[bytes]:
    own = {"TMPDIR": tmp}
    if spec.models:
        own[MODELS_VARIABLE] = str(plugin_models(Path(spec.model_store), spec.id))
    env = plugin_environment(environ, mark, {**own, **spec.env}, spec.pass_env, spec.socket_path)
    env.update({name: str(fd) for name, fd in fds.items()})
    directory = spec.cwd or env.get("HOME") or "/"
    program = shutil.which(spec.argv[0], path=env["PATH"])
    if program is None:
        raise SpawnError(f"there is no executable {spec.argv[0]!r} in PATH ({env['PATH']})")
    if not Path(directory).is_dir():
        raise SpawnError(f"the working directory {directory} does not exist")
    # setpriv exists everywhere util-linux does; it asks the kernel to kill the plugin should the runner be killed.
    setpriv = _setpriv()
    prefix = [setpriv, "--pdeathsig", "KILL", "--"] if setpriv else []
    command = [*prefix, program, *spec.argv[1:]]
    if spec.sandbox is not None:
        # Not loaded where nobody wants a sandbox.
        from utter_runner.supervision.sandbox.compose import confined_command  # noqa: PLC0415 - see above

        program = str(Path(program).absolute())
        command = confined_command(spec, program, tmp, environ, directory=directory, tie=prefix, taken=[*fds.values()])
    try:
        return subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # What a plugin prints is for the log as well where it is no frame.
            stderr=subprocess.PIPE if spec.transport == "stdio" else subprocess.STDOUT,
            bufsize=0,
            env=env,
            cwd=directory,
            start_new_session=True,
            # They become inheritable in the child, after the fork; here they stay close-on-exec.
            pass_fds=tuple(fds.values()),
        )
    except OSError as error:
        raise SpawnError(f"{program} cannot be started: {error.strerror}") from error
