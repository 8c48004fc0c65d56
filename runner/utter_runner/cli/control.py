"""Changing what the runner does while it runs: `utter reload`, and `utter plugins start`, `stop` and `restart`.

Rules here: the runner does it and says what came of it; here is only how that reads.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any

from utter_runner.cli.busy import Busy
from utter_runner.cli.connection import CALL_TIMEOUT_S
from utter_runner.cli.exits import Exit
from utter_runner.cli.guard import say
from utter_runner.cli.text import document, harmless

if TYPE_CHECKING:
    from collections.abc import Mapping

    from utter_runner.cli.connection import Target

RELOAD_TIMEOUT_S = 60.0
"""Reading the configuration may look secrets up and try sandboxes."""

_GOOD = frozenset({"ready", "degraded", "waiting"})


class Action(StrEnum):
    """What is to become of a plugin."""

    START = "start"
    STOP = "stop"
    RESTART = "restart"


def control(plugin: str, action: Action, seconds: float, target: Target, *, as_json: bool) -> Exit:
    """Have the runner start, stop or restart a plugin, and wait until that has come about."""
    params = {"plugin": plugin, "action": action.value, "timeout_ms": round(seconds * 1000)}
    with target.connect() as client, Busy(f"{plugin}: {action.value}"):
        answer = dict(client.call("runner.control", params, seconds + CALL_TIMEOUT_S))
    came_about = answer.get("status") == "stopped" if action is Action.STOP else answer.get("status") in _GOOD
    if as_json:
        print(document(answer))
    else:
        text = _sentence(plugin, answer)
        if came_about:
            print(harmless(text))
        else:
            say(text)
    return Exit.DONE if came_about else Exit.UNAVAILABLE


def _sentence(plugin: str, answer: Mapping[str, Any]) -> str:
    status = str(answer.get("status"))
    already = "" if answer.get("changed") else " already; nothing was done"
    epoch = f" (epoch {answer.get('epoch')})" if status in _GOOD else ""
    detail = f": {answer['detail']}" if answer.get("detail") and not already else ""
    return f"{plugin} is {status}{already}{epoch}{detail}"


def reload(target: Target, *, as_json: bool) -> Exit:
    """Have the runner read its configuration again."""
    with target.connect() as client, Busy("Reading the configuration"):
        answer = dict(client.call("runner.reload", {}, RELOAD_TIMEOUT_S))
    done = bool(answer.get("ok"))
    if as_json:
        print(document(answer))
        return Exit.DONE if done else Exit.FAILED
    for problem in answer.get("problems", ()):
        say(str(problem))
    if not done:
        say("Nothing was changed: the runner goes on with the configuration that it had.")
        return Exit.FAILED
    plugins = dict(answer.get("plugins", {}))
    parts = {
        "Changed": answer.get("changed"),
        "Plugins added": plugins.get("added"),
        "Plugins removed": plugins.get("removed"),
        "Plugins restarted": plugins.get("restarted"),
        "In effect after a restart of the runner": answer.get("needs_restart"),
    }
    told = [f"{what}: {', '.join(names)}" for what, names in parts.items() if names]
    for line in told or ["Nothing has changed."]:
        print(harmless(line))
    return Exit.DONE
