"""The real daemon as a real process, on a socket of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from utter_sdk.client import Client

HOSTILE = Path(__file__).with_name("hostile_plugin.py")
ASKING = Path(__file__).with_name("asking_plugin.py")
SOURCE = Path(__file__).with_name("stream_source.py")
ECHO = Path(__file__).parents[1] / "bench" / "echo_plugin.py"

QUIET = """
[audio]
source = "none"
cues = false
[hotkeys]
enabled = false
"""


def hostile(name: str, *behaviour: str, transport: str = "stdio", extra: str = "") -> str:
    """A `[[plugin]]` entry that runs the hostile plugin over `stdio`, `connect` or `listen`."""
    words = ", ".join(map(_quoted, hostile_argv(name, *behaviour, transport=transport)))
    return f'[[plugin]]\nid = "{name}"\ntransport = "{transport}"\nentrypoint = [{words}]\n{extra}\n'


def external(name: str, *, transport: str = "connect", extra: str = "") -> str:
    """A `[[plugin]]` entry for a plugin that the test starts: see `External`."""
    return f'[[plugin]]\nid = "{name}"\ntransport = "{transport}"\nspawn = false\n{extra}\n'


def hostile_argv(name: str, *behaviour: str, transport: str = "stdio") -> list[str]:
    """How the hostile plugin is started."""
    how = [] if transport == "stdio" else [f"transport={transport}"]
    return [sys.executable, "-S", "-E", str(HOSTILE), name, *how, *behaviour]


class External:
    """A hostile plugin that the runner did not start; a context manager that kills it.

    It goes on trying until somebody is there, and waits for the next connection when one has ended.

    Args:
        name: the plugin's id.
        behaviour: as for `hostile`.
        transport: `connect` or `listen`.
        env: an environment with XDG_RUNTIME_DIR, such as `Daemon.env`, or with UTTER_PLUGIN_SOCKET.
    """

    def __init__(self, name: str, *behaviour: str, transport: str = "connect", env: Mapping[str, str]) -> None:
        self._argv = hostile_argv(name, "stay", *behaviour, transport=transport)
        self._env = dict(env)
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def start(self) -> None:
        """Start it. It has not connected when this returns."""
        self.process = subprocess.Popen(self._argv, env=self._env, stdin=subprocess.DEVNULL)

    def kill(self) -> None:
        """Kill it, unless that was done."""
        if self.process is not None:
            self.process.kill()
            self.process.wait(timeout=30)
            self.process = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


def asking(name: str, script: Mapping[str, object], extra: str = "") -> str:
    """A `[[plugin]]` entry that runs the asking plugin."""
    words = ", ".join(json.dumps(word) for word in (sys.executable, "-S", "-E", str(ASKING), name, json.dumps(script)))
    return f'[[plugin]]\nid = "{name}"\nentrypoint = [{words}]\n{extra}\n'


def source(name: str = "source", *behaviour: str, extra: str = "") -> str:
    """A `[[plugin]]` entry that runs the plugin with streams."""
    words = ", ".join(_quoted(word) for word in (sys.executable, "-S", "-E", str(SOURCE), name, *behaviour))
    return f'[[plugin]]\nid = "{name}"\nentrypoint = [{words}]\n{extra}\n'


def _quoted(word: str) -> str:
    return "'" + word + "'"


def environment(runtime: Path, **more: str) -> dict[str, str]:
    """An environment in which nothing of this machine's user shows."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("XDG_", "UTTER_", "DBUS_"))}
    # The width is that of the terminal in which the tests run.
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "COLUMNS", "LINES"):
        env.pop(name, None)
    home, scratch = runtime / "home", runtime / "tmp"
    for directory in (home, scratch):
        directory.mkdir(exist_ok=True)
    return {**env, "XDG_RUNTIME_DIR": str(runtime), "HOME": str(home), "TMPDIR": str(scratch), **more}


class Daemon:
    """A daemon that was started; a context manager that stops it and checks how it ended."""

    def __init__(
        self,
        directory: Path,
        config: str,
        *,
        env: Mapping[str, str] | None = None,
        wait: bool = True,
        quiet: bool = True,
        program: Sequence[str] = ("-m", "utter_runner"),
        pass_fds: Sequence[int] = (),
    ) -> None:
        self.runtime = directory / "run"
        self.runtime.mkdir(mode=0o700, exist_ok=True)
        self.config = directory / "runner.toml"
        self.config.write_text(config + (QUIET if quiet else ""))
        self.socket = self.runtime / "utter" / "runner.sock"
        self.env = dict(env) if env is not None else environment(self.runtime)
        self.log: list[str] = []
        self._wait = wait
        self._program = program
        self._pass_fds = pass_fds
        self.process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Start it; returns when it is ready."""
        self.process = subprocess.Popen(
            [sys.executable, *self._program, "--config", str(self.config)],
            env=self.env,
            stdin=subprocess.DEVNULL,
            pass_fds=self._pass_fds,
            stderr=subprocess.PIPE,
            text=True,
        )
        if self._wait:
            self.wait_for("ready on ")

    def wait_for(self, text: str) -> str:
        """Read the log up to a line with `text`."""
        assert self.process is not None
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.log.append(line)
            if text in line:
                return line
        raise AssertionError(f"the daemon ended without {text!r}:\n{''.join(self.log)}")

    def said(self, text: str) -> str:
        """The first line of the log with `text`: of what was read already, or of what comes."""
        return next((line for line in self.log if text in line), None) or self.wait_for(text)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Stop it; return the exit code."""
        assert self.process is not None
        assert self.process.stderr is not None
        if self.process.poll() is None:
            self.process.send_signal(number)
        with self.process.stderr:
            self.log += self.process.stderr.readlines()
        return self.process.wait(timeout=30)

    def refused(self) -> int:
        """Wait until it has ended by itself, as one does that cannot run; return the exit code."""
        assert self.process is not None
        assert self.process.stderr is not None
        with self.process.stderr:
            self.log += self.process.stderr.readlines()
        return self.process.wait(timeout=60)

    def client(self, token: str | None = None) -> Client:
        """A connected client."""
        return Client.connect(str(self.socket), token=token)

    def wait_plugin(self, name: str, status: str, *, epoch: int = 0, timeout: float = 30.0) -> dict[str, Any]:
        """Wait until a plugin has a status, in this epoch or a later one; return what `runner.plugins` says of it."""
        with self.client() as client, client.subscribe("runner.events") as events:
            # The whole state comes first, so that nothing is missed.
            found: list[dict[str, Any]] = []
            while not found:
                event = events.get(timeout)
                plugins = event["status"]["plugins"] if event["event"] == "state" else [event.get("plugin")]
                found = [
                    one
                    for one in plugins
                    if isinstance(one, dict) and (one["id"], one["status"]) == (name, status) and one["epoch"] >= epoch
                ]
            return found[0]

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        code = self.stop()
        log = "".join(self.log)
        if kind is None:
            assert code == 0, log
            # A plugin's own stands behind its name.
            assert not any(line.startswith("Traceback") for line in self.log), log
            # One that was passed is not the runner's to remove.
            assert self.socket.exists() == bool(self._pass_fds)
        elif value is not None:
            value.add_note(f"the daemon's log:\n{log}")


@contextmanager
def failing(directory: Path, config: str, **options: object) -> Iterator[tuple[int, str]]:
    """A daemon that ends by itself: its exit code and what it said."""
    daemon = Daemon(directory, config, wait=False, **options)  # type: ignore[arg-type]  # passed through
    daemon.start()
    assert daemon.process is not None
    try:
        _, said = daemon.process.communicate(timeout=30)
        yield daemon.process.returncode, said
    finally:
        daemon.process.kill()
        daemon.process.wait()
