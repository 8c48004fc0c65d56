"""Starts a program that outlives the plugin, and sees whether it failed at once.

Rules here: argument vectors only, never a shell. The program gets its own session and /dev/null for all three standard
streams: a pipe of ours would break under it, and standard output belongs to the wire. Where a systemd user manager
runs, the program moves into a scope of its own, so that stopping the runner's unit does not stop it. The only state is
the thread for each child that reaps it.
"""

from __future__ import annotations

import os
import re
import select
import shlex
import shutil
import subprocess
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from .failure import Failure

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from .entries import Entry

# An application is up when it lives this long; one that cannot start (no display, a missing library) is gone by then.
APP_WATCH_S = 0.25
# An opener usually hands over to a running browser and ends; where it becomes the browser it stays.
OPENER_WATCH_S = 1.0
# Variables that tell a plugin about its runner are none of the application's business.
# `UTTER_INSTANCE` moreover marks what the runner kills together with the plugin.
_PRIVATE_PREFIX = "UTTER_"
_UNSAFE_IN_UNIT = re.compile(rb"[^A-Za-z0-9:_.]")
_ID_CHARS_IN_UNIT = 50


def child_env(env: Mapping[str, str]) -> dict[str, str]:
    """The environment for a launched program: ours without the runner's own variables."""
    return {key: value for key, value in env.items() if not key.startswith(_PRIVATE_PREFIX)}


def escape_unit(text: str) -> str:
    """A string made safe for one part of a unit name, as systemd-escape(1) does it; "-" separates the parts."""
    return _UNSAFE_IN_UNIT.sub(lambda match: f"\\x{match[0][0]:02x}".encode(), text.encode()).decode()


def scope_prefix(app: str, env: Mapping[str, str]) -> list[str]:
    """The argv prefix that moves a program into a scope of its own, or [] where no systemd user manager runs.

    The unit is named `app-utter-ID-RANDOM.scope` (https://systemd.io/DESKTOP_ENVIRONMENTS).
    """
    runtime = env.get("XDG_RUNTIME_DIR", "")
    if not runtime or not (Path(runtime) / "systemd/private").exists():
        return []
    program = shutil.which("systemd-run", path=env.get("PATH", os.defpath))
    if program is None:
        return []
    unit = f"app-utter-{escape_unit(app[:_ID_CHARS_IN_UNIT])}-{os.urandom(4).hex()}.scope"
    return [program, "--user", "--scope", "--quiet", "--collect", "--slice=app.slice", f"--unit={unit}", "--"]


def terminal_prefix(terminal: list[str], env: Mapping[str, str]) -> list[str]:
    """The argv prefix that opens a terminal emulator around a program.

    `terminal` is the plugin's setting and wins; then `xdg-terminal-exec`, then `$TERMINAL -e`.

    Raises:
        Failure: there is none of them.
    """
    if terminal:
        return terminal
    path = env.get("PATH", os.defpath)
    if shutil.which("xdg-terminal-exec", path=path):
        return ["xdg-terminal-exec"]
    try:
        chosen = shlex.split(env.get("TERMINAL", ""))
    except ValueError:
        chosen = []
    if chosen and shutil.which(chosen[0], path=path):
        return [*chosen, "-e"]
    raise Failure(
        "This application needs a terminal window, and none is configured. Install xdg-terminal-exec, or set "
        'terminal = ["foot"] in the settings of the desktop plugin.'
    )


def app_argv(entry: Entry, terminal: list[str], env: Mapping[str, str]) -> list[str]:
    """The argv that starts an entry, its terminal included; without the scope.

    Raises:
        Failure: see `terminal_prefix`.
    """
    return [*terminal_prefix(terminal, env), *entry.argv] if entry.terminal else entry.argv


def start_detached(
    argv: list[str],
    *,
    app: str,
    env: Mapping[str, str],
    cwd: str | None = None,
    watch_s: float = APP_WATCH_S,
    on_late_end: Callable[[int], object] = lambda _status: None,
) -> int | None:
    """Start a program and watch it for `watch_s` seconds.

    Args:
        argv: the program and its arguments.
        app: what its scope is named after.
        env: where it is looked up, and what it gets of it.
        cwd: where it starts; None: here.
        watch_s: how long it is waited for.
        on_late_end: called with its exit status when it ends after that time, on a thread of its own.

    Returns:
        Its exit status when it ended within that time (negative: killed by that signal), None when it still runs.

    Raises:
        Failure: it could not be executed.
    """
    try:
        # Not a context manager: the child is meant to stay, and the thread below reaps it.
        child = subprocess.Popen(  # noqa:RUF100 - see above
            [*scope_prefix(app, env), *argv],
            env=child_env(env),
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError as error:
        raise Failure(f"{argv[0]} could not be started: {error.strerror or error}.") from error
    if _ended_within(child.pid, watch_s):
        return child.wait()
    threading.Thread(target=lambda: on_late_end(child.wait()), name=f"reap {app}", daemon=True).start()
    return None


def _ended_within(pid: int, seconds: float) -> bool:
    pidfd = os.pidfd_open(pid)
    try:
        poller = select.poll()
        poller.register(pidfd, select.POLLIN)
        return bool(poller.poll(seconds * 1000))
    finally:
        os.close(pidfd)
