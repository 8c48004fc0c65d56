"""`utter ptt press|release|toggle|cancel`: what a compositor's key binding runs.

Rules here: at import nothing but the standard library's smallest parts, because each press of the key pays for it; what
`parse` does not recognise at once is left to typer, which knows how to complain.
"""

from __future__ import annotations

import os
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from utter_runner.cli.exits import Exit


class Action(StrEnum):
    """What the key does."""

    PRESS = "press"
    RELEASE = "release"
    TOGGLE = "toggle"
    CANCEL = "cancel"


class Command(NamedTuple):
    """A parsed `utter ptt`.

    Attributes:
        action: what the key does.
        socket: as `Target.socket`.
        token_file: as `Target.token_file`.
        as_json: print the answer as JSON.
    """

    action: Action
    socket: str | None = None
    token_file: str | None = None
    as_json: bool = False

    def run(self) -> Exit:
        """Send the action and print what the session is doing now; raises as `Client.call`."""
        from utter_runner.cli.connection import CALL_TIMEOUT_S, Target  # noqa: PLC0415 - see the rules above
        from utter_runner.cli.exits import Exit  # noqa: PLC0415 - see the rules above
        from utter_runner.cli.text import document, harmless  # noqa: PLC0415 - see the rules above

        with Target(self.socket, self.token_file).connect() as client:
            answer = client.call(f"ptt.{self.action.value}", {}, CALL_TIMEOUT_S)
        if self.as_json:
            print(document(answer))
        elif self.action is Action.CANCEL:
            print("cancelled" if answer.get("cancelled") else "nothing to cancel")
        else:
            print(harmless(answer.get("state", "")))
        return Exit.DONE


def parse(arguments: list[str]) -> Command | None:
    """The command in `utter`'s arguments, or None for another command, a request for help, or a mistake."""
    if not arguments or arguments[0] != "ptt":
        return None
    values = {
        "--socket": os.environ.get("UTTER_SOCKET") or None,
        "--token-file": os.environ.get("UTTER_TOKEN_FILE") or None,
    }
    known = {action.value: action for action in Action}
    actions: list[Action] = []
    as_json = False
    rest = iter(arguments[1:])
    for argument in rest:
        name, equals, value = argument.partition("=")
        if argument == "--json":
            as_json = True
        elif name in values:
            values[name] = value if equals else next(rest, "")
            if not values[name]:
                return None
        elif argument in known:
            actions.append(known[argument])
        else:
            return None
    if len(actions) != 1:
        return None
    return Command(actions[0], values["--socket"], values["--token-file"], as_json)
