"""What is known of how far plugins are held: for each permission, whether the sandbox was shown to withhold it.

Rules here: what was not shown is advisory, and says why. A finding is about one sandbox: the same wrappers, and the
plugin's own permissions without the one in question. Findings are kept from start to start in a file of the user's,
which decides nothing but what is shown, and are made again when kernel, wrappers, configuration or boot are others.
"""

from __future__ import annotations

import hashlib
import logging
import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
import trio

from utter_protocol.manifest import PERMISSIONS
from utter_protocol.methods import PermissionState, SandboxState
from utter_runner import __version__
from utter_runner.supervision.launch import SpawnError
from utter_runner.supervision.sandbox.findings import BESIDES, Finding

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from utter_runner.supervision.sandbox.wrappers import Sandbox
    from utter_runner.supervision.spec import PluginSpec

logger = logging.getLogger(__name__)

MAX_CACHE: Final = 1024 * 1024
"""The largest file of findings that is read, in bytes."""

_UNCONFINED = "no sandbox holds it: it has all of your rights"
_PENDING = "it has not been tried yet"
_UNKNOWN = "this version does not know it"
_UNGRANTED = "it names it in its handshake alone; the sandbox gives what manifest and configuration name"

_Findings = dict[str, dict[str, Finding]]


class _Cache(msgspec.Struct):
    about: str
    findings: _Findings


class Assurance:
    """What can be said of each plugin's permissions.

    Args:
        specs: the plugins.
        environ: the runner's, which also says where findings are kept: `$XDG_CACHE_HOME/utter/sandbox.json`.
        runner_socket: where clients reach the runner, which no plugin may.
        on_change: told when more is known.
    """

    def __init__(
        self,
        specs: Sequence[PluginSpec],
        environ: Mapping[str, str],
        runner_socket: str,
        on_change: Callable[[], object],
    ) -> None:
        self._specs = {one.id: one for one in specs}
        self._again = trio.Event()
        self._environ = environ
        self._socket = runner_socket
        self._on_change = on_change
        self._findings: _Findings = {}
        # What the findings are about.
        self._about = ""
        self._trouble = _PENDING

    def reconfigure(self, specs: Sequence[PluginSpec]) -> None:
        """These are the plugins from now on; what is not known of them yet is found out."""
        self._specs = {one.id: one for one in specs}
        self._again.set()

    async def watch(self) -> None:
        """Find out what is not known, whenever the plugins are others, until cancelled."""
        while True:
            self._again = trio.Event()
            await self.run()
            await self._again.wait()

    async def run(self) -> None:
        """Find out what is not known yet; return when all is known. Nothing that fails here stops the daemon."""
        confined = [one for one in self._specs.values() if one.sandbox is not None]
        if not confined or confined[0].sandbox is None:
            return
        cache, about = self._cache_path(), identity(confined[0].sandbox, self._environ)
        if about != self._about:
            self._about = about
            self._findings = await trio.to_thread.run_sync(_read, cache, about)
        known = len(self._findings)
        for spec in confined:
            for permissions in _needed(spec.permissions):
                if _key(permissions) not in self._findings:
                    self._findings[_key(permissions)] = await self._probe(spec, permissions)
        tried = {key: found for key, found in self._findings.items() if found}
        if len(tried) > known:
            await trio.to_thread.run_sync(_write, cache, _Cache(about, tried))
        self._on_change()

    async def _probe(self, spec: PluginSpec, permissions: Iterable[str]) -> dict[str, Finding]:
        # Not loaded where nobody wants a sandbox.
        from utter_runner.supervision.sandbox.probe import probe  # noqa: PLC0415 - see above

        assert spec.sandbox is not None  # noqa: S101 - only those are asked about
        try:
            # It is not abandoned when the daemon stops: what it has made has to be removed, and that is bounded.
            return await trio.to_thread.run_sync(probe, spec.sandbox, permissions, self._environ, self._socket)
        except (SpawnError, OSError) as error:
            logger.warning("The sandbox could not be tried: %s", error)
            self._trouble = f"it could not be tried: {error}"
            return {}

    def describe(self, plugin: str, permissions: Iterable[str]) -> SandboxState:
        """Return what is known of a plugin.

        Args:
            plugin: its id.
            permissions: what it names, also in its handshake.
        """
        spec = self._specs.get(plugin)
        sandbox = spec.sandbox if spec is not None else None
        granted = spec.permissions if spec is not None else ()
        states, besides, reasons = [], [], {}
        for name in permissions:
            finding = self._finding(name, granted, confined=sandbox is not None)
            states.append(PermissionState(name=name, enforced=finding.refused, advisory=not finding.refused))
            reasons[name] = finding.reason
        for name in BESIDES if sandbox is not None else ():
            finding = self._known(granted, name)
            besides.append(PermissionState(name=name, enforced=finding.refused, advisory=not finding.refused))
            reasons[name] = finding.reason
        wrappers: list[str] = [*sandbox.wrappers] if sandbox is not None else []
        return SandboxState(wrappers=wrappers, permissions=states, besides=besides, reasons=reasons)

    def _finding(self, name: str, granted: Sequence[str], *, confined: bool) -> Finding:
        why = ""
        if not confined:
            why = _UNCONFINED
        elif name not in PERMISSIONS:
            why = _UNKNOWN
        if why:
            return Finding(refused=False, reason=why)
        without = [one for one in granted if one != name]
        finding = self._known(without, name)
        if name not in granted and finding.refused:
            return Finding(refused=True, reason=_UNGRANTED)
        return finding

    def _known(self, permissions: Iterable[str], name: str) -> Finding:
        found = self._findings.get(_key(permissions), {}).get(name)
        return found or Finding(refused=False, reason=self._trouble)

    def _cache_path(self) -> Path | None:
        home = self._environ.get("HOME", "")
        base = self._environ.get("XDG_CACHE_HOME") or (f"{home}/.cache" if home else "")
        return Path(base, "utter", "sandbox.json") if base.startswith("/") else None


def identity(sandbox: Sandbox, environ: Mapping[str, str]) -> str:
    """What findings are about: this runner, kernel, boot, user, the wrappers with their versions, and where things lie.

    Two that differ in any of it know nothing of each other.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        boot = ""
    places = {name: environ.get(name, "") for name in ("HOME", "XDG_RUNTIME_DIR", "DBUS_SESSION_BUS_ADDRESS")}
    facts = (__version__, os.uname().release, os.uname().version, boot, os.getuid(), sandbox, places)
    return hashlib.sha256(msgspec.json.encode(facts)).hexdigest()


def _needed(permissions: Sequence[str]) -> list[tuple[str, ...]]:
    """The sets of permissions with which is to be tried what a plugin with these has and has not."""
    known = [one for one in permissions if one in PERMISSIONS]
    return [tuple(known), *(tuple(one for one in known if one != name) for name in known)]


def _key(permissions: Iterable[str]) -> str:
    return " ".join(sorted({one for one in permissions if one in PERMISSIONS}))


def _read(path: Path | None, about: str) -> _Findings:
    """The findings of an earlier start, as far as they are about the same."""
    if path is None:
        return {}
    try:
        with path.open("rb") as file:
            cache = msgspec.json.decode(file.read(MAX_CACHE), type=_Cache)
    except (OSError, msgspec.DecodeError):
        return {}
    return cache.findings if cache.about == about else {}


def _write(path: Path | None, cache: _Cache) -> None:
    if path is None:
        return
    part = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with open(fd, "wb") as file:  # noqa: PTH123 - a descriptor, made with its mode
            file.write(msgspec.json.encode(cache))
        part.replace(path)
    except OSError as error:
        with suppress(OSError):
            part.unlink()
        logger.warning("What was found out about the sandbox cannot be kept in %s: %s", path, error.strerror)
