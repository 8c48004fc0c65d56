"""The `utter` command: everything that a person or a script types.

Rules here: it talks to the daemon over the client socket and imports nothing of it. What is stable, and so what scripts
may use: exit codes (`exits`), and with `--json` the documents, which are the protocol's own (PROTOCOL.md, "The client
API"). `utter ptt` runs at each press of a compositor key binding, so it goes past typer and rich. Text that came from a
plugin, a microphone or a page is shown through `text.harmless` only.
"""

from __future__ import annotations

import sys


def main(argv: list[str] | None = None) -> int:
    """Run the command line.

    Args:
        argv: the arguments without the program's name; None takes them from `sys.argv`.

    Returns:
        The exit code, one of `exits.Exit`.
    """
    try:
        return _main(sys.argv[1:] if argv is None else argv)
    except KeyboardInterrupt:
        # Pressed while the modules were being imported; later ones are the commands' own.
        return 130


def _main(arguments: list[str]) -> int:
    if arguments[:1] == ["__complete"]:
        from utter_runner.cli.completion import answer  # noqa: PLC0415 - typed by nobody, and to be quick

        return answer(arguments[1:])
    from utter_runner.cli import ptt  # noqa: PLC0415 - the quick path imports what it needs, and nothing else

    command = ptt.parse(arguments)
    if command is not None:
        from utter_runner.cli.guard import guard  # noqa: PLC0415 - see above

        return guard(command.run, as_json=command.as_json)
    from utter_runner.cli.app import run  # noqa: PLC0415 - typer costs more than all of `utter ptt`

    # What people try first with a program that they do not know.
    return run(["version", *arguments[1:]] if arguments[:1] == ["--version"] else arguments)
