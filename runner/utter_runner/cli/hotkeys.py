"""`utter hotkeys`: the keys that the desktop delivers.

Rules here: what is asked of the desktop goes through the runner, which has the connection.
"""

from __future__ import annotations

import os

import typer

from utter_runner.cli.connection import Target
from utter_runner.cli.exits import Exit
from utter_runner.cli.guard import say
from utter_runner.cli.options import Json, Socket, TokenFile, fetch, guarded
from utter_runner.cli.text import document, harmless

group = typer.Typer(help="The keys that the desktop delivers.", no_args_is_help=True, rich_markup_mode=None)


@group.command()
@guarded
def bind(as_json: Json = False, socket: Socket = None, token_file: TokenFile = None) -> Exit:
    """Ask the desktop for the hotkeys as shortcuts, again if its dialog was dismissed.

    It installs the runner's desktop entry, which newer desktops want to see. Where the shortcuts are bound already, the
    desktop shows its settings for them.
    """
    from utter_runner.operate.desktop_entry import install  # noqa: PLC0415 - only this command needs it

    installed = install(os.environ)
    answer = fetch("hotkeys.bind", Target(socket, token_file))
    if as_json:
        print(document({**answer, "installed": None if installed is None else str(installed)}))
    else:
        if installed is not None:
            print(harmless(f"installed {installed}"))
        (print if answer.get("asked") else say)(harmless(answer.get("detail", "")))
    return Exit.DONE if answer.get("asked") else Exit.UNAVAILABLE


@group.command()
@guarded
def forget(as_json: Json = False) -> Exit:
    """Remove the desktop entry that `bind` has installed, as before an uninstallation.

    The keys themselves are yours: they stay in the desktop's settings until you delete them there.
    """
    from utter_runner.operate.desktop_entry import remove  # noqa: PLC0415 - only this command needs it

    removed = remove(os.environ)
    if as_json:
        print(document({"removed": None if removed is None else str(removed)}))
    else:
        print("there is no desktop entry" if removed is None else harmless(f"removed {removed}"))
    return Exit.DONE
