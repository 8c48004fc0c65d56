"""`utter conformance`: runs the SDK's conformance kit against a plugin or a runner, and shows the report.

Rules here: the kit is loaded when it is used; what a plugin wrote is shown through `harmless` only; nothing but the
report goes to stdout.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from utter_runner.cli.busy import Busy
from utter_runner.cli.connection import UsageError, read_token
from utter_runner.cli.exits import Exit
from utter_runner.cli.text import document, harmless

if TYPE_CHECKING:
    from collections.abc import Sequence

    from utter_sdk.conformance.launch import Subject, Transport
    from utter_sdk.conformance.report import Check, Report

_STYLES = {"fails": "red", "warning": "yellow", "skipped": "dim", "evidence": "", "summary": "bold"}
_HANDSHAKE_S = 10.0
_WORK_S = 30.0


class Wanted(NamedTuple):
    """What the command line asks for."""

    target: Sequence[str]
    timeout: float
    transport: Transport | None
    plugin_id: str | None
    settings: str
    env: Sequence[str]
    only: Sequence[str]
    loud: bool


def check_plugin(wanted: Wanted, *, as_json: bool) -> Exit:
    """Check a plugin.

    Raises:
        UsageError: there is no such plugin, or an option is wrong.
    """
    from utter_sdk.conformance import plugin  # noqa: PLC0415 - only this command needs it

    subject = _subject(wanted)
    _check_only(wanted.only, plugin.CHECKS)
    handshake, work = max(_HANDSHAKE_S, wanted.timeout), max(_WORK_S, wanted.timeout)
    limits = plugin.Limits(handshake=handshake, answer=wanted.timeout, work=work)
    with Busy("Checking"):
        report = plugin.check_plugin(subject, limits, loud=wanted.loud, only=wanted.only)
    return show(report, as_json=as_json)


def check_runner(socket: str, token_file: str | None, wanted: Wanted, *, as_json: bool) -> Exit:
    """Check a runner through its socket.

    Raises:
        UsageError: an option is wrong.
    """
    from utter_sdk.conformance import runner_checks  # noqa: PLC0415 - only this command needs it

    _check_only(wanted.only, runner_checks.CHECKS)
    token = None if token_file is None else read_token(token_file)
    with Busy("Checking"):
        report = runner_checks.check_runner(socket, token=token, timeout=wanted.timeout, only=wanted.only)
    return show(report, as_json=as_json)


def show(report: Report, *, as_json: bool) -> Exit:
    """Print a report; the exit code says whether all that must hold does."""
    if as_json:
        print(document(report.document()))
    else:
        from rich.text import Text  # noqa: PLC0415 - rich only for people

        from utter_runner.cli.render import console  # noqa: PLC0415 - see above

        out = console()
        for kind, line in report.lines():
            out.print(Text(harmless(line), style=_STYLES[kind]), soft_wrap=True)
    return Exit.DONE if report.ok else Exit.FAILED


def _check_only(only: Sequence[str], checks: Sequence[Check]) -> None:
    for beginning in only:
        if not any(check.id.startswith(beginning) for check in checks):
            raise UsageError(f"No check begins with {beginning!r}. With --json all have their ids.")


def _subject(wanted: Wanted) -> Subject:
    from utter_protocol.manifest import ManifestError  # noqa: PLC0415 - only this command needs it
    from utter_sdk.conformance.launch import Subject  # noqa: PLC0415 - see above

    if not wanted.target:
        raise UsageError("Name a manifest, or a command after --.")
    settings, env = _settings(wanted.settings), _env(wanted.env)
    first = Path(wanted.target[0])
    if len(wanted.target) == 1 and (first.suffix == ".toml" or first.is_dir()):
        if wanted.plugin_id is not None:
            raise UsageError("--id is for commands: a manifest has the id.")
        try:
            return Subject.from_manifest(first, transport=wanted.transport, settings=settings, env=env)
        except ManifestError as error:
            raise UsageError(f"The manifest cannot be used: {' '.join(str(error).splitlines())}") from None
    return Subject(
        argv=tuple(wanted.target),
        cwd=str(Path.cwd()),
        id=wanted.plugin_id or "",
        transport=wanted.transport or "stdio",
        settings=settings,
        env=env,
    )


def _settings(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise UsageError(f"--settings is not JSON: {error}.") from None
    if not isinstance(found, dict):
        raise UsageError('--settings must be a JSON object, such as {"voice": "en"}.')
    return found


def _env(pairs: Sequence[str]) -> dict[str, str]:
    found = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not name or not equals:
            raise UsageError(f"--env {pair}: write NAME=VALUE.")
        found[name] = value
    return found
