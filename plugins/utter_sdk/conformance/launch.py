"""Starting a plugin as the runner does: its environment, its pipes or its socket, and finding what it left behind.

Rules here: a plugin gets the variables that PROTOCOL.md promises ("The plugin's process") and those that the caller
names, nothing else; every start has directories and a mark of its own; whatever carries the mark at the end is killed.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from utter_protocol.inherited import MICROPHONE, RING_CAPABILITY
from utter_protocol.manifest import expand_entrypoint, load_manifest
from utter_sdk.testing.ring import AudioRing

if TYPE_CHECKING:
    from collections.abc import Mapping

    from utter_protocol.manifest import Manifest

Transport = Literal["stdio", "connect", "listen"]

_INHERITED = ("PATH", "HOME", "USER", "LANG", "XDG_RUNTIME_DIR")
_LONGEST_PATH = 107
_DEFAULT_ID = "plugin"
RING_SECONDS = 5.0
"""How much the ring of a plugin that hears holds: the least that a runner may be told to have."""


class LaunchError(Exception):
    """The program cannot be started, or its socket cannot be made; the message says why."""


@dataclass(frozen=True, kw_only=True)
class Subject:
    """The plugin under test.

    Attributes:
        argv: its program and arguments; a relative path lies in `cwd`.
        cwd: its working directory.
        id: its id, which names the socket; empty for a plugin without a manifest.
        transport: how the runner would talk to it.
        settings: what `protocol.hello` hands over.
        env: variables beside the promised ones.
        inherits_ring: whether it inherits an audio ring, as its manifest says.
        manifest: what it ships, if that is known.
        title: what the report calls it.
    """

    argv: tuple[str, ...]
    cwd: str | None = None
    id: str = ""
    transport: Transport = "stdio"
    settings: Mapping[str, Any] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    inherits_ring: bool = False
    manifest: Manifest | None = None
    title: str = ""

    @classmethod
    def from_manifest(
        cls,
        path: str | os.PathLike[str],
        *,
        transport: Transport | None = None,
        settings: Mapping[str, Any] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> Subject:
        """The plugin of a manifest, which may be named by its directory; `${PYTHON}` is the interpreter that runs.

        Args:
            path: the manifest, or the directory that has it as `utter-plugin.toml`.
            transport: another one than the manifest's.
            settings: settings that replace the manifest's, key by key.
            env: variables beside the promised ones.

        Raises:
            ManifestError: the manifest cannot be used.
        """
        file = Path(path)
        file = file / "utter-plugin.toml" if file.is_dir() else file
        manifest = load_manifest(file)
        return cls(
            argv=tuple(expand_entrypoint(manifest, sys.executable, file.parent)),
            cwd=str(file.parent.absolute()),
            id=manifest.name,
            transport=transport or manifest.transport,
            settings={**manifest.settings, **(settings or {})},
            env=env or {},
            inherits_ring=(transport or manifest.transport) == "stdio"
            and manifest.runtime != "wasm"
            and RING_CAPABILITY in manifest.requires
            and MICROPHONE in manifest.permissions,
            manifest=manifest,
            title=str(path),
        )


@dataclass
class Started:
    """A process that runs, with what belongs to it.

    Attributes:
        stdin: kept open on every transport, since its end means the end.
        listener: the socket that the plugin is to dial, with `connect`.
        path: where its socket is, with `connect` and `listen`.
        directory: what belongs to it alone.
        ring: what it hears.
    """

    process: subprocess.Popen[bytes]
    mark: str
    transport: Transport
    directory: str
    listener: socket.socket | None = None
    path: str = ""
    ring: AudioRing | None = None

    def clean_up(self) -> None:
        """Kill what carries the mark, and remove the directory; the process itself must have been reaped."""
        for pid in marked(self.mark):
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        for end in (self.listener, self.ring):
            if end is not None:
                end.close()
        shutil.rmtree(self.directory, ignore_errors=True)


def marked(mark: str) -> list[int]:
    """The processes that inherited an instance's mark and still run."""
    wanted = b"\0UTTER_INSTANCE=" + mark.encode() + b"\0"
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with suppress(OSError):
            if wanted in b"\0" + (entry / "environ").read_bytes() + b"\0":
                found.append(int(entry.name))
    return found


def start(subject: Subject) -> Started:
    """Start the plugin.

    Raises:
        LaunchError: there is no such program or directory, or the socket's path is too long.
    """
    mark = f"conformance/{os.urandom(8).hex()}"
    env = {name: os.environ[name] for name in _INHERITED if name in os.environ}
    env.setdefault("PATH", os.defpath)
    env.setdefault("LANG", "C.UTF-8")
    env.update(subject.env)
    env["UTTER_INSTANCE"] = mark
    directory = tempfile.mkdtemp(prefix="utter-")
    path, listener, ring = "", None, None
    try:
        env["TMPDIR"] = str(Path(directory, "tmp"))
        Path(env["TMPDIR"]).mkdir(mode=0o700)
        if subject.transport != "stdio":
            path = _socket_path(Path(directory, "run"), subject.id or _DEFAULT_ID, env)
            listener = _listen(path) if subject.transport == "connect" else None
        if subject.inherits_ring:
            ring = AudioRing(RING_SECONDS)
            env.update({name: str(fd) for name, fd in ring.fds.items()})
        return Started(_spawn(subject, env, ring), mark, subject.transport, directory, listener, path, ring)
    except BaseException:
        for end in (listener, ring):
            if end is not None:
                end.close()
        shutil.rmtree(directory, ignore_errors=True)
        raise


def _spawn(subject: Subject, env: dict[str, str], ring: AudioRing | None) -> subprocess.Popen[bytes]:
    cwd = subject.cwd or env.get("HOME") or "/"
    if not Path(cwd).is_dir():
        raise LaunchError(f"the working directory {cwd} does not exist")
    name = subject.argv[0]
    program = shutil.which(str(Path(cwd, name)) if "/" in name else name, path=env["PATH"])
    if program is None:
        raise LaunchError(f"there is no executable {name!r}" + ("" if "/" in name else f" in PATH ({env['PATH']})"))
    try:
        return subprocess.Popen(
            [program, *subject.argv[1:]],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            cwd=cwd,
            env=env,
            start_new_session=True,
            pass_fds=() if ring is None else tuple(ring.fds.values()),
        )
    except OSError as error:
        raise LaunchError(f"{program} cannot be started: {error.strerror}") from error


def _socket_path(directory: Path, name: str, env: dict[str, str]) -> str:
    """Make a runtime directory that has what the real one has, and a directory for plugins' sockets of its own."""
    directory.mkdir(mode=0o700)
    real = env.get("XDG_RUNTIME_DIR")
    if real and Path(real).is_dir():
        for entry in Path(real).iterdir():
            if entry.name != "utter":
                (directory / entry.name).symlink_to(entry)
    path = directory / "utter" / "plugins" / f"{name}.sock"
    if len(os.fsencode(path)) > _LONGEST_PATH:
        raise LaunchError(
            f"the socket's path is longer than {_LONGEST_PATH} bytes: {path}; set TMPDIR to a shorter one"
        )
    path.parent.mkdir(mode=0o700, parents=True)
    env["XDG_RUNTIME_DIR"] = str(directory)
    env["UTTER_PLUGIN_SOCKET"] = str(path)
    return str(path)


def _listen(path: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        listener.bind(path)
        Path(path).chmod(0o600)
        listener.listen(1)
        listener.settimeout(0)
    except BaseException:
        listener.close()
        raise
    return listener
