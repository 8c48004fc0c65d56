"""`utter plugins lock` and `drift`: what is not what was recorded, and who agrees to it.

Rules here: those of `installing`. Both work without a runner; with one, they know what the plugins' processes say, too.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from utter_runner.cli.exits import Exit
from utter_runner.cli.guard import say, written
from utter_runner.cli.installing import Widen, Yes, ask, tell, user_places
from utter_runner.cli.options import Json, Socket, TokenFile, fetch, guarded
from utter_runner.cli.text import document, harmless
from utter_runner.operate.errors import Untrusted

if TYPE_CHECKING:
    from utter_protocol.drift import DriftResult
    from utter_runner.operate.locking import Lock

ConfigFile = Annotated[
    str | None, typer.Option("--config", metavar="FILE", help="The runner's configuration, if not the usual one.")
]


@guarded
def lock(
    plugins: Annotated[
        list[str] | None, typer.Argument(metavar="[ID]...", help="As in the configuration; without any: all.")
    ] = None,
    *,
    yes: Yes = False,
    accept_permissions: Widen = False,
    config: ConfigFile = None,
    as_json: Json = False,
    socket: Socket = None,
    token_file: TokenFile = None,
) -> Exit:
    """Record the configured plugins as they are now: versions, digests, permissions and ops.

    It shows what has changed since they were recorded, and asks before it agrees to that. What their processes say is
    asked of the runner; without one, that part stays as it was recorded. With --yes a plugin that asks for more
    permissions than are recorded is refused, unless --accept-permissions is given.
    """
    found, runner = _examined(config, plugins or [], socket, token_file)
    for name, why in found.unclear.items():
        say(f"{name} is left as it is recorded: {why}")
    for one in found.proposals:
        tell(one.lines())
    if found.proposals:
        _agree(found, yes=yes, widen=accept_permissions)
        written(found.accept)
        if runner:
            _look(socket, token_file)
    if as_json:
        print(document(_answer(found)))
    elif found.proposals:
        print(harmless(f"Recorded in {found.places.lockfile}: {', '.join(one.plugin for one in found.proposals)}."))
    else:
        print("Nothing has changed since it was recorded.")
    if found.silent:
        why = "the runner has not met them as they are" if runner else "no runner could be asked"
        say(f"What the processes of {', '.join(found.silent)} say is left as it was recorded: {why}.")
    if runner and runner.locked and found.proposals:
        say("What the runner has refused before is started by `utter plugins start ID`.")
    return Exit.FAILED if found.unclear else Exit.DONE


@guarded
def drift(
    config: ConfigFile = None, as_json: Json = False, socket: Socket = None, token_file: TokenFile = None
) -> Exit:
    """Say which plugins are not what is recorded of them. Exit code 1: there are some."""
    from utter_runner.operate.drift import STARTED, sentences  # noqa: PLC0415 - only this command needs it

    found, runner = _examined(config, [], socket, token_file)
    # By which manifest a process runs only the runner knows.
    differs = [*found.drift, *(one for one in (runner.drift if runner else ()) if one.field == STARTED)]
    if as_json:
        print(document({"drift": msgspec.to_builtins(differs), "lockfile": str(found.places.lockfile)}))
    elif differs:
        for text in sentences(differs, found.record):
            print(harmless(text))
    else:
        print("Every plugin is what is recorded of it.")
    return Exit.FAILED if differs else Exit.DONE


def _examined(
    config: str | None, plugins: list[str], socket: str | None, token_file: str | None
) -> tuple[Lock, DriftResult | None]:
    """What is there, and what the runner says of it."""
    from utter_runner.cli.packages import configuration  # noqa: PLC0415 - only these commands need it
    from utter_runner.operate.locking import examine  # noqa: PLC0415 - see above

    settings = configuration(config)
    runner = _look(socket, token_file)
    announced = runner.announced if runner else {}
    places = user_places()
    return written(lambda: examine(settings, os.environ, places, announced, plugins)), runner


def _look(socket: str | None, token_file: str | None) -> DriftResult | None:
    """Have the runner look again, and return what it finds; None if it cannot be asked."""
    from utter_protocol.drift import DriftResult  # noqa: PLC0415 - only these commands need it
    from utter_protocol.errors import RpcError  # noqa: PLC0415 - see above
    from utter_runner.cli.connection import Target  # noqa: PLC0415 - see above
    from utter_sdk.client import RunnerUnavailable  # noqa: PLC0415 - see above

    try:
        return msgspec.convert(fetch("runner.drift", Target(socket, token_file)), DriftResult)
    except RunnerUnavailable:
        return None
    except (RpcError, msgspec.ValidationError) as error:
        say(f"The runner was not asked: {error}")
        return None


def _agree(found: Lock, *, yes: bool, widen: bool) -> None:
    """Return if it is agreed to. Raises Untrusted."""
    more = [
        f"{one.plugin}: {', '.join(one.new_permissions)}"
        for one in found.proposals
        if one.before is not None and one.new_permissions
    ]
    if yes and more and not widen:
        raise Untrusted(
            f"These ask for permissions that are not recorded: {'; '.join(more)}. --accept-permissions agrees to them."
        )
    ask("Record this?", yes=yes)


def _answer(found: Lock) -> dict[str, Any]:
    return {
        "lockfile": str(found.places.lockfile),
        "changed": [
            {
                "plugin": one.plugin,
                "before": msgspec.to_builtins(one.before),
                "after": msgspec.to_builtins(one.after),
                "new_permissions": one.new_permissions,
            }
            for one in found.proposals
        ],
        "unclear": found.unclear,
        "not_asked": found.silent,
    }
