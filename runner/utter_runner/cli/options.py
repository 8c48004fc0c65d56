"""What most commands have in common: the options, the guard around them, one request.

Rules here: a command is a function with an option `as_json` that returns an `Exit`, wrapped in `guarded`.
"""

from __future__ import annotations

from enum import StrEnum
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any, ParamSpec

import typer

from utter_runner.cli.connection import CALL_TIMEOUT_S
from utter_runner.cli.guard import guard

if TYPE_CHECKING:
    from collections.abc import Callable

    from utter_runner.cli.connection import Target
    from utter_runner.cli.exits import Exit

_P = ParamSpec("_P")

Socket = Annotated[
    str | None,
    typer.Option("--socket", envvar="UTTER_SOCKET", metavar="PATH", help="The runner's socket."),
]
TokenFile = Annotated[
    str | None,
    typer.Option(
        "--token-file", envvar="UTTER_TOKEN_FILE", metavar="PATH", help="A file with the token of the runner."
    ),
]


class Provenance(StrEnum):
    """Where an utterance or arguments come from."""

    USER = "user"
    SCREEN = "screen"


Origin = Annotated[Provenance, typer.Option("--provenance", help="Where it comes from; screen is not trusted.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]


def guarded(body: Callable[_P, Exit]) -> Callable[_P, None]:
    """A typer command out of a function that returns an `Exit` and has an option `as_json`."""

    @wraps(body)
    def command(*args: _P.args, **kwargs: _P.kwargs) -> None:
        raise typer.Exit(guard(lambda: body(*args, **kwargs), as_json=bool(kwargs["as_json"])))

    return command


def fetch(method: str, target: Target, params: dict[str, Any] | None = None) -> dict[str, Any]:
    """What the runner answers to one request on a connection of its own."""
    with target.connect() as client:
        return dict(client.call(method, params or {}, CALL_TIMEOUT_S))
