"""Which characters a person cannot see, and a form of any text in which they can.

Rules here: `visible` is injective: every character that it changes is written between U+27E8 and U+27E9 or as one
stand-in character, and the brackets and stand-ins themselves are always written out, so the original can be read back.
Its output holds no control, format, bidi, zero-width or private character, no line break, no `<` and no `&`.
"""

from __future__ import annotations

import re
import unicodedata

# Printable by their category, and yet drawn as nothing (Unicode's Default_Ignorable_Code_Point and blank glyphs).
_BLANK = frozenset(
    [
        *(0x034F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x180B, 0x180C, 0x180D, 0x180F, 0x2800, 0x3164, 0xFFA0, 0x1D159),
        *range(0xFE00, 0xFE10),
        *range(0xE0100, 0xE01F0),
    ]
)
# Markup that notification servers interpret, in letters that look alike and mean nothing to them.
_STAND_INS = {"<": "\uff1c", "&": "\uff06"}  # fullwidth < and &
_SPACE = "\u2423"  # open box
_OPEN, _CLOSE = "\u27e8", "\u27e9"
_RESERVED = frozenset([*_STAND_INS.values(), _SPACE, _OPEN, _CLOSE])
_NAMES = {"\n": "newline", "\t": "tab", "\r": "return", '"': "quote"}
# ASCII without controls, markup, quotation marks and all but single spaces inside.
_PLAIN = re.compile(r"[!#-%'-;=-~]+(?: [!#-%'-;=-~]+)*")
_RIGHT_TO_LEFT = frozenset({"R", "AL", "AN"})
# More marks than this on one letter are no language's spelling; they cover the neighbouring text.
_MAX_MARKS = 2


def is_hidden(char: str) -> bool:
    """Whether a reader sees nothing, or something else than a letter, where `char` stands. An ASCII space is seen."""
    return not char.isprintable() or ord(char) in _BLANK


def first_hidden(text: str, allowed: str = "") -> str | None:
    """The first character of `text` that a reader does not see, other than those in `allowed`."""
    if text.isprintable() and text.isascii():
        return None
    return next((char for char in text if char not in allowed and is_hidden(char)), None)


def name(char: str) -> str:
    """A character's code point, as "U+202E"."""
    return f"U+{ord(char):04X}"


def _written_out(char: str) -> str:
    return f"{_OPEN}{_NAMES.get(char) or name(char)}{_CLOSE}"


def _mixes_directions(text: str) -> bool:
    directions = {unicodedata.bidirectional(char) for char in text}
    return "L" in directions and not directions.isdisjoint(_RIGHT_TO_LEFT)


def label(text: str, limit: int = 80) -> str:
    """A name or sentence from outside, fit for a log or an error: `visible`, cut at `limit` with an ellipsis."""
    return visible(text if len(text) <= limit else text[:limit] + "\N{HORIZONTAL ELLIPSIS}")


def _is_mark(char: str) -> bool:
    return unicodedata.category(char) in {"Mn", "Me"}


def _piece(char: str, marks: int, *, mixed: bool, quoted: bool) -> str:
    """How one character that is no space is written, after `marks` marks on the letter before it."""
    if char in _STAND_INS:
        return _STAND_INS[char]
    if char in _RESERVED or (quoted and char == '"') or is_hidden(char):
        return _written_out(char)
    if char.isascii():
        return char
    piled = _is_mark(char) and (marks >= _MAX_MARKS or unicodedata.category(char) == "Me")
    if piled or (mixed and unicodedata.bidirectional(char) in _RIGHT_TO_LEFT):
        return _written_out(char)
    return char


def visible(text: str, *, quoted: bool = False) -> str:
    """Write `text` so that what a person reads is what it holds.

    Args:
        text: any string, lone surrogates included.
        quoted: the result stands between quotation marks and among other text, so quotation marks inside and all
            right-to-left letters are written out.

    Returns:
        One line. Characters that are not seen are written as their code point in angle brackets; of several spaces in a
        row, and of those at an end, each is drawn; right-to-left letters are written out where they would reorder other
        text; marks piled on one letter are written out from the third on.
    """
    if _PLAIN.fullmatch(text):
        return text
    mixed = not text.isascii() and (quoted or _mixes_directions(text))
    out: list[str] = []
    marks = _MAX_MARKS  # a mark needs a letter before it
    last = len(text) - 1
    for at, char in enumerate(text):
        if char == " ":
            alone = 0 < at < last and text[at - 1] != " " and text[at + 1] != " "
            out.append(" " if alone else _SPACE)
            marks = _MAX_MARKS
            continue
        piece = _piece(char, marks, mixed=mixed, quoted=quoted)
        marks = _MAX_MARKS if len(piece) > 1 else marks + 1 if _is_mark(char) else 0
        out.append(piece)
    return "".join(out)
