"""The command that starts a plugin inside its sandbox: the wrappers around it, the outermost first.

Rules here: composition alone; what is started is decided by the rules and the wrappers that are handed in. From the
outside in: systemd-run, what ties the process to the runner, bwrap, and a small process that confines itself by
Landlock and a filter of system calls and becomes the plugin.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from utter_runner.supervision.sandbox.bubblewrap import bubblewrap_argv
from utter_runner.supervision.sandbox.permissions import rules_for
from utter_runner.supervision.sandbox.systemd_run import systemd_run_argv

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from utter_runner.supervision.sandbox.permissions import Rules
    from utter_runner.supervision.sandbox.wrappers import Sandbox
    from utter_runner.supervision.spec import PluginSpec

_CODE = str(Path(__file__).parents[3])
_ENTER = (
    f"import sys; sys.path.insert(0, {_CODE!r}); "
    "from utter_runner.supervision.sandbox.enter import main; main(sys.argv[1:])"
)
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty", "/dev/pts", "/dev/ptmx")


class Orders(msgspec.Struct, frozen=True, kw_only=True):
    """What the innermost process does with itself.

    Attributes:
        drop_capabilities: whether it is root and has to give that up.
        streams: the descriptors that become its standard input and output; None if they are those already.
        landlock: the arguments of `landlock.restrict`, its first being `abi`; None without it.
        seccomp: the arguments of `seccomp.assemble` but the machine; None without it.
    """

    drop_capabilities: bool
    streams: tuple[int, int] | None
    landlock: dict[str, Any] | None
    seccomp: dict[str, bool] | None


def confined_command(
    spec: PluginSpec,
    program: str,
    tmp: str,
    environ: Mapping[str, str],
    *,
    directory: str,
    tie: Sequence[str],
    taken: Collection[int] = (),
) -> list[str]:
    """Return the command that runs a plugin inside its sandbox.

    Args:
        spec: the plugin, which has a sandbox.
        program: what is run, by an absolute path.
        tmp: its temporary directory, the last part of whose name tells this epoch from all others.
        environ: the runner's environment.
        directory: where it runs.
        tie: what asks the kernel to end it with the runner, to be put before a command.
        taken: descriptors that it inherits.
    """
    assert spec.sandbox is not None  # noqa: S101 - the caller looked
    rules = rules_for(spec, program, environ, tmp, spec.sandbox.hidden)
    argv = [program, *spec.argv[1:]]
    key = tmp.rpartition("-")[2]
    return confined_argv(spec.sandbox, rules, argv, plugin=spec.id, key=key, directory=directory, tie=tie, taken=taken)


def confined_argv(
    sandbox: Sandbox,
    rules: Rules,
    argv: Sequence[str],
    *,
    plugin: str,
    key: str,
    directory: str,
    tie: Sequence[str],
    taken: Collection[int] = (),
) -> list[str]:
    """Return the command that runs a program by these rules, inside these wrappers.

    Args:
        sandbox: which wrappers.
        rules: what it may do.
        argv: the program, by an absolute path, and its arguments.
        plugin: the plugin's id.
        key: what tells this epoch from all others.
        directory: where it runs.
        tie: what asks the kernel to end it with the runner, to be put before a command.
        taken: descriptors that it inherits.
    """
    inside = "bubblewrap" in sandbox.wrappers
    streams = _free(taken) if inside else None
    orders = Orders(
        drop_capabilities=os.geteuid() == 0 and not inside,
        streams=streams,
        landlock=_landlock(sandbox.landlock_abi, rules, inside=inside) if "landlock" in sandbox.wrappers else None,
        seccomp={"network": rules.network, "spawn": rules.spawn} if "seccomp" in sandbox.wrappers else None,
    )
    line = [sys.executable, "-I", "-S", "-c", _ENTER, json.dumps(msgspec.to_builtins(orders)), *argv]
    if streams is not None:
        root = os.geteuid() == 0
        line = bubblewrap_argv(sandbox.bwrap, sandbox.bwrap_version, rules, line, directory, root=root)
        line = [*_aside(*streams), *line]
    line = [*tie, *line]
    if "systemd-run" in sandbox.wrappers:
        line = systemd_run_argv(sandbox.systemd_run, plugin, key, line)
    return line


def _free(taken: Collection[int]) -> tuple[int, int]:
    """Two descriptors that nothing is on. A shell knows those with one digit."""
    first, second = [number for number in range(9, 2, -1) if number not in taken][:2]
    return first, second


def _aside(stdin: int, stdout: int) -> list[str]:
    """Start bwrap so that its own processes, which do nothing but wait, are in nobody's way.

    They are deaf to SIGTERM, so that they end when the plugin has, and with its exit code. And they do not hold its
    standard input and output, whose other end so sees when the plugin closes them. enter.py undoes both.
    """
    script = f"trap '' TERM; exec \"$@\" {stdin}<&0 {stdout}>&1 </dev/null >/dev/null"
    return ["/bin/sh", "-c", script, "sh"]


def _landlock(abi: int, rules: Rules, *, inside: bool) -> dict[str, Any]:
    # Inside bwrap there is nothing but what the rules name, and its mounts say what can be changed there.
    read = ["/"] if inside else [*rules.read, "/proc"]
    write = [*rules.write, *rules.devices]
    write += [*rules.private, "/dev", "/proc"] if inside else _DEVICES
    return {"abi": abi, "read": read, "write": write, "network": rules.network, "abstract": rules.abstract}
