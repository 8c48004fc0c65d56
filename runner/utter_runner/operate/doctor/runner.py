"""Checks of the runner: whether it answers, which one it is, and what it says of itself.

Rules here: whatever the runner does, what can be known without it is found out by the other families.
"""

from __future__ import annotations

import stat
from contextlib import suppress
from typing import TYPE_CHECKING

from utter_protocol import PROTOCOL
from utter_runner import __version__
from utter_runner.operate.doctor.model import Finding, broken, ok, warning
from utter_runner.operate.doctor.plugins import PLUGIN_PROBLEM
from utter_runner.operate.doctor.registry import check
from utter_runner.operate.doctor.words import place_of, remedy_in

if TYPE_CHECKING:
    from collections.abc import Iterator

    from utter_runner.operate.doctor.contact import Contact
    from utter_runner.operate.doctor.look import Look

_NOTHING = "Nothing is heard and nothing is done while no runner answers."
_TOKEN = "(umask 077; utter token new cli > ~/.config/utter/token)"  # noqa: S105 - the command that makes one


@check("runner.answers")
def answers(look: Look) -> Iterator[Finding]:
    """Whether the runner is up."""
    contact = look.contact()
    if contact.state == "up":
        state = str(contact.status.get("state", "?"))
        by = "systemd" if look.is_service() else "hand"
        if (contact.status.get("service") or {}).get("socket_activated"):
            by = f"{by} at the first connection"
        name = (
            f"utter-runner {contact.status.get('version', '?')} (pid {contact.status.get('pid', '?')}, started by {by})"
        )
        if state == "ready":
            yield ok(f"{name} answers on {look.socket}.")
        else:
            yield warning(
                f"{name} answers, and is {state}.",
                "What was said before it is ready is not understood.",
                "utter status",
            )
    elif contact.state == "wedged":
        yield _wedged(look, contact)
    elif contact.state == "refused":
        yield _refused(look, contact)
    elif contact.state == "unreachable":
        yield _unreachable(look, contact)
    elif (holder := lock_holder(look)) is not None:
        yield broken(
            f"There is nobody on {look.socket}, and pid {holder} holds the lock beside it.",
            "A runner lives that cannot be reached, and no other one can start.",
            f"kill {holder}",
        )
    elif contact.state == "stale":
        yield broken(
            f"Nobody listens on {look.socket}: the runner has ended without removing it.",
            _NOTHING,
            look.start_command(),
        )
    else:
        yield broken(f"No runner runs: there is no socket {look.socket}.", _NOTHING, look.start_command())


def _wedged(look: Look, contact: Contact) -> Finding:
    process = look.runner_process()
    pid = contact.pid if contact.pid is not None else lock_holder(look)
    who = f"The runner (pid {pid})" if pid else "The runner"
    if process is not None and process.state == "T":
        return broken(
            f"{who} was stopped with a signal, and goes on when it is told to.", _NOTHING, f"kill -CONT {pid}"
        )
    ours = look.is_service() or pid is None
    mend = "systemctl --user restart utter-runner" if ours else f"kill -KILL {pid}"
    return broken(f"{who} hangs: {contact.reason or 'it does not take connections'}.", _NOTHING, mend)


def _refused(look: Look, contact: Contact) -> Finding:
    with suppress(OSError):
        owner = look.outside.stat(look.socket).uid
        if owner != look.outside.uid:
            return broken(
                f"The socket {look.socket} belongs to uid {owner}, and you are uid {look.outside.uid}.",
                "A runner serves its own user and nobody else.",
                f"sudo -u '#{owner}' utter doctor",
            )
    if not contact.pid:
        return broken(
            f"You may not connect to {look.socket}: {contact.reason}.", "No command reaches it.", _mode(look.socket)
        )
    return broken(
        f"The runner does not let this program in: {contact.reason}. {look.options.token_problem}".rstrip(),
        "No command of `utter` reaches it.",
        _TOKEN,
    )


def _mode(path: str) -> str:
    return f"chmod 600 {path}"


def _unreachable(look: Look, contact: Contact) -> Finding:
    if look.socket_problem:
        return broken(contact.reason, _NOTHING, f"export XDG_RUNTIME_DIR=/run/user/{look.outside.uid}")
    with suppress(OSError):
        if not stat.S_ISSOCK(look.outside.stat(look.socket).mode):
            return broken(
                f"{look.socket} is not a socket.",
                "A runner cannot put its own there.",
                f"mv {look.socket} {look.socket}.old",
            )
    return broken(
        f"What listens on {look.socket} is not a runner that can be talked to: {contact.reason}.",
        _NOTHING,
        look.restart_command(),
    )


def lock_holder(look: Look) -> int | None:
    """The process that holds the lock beside the socket, as the kernel tells it."""
    try:
        inode = look.outside.stat(f"{look.socket}.lock").inode
        locks = look.outside.read("/proc/locks")
    except OSError:
        return None
    for line in locks.splitlines():
        # 1: FLOCK  ADVISORY  WRITE 4711 08:01:131 0 EOF
        words = line.split()
        with suppress(ValueError, IndexError):
            if words[1] == "FLOCK" and int(words[5].rpartition(":")[2]) == inode:
                return int(words[4])
    return None


@check("runner.version")
def version(look: Look) -> Iterator[Finding]:
    """Whether what runs is what is installed."""
    status = look.status
    if not status:
        return
    runs, speaks = status.get("version"), status.get("protocol")
    if (runs, speaks) == (__version__, PROTOCOL):
        yield ok(f"The runner is of the version that is installed ({runs}, protocol {speaks}).")
    else:
        yield warning(
            f"The runner is {runs} (protocol {speaks}), and what is installed is {__version__} (protocol {PROTOCOL}).",
            "What was mended or added since is not in effect.",
            look.restart_command(),
        )


@check("runner.single")
def single(look: Look) -> Iterator[Finding]:
    """Whether there is one runner."""
    ours = look.runner_process()
    known = {ours.pid if ours else None, lock_holder(look) if look.socket else None}
    others = [one for one in look.runners() if one.pid not in known]
    for one in others if ours is not None else others[1:]:
        yield warning(
            f"Another runner of yours runs, too (pid {one.pid}).",
            "Both hear the key and the microphone, and each command is carried out twice.",
            f"kill {one.pid}",
        )
    if len(others) <= (ours is None):
        yield ok("There are no two runners in this session.")


@check("runner.warnings")
def warnings(look: Look) -> Iterator[Finding]:
    """What the runner itself warns of."""
    said = [str(text) for text in look.status.get("warnings", ()) if not PLUGIN_PROBLEM.match(str(text))]
    for text in said:
        yield warning(text, "The runner says so in its status.", remedy_in(text) or place_of(text) or "utter status")
    if look.status and not said:
        yield ok("The runner warns of nothing.")
