"""The commands, options and arguments of `utter` as plain data: what completion and the man pages are made of.

Rules here: typer's own description is read, and nothing is added to it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import typer


class Parameter(NamedTuple):
    """An option or an argument.

    Attributes:
        names: of an option, such as `["-n", "--last"]`; empty for an argument.
        metavar: what stands for its value; empty for a flag.
        choices: the only values that there are; empty if there are others.
        help: one sentence, or nothing.
        multiple: whether it may be there more than once.
    """

    names: list[str]
    metavar: str
    choices: list[str]
    help: str
    multiple: bool


class Command(NamedTuple):
    """A command, or a group of them.

    Attributes:
        name: its last word.
        help: paragraphs.
        parameters: those that it takes itself.
        commands: those of a group, by name.
    """

    name: str
    help: str
    parameters: list[Parameter]
    commands: dict[str, Command]


def command_tree() -> Command:
    """Everything that `utter` can be told."""
    from utter_runner.cli.app import app  # noqa: PLC0415 - which has commands that need this module

    return _command("utter", typer.main.get_command(app))


def _command(name: str, command: Any) -> Command:
    parameters = [made for one in command.params if (made := _parameter(one)) is not None]
    commands = getattr(command, "commands", {})
    return Command(
        name,
        (command.help or "").strip(),
        parameters,
        {child: _command(child, one) for child, one in commands.items() if not one.hidden},
    )


def _parameter(parameter: Any) -> Parameter | None:
    if getattr(parameter, "hidden", False) or parameter.name in {"install_completion", "show_completion"}:
        return None
    option = parameter.param_type_name == "option"
    flag = bool(getattr(parameter, "is_flag", False))
    # Its name depends on the version of typer.
    kind = getattr(parameter, "type_descriptor", None) or getattr(parameter, "type", None)
    metavar = "" if flag else (parameter.metavar or str(getattr(kind, "name", "value")).upper())
    choices = [] if flag else [str(getattr(one, "value", one)) for one in getattr(kind, "choices", None) or ()]
    if not choices and "|" in metavar:
        choices = metavar.strip("[]").split("|")
    if option and choices and not parameter.metavar:
        metavar = "|".join(choices)
    return Parameter(
        sorted([*parameter.opts, *parameter.secondary_opts], key=len) if option else [],
        metavar,
        choices,
        getattr(parameter, "help", None) or "",
        bool(parameter.multiple or parameter.nargs != 1) if option else parameter.nargs != 1,
    )
