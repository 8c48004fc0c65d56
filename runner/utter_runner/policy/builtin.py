"""The ops whose meaning the runner knows: their arguments, their canonical form and the least that they do.

Rules here: a plugin's own schema and class of side effect come on top of these and never replace them. Arguments that
hold more, less or something else than what the op means become an `ArgumentError` that names the argument.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import msgspec

from .chars import first_hidden, name
from .urls import canonical_url

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from utter_protocol.methods import SideEffect

MAX_KEYS = 32

# Joiners without which some languages and many emoji cannot be written; a confirmation shows them.
_TYPED = "\n\t\u200c\u200d"
_KEY = re.compile(r"[A-Za-z0-9_]+(?:\+[A-Za-z0-9_]+)*|\+")
_MAX_KEY = 64
_APP = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_.+@ -]{0,253}[A-Za-z0-9_+@-])?")
_NIRI_ACTION = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")
_SEPARATORS = re.compile(r"[-_]")


class ArgumentError(ValueError):
    """An argument that the op does not take. `field` names it; the message is one sentence without its value."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


class Builtin(msgspec.Struct, frozen=True, kw_only=True):
    """What the runner knows of an op.

    Attributes:
        arguments: the names that it takes.
        check: (args, url schemes) -> canonical args; raises ArgumentError or UrlError.
        side_effect: the least that it does.
        runs_commands: it hands text to something that obeys it: never from the screen, off until enabled, and then
            always confirmed.
    """

    arguments: frozenset[str]
    check: Callable[[dict[str, Any], Collection[str]], dict[str, Any]]
    side_effect: SideEffect
    runs_commands: bool = False


def _only(args: dict[str, Any], *, required: str | None = None, names: Collection[str]) -> None:
    for key in args:
        if key not in names:
            raise ArgumentError(key, f"The argument '{key}' is not one of: {', '.join(sorted(names))}.")
    if required is not None and required not in args:
        raise ArgumentError(required, f"The argument '{required}' is missing.")


def _string(args: dict[str, Any], field: str) -> str:
    value = args[field]
    if not isinstance(value, str) or not value:
        raise ArgumentError(field, f"The argument '{field}' must be a string that is not empty.")
    return value


def _seen(field: str, text: str, allowed: str = "") -> None:
    hidden = first_hidden(text, allowed)
    if hidden is not None:
        raise ArgumentError(field, f"The argument '{field}' contains {name(hidden)}, a character that nobody can see.")


def _url(args: dict[str, Any], schemes: Collection[str]) -> dict[str, Any]:
    _only(args, required="url", names=("url",))
    return {"url": canonical_url(_string(args, "url"), schemes).href}


def _terminal(args: dict[str, Any], _schemes: Collection[str]) -> dict[str, Any]:
    _only(args, required="command", names=("command",))
    _seen("command", _string(args, "command"))
    return args


def _input(args: dict[str, Any], _schemes: Collection[str]) -> dict[str, Any]:
    _only(args, names=("text", "keys"))
    if len(args) != 1:
        raise ArgumentError("text", "Exactly one of the arguments 'text' and 'keys' is needed.")
    if "text" in args:
        _seen("text", _string(args, "text"), _TYPED)
        return args
    keys = args["keys"]
    chords = [keys] if isinstance(keys, str) else keys
    if not isinstance(chords, list) or not 0 < len(chords) <= MAX_KEYS:
        raise ArgumentError("keys", f"The argument 'keys' must be a chord or a list of 1 to {MAX_KEYS} chords.")
    if not all(isinstance(chord, str) and len(chord) <= _MAX_KEY and _KEY.fullmatch(chord) for chord in chords):
        raise ArgumentError("keys", "The argument 'keys' must hold key names joined by '+', such as 'ctrl+c'.")
    return args


def _launch_app(args: dict[str, Any], _schemes: Collection[str]) -> dict[str, Any]:
    _only(args, required="app", names=("app",))
    app = _string(args, "app").removesuffix(".desktop")
    if not _APP.fullmatch(app) or app.endswith(".desktop") or ".." in app:
        raise ArgumentError("app", "The argument 'app' must be a desktop file's id, such as 'org.mozilla.firefox'.")
    return {"app": app}


def _niri(args: dict[str, Any], _schemes: Collection[str]) -> dict[str, Any]:
    _only(args, required="action", names=("action", "args"))
    if not _NIRI_ACTION.fullmatch(_string(args, "action")):
        raise ArgumentError("action", "The argument 'action' must name a niri action, such as 'close-window'.")
    if not isinstance(args.get("args", []), list | dict):
        raise ArgumentError("args", "The argument 'args' must be a list or an object.")
    return args


BUILTIN: dict[str, Builtin] = {
    "ensure_url": Builtin(arguments=frozenset({"url"}), check=_url, side_effect="external"),
    "open_url": Builtin(arguments=frozenset({"url"}), check=_url, side_effect="external"),
    "terminal": Builtin(
        arguments=frozenset({"command"}), check=_terminal, side_effect="destructive", runs_commands=True
    ),
    "input": Builtin(
        arguments=frozenset({"text", "keys"}), check=_input, side_effect="destructive", runs_commands=True
    ),
    "niri": Builtin(arguments=frozenset({"action", "args"}), check=_niri, side_effect="local"),
    "launch_app": Builtin(arguments=frozenset({"app"}), check=_launch_app, side_effect="local"),
}

# What may be set in `enabled_ops`, because it is off otherwise.
OFF_BY_DEFAULT = frozenset(name for name, op in BUILTIN.items() if op.runs_commands)

# The ops whose argument is an address.
URL_OPS = frozenset(name for name, op in BUILTIN.items() if "url" in op.arguments)


def _niri_name(args: dict[str, Any]) -> str:
    """The action in one spelling: niri's command line says spawn-sh, its socket SpawnSh."""
    action = args.get("action")
    return _SEPARATORS.sub("", action).lower() if isinstance(action, str) else ""


def niri_runs_commands(args: dict[str, Any]) -> bool:
    """Whether a niri action starts a program that its arguments name, at once or through a configuration file."""
    action = _niri_name(args)
    return action.startswith("spawn") or action == "loadconfigfile"


def niri_is_destructive(args: dict[str, Any]) -> bool:
    """Whether a niri action ends the session."""
    return _niri_name(args) == "quit"


def acts_on_window(op: str, args: dict[str, Any]) -> bool:
    """Whether an op goes to whatever window is in front when it runs."""
    return op == "input" or (op == "niri" and not (niri_runs_commands(args) or niri_is_destructive(args)))
