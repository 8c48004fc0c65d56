"""Which wrappers this machine has, and why it has no others.

Rules here: a wrapper is usable when it was seen to work, not when its program is there. Every wait is bounded. It runs
before the daemon's loop does, or on a thread when the configuration is read again, and only if a sandbox is wanted.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

import msgspec

from utter_runner.supervision.sandbox import landlock, seccomp
from utter_runner.supervision.sandbox.bubblewrap import bubblewrap_argv
from utter_runner.supervision.sandbox.permissions import Rules, code_paths
from utter_runner.supervision.sandbox.systemd_run import systemd_run_argv

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Wrapper = Literal["systemd-run", "bubblewrap", "landlock", "seccomp"]
WRAPPERS: Final[tuple[Wrapper, ...]] = get_args(Wrapper)
"""From the outermost to the innermost."""

CONFINING: Final[frozenset[Wrapper]] = frozenset({"bubblewrap", "landlock"})
"""Those that hold files back. Without either of them there is no sandbox to speak of."""

_TRIAL_SECONDS = 10.0


class Sandbox(msgspec.Struct, frozen=True, kw_only=True):
    """The wrappers that a plugin is put into.

    Attributes:
        wrappers: their names, the outermost first.
        bwrap: path of the program, and its version.
        systemd_run: path of the program.
        landlock_abi: the kernel's version of Landlock.
        hidden: files and directories of the runner's own that no plugin gets.
        without: why the others are not used, by name.
    """

    wrappers: tuple[Wrapper, ...]
    bwrap: str = ""
    bwrap_version: tuple[int, ...] = ()
    systemd_run: str = ""
    systemd_version: str = ""
    landlock_abi: int = 0
    hidden: tuple[str, ...] = ()
    without: dict[str, str] = {}


class NoSandboxError(Exception):
    """There is no sandbox as it is wanted; the message says what to install or change."""


def find_sandbox(wanted: Sequence[Wrapper] | None, environ: Mapping[str, str], hidden: Sequence[str] = ()) -> Sandbox:
    """Return the wrappers to use.

    Args:
        wanted: their names; None is all that work here.
        environ: where programs are looked for.
        hidden: see `Sandbox`.

    Raises:
        NoSandboxError: one that was named does not work, or none is there that could hold a plugin back.
    """
    found, without = _look(wanted or WRAPPERS, environ)
    names = tuple(name for name in WRAPPERS if name in found)
    if wanted is not None and without:
        reasons = "; ".join(f"{name}: {why}" for name, why in without.items())
        raise NoSandboxError(f"[security] sandbox names what cannot be used here ({reasons})")
    if not CONFINING & set(names):
        reasons = "; ".join(f"{name}: {why}" for name, why in without.items())
        raise NoSandboxError(
            "there is nothing here that could hold a plugin back: bubblewrap or landlock is needed"
            + (f" ({reasons})" if reasons else "")
            + '. Install the package "bubblewrap", or use a kernel with Landlock'
        )
    facts = {key: value for one in found.values() for key, value in one.items()}
    return Sandbox(wrappers=names, hidden=tuple(hidden), without=without, **facts)


def _look(wanted: Sequence[Wrapper], environ: Mapping[str, str]) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    found: dict[str, dict[str, Any]] = {}
    without: dict[str, str] = {}
    looks = {"systemd-run": _systemd_run, "bubblewrap": _bubblewrap, "landlock": _landlock, "seccomp": _seccomp}
    for name in dict.fromkeys(wanted):
        try:
            found[name] = looks[name](environ)
        except _Unusable as error:
            without[name] = str(error)
    return found, without


class _Unusable(Exception):
    pass


def _systemd_run(environ: Mapping[str, str]) -> dict[str, Any]:
    program = _program("systemd-run", environ)
    # Where no user manager runs it would wait for a bus; this is what it talks to.
    manager = Path(environ.get("XDG_RUNTIME_DIR") or os.devnull, "systemd", "private")
    if not manager.exists():
        raise _Unusable("no systemd user manager runs in this session")
    version = _version([program, "--version"], environ)
    _try(systemd_run_argv(program, "trial", os.urandom(8).hex(), ["true"]), environ)
    return {"systemd_run": program, "systemd_version": version}


def _bubblewrap(environ: Mapping[str, str]) -> dict[str, Any]:
    program = _program("bwrap", environ)
    numbers = _version([program, "--version"], environ)
    version = tuple(int(one) for one in numbers.split("."))
    system = [one for one in ("/usr", "/bin", "/lib", "/lib64", "/nix", "/gnu/store") if Path(one).exists()]
    nothing = Rules(read=(*system, *code_paths(environ.get("HOME", ""))))
    trial = [sys.executable, "-I", "-S", "-c", ""]
    _try(bubblewrap_argv(program, version, nothing, trial, "/", root=os.geteuid() == 0), environ)
    return {"bwrap": program, "bwrap_version": version}


def _landlock(_environ: Mapping[str, str]) -> dict[str, Any]:
    version = landlock.abi()
    if not version:
        raise _Unusable("this kernel has no Landlock, or it is not switched on")
    return {"landlock_abi": version}


def _seccomp(_environ: Mapping[str, str]) -> dict[str, Any]:
    if why := seccomp.problem():
        raise _Unusable(why)
    return {}


def _program(name: str, environ: Mapping[str, str]) -> str:
    found = shutil.which(name, path=environ.get("PATH", os.defpath))
    if found is None:
        raise _Unusable(f"there is no program {name} in PATH")
    return str(Path(found).absolute())


def _version(argv: Sequence[str], environ: Mapping[str, str]) -> str:
    found = re.search(r"[0-9]+(?:\.[0-9]+)*", _try(argv, environ))
    if found is None:
        raise _Unusable(f"{argv[0]} does not say its version")
    return found[0]


def _try(argv: Sequence[str], environ: Mapping[str, str]) -> str:
    """Run a program, and return what it printed. Raises _Unusable."""
    try:
        done = subprocess.run(
            argv,
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TRIAL_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise _Unusable(f"{argv[0]} did not answer within {_TRIAL_SECONDS:g} s") from None
    except OSError as error:
        raise _Unusable(f"{argv[0]} cannot be started: {error.strerror}") from None
    if done.returncode != 0:
        said = done.stderr.strip().splitlines()
        raise _Unusable(f"it was tried and failed: {said[-1][:200] if said else f'exit code {done.returncode}'}")
    return done.stdout
