"""The command line: commands, options, help.

Rules here: a command's body is a few lines that call the other modules and return an `Exit`; help is plain text, so
that it reads the same in a pipe and on a narrow terminal.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from utter_runner.cli import ptt as ptt_command
from utter_runner.cli.audio import group as audio
from utter_runner.cli.audit import audit
from utter_runner.cli.configuration import group as configuration
from utter_runner.cli.connection import CALL_TIMEOUT_S, Target, UsageError
from utter_runner.cli.doctor import doctor
from utter_runner.cli.exits import Exit, of_command
from utter_runner.cli.guard import say
from utter_runner.cli.hotkeys import group as hotkeys
from utter_runner.cli.logs import logs
from utter_runner.cli.models import group as models
from utter_runner.cli.options import Json, Origin, Provenance, Socket, TokenFile, fetch
from utter_runner.cli.options import guarded as _guarded
from utter_runner.cli.plugins import group as plugins
from utter_runner.cli.policy import group as policy
from utter_runner.cli.service import group as service
from utter_runner.cli.text import document, harmless
from utter_runner.cli.tokens import group as tokens

if TYPE_CHECKING:
    from utter_sdk.client import Client

# The runner bounds each step (60 s at most) and each confirmation; this bounds a runner that says nothing at all.
COMMAND_TIMEOUT_S = 240.0
SPEAK_TIMEOUT_S = 60.0

_EXITS = (
    "Exit codes: 0 done; 1 the action failed or was not understood; 2 wrong usage; 3 blocked by policy or not "
    "confirmed; 4 the runner, a plugin or the microphone is unavailable."
)


class Shell(StrEnum):
    """A shell that can complete."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


class TransportName(StrEnum):
    """How a plugin is talked to."""

    STDIO = "stdio"
    CONNECT = "connect"
    LISTEN = "listen"


app = typer.Typer(
    name="utter",
    help="Talk to utter-runner: give it a sentence or a recording, see what it does.",
    epilog=_EXITS,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 80},
)
app.add_typer(policy, name="policy")
app.add_typer(plugins, name="plugins")
app.add_typer(models, name="models")
app.add_typer(audio, name="audio")
app.add_typer(hotkeys, name="hotkeys")
app.add_typer(tokens, name="token")
app.add_typer(service, name="service")
app.add_typer(configuration, name="config")
app.command("audit")(audit)
app.command("logs")(logs)
app.command("doctor")(doctor)


def run(arguments: list[str]) -> int:
    """Run the command line through typer and return the exit code."""
    try:
        typer.main.get_command(app).main(arguments, prog_name="utter")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else Exit.DONE
    return Exit.DONE


@app.command("say")
@_guarded
def say_sentence(
    sentence: Annotated[str, typer.Argument(metavar="SENTENCE", help="What you would have said.")],
    provenance: Origin = Provenance.USER,
    as_json: Json = False,
    socket: Socket = None,
    token_file: TokenFile = None,
) -> Exit:
    """Give the runner a sentence as if it had been spoken.

    Before something consequential the runner asks: on the desktop, and where `utter confirm` runs. Whoever asks for an
    action may not confirm it, so this command asks you only what plugins want to know, or with [policy] self_confirm.
    There is no option that answers yes: a confirmation is for a person.
    """
    with Target(socket, token_file).connect() as client:
        result = _command(client, sentence, provenance)
    if as_json:
        print(document(result))
        return of_command(result)
    from utter_runner.cli.render import console, print_results  # noqa: PLC0415 - rich only for people

    print_results(console(), result.get("results", ()), result.get("latency_ms", {}))
    if not result.get("results") or not result.get("understood", True):
        say(str(result.get("detail") or "The sentence was not understood."))
    return of_command(result)


def _command(client: Client, sentence: str, provenance: Provenance) -> dict[str, Any]:
    from utter_runner.cli.ask import serve_confirm  # noqa: PLC0415 - only commands that act need it
    from utter_runner.cli.busy import Busy  # noqa: PLC0415 - see above

    with Busy("Working") as busy:
        serve_confirm(client, busy)
        params = {"utterance": sentence, "provenance": provenance.value}
        return dict(client.call("runner.command", params, COMMAND_TIMEOUT_S))


@app.command()
@_guarded
def listen(
    file: Annotated[
        str | None, typer.Option("--file", metavar="WAV", help="A recording instead of the microphone.")
    ] = None,
    as_json: Json = False,
    socket: Socket = None,
    token_file: TokenFile = None,
) -> Exit:
    """Speak a command and watch what happens.

    Without --file it holds the key for you until you press Enter. With --json it prints one event per line, the last
    one being the report; with --file only the report.
    """
    from utter_runner.cli.listen import from_file, live, read_wav  # noqa: PLC0415 - only this command needs it

    data = None if file is None else read_wav(file)
    with Target(socket, token_file).connect() as client:
        if file is None or data is None:
            return live(client, as_json=as_json)
        return from_file(client, file, data, as_json=as_json)


@app.command()
@_guarded
def confirm(
    once: Annotated[bool, typer.Option("--once", help="End after one question.")] = False,
    show: Annotated[bool, typer.Option("--list", help="Only show what waits for an answer.")] = False,
    as_json: Json = False,
    socket: Socket = None,
    token_file: TokenFile = None,
) -> Exit:
    """Wait for what the runner asks before it acts, and answer it.

    Whoever asks for an action may not confirm it, so `utter say` is answered here, in another terminal, or on the
    desktop. With --once: exit code 0 for a yes, 3 for anything else.
    """
    from utter_runner.cli.confirm import answer_questions, show_questions  # noqa: PLC0415 - only this command needs it

    with Target(socket, token_file).connect() as client:
        if show:
            return show_questions(client, as_json=as_json)
        return answer_questions(client, once=once, as_json=as_json)


@app.command()
@_guarded
def ptt(
    action: Annotated[
        ptt_command.Action, typer.Argument(metavar="press|release|toggle|cancel", help="What the key does.")
    ],
    as_json: Json = False,
    socket: Socket = None,
    token_file: TokenFile = None,
) -> Exit:
    """Press or release the push-to-talk key; for key bindings of the compositor."""
    return ptt_command.Command(action, socket, token_file, as_json).run()


@app.command()
@_guarded
def status(as_json: Json = False, socket: Socket = None, token_file: TokenFile = None) -> Exit:
    """Show what the runner is doing, and what is wrong with it."""
    answer = fetch("runner.status", Target(socket, token_file))
    if as_json:
        print(document(answer))
    else:
        from utter_runner.cli.render import console, print_status  # noqa: PLC0415 - rich only for people

        print_status(console(), answer)
    return Exit.DONE


@app.command()
@_guarded
def reload(as_json: Json = False, socket: Socket = None, token_file: TokenFile = None) -> Exit:
    """Have the runner read its configuration again, and take over what has changed.

    If anything in it is wrong, nothing changes: exit code 1. Plugins that have not changed go on as they are.
    """
    from utter_runner.cli.control import reload as take_over  # noqa: PLC0415 - only this command needs it

    return take_over(Target(socket, token_file), as_json=as_json)


@app.command()
@_guarded
def events(
    count: Annotated[int | None, typer.Option("--count", min=1, metavar="N", help="End after N events.")] = None,
    as_json: Json = False,
    socket: Socket = None,
    token_file: TokenFile = None,
) -> Exit:
    """Print what happens in the runner, one line for each event; the first one is the whole state."""
    from utter_runner.cli.lines import event_line  # noqa: PLC0415 - only this command needs it

    with Target(socket, token_file).connect() as client, client.subscribe("runner.events") as stream:
        for number, event in enumerate(stream, 1):
            print(document(event) if as_json else event_line(event), flush=True)
            if number == count:
                break
    return Exit.DONE


@app.command()
@_guarded
def conformance(
    target: Annotated[
        list[str] | None, typer.Argument(metavar="PLUGIN...", help="A manifest, or -- and a command.")
    ] = None,
    *,
    runner: Annotated[str | None, typer.Option("--runner", metavar="SOCKET", help="Check a runner instead.")] = None,
    timeout: Annotated[float, typer.Option("--timeout", min=0.1, metavar="S", help="Seconds for an answer.")] = 10.0,
    transport: Annotated[
        TransportName | None, typer.Option("--transport", help="Instead of the manifest's.", show_default=False)
    ] = None,
    plugin_id: Annotated[
        str | None, typer.Option("--id", metavar="ID", help="The id of a COMMAND, which names its socket.")
    ] = None,
    settings: Annotated[str, typer.Option("--settings", metavar="JSON", help="The plugin's settings.")] = "{}",
    env: Annotated[
        list[str] | None, typer.Option("--env", metavar="NAME=VALUE", help="A variable for the plugin; repeatable.")
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option("--only", metavar="ID", help="Checks whose ids begin so; repeatable.")
    ] = None,
    with_side_effects: Annotated[
        bool, typer.Option("--with-side-effects", help="Also speak, draw, press keys and carry out ops.")
    ] = False,
    token_file: TokenFile = None,
    as_json: Json = False,
) -> Exit:
    """Check whether a plugin, or a runner, keeps to the protocol.

    A plugin is started many times, and talked to as a friendly and as a hostile runner would. No runner is needed, and
    nothing that can be seen or heard is asked for without --with-side-effects. Exit code 1: something does not hold
    that must.
    """
    from utter_runner.cli import conformance as kit  # noqa: PLC0415 - only this command needs it

    wanted = kit.Wanted(
        target or (),
        timeout,
        None if transport is None else transport.value,
        plugin_id,
        settings,
        env or (),
        only or (),
        with_side_effects,
    )
    if runner is None:
        return kit.check_plugin(wanted, as_json=as_json)
    if target:
        raise UsageError("Name a plugin or a runner, not both.")
    return kit.check_runner(runner, token_file, wanted, as_json=as_json)


@app.command()
@_guarded
def speak(
    text: Annotated[str, typer.Argument(metavar="TEXT", help="What to say, at most 4,000 characters.")],
    voice: Annotated[str, typer.Option("--voice", metavar="NAME", help="A voice that the plugin knows.")] = "",
    as_json: Json = False,
    socket: Socket = None,
    token_file: TokenFile = None,
) -> Exit:
    """Speak a text through the plugin that speaks, and wait until it has been heard.

    A newer text, the push-to-talk key and `utter hush` cut it short.
    """
    with Target(socket, token_file).connect() as client:
        params = {"text": text, "voice": voice, "timeout_ms": round(SPEAK_TIMEOUT_S * 1000)}
        result = dict(client.call("runner.speak", params, SPEAK_TIMEOUT_S + CALL_TIMEOUT_S))
    spoken = bool(result.get("spoken", True))
    if as_json:
        print(document(result))
    elif not spoken:
        say("It was cut short, or there was nothing to say.")
    return Exit.DONE if spoken else Exit.FAILED


@app.command()
@_guarded
def hush(as_json: Json = False, socket: Socket = None, token_file: TokenFile = None) -> Exit:
    """End what is being spoken."""
    answer = fetch("runner.hush", Target(socket, token_file))
    if as_json:
        print(document(answer))
    return Exit.DONE


@app.command()
@_guarded
def context(
    sources: Annotated[list[str] | None, typer.Argument(metavar="[FIELD]...", help="Only these fields.")] = None,
    as_json: Json = False,
    socket: Socket = None,
    token_file: TokenFile = None,
) -> Exit:
    """Show what the runner knows of the desktop: each field, who told it, and how long ago."""
    with Target(socket, token_file).connect() as client:
        answer = dict(client.call("context.snapshot", {"sources": sources or []}, CALL_TIMEOUT_S))
    if as_json:
        print(document(answer))
        return Exit.DONE
    from utter_runner.cli.render import console, print_context  # noqa: PLC0415 - rich only for people

    if not answer.get("meta"):
        say("The runner knows nothing of this: no context plugin has told it.")
    print_context(console(), answer)
    return Exit.DONE


@app.command()
@_guarded
def bench(
    file: Annotated[
        str | None, typer.Option("--file", metavar="WAV", help="A recording instead of the one that is shipped.")
    ] = None,
    as_json: Json = False,
    socket: Socket = None,
    token_file: TokenFile = None,
) -> Exit:
    """Measure this machine for some seconds: round trips, and how soon what was said is understood.

    Each figure stands beside a floor that was measured with it. Nothing is done: what is heard is not acted upon.
    Without a runner it is measured how long a bare one takes to start.
    """
    from utter_runner.cli.bench import measure  # noqa: PLC0415 - only this command needs it
    from utter_runner.cli.busy import Busy  # noqa: PLC0415 - see above

    with Busy("Measuring"):
        figures, skipped = measure(Target(socket, token_file), file)
    if as_json:
        print(document({"figures": [one.described() for one in figures], "skipped": skipped}))
        return Exit.DONE
    for one in figures:
        print(harmless(f"{one.name}: {one.ms:.2f} ms, {one.ratio:.1f} times {one.floor} ({one.floor_ms:.2f} ms)"))
        if one.advice:
            print(harmless(f"  {one.advice}"))
    for text in skipped:
        say(text)
    return Exit.DONE


@app.command()
@_guarded
def completion(
    shell: Annotated[Shell, typer.Argument(metavar="bash|zsh|fish", help="Which shell.")], as_json: Json = False
) -> Exit:
    """Print the script with which a shell completes commands, plugins, ops and keys. Its first lines say where to."""
    from utter_runner.cli.completion import SCRIPTS  # noqa: PLC0415 - only this command needs it

    script = SCRIPTS[shell.value]
    print(document({"shell": shell.value, "script": script}) if as_json else script, end="\n" if as_json else "")
    return Exit.DONE


@app.command()
@_guarded
def version(as_json: Json = False, socket: Socket = None, token_file: TokenFile = None) -> Exit:
    """Print the version of this command, and of the runner if one is running."""
    from importlib.metadata import version as installed  # noqa: PLC0415 - 20 ms that only this command pays

    from utter_protocol import ABI, PROTOCOL  # noqa: PLC0415 - see above
    from utter_sdk.client import RunnerUnavailable  # noqa: PLC0415 - see above

    own = {"utter": installed("utter-runner"), "protocol": PROTOCOL, "abi": ABI}
    try:
        found = fetch("runner.status", Target(socket, token_file))
    except RunnerUnavailable:
        runner = None
    else:
        runner = {key: found.get(key) for key in ("version", "protocol", "abi")}
    if as_json:
        print(document({**own, "runner": runner}))
        return Exit.DONE
    print(f"utter {own['utter']} (protocol {PROTOCOL}, abi {ABI})")
    if runner is None:
        print("no runner is running")
    else:
        print(f"utter-runner {runner['version']} (protocol {runner['protocol']}, abi {runner['abi']})")
    return Exit.DONE
