"""`utter policy`: what would be decided about an action, and what is on.

Rules here: both commands ask the runner and do nothing; what is said about a step on the command line is handed on as
it stands, and judged by the runner alone.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from utter_runner.cli.connection import Target, UsageError
from utter_runner.cli.exits import Exit, of_explanation
from utter_runner.cli.options import Json, Origin, Provenance, Socket, TokenFile, fetch, guarded
from utter_runner.cli.text import document

group = typer.Typer(help="Ask what the policy decides.", no_args_is_help=True, rich_markup_mode=None)

_SHOWN = 20


@group.command()
@guarded
def explain(
    op: Annotated[str, typer.Argument(metavar="OP", help="Such as open_url.")],
    args: Annotated[str, typer.Argument(metavar="JSON", help="""Such as '{"url": "https://example.org"}'.""")] = "{}",
    *,
    provenance: Origin = Provenance.USER,
    arg: Annotated[
        list[str] | None,
        typer.Option("--arg", metavar="NAME=screen", help="Where one argument comes from; repeatable."),
    ] = None,
    source: Annotated[
        list[str] | None,
        typer.Option("--source", metavar="NAME", help="What was read on the way, such as clipboard; repeatable."),
    ] = None,
    llm: Annotated[bool, typer.Option("--llm", help="A language model had a part in it.")] = False,
    session: Annotated[
        str, typer.Option("--session", metavar="ID", help="Whose candidates may be picked.", show_default=False)
    ] = "",
    as_json: Json = False,
    socket: Socket = None,
    token_file: TokenFile = None,
) -> Exit:
    """Say what the policy would decide about an action, and why; nothing is done.

    Exit codes: 0 it would be done, 3 it would be denied, 5 you would be asked first.
    """
    params: dict[str, Any] = {"op": op, "args": _args(args), "provenance": provenance.value}
    more = {"arg_provenance": _grades(arg or ()), "sources": source, "llm": llm, "session": session}
    answer = fetch(
        "policy.explain", Target(socket, token_file), params | {key: said for key, said in more.items() if said}
    )
    if as_json:
        print(document(answer))
    else:
        from utter_runner.cli.render_policy import print_explanation  # noqa: PLC0415 - rich only for people

        print_explanation(answer)
    return of_explanation(answer)


@group.command("list")
@guarded
def list_ops(as_json: Json = False, socket: Socket = None, token_file: TokenFile = None) -> Exit:
    """List every op: who runs it, what it does, whether it is on, off or asks, how often it may run, and why.

    A plugin in brackets offers the op, too, and runs it only when it is named.
    """
    answer = fetch("policy.list", Target(socket, token_file))
    if as_json:
        print(document(answer))
    else:
        from utter_runner.cli.render_policy import print_ops  # noqa: PLC0415 - rich only for people

        print_ops(answer.get("ops", ()))
    return Exit.DONE


def _args(text: str) -> dict[str, Any]:
    import json  # noqa: PLC0415 - only this command needs it

    try:
        decoded = json.loads(text)
    except json.JSONDecodeError as error:
        rest = text[error.pos :]
        there = f"at {rest[:_SHOWN]!r}" if rest else "where they end"
        place = f"line {error.lineno}, column {error.colno}, {there}"
        raise UsageError(f"The arguments are not JSON: {error.msg} in {place}.") from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"The arguments are not JSON: {error}.") from None
    if not isinstance(decoded, dict):
        raise UsageError('The arguments must be a JSON object, such as {"url": "https://example.org"}.')
    return decoded


def _grades(said: list[str] | tuple[()]) -> dict[str, str]:
    """`["url=screen"]` as `{"url": "screen"}`."""
    grades: dict[str, str] = {}
    for one in said:
        name, _, grade = one.rpartition("=")
        if not name or grade not in set(Provenance):
            raise UsageError(f"--arg takes NAME=screen or NAME=user, not {one!r}.")
        if grades.setdefault(name, grade) != grade:
            raise UsageError(f"--arg says both user and screen for {name!r}.")
    return grades
