"""Checks of the systemd user service and of the environment that it gives to the runner.

Rules here: systemd is asked, not its files; where there is no user manager the runner is started by hand, and that is
in order.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from utter_runner.operate.doctor.look import UNIT
from utter_runner.operate.doctor.model import Finding, broken, ok, warning
from utter_runner.operate.doctor.registry import check

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from utter_runner.operate.doctor.look import Look

VARIABLES: Final = ("WAYLAND_DISPLAY", "DISPLAY", "XDG_CURRENT_DESKTOP", "DBUS_SESSION_BUS_ADDRESS")
"""By what plugins and programs find the desktop."""

_EXEC = re.compile(r"path=([^ ;]+)")
_LOST = "What plugins open does not appear on this desktop, and what asks you cannot reach you."


@check("service.unit")
def unit(look: Look) -> Iterator[Finding]:
    """Whether systemd starts the runner with the session, and from where."""
    if look.manager_environ() is None:
        yield ok("There is no systemd user manager here; the runner is started by hand.")
        return
    known = look.unit()
    if known.get("LoadState") != "loaded":
        yield warning(
            f"The unit {UNIT} is not installed.",
            "The runner does not start with the session, and nobody restarts it.",
            "utter service install",
        )
        return
    found = False
    for finding in _trouble(look, known):
        found = True
        yield finding
    if not found:
        yield ok(f"{UNIT} is {known.get('UnitFileState', '?')} and {known.get('ActiveState', '?')}.")


def _trouble(look: Look, known: Mapping[str, str]) -> Iterator[Finding]:
    if known.get("ActiveState") == "failed":
        yield broken(
            f"{UNIT} has failed ({known.get('Result', '?')}).",
            "systemd does not start it again by itself.",
            "systemctl --user restart utter-runner",
        )
    program = _EXEC.search(known.get("ExecStart", ""))
    if program is not None and look.outside.which(program[1]) is None:
        yield broken(
            f"{UNIT} starts {program[1]}, which is not there.",
            "It was installed for another Python, or that was removed.",
            "utter service install",
        )
    if known.get("NeedDaemonReload") == "yes":
        yield warning(
            f"{UNIT} was changed and systemd has not read it again.",
            "What was changed is not in effect.",
            "systemctl --user daemon-reload",
        )
    if known.get("UnitFileState") in ("disabled", "masked"):
        yield warning(
            f"{UNIT} is {known['UnitFileState']}.",
            "The runner does not start with the session.",
            f"systemctl --user {'unmask' if known['UnitFileState'] == 'masked' else 'enable'} utter-runner",
        )
    if look.contact().state == "up" and not look.is_service() and known.get("ActiveState") != "active":
        pid = look.status.get("pid", "?")
        yield warning(
            f"The runner (pid {pid}) was started by hand, and {UNIT} is there, too.",
            "systemd cannot start it while this one runs, and nobody restarts this one.",
            f"kill {pid} && systemctl --user start utter-runner",
        )


@check("service.linger")
def linger(look: Look) -> Iterator[Finding]:
    """Whether the user manager, and with it the runner, goes on without a login."""
    if look.manager_environ() is None:
        return
    try:
        ran = look.outside.run(["loginctl", "show-user", look.outside.user, "-p", "Linger", "--value"])
    except OSError:
        return
    if ran.code == 0 and ran.out.strip() == "yes":
        yield warning(
            "The user manager goes on when you log out (linger).",
            "It keeps the groups and the variables of its start, also after a new login.",
            f"loginctl disable-linger {look.outside.user}",
        )
    elif ran.code == 0:
        yield ok("The runner runs while you are logged in.")


@check("service.environment")
def environment(look: Look) -> Iterator[Finding]:
    """Whether systemd gives the desktop's variables to what it starts."""
    given = look.manager_environ()
    if given is None:
        return
    lacking = [name for name in VARIABLES if _now(look, name) and given.get(name) != _now(look, name)]
    if lacking:
        yield warning(
            f"systemd's user manager does not know this session's {', '.join(lacking)}.",
            _LOST,
            f"systemctl --user import-environment {' '.join(lacking)}",
        )
    else:
        yield ok("The user manager knows the variables of this session.")


def _now(look: Look, name: str) -> str:
    return look.outside.environ.get(name, "")


@check("service.runner")
def runner(look: Look) -> Iterator[Finding]:
    """Whether the runner sees the desktop that this command sees."""
    if look.contact().state not in ("up", "wedged"):
        return
    process = look.runner_process()
    if process is None or not process.environ:
        return
    other = [name for name in VARIABLES if _now(look, name) and process.environ.get(name) != _now(look, name)]
    if other:
        yield warning(
            f"The runner was started with another {', '.join(other)} than this session has.",
            _LOST,
            look.restart_command(),
        )
    else:
        yield ok("The runner sees the desktop of this session.")


@check("service.bus")
def bus(look: Look) -> Iterator[Finding]:
    """Whether there is a session bus."""
    address = _now(look, "DBUS_SESSION_BUS_ADDRESS")
    path = f"{_now(look, 'XDG_RUNTIME_DIR')}/bus"
    if address:
        yield ok("There is a session bus.")
        return
    try:
        look.outside.stat(path)
    except OSError:
        yield warning(
            f"There is no session bus: DBUS_SESSION_BUS_ADDRESS is not set, and there is no {path}.",
            "No notification can ask you, media players are not paused, and there is no portal.",
            "dbus-run-session utter-runner",
        )
    else:
        yield ok("There is a session bus.")
