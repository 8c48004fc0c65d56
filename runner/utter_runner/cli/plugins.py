"""`utter plugins`: what runs, what lies on disk, and whether either is in order.

Rules here: `list`, `validate`, `start`, `stop` and `restart` ask the runner; the others need none, and start nothing.
"""

from __future__ import annotations

import shlex
from enum import StrEnum
from typing import Annotated

import typer

from utter_runner.cli import installing, locking
from utter_runner.cli.connection import Target
from utter_runner.cli.exits import Exit, of_validation
from utter_runner.cli.options import Json, Socket, TokenFile, fetch, guarded
from utter_runner.cli.text import document, harmless, harmless_lines

group = typer.Typer(
    help="Show the plugins, check, install and begin them. Without a command: list.", rich_markup_mode=None
)


class Language(StrEnum):
    """What a new plugin is written in."""

    PYTHON = "python"
    NODE = "node"
    SHELL = "shell"


def _list(*, as_json: bool, socket: str | None, token_file: str | None) -> Exit:
    target = Target(socket, token_file)
    if as_json:
        print(document(fetch("runner.plugins", target)))
    else:
        from utter_runner.cli.render import console, print_plugins  # noqa: PLC0415 - rich only for people

        # The status has the plugins, and what has drifted.
        answer = fetch("runner.status", target)
        print_plugins(console(), answer.get("plugins", ()), answer.get("drift", ()))
    return Exit.DONE


@group.callback(invoke_without_command=True)
def without_command(
    context: typer.Context, as_json: Json = False, socket: Socket = None, token_file: TokenFile = None
) -> None:
    """Show the plugins, check, install and begin them. Without a command: list."""
    if context.invoked_subcommand is None:
        guarded(_list)(as_json=as_json, socket=socket, token_file=token_file)
    for name in context.params:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            raise typer.BadParameter(
                f"Options stand behind the command: utter plugins {context.invoked_subcommand} ..."
            )


@group.command("list")
@guarded
def list_running(as_json: Json = False, socket: Socket = None, token_file: TokenFile = None) -> Exit:
    """List the plugins that the runner is told to run, and how they are."""
    return _list(as_json=as_json, socket=socket, token_file=token_file)


@group.command()
@guarded
def validate(
    plugin: Annotated[str, typer.Argument(metavar="ID", help="As in the configuration.")],
    as_json: Json = False,
    socket: Socket = None,
    token_file: TokenFile = None,
) -> Exit:
    """Say whether a plugin of the runner is in order: versions, capabilities, permissions. Exit code 4: it is not."""
    answer = fetch("runner.validate_plugin", Target(socket, token_file), {"plugin": plugin})
    if as_json:
        print(document(answer))
    else:
        from utter_runner.cli.render_plugins import print_validation  # noqa: PLC0415 - rich only for people

        print_validation(plugin, answer)
    return of_validation(answer)


Wait = Annotated[
    float, typer.Option("--timeout", min=0.1, max=60.0, metavar="S", help="Seconds to wait until it is done.")
]
Id = Annotated[str, typer.Argument(metavar="ID", help="As in the configuration.")]


def _control(action: str, plugin: str, seconds: float, target: Target, *, as_json: bool) -> Exit:
    from utter_runner.cli.control import Action, control  # noqa: PLC0415 - only these commands need it

    return control(plugin, Action(action), seconds, target, as_json=as_json)


@group.command()
@guarded
def start(
    plugin: Id, timeout: Wait = 30.0, as_json: Json = False, socket: Socket = None, token_file: TokenFile = None
) -> Exit:
    """Start a plugin that was stopped or has failed, and wait until it is up. Exit code 4: it is not."""
    return _control("start", plugin, timeout, Target(socket, token_file), as_json=as_json)


@group.command()
@guarded
def stop(
    plugin: Id, timeout: Wait = 30.0, as_json: Json = False, socket: Socket = None, token_file: TokenFile = None
) -> Exit:
    """Stop a plugin. It stays so until it is started, or the runner is."""
    return _control("stop", plugin, timeout, Target(socket, token_file), as_json=as_json)


@group.command()
@guarded
def restart(
    plugin: Id, timeout: Wait = 30.0, as_json: Json = False, socket: Socket = None, token_file: TokenFile = None
) -> Exit:
    """Start a plugin anew, whatever it is doing, and wait until it is up. Exit code 4: it is not.

    What it is at may be finished before; it gets no new requests meanwhile.
    """
    return _control("restart", plugin, timeout, Target(socket, token_file), as_json=as_json)


@group.command()
@guarded
def available(
    config: Annotated[
        str | None, typer.Option("--config", metavar="FILE", help="The runner's configuration, if not the usual one.")
    ] = None,
    as_json: Json = False,
) -> Exit:
    """List the plugin packages on this machine, and whether they can be run.

    They are looked for where the runner does: in [runner] plugin_dirs, in the user's and the system's data directories,
    and among those that ship. One runs only if the configuration has a [[plugin]] table for it.
    """
    from utter_runner.cli.packages import installed  # noqa: PLC0415 - only this command needs it

    found = installed(config)
    if as_json:
        print(document({"packages": found}))
    else:
        from utter_runner.cli.render_plugins import print_packages  # noqa: PLC0415 - rich only for people

        print_packages(found)
    return Exit.DONE


@group.command()
@guarded
def check(
    path: Annotated[str, typer.Argument(metavar="PATH", help="An utter-plugin.toml, or where one lies.")],
    as_json: Json = False,
) -> Exit:
    """Read a manifest, and print every problem with file and line. Exit code 1: there are some."""
    from utter_runner.cli.packages import examine  # noqa: PLC0415 - only this command needs it

    found = examine(path)
    if as_json:
        print(document(found))
    else:
        for problem in found["problems"]:
            print(harmless(problem["text"]))
        for warning in found["warnings"]:
            print(harmless(f"{found['manifest']}: Warning: {warning}"))
        if found["ok"]:
            print(harmless(f"{found['manifest']} is in order."))
    return Exit.DONE if found["ok"] else Exit.FAILED


@group.command()
@guarded
def new(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Its id, such as kitchen-timer.")],
    language: Annotated[Language, typer.Option("--lang", help="What it is written in.")] = Language.PYTHON,
    kind: Annotated[str, typer.Option("--kind", metavar="KIND", help="action; in Python also router or context.")] = (
        "action"
    ),
    directory: Annotated[str, typer.Option("--dir", metavar="DIR", help="Where its directory is made.")] = ".",
    as_json: Json = False,
) -> Exit:
    """Make a plugin to begin with: a directory NAME with a manifest, a program that works, and a README."""
    from utter_runner.cli.new import create  # noqa: PLC0415 - only this command needs it

    made = create(name, language.value, kind, directory)
    if as_json:
        print(document(made))
        return Exit.DONE
    print(harmless(f"Made {made['directory']}: {', '.join(made['files'])}"))
    print("\nThe runner starts it when its configuration says so. Add this, then run `utter reload`:\n")
    print("\n".join(harmless_lines(made["entry"])))
    print("\nWithout a runner:\n")
    print(harmless(f"utter conformance {shlex.quote(made['directory'])}/utter-plugin.toml"))
    if made["tests"]:
        print(harmless(f"python -m pytest {shlex.quote(made['directory'])}"))
    return Exit.DONE


for _command in (
    installing.install,
    installing.update,
    installing.remove,
    installing.digest,
    locking.lock,
    locking.drift,
):
    group.command()(_command)
