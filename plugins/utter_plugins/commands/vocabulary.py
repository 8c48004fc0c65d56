"""What the router knows about English words: which carry little meaning, and which mean the opposite of each other.

Rules here: tables and pure look-ups only; words are normalised (spoken.py).
"""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

FILLERS = frozenset(
    (
        "please",
        "hey",
        "okay",
        "um",
        "uh",
        "erm",
        "hmm",
        "oh",
        "ah",
        "well",
        "so",
        "just",
        "now",
        "kindly",
        "thanks",
        "thank",
    )
)
LEADING_FILLERS = tuple(
    tuple(phrase.split())
    for phrase in (
        "can you",
        "could you",
        "would you",
        "will you",
        "i want you to",
        "i would like you to",
        "i need you to",
        "i want to",
        "i would like to",
        "we will",
        "i will",
        "let us",
        "go ahead and",
        "please",
        "hey",
        "okay",
        "um",
        "uh",
        "well",
        "so",
        "now",
        "just",
        "computer",
    )
)
TRAILING_FILLERS = tuple(
    tuple(phrase.split()) for phrase in ("please", "now", "for me", "right now", "thank you", "thanks", "okay")
)
FUNCTION_WORDS = frozenset(
    """
    a an the this that these those my your his her its our their some any all of in on at to for from with by and or
    is are am be was were do does did has have i me you he she it we they us them there here as what which who
    will would can could should shall if then than
    """.split()  # noqa: SIM905 - a list of quoted words is a page long
)
_POLES = (
    ("on enable enabled activate activated", "off disable disabled deactivate deactivated"),
    ("open opened", "close closed shut"),
    ("lock locked", "unlock unlocked"),
    ("up raise increase louder brighter higher", "down lower decrease quieter dimmer softer"),
    ("start begin resume play continue", "stop pause end cancel"),
    ("next forward", "previous back backward backwards"),
    ("mute muted", "unmute unmuted"),
    ("left", "right"),
    ("first", "last"),
    ("arm armed", "disarm disarmed"),
    ("show", "hide"),
    ("more", "less"),
    ("add", "remove delete"),
    ("connect connected", "disconnect disconnected"),
    ("yes", "no"),
    ("before", "after"),
    ("inside indoor indoors", "outside outdoor outdoors"),
    ("maximum", "minimum"),
    ("increase", "reduce"),
    ("warm warmer hot hotter", "cold colder cool cooler"),
    ("seconds second", "minutes minute", "hours hour", "days day"),
    ("not never without", ""),
)
NEGATIONS = frozenset(("not", "never", "without", "no", "nothing", "except"))
_POLE_OF: dict[str, set[tuple[int, int]]] = {}
for _group, _sides in enumerate(_POLES):
    for _side, _words in enumerate(_sides):
        for _word in _words.split():
            _POLE_OF.setdefault(_word, set()).add((_group, _side))
_REVERSING = ("un", "dis", "de", "non")
_REVERSIBLE = frozenset(word for word in _POLE_OF if any(prefix + word in _POLE_OF for prefix in _REVERSING))
_ENDINGS = ("s", "es", "d", "ed", "ing", "er")


def reversible(word: str) -> bool:
    """Whether a little word before it may be the prefix of its opposite: "in lock" for "unlock"."""
    return word in _REVERSIBLE


def polar(word: str) -> bool:
    """Whether leaving the word out, or putting it in, changes what is asked for."""
    return word in _POLE_OF


def opposed(one: Iterable[str], other: Iterable[str]) -> bool:
    """Whether a word of `one` means the opposite of a word of `other`."""
    return any(_opposite(a, b) for a, b in product(one, other))


def same_stem(one: str, other: str) -> bool:
    """Whether two words differ in their ending only ("light", "lights")."""
    short, long = sorted((one, other), key=len)
    return long.startswith(short) and long[len(short) :] in _ENDINGS


def _opposite(one: str, other: str) -> bool:
    if any(
        group == other_group and side != other_side
        for group, side in _POLE_OF.get(one, ())
        for other_group, other_side in _POLE_OF.get(other, ())
    ):
        return True
    short, long = sorted((one, other), key=len)
    return any(long == prefix + short for prefix in _REVERSING)
