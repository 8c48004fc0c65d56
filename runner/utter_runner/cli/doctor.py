"""`utter doctor`: what is wrong, why it matters, and the one thing that mends it.

Rules here: problems first, then what is fine in a line each; the words fit any terminal because they are wrapped, and
nothing but them is printed in a pipe. What checks found is text from elsewhere and goes through `harmless`.
"""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import textwrap
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from utter_runner.cli.connection import UsageError, own_token, read_token
from utter_runner.cli.exits import Exit
from utter_runner.cli.options import Json, Socket, TokenFile, guarded
from utter_runner.cli.text import document, harmless

if TYPE_CHECKING:
    from collections.abc import Iterator

    from utter_runner.operate.doctor.model import Finding, Report

_PIPE_WIDTH = 100
_LEAST_WIDTH = 30
_MOST_WIDTH = 100
_EXITS = (Exit.DONE, Exit.FAILED, Exit.USAGE)


@guarded
def doctor(
    config: Annotated[
        str | None, typer.Option("--config", metavar="FILE", help="The runner's configuration, if not the usual one.")
    ] = None,
    *,
    no_microphone: Annotated[bool, typer.Option("--no-microphone", help="Do not listen.")] = False,
    everything: Annotated[
        bool,
        typer.Option("--all", help="Also print what is in order, one line for each, and compare models' digests."),
    ] = False,
    timeout: Annotated[
        float,
        typer.Option(
            "--timeout", min=1, max=600, metavar="S", help="Seconds that it may take; a slow machine needs more."
        ),
    ] = 10.0,
    as_json: Json = False,
    socket: Socket = None,
    token_file: TokenFile = None,
) -> Exit:
    """Look for everything that is wrong, and say what mends it.

    It works whether the runner runs, hangs or does not run, and changes nothing. Exit codes: 0 all is well; 1 there are
    warnings; 2 something is broken.
    """
    from utter_runner.operate.doctor.examine import examine  # noqa: PLC0415 - only this command needs it
    from utter_runner.operate.doctor.look import Options  # noqa: PLC0415 - see above
    from utter_runner.operate.doctor.outside import Machine  # noqa: PLC0415 - see above
    from utter_runner.operate.doctor.registry import DEADLINE_S  # noqa: PLC0415 - see above

    token, problem = None, ""
    try:
        token = own_token(os.environ) if token_file is None else read_token(token_file)
    except UsageError as error:
        problem = str(error)
    options = Options(
        socket=socket,
        config=None if config is None else os.path.abspath(config),  # noqa: PTH100 - text
        token=token,
        token_problem=problem,
        microphone=not no_microphone,
        thorough=everything,
    )
    # Who wants to wait less is not to be told that something hangs which only had no time.
    pace = max(1.0, timeout / DEADLINE_S)
    report = examine(Machine(dict(os.environ), pace), options, seconds=timeout)
    atexit.register(_leave, _EXITS[report.exit])
    if as_json:
        print(document(msgspec.to_builtins(report)))
    else:
        print("\n".join(lines(report, width(), everything=everything)))
    return _EXITS[report.exit]


def _leave(code: Exit) -> None:
    """End the process without taking the interpreter down under a thread that still waits: that may crash."""
    from utter_runner.operate.doctor.registry import still_looking  # noqa: PLC0415 - see above

    if still_looking():
        with suppress(OSError, ValueError):
            sys.stdout.flush()
        os._exit(code)


def width() -> int:
    """The columns to write in: the terminal's, within reason."""
    if not sys.stdout.isatty() and "COLUMNS" not in os.environ:
        return _PIPE_WIDTH
    return min(max(shutil.get_terminal_size().columns, _LEAST_WIDTH), _MOST_WIDTH)


def lines(report: Report, columns: int, *, everything: bool = False) -> Iterator[str]:
    """What a person reads of a report, in lines of at most so many columns where words allow it."""
    problems = [finding for finding in report.findings if finding.status != "ok"]
    for finding in problems:
        yield from _wrapped(f"{finding.status.upper()}  {finding.check}", "", columns)
        yield from _wrapped(finding.what, "  ", columns)
        yield from _wrapped(finding.why, "  ", columns)
        # It is copied, so it is not broken into lines.
        yield f"  -> {harmless(finding.mend)}"
        yield ""
    fine = [finding for finding in report.findings if finding.status == "ok"]
    if everything:
        for finding in fine:
            yield from _wrapped(f"{finding.check}: {finding.what}", "ok  ", columns)
        yield ""
    yield from _wrapped(_sum(report, problems, len(fine)), "", columns)


def _sum(report: Report, problems: list[Finding], fine: int) -> str:
    broken = sum(finding.status == "broken" for finding in problems)
    warnings = len(problems) - broken
    runner = f"The runner is {report.state}."
    if not problems:
        return f"All is well ({fine} findings). {runner}"
    return f"{runner} Broken: {broken}; warnings: {warnings}; in order: {fine}."


def _wrapped(text: str, indent: str, columns: int) -> list[str]:
    return textwrap.wrap(
        harmless(text),
        columns,
        initial_indent=indent,
        subsequent_indent=" " * len(indent),
        break_long_words=False,
        break_on_hyphens=False,
    )
