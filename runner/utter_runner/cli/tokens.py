"""`utter token`: making, listing and revoking the tokens with which programs use the runner's socket.

Rules here: no runner is needed, because it reads the file when it changes; a token is printed once.
"""

from __future__ import annotations

from typing import Annotated

import typer

from utter_runner.cli.exits import Exit
from utter_runner.cli.guard import say
from utter_runner.cli.options import Json, guarded
from utter_runner.cli.text import document, harmless

group = typer.Typer(
    help="Make, list and revoke the tokens with which programs may use the runner.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@group.command("new")
@guarded
def new_token(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="What it is for, such as waybar.", show_default=False)
    ] = None,
    as_json: Json = False,
) -> Exit:
    """Make a token and print it. It is shown this once, and counts at once, without a restart of the runner.

    Where the configuration has a section [socket], a program that presents the token may use the runner. `utter` itself
    takes the one that it finds in ~/.config/utter/token.
    """
    from utter_runner.cli import token_file  # noqa: PLC0415 - only these commands need it

    made = token_file.create(name)
    if as_json:
        print(document(made._asdict()))
    else:
        print(made.token)
        say(f"This is the token {made.name}; it is not shown again. To take it back: utter token revoke {made.name}")
    return Exit.DONE


@group.command("list")
@guarded
def list_tokens(as_json: Json = False) -> Exit:
    """List the tokens by name, with the day on which each was made."""
    from utter_runner.cli import token_file  # noqa: PLC0415 - see above

    path, tokens = token_file.stored()
    if as_json:
        shown = [{"name": one.name, "created": one.created.isoformat()} for one in tokens]
        print(document({"path": path, "tokens": shown}))
        return Exit.DONE
    for one in tokens:
        print(f"{one.created:%Y-%m-%d}  {one.name}")
    if not tokens:
        say(f"There are no tokens in {path}.")
    return Exit.DONE


@group.command()
@guarded
def revoke(
    name: Annotated[str, typer.Argument(metavar="NAME", help="As utter token list shows it.")], as_json: Json = False
) -> Exit:
    """Take a token back. Within seconds the runner ends the connections that were made with it."""
    from utter_runner.cli import token_file  # noqa: PLC0415 - see above

    token_file.remove(name)
    print(document({"revoked": name}) if as_json else harmless(f"The token {name} is revoked."))
    return Exit.DONE
