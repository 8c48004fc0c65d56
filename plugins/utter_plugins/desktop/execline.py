"""Turns the `Exec` value of a desktop entry into an argument vector.

Rules here: pure text in, list out; no shell, no environment, no file system. Source: Desktop Entry Specification 1.5,
"The Exec key" (https://specifications.freedesktop.org/desktop-entry-spec/latest/exec-variables.html).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_PART = re.compile(
    r"""(?P<blank>[ \t\n]+) | "(?P<double>(?:[^"\\]|\\.)*)" | '(?P<single>[^']*)' | \\(?P<escaped>.)
    | (?P<plain>[^ \t\n"'\\]+)""",
    re.VERBOSE | re.DOTALL,
)
# Inside double quotes only these four are escaped; before anything else the backslash stands for itself.
_QUOTED_ESCAPE = re.compile(r'\\(["`$\\])')
# Files and URLs: none are passed. The others are deprecated and "should be removed from the command line".
_EMPTY_CODES = "fFuUdDnNvm"


class ExecError(ValueError):
    """The Exec value breaks the rules of the specification; `str()` says how."""


@dataclass(frozen=True, slots=True)
class FieldValues:
    """What the field codes %c, %k and %i stand for.

    Attributes:
        name: the entry's translated name (%c).
        location: the path of the desktop file (%k).
        icon: the entry's Icon value (%i), or "" when there is none.
    """

    name: str = ""
    location: str = ""
    icon: str = ""


def split_exec(value: str) -> list[str]:
    """Split an Exec value (string escapes already undone) into arguments, quotes removed.

    More is accepted than the specification demands, because installed entries rely on it: quotes in the middle of an
    argument (`WINEPREFIX="/a b"`), single quotes, and a backslash outside of quotes, each read as a shell would.

    Raises:
        ExecError: a quote is not closed, or the value ends in a backslash.
    """
    arguments: list[str] = []
    current: str | None = None
    position = 0
    while position < len(value):
        part = _PART.match(value, position)
        if part is None:
            char = value[position]
            raise ExecError("it ends in a lone backslash" if char == "\\" else f"a {char} is not closed")
        position = part.end()
        kind = part.lastgroup
        if kind == "blank":
            if current is not None:
                arguments.append(current)
            current = None
            continue
        text = part[kind or 0]
        current = (current or "") + (_QUOTED_ESCAPE.sub(r"\1", text) if kind == "double" else text)
    if current is not None:
        arguments.append(current)
    return arguments


def expand_exec(value: str, fields: FieldValues) -> list[str]:
    """The argument vector for an Exec value, opened without files.

    An argument that is nothing but a code for files, or a deprecated code, is dropped; `%i` becomes the two arguments
    `--icon ICON`. Expansion happens after splitting, so that a name or a path never turns into several arguments.

    Raises:
        ExecError: wrong quoting, an unknown field code, or nothing to execute.
    """
    argv: list[str] = []
    for argument in split_exec(value):
        if argument == "%i":
            argv.extend(["--icon", fields.icon] if fields.icon else [])
            continue
        if len(argument) == 2 and argument[0] == "%" and argument[1] in _EMPTY_CODES:  # noqa: PLR2004 - "%" and its code
            continue
        argv.append(_expand_codes(argument, fields))
    if not argv or not argv[0]:
        raise ExecError("it names no program")
    return argv


def _expand_codes(argument: str, fields: FieldValues) -> str:
    out: list[str] = []
    chars = iter(argument)
    for char in chars:
        if char != "%":
            out.append(char)
            continue
        code = next(chars, "")
        if code == "%":
            out.append("%")
        elif code == "c":
            out.append(fields.name)
        elif code == "k":
            out.append(fields.location)
        elif code == "i":
            out.append(fields.icon)
        elif not code or code not in _EMPTY_CODES:
            raise ExecError(f"%{code} is no field code (a literal percent sign is written %%)")
    return "".join(out)
