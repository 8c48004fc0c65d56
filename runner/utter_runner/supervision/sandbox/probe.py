"""Whether a sandbox holds: a program is put into it, tries what it should not be able to do, and is watched doing so.

Rules here: what the program says that it did not do is not believed where it can be seen from outside. What it could
not try, because this machine has nothing to try it on, was not shown to be refused. Everything that is made for it is
removed, and every wait is bounded. It blocks, and belongs on a thread.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from utter_runner.supervision.launch import SpawnError, abandon, launch
from utter_runner.supervision.process import kill_marked
from utter_runner.supervision.sandbox.findings import BESIDES, Finding
from utter_runner.supervision.sandbox.permissions import display_sockets, session_bus, sound_sockets
from utter_runner.supervision.spec import PluginSpec

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from utter_runner.supervision.sandbox.wrappers import Sandbox

PROGRAM = Path(__file__).with_name("probe_program.py")

# Of the block that documentation uses (RFC 5737); nobody is there.
_FAR = ("192.0.2.1", 9)
_SECONDS = 20.0
_ENDING_SECONDS = 2.0
_SECRETS = ("/etc/shadow", "/etc/gshadow", "/etc/sudoers")
_DEVICES = {"input.inject": ("/dev/uinput",), "gpu": ("/dev/dri", "/dev/kfd", "/dev/nvidia0")}
_MISSING = {
    "input.inject": "this machine has no /dev/uinput that could be tried",
    "gpu": "this machine has no graphics device that could be tried",
    "input devices": "this machine has no input device that could be tried",
    "system secrets": "there is no file here that only you may read and other users may not",
    "the runner's socket": "the runner has no socket yet",
}


class _Stage:
    """What is made for one trial, and what is seen of it from outside."""

    def __init__(self, stack: ExitStack, environ: Mapping[str, str], runner_socket: str) -> None:
        self.words = os.urandom(16).hex()
        home = Path(environ.get("HOME") or "/", f".utter-probe-{self.words[:12]}")
        open_to_all = Path("/tmp", f"utter-probe-{self.words}")  # noqa: S108 - where others have theirs, too
        self.written = {"files.write": [str(home), f"{home}-made", str(open_to_all)]}
        self._made: list[Path] = [home, Path(f"{home}-made"), open_to_all]
        for path in self._made:
            stack.callback(path.unlink, missing_ok=True)
        self.home_problem = ""
        try:
            home.write_text(self.words)
        except OSError as error:
            self.home_problem = f"nothing could be put into the home directory to be tried: {error.strerror}"
        tcp = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        self.udp = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        self.udp.bind(("127.0.0.1", 0))
        self.victim = stack.enter_context(_victim(self.words))
        self._stack = stack
        standing = [_listener(stack, f"\0utter-probe-{self.words}")]
        if runtime := environ.get("XDG_RUNTIME_DIR"):
            path = Path(runtime, f"utter-probe-{self.words[:12]}")
            stack.callback(path.unlink, missing_ok=True)
            with suppress(OSError):
                standing.append(_listener(stack, str(path)))
        sockets = {
            "session.bus": [*session_bus(environ), *standing],
            "microphone": [*_sockets_in(sound_sockets(environ)), *standing],
            "screen": [*_sockets_in(display_sockets(environ)), *standing],
            "the runner's socket": [runner_socket] if runner_socket else [],
        }
        devices = {about: [*_usable(_nodes(paths), os.O_RDWR)] for about, paths in _DEVICES.items()}
        self.targets: dict[str, Any] = {
            "words": self.words,
            "tcp": tcp.getsockname(),
            "far": _FAR,
            "udp": self.udp.getsockname(),
            "home_file": str(home),
            "written": [str(path) for path in self._made],
            "sockets": sockets,
            "devices": devices,
            "secrets": [*_usable(_SECRETS, os.O_RDONLY)],
            "input": [*_usable(_nodes(["/dev/input"]), os.O_RDONLY)],
            "victim": self.victim.pid,
        }
        self.tried = {
            **{about: bool(found) for about, found in (sockets | devices).items()},
            "system secrets": bool(self.targets["secrets"]),
            "input devices": bool(self.targets["input"]),
        }

    def seen(self) -> dict[str, list[str]]:
        """What can be seen from outside to have been done."""
        found: dict[str, list[str]] = {}
        self.udp.settimeout(0)
        with suppress(OSError):
            if self.words.encode() in self.udp.recv(1024):
                found["network"] = ["a datagram arrived"]
        for path in self._made:
            with suppress(OSError):
                if f"written {self.words}" in path.read_text():
                    found.setdefault("files.write", []).append(f"it wrote {path}")
        with suppress(subprocess.TimeoutExpired):
            self.victim.wait(0.2)
            found["other processes"] = ["it ended another process"]
        return found


def probe(
    sandbox: Sandbox, permissions: Iterable[str], environ: Mapping[str, str], runner_socket: str = ""
) -> dict[str, Finding]:
    """Put a program with these permissions into the sandbox, and return what it could not do, by permission.

    What is besides permissions is in it, too, by the names in `BESIDES`. A permission that was given says nothing.

    Args:
        sandbox: the one that plugins are put into.
        permissions: what the program has.
        environ: the runner's.
        runner_socket: where clients reach the runner.

    Raises:
        SpawnError: the program could not be run or did not end; the message says why.
    """
    with ExitStack() as stack:
        stage = _Stage(stack, environ, runner_socket)
        done, outlived = _run(sandbox, permissions, environ, stage.targets)
        for about, how in stage.seen().items():
            done.setdefault(about, []).extend(how)
        if outlived:
            done["process.spawn"] = ["a process that it had started went on after its end"]
    for about in ("network", "files.read", "files.write", "process.spawn", *BESIDES):
        done.setdefault(about, [])
    found = {about: _finding(about, how, stage.tried.get(about, True)) for about, how in done.items()}
    if stage.home_problem:
        found["files.read"] = Finding(refused=False, reason=stage.home_problem)
    return found


def _finding(about: str, how: list[str], tried: bool) -> Finding:
    if how:
        return Finding(refused=False, reason="; ".join(how))
    if not tried:
        return Finding(refused=False, reason=_MISSING.get(about, "there was nothing here that could be tried"))
    return Finding(refused=True, reason="it was tried and refused")


def _run(
    sandbox: Sandbox, permissions: Iterable[str], environ: Mapping[str, str], targets: Mapping[str, Any]
) -> tuple[dict[str, list[str]], bool]:
    """Return what the program says that it did, and whether something of it was left when it was ended."""
    argv = (sys.executable, "-I", "-S", str(PROGRAM), json.dumps(targets))
    spec = PluginSpec(id="probe", argv=argv, permissions=tuple(permissions), sandbox=sandbox, visible=(str(PROGRAM),))
    life_read, life_write = os.pipe()
    alive_read, alive_write = os.pipe()
    try:
        fds = {"UTTER_PROBE_LIFE": life_read, "UTTER_PROBE_ALIVE": alive_write}
        launched = launch(spec, 0, environ, fds=fds)
        os.close(alive_write)
        alive_write = -1
        try:
            said, words = launched.process.communicate(timeout=_SECONDS)
        except subprocess.TimeoutExpired:
            raise SpawnError(f"the probe did not end within {_SECONDS:g} s") from None
        finally:
            # As a plugin is ended, with all that can be found of it.
            abandon(launched)
            kill_marked(launched.mark)
        # Where it may go on there is nothing to wait for.
        outlived = not _ends(alive_read, 0.0 if "process.spawn" in spec.permissions else _ENDING_SECONDS)
        try:
            return msgspec.json.decode(said, type=dict[str, list[str]]), outlived
        except msgspec.DecodeError:
            last = words.decode("utf-8", "replace").strip().splitlines()[-1:]
            raise SpawnError(f"the probe could not be run in the sandbox: {''.join(last)[:300]}") from None
    finally:
        for fd in (life_read, life_write, alive_read, alive_write):
            if fd >= 0:
                os.close(fd)


def _ends(alive: int, seconds: float) -> bool:
    """Whether nobody holds the other end any more, or will not within so many seconds."""
    poll = select.poll()
    poll.register(alive, select.POLLIN)
    return bool(poll.poll(seconds * 1000)) and not os.read(alive, 1)


@contextmanager
def _victim(secret: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process of this user that waits, with a secret in its environment."""
    argv = [sys.executable, "-I", "-S", "-c", "import sys; sys.stdin.read()"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, env={"UTTER_PROBE_SECRET": secret}) as victim:
        try:
            yield victim
        finally:
            with suppress(ProcessLookupError):
                victim.send_signal(signal.SIGKILL)


def _listener(stack: ExitStack, address: str) -> str:
    listener = stack.enter_context(socket.socket(socket.AF_UNIX))
    listener.bind(address)
    listener.listen()
    return address


def _sockets_in(paths: Iterable[str]) -> Iterator[str]:
    """The sockets among these paths, and in the directories among them."""
    for path in map(Path, paths):
        with suppress(OSError):
            yield from (str(one) for one in ([*path.iterdir()] if path.is_dir() else [path]) if one.is_socket())


def _nodes(paths: Iterable[str]) -> Iterator[str]:
    for path in map(Path, paths):
        with suppress(OSError):
            yield from map(str, sorted(path.iterdir()) if path.is_dir() else [path])


def _usable(paths: Iterable[str], flags: int) -> Iterator[str]:
    """Those that this process may open itself; of the others a refusal says nothing of the sandbox."""
    for path in paths:
        with suppress(OSError):
            if not Path(path).is_dir():
                os.close(os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC))
                yield path
