"""Number words to digits: "twenty five" and "25" must be the same words to the router.

Rules here: pure; English cardinals up to the millions; a run of words that is no number stays as it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_ONES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
_TEENS = ("ten", "eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen")
_DECADES = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
_SMALL = {word: value for value, word in enumerate((*_ONES, *_TEENS))}
_TENS = {word: 10 * value for value, word in enumerate(_DECADES, start=2)}
_TENS["fourty"] = 40
_SCALES = {"thousand": 1_000, "million": 1_000_000}
_HUNDRED = 100


def is_number(word: str) -> bool:
    """Whether a normalised word is a number in digits ("5", "2.5")."""
    return word[:1].isdigit() and word.replace(".", "", 1).isdecimal()


def read_number(words: Sequence[str], start: int) -> tuple[str, int] | None:
    """The number that begins at `words[start]`.

    Args:
        words: lower-case words.
        start: where to begin.

    Returns:
        Its digits and the index of the first word behind it, or None if no number begins there.
    """
    first = words[start]
    if is_number(first):
        return _fraction(words, first, start + 1)
    whole = _cardinal(words, start)
    if whole is None:
        return None
    value, end = whole
    return _fraction(words, str(value), end)


def _cardinal(words: Sequence[str], start: int) -> tuple[int, int] | None:
    total, end = 0, start
    while (group := _below_thousand(words, end)) is not None:
        value, behind = group
        scale = _SCALES.get(words[behind]) if behind < len(words) else None
        if scale is None:
            # "two thousand five" is one number, "two five" are two.
            if end > start and total % 1_000:
                break
            return total + value, behind
        total, end = total + value * scale, behind + 1
        if end < len(words) - 1 and words[end] == "and" and _below_thousand(words, end + 1):
            end += 1
    return (total, end) if end > start else None


def _below_thousand(words: Sequence[str], start: int) -> tuple[int, int] | None:
    if start >= len(words):
        return None
    one = words[start] == "a" and start + 1 < len(words) and words[start + 1] in {"hundred", *_SCALES}
    head = (1, start + 1) if one else _below_hundred(words, start)
    if head is None:
        return None
    value, end = head
    if not 0 < value < 10 or end >= len(words) or words[end] != "hundred":  # noqa: PLR2004 - one digit
        return head
    value, end = value * _HUNDRED, end + 1
    rest = end + 1 if end < len(words) and words[end] == "and" else end
    tail = _below_hundred(words, rest)
    return (value + tail[0], tail[1]) if tail else (value, end)


def _below_hundred(words: Sequence[str], start: int) -> tuple[int, int] | None:
    if start >= len(words):
        return None
    word = words[start]
    if word in _SMALL:
        return _SMALL[word], start + 1
    if word not in _TENS:
        return None
    unit = _SMALL.get(words[start + 1], 0) if start + 1 < len(words) else 0
    return (_TENS[word] + unit, start + 2) if 0 < unit < 10 else (_TENS[word], start + 1)  # noqa: PLR2004 - one digit


def _fraction(words: Sequence[str], digits: str, end: int) -> tuple[str, int]:
    """Append what follows a whole number: "point five", "and a half"."""
    if "." in digits:
        return digits, end
    if list(words[end : end + 3]) == ["and", "a", "half"]:
        return f"{digits}.5", end + 3
    if words[end : end + 1] and words[end] == "point":
        places = ""
        behind = end + 1
        while behind < len(words) and (place := _digit(words[behind])) is not None:
            places += place
            behind += 1
        if places:
            return f"{digits}.{places}", behind
    return digits, end


def _digit(word: str) -> str | None:
    if word.isdecimal():
        return word
    value = _SMALL.get(word)
    return str(value) if value is not None and value < 10 else None  # noqa: PLR2004 - one digit
