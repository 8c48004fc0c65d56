"""`utter confirm`: a terminal that waits for questions, asks them, and shows what became of them.

Rules here: one thread; it asks what is open already, too; only a person can answer, so there is no option that does,
and without a terminal there is nothing but the list.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from utter_runner.cli.ask import answer_confirm, at_a_terminal
from utter_runner.cli.connection import CALL_TIMEOUT_S, UsageError
from utter_runner.cli.exits import Exit
from utter_runner.cli.guard import say
from utter_runner.cli.text import document, harmless_lines

if TYPE_CHECKING:
    from utter_sdk.client import Client

_ENDS = {
    ("approved", True): "Approved.",
    ("approved", None): "Approved elsewhere.",
    ("denied", False): "Declined.",
    ("denied", None): "It was declined elsewhere, or is not wanted any more.",
    ("timed_out", None): "Nobody answered in time: not done.",
}


def show_questions(client: Client, *, as_json: bool) -> Exit:
    """Print the questions that wait for an answer."""
    answer = dict(client.call("confirm.list", {}, CALL_TIMEOUT_S))
    if as_json:
        print(document(answer))
        return Exit.DONE
    for question in answer.get("questions", ()):
        left = question.get("left_ms")
        print("waits for its turn" if left is None else f"{left / 1000:.0f} s left")
        for line in harmless_lines(question.get("text", "")):
            print(f"  {line}")
    if not answer.get("questions"):
        say("No question is open.")
    return Exit.DONE


def answer_questions(client: Client, *, once: bool, as_json: bool) -> Exit:
    """Ask at this terminal whatever the runner asks, until Ctrl-C or, with `once`, until one question is over.

    Raises:
        UsageError: stdin or stderr is no terminal.
    """
    if not at_a_terminal():
        raise UsageError("A question is answered by a person at a terminal. `utter confirm --list` shows what waits.")
    mine: dict[str, bool] = {}
    asked: set[str] = set()

    def confirm(params: dict[str, Any]) -> dict[str, Any]:
        question = str(params.get("id"))
        asked.add(question)
        given, answer = answer_confirm(client, params)
        if given:
            mine[question] = answer["approved"]
        return answer

    client.on_request("host.confirm", confirm)
    with client.subscribe("runner.events") as stream:
        client.call("confirm.attend", {}, CALL_TIMEOUT_S)
        if not asked:
            say("Waiting for questions. Ctrl-C ends this.")
        for event in stream:
            if event.get("event") != "confirm" or event.get("state") == "asked":
                continue
            question = str(event.get("id"))
            if question not in asked:
                continue
            asked.discard(question)
            state, answered = str(event.get("state")), mine.pop(question, None)
            if as_json:
                print(document(event), flush=True)
            print(_ENDS.get((state, answered), f"It was {state}."), file=sys.stderr, flush=True)
            if once:
                return Exit.DONE if state == "approved" else Exit.BLOCKED
    return Exit.UNAVAILABLE
