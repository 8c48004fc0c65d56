"""The runner as a service of the user's session: installed, removed, and looked at. No root.

Rules here: a unit that somebody else wrote is neither replaced nor removed unless that is asked for; what is written is
whole at every moment. Nothing is guessed that systemd can be asked.
"""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from utter_runner.operate.errors import OperateError, Untrusted
from utter_runner.operate.lockfile import replace_file
from utter_runner.operate.program import runner_program
from utter_runner.operate.systemctl import manager_problem, properties
from utter_runner.operate.units import (
    DEFAULT_TARGET,
    DROP_IN,
    SERVICE,
    SOCKET,
    hardening,
    is_ours,
    service_unit,
    socket_unit,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from utter_runner.operate.systemctl import Systemctl

DISPLAY_VARIABLES = ("WAYLAND_DISPLAY", "DISPLAY")
"""By one of these, programs find the desktop."""
SESSION_VARIABLES = (
    *DISPLAY_VARIABLES, "XDG_CURRENT_DESKTOP", "XDG_SESSION_TYPE", "SWAYSOCK", "NIRI_SOCKET",
    "HYPRLAND_INSTANCE_SIGNATURE",
)  # fmt: skip
"""What a compositor sets and plugins may be passed."""
_LINGER = Path("/var/lib/systemd/linger")
_SHOWN = (
    "LoadState", "FragmentPath", "UnitFileState", "ActiveState", "SubState", "StatusText", "ActiveEnterTimestamp",
    "NRestarts", "Result", "ExecMainStatus", "MainPID", "NeedDaemonReload", "ExecStart",
)  # fmt: skip
BAD_CONFIG = 2
"""`utter-runner` ends with this exit code when its configuration is wrong."""
_PROGRAM = re.compile(r"path=(.+?) ;")
_TARGET = re.compile(r"^WantedBy=(\S+)$", re.MULTILINE)


class ServiceState(msgspec.Struct, kw_only=True):
    """How the service is.

    Attributes:
        problem: why the user manager cannot be asked; then only what lies on disk is known.
        unit: the path of the service's unit, "" if there is none.
        written_by: `utter`, `other`, or "" if there is none.
        outdated: the unit is ours, and `utter service install` would write another.
        enabled: systemd's word: `enabled`, `disabled`, ...
        active: systemd's word: `active`, `activating`, `inactive`, `failed`, ...
        text: what the runner said of itself last.
        since: when it became active, in systemd's words.
        restarts: how often systemd has started it anew.
        result: how it ended last: `success`, `exit-code`, `watchdog`, `start-limit-hit`, ...
        exit_code: of the last end.
        reload_needed: the unit has changed on disk since systemd has read it.
        socket: of the socket unit: "" if there is none, else systemd's word as for `active`.
        target_active: whether graphical-session.target is reached.
        variables: those of `SESSION_VARIABLES` that the user manager has.
        missing: those of them that this process has and the user manager has not.
        linger: whether the user manager runs without a login.
        program: the path of what it starts, as systemd has read it.
        target: what starts it, as its unit says.
    """

    problem: str = ""
    unit: str = ""
    written_by: str = ""
    outdated: bool = False
    enabled: str = ""
    active: str = ""
    sub: str = ""
    text: str = ""
    since: str = ""
    restarts: int = 0
    result: str = ""
    exit_code: int = 0
    pid: int = 0
    reload_needed: bool = False
    socket: str = ""
    target_active: bool = False
    variables: list[str] = []
    missing: list[str] = []
    linger: bool = False
    program: str = ""
    target: str = ""

    @property
    def has_display(self) -> bool:
        """Whether what the manager starts finds the desktop."""
        return any(name in self.variables for name in DISPLAY_VARIABLES)


def unit_directory(environ: Mapping[str, str]) -> Path:
    """Return where a user's units lie. Raises OperateError."""
    base = environ.get("XDG_CONFIG_HOME", "")
    if not base.startswith("/"):
        home = environ.get("HOME", "")
        if not home.startswith("/"):
            raise OperateError("Neither XDG_CONFIG_HOME nor HOME is an absolute path, so there is no place for units.")
        base = f"{home}/.config"
    return Path(base, "systemd", "user")


def service_state(
    environ: Mapping[str, str], systemctl: Systemctl, interpreter: str, linger: Path = _LINGER
) -> ServiceState:
    """Return how the service is.

    Args:
        environ: where units lie, and what this session has.
        systemctl: asks the user manager.
        interpreter: of this installation, to tell whether the unit is what it would write.
        linger: where systemd notes whose manager runs without a login.

    Raises:
        OperateError: a unit cannot be read.
    """
    state = ServiceState(problem=manager_problem(systemctl))
    text = ""
    if not state.problem:
        shown = properties(systemctl("show", SERVICE, f"--property={','.join(_SHOWN)}").out)
        state.unit = shown.get("FragmentPath", "")
        state.enabled, state.active, state.sub = (shown.get(one, "") for one in _SHOWN[2:5])
        state.text, state.since, state.result = (
            shown.get(one, "") for one in ("StatusText", "ActiveEnterTimestamp", "Result")
        )
        state.restarts, state.exit_code, state.pid = (
            _number(shown.get(one, "")) for one in ("NRestarts", "ExecMainStatus", "MainPID")
        )
        state.program = found[1] if (found := _PROGRAM.search(shown.get("ExecStart", ""))) else ""
        state.reload_needed = shown.get("NeedDaemonReload") == "yes"
        socket = properties(systemctl("show", SOCKET, "--property=LoadState,ActiveState").out)
        state.socket = socket.get("ActiveState", "") if socket.get("LoadState") == "loaded" else ""
        target = properties(systemctl("show", DEFAULT_TARGET, "--property=ActiveState").out)
        state.target_active = target.get("ActiveState") == "active"
        theirs = properties(systemctl("show-environment").out)
        state.variables = [name for name in SESSION_VARIABLES if theirs.get(name)]
        state.missing = [name for name in SESSION_VARIABLES if environ.get(name) and not theirs.get(name)]
    path = unit_directory(environ) / SERVICE
    if not state.unit and path.exists():
        state.unit = str(path)
    if state.unit:
        text = _read(Path(state.unit)) or ""
        state.written_by = "utter" if is_ours(text) else "other"
        state.target = found[1] if (found := _TARGET.search(text)) else ""
    if state.written_by == "utter":
        state.outdated = not _is_current(text, interpreter)
    state.linger = bool(environ.get("USER")) and (linger / environ.get("USER", "")).exists()
    return state


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() else 0


def _is_current(text: str, interpreter: str) -> bool:
    """Whether a unit of ours is what this installation writes, whatever its configuration and target are."""
    try:
        wanted = service_unit(runner_program(interpreter))
    except OperateError:
        return False

    def general(unit: str) -> list[str]:
        lines = [line.split('" --config ')[0].rstrip('"') for line in unit.splitlines()]
        return [line for line in lines if not line.startswith("WantedBy=")]

    return general(text) == general(wanted)


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise OperateError(f"{path} cannot be read: {error.strerror}.") from None


class Change(msgspec.Struct, frozen=True):
    """One unit that is to be written: what was there (None: nothing), and what will be."""

    path: Path
    before: str | None
    after: str

    @property
    def foreign(self) -> bool:
        """Whether somebody else wrote what is there."""
        return self.before is not None and not is_ours(self.before)


def choose_target(state: ServiceState, environ: Mapping[str, str]) -> str:
    """Return what is to start the service: the graphical session's target, or the login where that is not used.

    It is not used if this session has a display and the target is not reached.
    """
    in_session = any(environ.get(name) for name in DISPLAY_VARIABLES)
    return "default.target" if in_session and not state.target_active else DEFAULT_TARGET


def plan_install(
    environ: Mapping[str, str],
    program: Path,
    *,
    config: Path | None,
    target: str,
    with_socket: bool,
    hardened: bool = False,
) -> list[Change]:
    """Return what installing would write, unchanged units included. Raises OperateError."""
    directory = unit_directory(environ)
    wanted = {SERVICE: service_unit(program, config, target)}
    if with_socket:
        wanted[SOCKET] = socket_unit()
    if hardened:
        wanted[DROP_IN] = hardening()
    return [Change(directory / name, _read(directory / name), text) for name, text in wanted.items()]


def install(changes: Iterable[Change], systemctl: Systemctl, *, start: bool, replace: bool) -> None:
    """Write units, have systemd read and enable them, and start them unless that is not wanted.

    Raises:
        Untrusted: somebody else wrote one of them, and `replace` is not set.
        OperateError: it cannot be written, or systemd refuses.
    """
    changes = list(changes)
    for change in changes:
        if change.foreign and not replace:
            raise Untrusted(
                f"{change.path} was not written by `utter service install`. Look at it, then move it away, or replace "
                "it with --replace."
            )
    for change in changes:
        if change.before != change.after:
            _write(change.path, change.after)
    _must(systemctl, "daemon-reload")
    names = [change.path.name for change in changes if change.path.name in {SERVICE, SOCKET}]
    # Anew: it may hang on another target than before.
    _must(systemctl, "reenable", *names)
    if start:
        if SOCKET in names:
            # The socket can be made only while nobody serves it.
            _must(systemctl, "stop", SERVICE)
            _must(systemctl, "start", SOCKET)
        _must(systemctl, "restart", SERVICE)


def remove(environ: Mapping[str, str], systemctl: Systemctl, *, replace: bool) -> list[Path]:
    """Stop and disable the units and delete them; return which there were.

    Raises:
        Untrusted: somebody else wrote one of them, and `replace` is not set.
        OperateError: it cannot be deleted, or systemd refuses.
    """
    directory = unit_directory(environ)
    there = {path: text for name in (SOCKET, SERVICE, DROP_IN) if (text := _read(path := directory / name)) is not None}
    for path, text in there.items():
        if not is_ours(text) and not replace:
            raise Untrusted(f"{path} was not written by `utter service install`: delete it yourself, or use --replace.")
    if not there:
        return []
    reachable = not manager_problem(systemctl)
    names = [path.name for path in there if path.name in {SERVICE, SOCKET}]
    if reachable:
        _must(systemctl, "disable", "--now", *names)
    for path in there:
        try:
            path.unlink(missing_ok=True)
            if path == directory / DROP_IN:
                # Others' drop-ins may lie there, too.
                with suppress(OSError):
                    path.parent.rmdir()
        except OSError as error:
            raise OperateError(f"{path} cannot be deleted: {error.strerror}.") from None
    if reachable:
        _must(systemctl, "daemon-reload")
        # It may have failed before; of what is gone nobody wants to hear.
        systemctl("reset-failed", *names)
    return list(there)


def _must(systemctl: Systemctl, *arguments: str) -> None:
    answer = systemctl(*arguments)
    if answer.code != 0:
        words = answer.error or f"exit code {answer.code}"
        if arguments[0] in {"start", "restart"}:
            words += " What the runner says: utter service status, and journalctl --user -u utter-runner"
        raise OperateError(f"systemctl --user {' '.join(arguments)}: {words}")


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, text.encode(), 0o644)
    except OSError as error:
        raise OperateError(f"{path} cannot be written: {error.strerror}.") from None
