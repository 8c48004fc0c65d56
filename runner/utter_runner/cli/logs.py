"""`utter logs`: what the runner has logged, from the runner itself, or from the journal when it does not run.

Rules here: lines are shown as harmless text; nothing is shown twice, though those that come may have been asked for as
those that are there.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from contextlib import suppress
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from utter_runner.cli.connection import CALL_TIMEOUT_S, Target, UsageError
from utter_runner.cli.exits import Exit
from utter_runner.cli.guard import say
from utter_runner.cli.moments import moment
from utter_runner.cli.options import Json, Socket, TokenFile, guarded
from utter_runner.cli.text import document, harmless
from utter_sdk.client import RunnerUnavailable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from utter_sdk.client import Client

SHOWN = 50
"""How many lines are shown unless the command line says otherwise."""
MAX_LINES = 2000
STREAM = "runner.log"
UNIT = "utter-runner"


class Level(StrEnum):
    """How grave a line is at least."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class Wanted(NamedTuple):
    """Which lines are shown."""

    plugin: str | None
    last: int | None
    level: Level
    since: str

    def takes(self, line: Mapping[str, Any]) -> bool:
        """Whether a line is one of them."""
        grave = list(Level)
        return (
            self.plugin in {None, line.get("plugin")}
            and grave.index(Level(line.get("level", "error"))) >= grave.index(self.level)
            and str(line.get("time", "")) >= self.since
        )


@guarded
def logs(
    plugin: Annotated[
        str | None, typer.Argument(metavar="[PLUGIN]", help="Only what is about this plugin.", show_default=False)
    ] = None,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on with what is being logged.")] = False,
    last: Annotated[
        int | None, typer.Option("-n", "--last", min=1, max=MAX_LINES, metavar="N", help="The last N; 50 by default.")
    ] = None,
    level: Annotated[Level, typer.Option("--level", help="These, and graver ones.")] = Level.DEBUG,
    since: Annotated[
        str | None, typer.Option("--since", metavar="TIME", help="From then on: 2h, 30m, or 2026-01-31T09:00.")
    ] = None,
    *,
    as_json: Json = False,
    socket: Socket = None,
    token_file: TokenFile = None,
) -> Exit:
    """Show what the runner and its plugins have logged.

    The runner keeps its last 2000 lines. When it does not run, the journal of its systemd unit is shown, if there is
    one. What was said and typed is in the log only with [log] content.
    """
    moment_of = "" if since is None else moment(since, datetime.now(UTC))
    shown = last if last is not None or since is not None else SHOWN
    wanted = Wanted(plugin, shown, level, moment_of)
    try:
        client = Target(socket, token_file).connect()
    except RunnerUnavailable as error:
        if socket is not None:
            raise
        return _journal(wanted, str(error), follow=follow, as_json=as_json)
    with client:
        if not follow:
            _print_last(client, wanted, as_json=as_json)
            return Exit.DONE
        # First the stream, so that nothing is lost between the two.
        with client.subscribe(STREAM) as stream:
            seen = _print_last(client, wanted, as_json=as_json)
            for line in stream:
                if int(line.get("seq", 0)) > seen and wanted.takes(line):
                    _print(line, as_json=as_json)
    return Exit.DONE


def _print_last(client: Client, wanted: Wanted, *, as_json: bool) -> int:
    """Print the lines that are there, and return the number of the last one."""
    params: dict[str, Any] = {"last": wanted.last or MAX_LINES, "level": wanted.level.value}
    if wanted.plugin is not None:
        params["plugin"] = wanted.plugin
    found = [line for line in client.call("runner.logs", params, CALL_TIMEOUT_S).get("lines", ()) if wanted.takes(line)]
    for line in found:
        _print(line, as_json=as_json)
    return max((int(line.get("seq", 0)) for line in found), default=0)


def _print(line: Mapping[str, Any], *, as_json: bool) -> None:
    print(document(dict(line)) if as_json else log_line(line), flush=True)


def log_line(line: Mapping[str, Any]) -> str:
    """One line for a person: when, how grave, from where, what."""
    when = str(line.get("time", ""))
    with suppress(ValueError, OverflowError, OSError):
        when = datetime.fromisoformat(when).astimezone().strftime("%H:%M:%S.%f")[:-3]
    logger = str(line.get("logger", "")).removeprefix("utter_runner.")
    return harmless(f"{when} {line.get('level', '')!s:<7} {logger}: {line.get('text', '')}")


def journal_command(program: str, wanted: Wanted, *, follow: bool, as_json: bool) -> list[str]:
    """What shows what the service logged.

    Raises:
        UsageError: the plugin's id is none.
    """
    command = [program, "--user", f"--unit={UNIT}", "--no-pager", "--quiet"]
    command += [f"--output={'json' if as_json else 'short'}", f"--lines={wanted.last or 'all'}"]
    if wanted.level is not Level.DEBUG:
        command.append(f"--priority={wanted.level.value if wanted.level is not Level.ERROR else 'err'}")
    if wanted.since:
        command.append(f"--since=@{datetime.fromisoformat(wanted.since).timestamp():.3f}")
    if follow:
        command.append("--follow")
    if wanted.plugin is not None:
        if not wanted.plugin.isprintable() or wanted.plugin.startswith("-"):
            raise UsageError(f"{wanted.plugin!r} is no plugin's id.")
        command.append(f"PLUGIN={wanted.plugin}")
    return command


def _journal(wanted: Wanted, why: str, *, follow: bool, as_json: bool) -> Exit:
    """Have journalctl show what the service logged."""
    program = shutil.which("journalctl")
    if program is None:
        say(f"The runner is not available: {why} There is no journal either: it logs to where it was started.")
        return Exit.UNAVAILABLE
    command = journal_command(program, wanted, follow=follow, as_json=as_json)
    say(f"The runner is not available: {why} This is what the journal has of its service.")
    sys.stdout.flush()
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=not follow, text=True, check=False)
    if follow:
        return Exit.DONE if done.returncode == 0 else Exit.UNAVAILABLE
    lines = done.stdout.splitlines()
    for line in lines:
        print(harmless(line))
    if done.returncode or not lines:
        detail = done.stderr.strip().partition("\n")[0]
        say(f"The journal has nothing of {UNIT}{f': {detail}' if detail else ''}.")
        return Exit.UNAVAILABLE
    return Exit.DONE
