"""Checks of the systemd user service and of the environment that it gives to the runner.

Rules here: systemd is asked, not its files; where there is no user manager the runner is started by hand, and that is
in order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from utter_runner.operate.doctor.model import Finding, broken, ok, warning
from utter_runner.operate.doctor.registry import check
from utter_runner.operate.service import BAD_CONFIG, choose_target
from utter_runner.operate.units import DEFAULT_TARGET, SERVICE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from utter_runner.operate.doctor.look import Look
    from utter_runner.operate.service import ServiceState

VARIABLES: Final = ("WAYLAND_DISPLAY", "DISPLAY", "XDG_CURRENT_DESKTOP", "DBUS_SESSION_BUS_ADDRESS")
"""By what plugins and programs find the desktop."""

_INSTALL = "utter service install"
_REPLACE = "utter service install --replace"
_LOST = "What plugins open does not appear on this desktop, and what asks you cannot reach you."


@check("service.unit")
def unit(look: Look) -> Iterator[Finding]:
    """Whether systemd starts the runner with the session, and from where."""
    state = look.service()
    if look.manager_environ() is None and not state.unit:
        yield ok("There is no systemd user manager here; the runner is started by hand.")
    elif state.problem:
        yield warning(
            f"{state.unit or SERVICE} cannot be asked after. {state.problem}",
            "From here the service can be neither started nor stopped.",
            f"Log in as {look.outside.user}, without su or sudo" if state.unit else "utter service status",
        )
    elif not state.unit:
        yield warning(
            f"The unit {SERVICE} is not installed.",
            "The runner does not start with the session, and nobody restarts it.",
            "utter service install",
        )
    else:
        found = [*_of_unit(look, state), *_of_life(look, state)]
        again = f"; systemd has started it anew {state.restarts} times" if state.restarts else ""
        yield from found or [ok(f"{SERVICE} is {state.enabled or '?'} and {state.active or '?'}{again}.")]


def _of_unit(look: Look, state: ServiceState) -> Iterator[Finding]:
    """What is wrong with what is installed."""
    if state.enabled in ("disabled", "masked"):
        yield warning(
            f"{SERVICE} is {state.enabled}.",
            "The runner does not start with the session.",
            f"systemctl --user {'unmask' if state.enabled == 'masked' else 'enable'} utter-runner",
        )
    if state.program and look.outside.which(state.program) is None:
        yield broken(
            f"{SERVICE} starts {state.program}, which is not there.",
            "It was installed for another Python, or that was removed.",
            _INSTALL if state.written_by == "utter" else _REPLACE,
        )
    elif state.outdated:
        yield warning(
            f"{state.unit} is not what this version writes for this Python.",
            "The service starts another installation, or lacks what a newer unit has.",
            _INSTALL,
        )
    if state.reload_needed:
        yield warning(
            f"{SERVICE} was changed and systemd has not read it again.",
            "What was changed is not in effect.",
            "systemctl --user daemon-reload",
        )
    if state.target == DEFAULT_TARGET != choose_target(state, look.outside.environ):
        yield warning(
            f"{SERVICE} is started by {state.target}, which this desktop does not reach.",
            "The runner does not start with the session.",
            _INSTALL if state.written_by == "utter" else _REPLACE,
        )


def _of_life(look: Look, state: ServiceState) -> Iterator[Finding]:
    """What is wrong with how it runs."""
    if state.active == "failed":
        mend = "systemctl --user restart utter-runner"
        if state.exit_code == BAD_CONFIG:
            # It says what is wrong and where; once that is mended, it is the restart that is missing.
            mend = f"utter config check && {mend}"
        elif state.result == "start-limit-hit":
            mend = "systemctl --user reset-failed utter-runner && systemctl --user start utter-runner"
        yield broken(
            f"{SERVICE} has failed ({state.result or '?'}, exit code {state.exit_code}).",
            "systemd does not start it again by itself.",
            mend,
        )
    if look.contact().state != "up":
        return
    if not look.is_service():
        if state.active != "active":
            pid = look.status.get("pid", "?")
            yield warning(
                f"The runner (pid {pid}) was started by hand, and {SERVICE} is there, too.",
                "systemd cannot start it while this one runs, and nobody restarts this one.",
                f"kill {pid} && systemctl --user start utter-runner",
            )
    elif (told := look.status.get("service")) and told.get("watchdog_s") is None:
        yield warning(
            f"systemd runs the runner without a watchdog: {state.unit} does not ask for one.",
            "A runner that hangs is not started anew.",
            _INSTALL if state.written_by == "utter" else _REPLACE,
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
