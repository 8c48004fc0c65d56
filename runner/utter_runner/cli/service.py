"""`utter service`: the runner as a service of the user's systemd.

Rules here: no runner is needed, and no root. Whatever is missing is told with the one command that mends it.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from utter_runner.cli.connection import UsageError
from utter_runner.cli.exits import Exit
from utter_runner.cli.guard import say
from utter_runner.cli.options import Json, guarded
from utter_runner.cli.text import document, harmless, harmless_lines
from utter_runner.operate.errors import OperateError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from utter_runner.operate.service import Change, ServiceState

group = typer.Typer(
    help="Start the runner with the session: install, remove, and look at its systemd service.",
    rich_markup_mode=None,
    no_args_is_help=True,
)

Replace = Annotated[bool, typer.Option("--replace", help="Also a unit that somebody else wrote.")]


@group.command()
@guarded
def install(
    *,
    with_socket: Annotated[
        bool, typer.Option("--socket", help="Also a socket unit: the runner starts when somebody connects.")
    ] = False,
    config: Annotated[
        str | None, typer.Option("--config", metavar="FILE", help="A configuration that lies elsewhere.")
    ] = None,
    target: Annotated[
        str | None,
        typer.Option("--target", metavar="UNIT", help="What starts it; default: the graphical session, if it is used."),
    ] = None,
    hardened: Annotated[
        bool,
        typer.Option("--hardened", help="Restrict it; applications opened by voice inherit that: no sudo in them."),
    ] = False,
    no_start: Annotated[bool, typer.Option("--no-start", help="Enable it, and start nothing now.")] = False,
    replace: Replace = False,
    as_json: Json = False,
) -> Exit:
    """Write the unit of this installation into your user manager, enable it and start it. No root is needed.

    The desktop entry is written, too, without which newer desktops deliver no keys to the runner.
    """
    from utter_runner.operate import desktop_entry, service  # noqa: PLC0415 - only this command needs it
    from utter_runner.operate.program import runner_program  # noqa: PLC0415 - see above
    from utter_runner.operate.systemctl import UserSystemctl  # noqa: PLC0415 - see above

    path = None if config is None else Path(config).absolute()
    if path is not None and not path.is_file():
        raise UsageError(f"There is no configuration {path}.")
    if target is not None and not target.endswith(".target"):
        raise UsageError(f"--target takes the name of a target, such as default.target, and not {target!r}.")
    systemctl = UserSystemctl(os.environ)
    state = service.service_state(os.environ, systemctl, sys.executable)
    if state.problem:
        raise OperateError(state.problem)
    chosen = target or service.choose_target(state, os.environ)
    changes = service.plan_install(
        os.environ,
        runner_program(sys.executable),
        config=path,
        target=chosen,
        with_socket=with_socket,
        hardened=hardened,
    )
    if not as_json:
        for change in changes:
            _show(change)
    service.install(changes, systemctl, start=not no_start, replace=replace)
    entry = desktop_entry.install(os.environ)
    if entry is not None and not as_json:
        print(f"New: {harmless(entry)}")
    state = service.service_state(os.environ, systemctl, sys.executable)
    if as_json:
        units = [str(one.path) for one in changes]
        told = {"units": units, "desktop_entry": str(entry) if entry else None, "target": chosen}
        print(document({**told, "state": _plain(state)}))
        return Exit.DONE
    print(f"Enabled: it starts with {chosen}." + ("" if no_start else f" It is {harmless(state.active)} now."))
    for advice in _advice(state, chosen):
        say(advice)
    return Exit.DONE


@group.command()
@guarded
def remove(replace: Replace = False, as_json: Json = False) -> Exit:
    """Stop the service, and delete what `utter service install` wrote. Configuration and data stay."""
    from utter_runner.operate import desktop_entry, service  # noqa: PLC0415 - only this command needs it
    from utter_runner.operate.systemctl import UserSystemctl  # noqa: PLC0415 - see above

    gone = service.remove(os.environ, UserSystemctl(os.environ), replace=replace)
    if entry := desktop_entry.remove(os.environ):
        gone = [*gone, entry]
    if as_json:
        print(document({"removed": [str(path) for path in gone]}))
        return Exit.DONE
    for path in gone:
        print(f"Removed {harmless(path)}")
    if not gone:
        print("There is no unit of the runner and no desktop entry, so nothing was removed.")
    return Exit.DONE


@group.command()
@guarded
def status(as_json: Json = False) -> Exit:
    """Say how the service is, what it says of itself, and what keeps it from working. Exit code 4: it does not run."""
    from utter_runner.operate import service  # noqa: PLC0415 - only this command needs it
    from utter_runner.operate.systemctl import UserSystemctl  # noqa: PLC0415 - see above

    state = service.service_state(os.environ, UserSystemctl(os.environ), sys.executable)
    if as_json:
        print(document(_plain(state)))
    else:
        for line in _lines(state):
            print(harmless(line))
        for advice in _advice(state):
            say(advice)
    return Exit.DONE if state.active in {"active", "reloading"} else Exit.UNAVAILABLE


def _plain(state: ServiceState) -> dict[str, object]:
    import msgspec  # noqa: PLC0415 - the other commands do not need it

    return dict(msgspec.to_builtins(state))


def _show(change: Change) -> None:
    """Print what is new, and how it differs from what was there."""
    if change.before == change.after:
        print(f"Unchanged: {harmless(change.path)}")
        return
    print(f"{'New' if change.before is None else 'Changed'}: {harmless(change.path)}")
    if change.before is not None:
        import difflib  # noqa: PLC0415 - only where there is a difference

        before, after = change.before.splitlines(), change.after.splitlines()
        for line in difflib.unified_diff(before, after, "before", "after", lineterm="", n=0):
            print("  " + "".join(harmless_lines(line)))


def _lines(state: ServiceState) -> Iterator[str]:
    if not state.unit:
        yield "Unit      not installed"
    else:
        whose = "written by somebody else" if state.written_by == "other" else "by utter service install"
        yield f"Unit      {state.unit} ({whose}{', outdated' if state.outdated else ''})"
    if state.problem:
        return
    yield f"Enabled   {state.enabled or 'no'}"
    since = f", since {state.since}" if state.since and state.active == "active" else ""
    yield f"Runs      {state.active}{f' ({state.sub})' if state.sub else ''}{since}"
    if state.text:
        yield f"Says      {state.text}"
    yield f"Restarts  {state.restarts}"
    if state.result not in {"", "success"}:
        yield f"Last end  {state.result}, exit code {state.exit_code}"
    if state.socket:
        yield f"Socket    {state.socket}"
    yield f"Desktop   {', '.join(state.variables) or 'its variables are not known to the user manager'}"


def _advice(state: ServiceState, target: str = "") -> Iterator[str]:
    """What is wrong, or will be, each with its command."""
    from utter_runner.operate.service import BAD_CONFIG  # noqa: PLC0415 - only these commands need it

    if state.problem:
        yield state.problem
        return
    if not state.unit:
        yield "It is not installed. Run: utter service install"
        return
    if state.outdated:
        yield "The unit is not what this version writes. Run: utter service install"
    if state.reload_needed:
        yield "The unit has changed on disk. Run: systemctl --user daemon-reload"
    if state.missing:
        names = " ".join(state.missing)
        yield (
            f"What the service starts does not know {names}. Put this into your compositor's start-up, and run it now: "
            f"systemctl --user import-environment {names} && systemctl --user restart utter-runner"
        )
    elif not state.has_display and state.active == "active":
        yield (
            "The user manager knows neither WAYLAND_DISPLAY nor DISPLAY, so plugins do not find the desktop. In the "
            "session, run: systemctl --user import-environment WAYLAND_DISPLAY DISPLAY && "
            "systemctl --user restart utter-runner"
        )
    if target == "default.target":
        yield (
            "This session does not reach graphical-session.target, so the runner starts with your login, before "
            "the desktop is there: keep the import-environment line in your compositor's start-up (docs/operating.md)."
        )
        if state.linger:
            yield "Lingering is on, so it also runs while you are not logged in. To end that: loginctl disable-linger"
    if state.result == "start-limit-hit" or (state.active == "failed" and state.exit_code == BAD_CONFIG):
        yield (
            "It is not tried again. Mend what the journal says (journalctl --user -u utter-runner -n 30), then run: "
            "systemctl --user reset-failed utter-runner && systemctl --user start utter-runner"
        )
