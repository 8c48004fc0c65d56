"""`utter audio`: choose a microphone, look at its level, record it, test it.

Rules here: all of it goes through the runner, so what is shown, recorded and judged is what the runner hears; the
microphone is open only while a command runs.
"""

from __future__ import annotations

from typing import Annotated

import typer

from utter_runner.cli.connection import Target
from utter_runner.cli.exits import Exit
from utter_runner.cli.options import Json, Socket, TokenFile, fetch, guarded
from utter_runner.cli.text import document

MAX_TEST_S = 60.0

group = typer.Typer(
    help="Choose a microphone, look at its level, record it, test it.", no_args_is_help=True, rich_markup_mode=None
)


@group.command()
@guarded
def devices(as_json: Json = False, socket: Socket = None, token_file: TokenFile = None) -> Exit:
    """List the microphones and outputs, and where in the configuration a name goes."""
    answer = fetch("audio.devices", Target(socket, token_file))
    if as_json:
        print(document(answer))
    else:
        from utter_runner.cli.render import console  # noqa: PLC0415 - rich only for people
        from utter_runner.cli.render_audio import print_devices  # noqa: PLC0415 - as above

        print_devices(console(), answer)
    return Exit.DONE


@group.command()
@guarded
def level(
    seconds: Annotated[
        float | None, typer.Option("--seconds", min=0.1, metavar="N", help="End after N seconds, not at Ctrl-C.")
    ] = None,
    as_json: Json = False,
    socket: Socket = None,
    token_file: TokenFile = None,
) -> Exit:
    """Show how loud the microphone is, in decibels of full scale.

    In a pipe, and with --json, it prints a line about 20 times a second.
    """
    from utter_runner.cli import meter  # noqa: PLC0415 - only this command needs it

    with Target(socket, token_file).connect() as client:
        return meter.run(client, seconds, as_json=as_json)


@group.command("record")
@guarded
def record_file(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A WAV file, or - for standard output.")],
    seconds: Annotated[
        float | None, typer.Option("--seconds", min=0.1, metavar="N", help="End after N seconds, not at Ctrl-C.")
    ] = None,
    *,
    float_: Annotated[bool, typer.Option("--float", help="32-bit float samples instead of 16-bit.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite FILE.")] = False,
    as_json: Json = False,
    socket: Socket = None,
    token_file: TokenFile = None,
) -> Exit:
    """Record what the runner hears: 16 kHz, mono, until Ctrl-C.

    What was recorded can be tried with: utter listen --file FILE
    """
    from utter_runner.cli.record import Wanted, record  # noqa: PLC0415 - only this command needs it

    with Target(socket, token_file).connect() as client:
        return record(client, Wanted(file, seconds, "f32" if float_ else "s16", force), as_json=as_json)


@group.command("test")
@guarded
def try_microphone(
    seconds: Annotated[
        float, typer.Option("--seconds", min=1.0, max=MAX_TEST_S, metavar="N", help="How long to listen.")
    ] = 3.0,
    as_json: Json = False,
    socket: Socket = None,
    token_file: TokenFile = None,
) -> Exit:
    """Listen, and say whether the microphone hears you well.

    Exit codes: 0 it does; 1 badly: too quiet, too loud, too noisy, or with gaps; 4 not at all.
    """
    from utter_runner.cli.trial import trial  # noqa: PLC0415 - only this command needs it

    with Target(socket, token_file).connect() as client:
        return trial(client, seconds, as_json=as_json)
