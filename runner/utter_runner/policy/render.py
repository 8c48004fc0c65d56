"""The text of a confirmation.

Rules here: this is the only place that words a confirmation, for every surface. It shows the op and all of its
arguments, never a part of them; different steps give different texts; everything that came from outside goes through
`chars.visible`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from .chars import visible

if TYPE_CHECKING:
    from utter_protocol.methods import Provenance

# A person reads no more than this; longer arguments are denied instead of shown in part.
MAX_SHOWN = 2_000

_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# op -> argument -> words. An op's one string argument stands unquoted at the end of its sentence.
_SENTENCES = {
    ("terminal", "command"): "Run in a terminal: ",
    ("input", "text"): "Type this text: ",
    ("input", "keys"): "Press these keys: ",
    ("open_url", "url"): "Open this address: ",
    ("ensure_url", "url"): "Open this address, or go to it where it is open: ",
    ("launch_app", "app"): "Start this application: ",
    ("niri", "action"): "Make the window manager do: ",
}


def _value(value: Any) -> str:
    if isinstance(value, str):
        return f'"{visible(value, quoted=True)}"'
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_value(key)}: {_value(value[key])}" for key in sorted(value)) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_value, value)) + "]"
    return repr(value)


def _named(args: dict[str, Any]) -> str:
    pairs = ((key if _WORD.fullmatch(key) else _value(key), args[key]) for key in sorted(args))
    return ", ".join(f"{key} = {_value(value)}" for key, value in pairs)


def confirmation(op: str, args: dict[str, Any], provenance: Provenance, *, llm: bool = False) -> tuple[str, int]:
    """Word the question whether a step may run.

    Args:
        op: the canonical op.
        args: canonical arguments, JSON values only.
        provenance: the step's lowest grade; one that is not the user's is said in a line of its own.
        llm: a language model had a part in the step, which is said in a line of its own, too.

    Returns:
        The text, one to three lines, and how many characters of it show arguments. Nothing is left out: whoever shows
        the text must compare that count with MAX_SHOWN and deny what is longer.
    """
    if len(args) == 1:
        ((key, value),) = args.items()
        sentence = _SENTENCES.get((op, key))
    else:
        sentence = None
    if sentence is not None and isinstance(value, str):
        shown = visible(value)
        text = sentence + shown
    elif args:
        shown = _named(args)
        text = f"Do {_value(op)} with {shown}"
    else:
        shown = ""
        text = f"Do {_value(op)}"
    if provenance != "user":
        text += "\nThis was chosen by something on the screen, not by you."
    if llm:
        text += "\nA language model had a part in this."
    return text, len(shown)
