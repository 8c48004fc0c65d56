"""What was said, as words that can be compared: case, punctuation, contractions and number words made the same.

Rules here: pure. `normalise` serves utterances and keeps where each word came from, so that free text can be cut from
the utterance as it was written; `normalise_template` does the same to the literal text of a sentence template.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from .addresses import PATTERN, spoken_address, written_address
from .numerals import read_number

if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_CHARS = 1_000
MAX_WORDS = 80
ADDRESS = "webaddress"
_APOSTROPHE = "\N{RIGHT SINGLE QUOTATION MARK}"

_IS = ("what", "where", "who", "how", "that", "there")
_PRONOUNS = ("i", "we", "they", "you", "he", "she", "it")
_NOT = ("is", "are", "do", "does", "did", "has", "have", "was", "were", "would", "could", "should")
_CONTRACTED = {
    **{f"{word}'s": f"{word} is" for word in (*_IS, "it", "here", "when", "why", "he", "she")},
    **{f"{word}s": f"{word} is" for word in _IS},
    **{f"{word}'re": f"{word} are" for word in ("we", "they", "you", "what", "who")},
    **{f"{word}'ll": f"{word} will" for word in (*_PRONOUNS, "that")},
    **{f"{word}'ve": f"{word} have" for word in ("i", "we", "they", "you")},
    **{f"{word}'d": f"{word} would" for word in _PRONOUNS},
    **{f"{word}{ending}": f"{word} not" for word in _NOT for ending in ("n't", "nt")},
    "let's": "let us",
    "i'm": "i am",
    "im": "i am",
    "can't": "can not",
    "cant": "can not",
    "cannot": "can not",
    "won't": "will not",
    "wont": "will not",
    "gonna": "going to",
    "wanna": "want to",
    "ok": "okay",
    "yeah": "yes",
}
_SYMBOLS = {"%": "percent", "&": "and", "+": "plus", "@": "at", "=": "equals", "°": "degrees", "½": "and a half"}
_PIECE = re.compile(
    rf"""(?P<address>{PATTERN})
      | [0-9]{{1,3}}(?:,[0-9]{{3}})+(?![0-9])(?:\.[0-9]+)?  # 1,000
      | [0-9]+(?:\.[0-9]+)?                            # 5  2.5
      | [^\W\d_]+(?:['{_APOSTROPHE}][^\W\d_]+)*                    # words, don't
      | [%&+@=°½]""",
    re.VERBOSE | re.IGNORECASE,
)
_TEMPLATE_SYNTAX = re.compile(r"(\{[^}]*\}|<[^>]*>|[\[\]()|;])")
_WORD_EDGE = re.compile(r"^(\s*)(.*?)(\s*)$", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Word:
    """A normalised word and the part of the utterance, `raw[start:end]`, that it came from.

    `address` is the web address that the word stands for; its text is then `ADDRESS`.
    """

    text: str
    start: int
    end: int
    address: str = ""


@dataclass(frozen=True)
class Spoken:
    """A normalised utterance.

    Attributes:
        raw: the utterance as it came.
        words: its words.
    """

    raw: str
    words: tuple[Word, ...]

    @cached_property
    def text(self) -> str:
        """The words, joined by single spaces."""
        return " ".join(word.text for word in self.words)

    @property
    def tokens(self) -> list[str]:
        """The words' texts."""
        return [word.text for word in self.words]

    def original(self, start: int, end: int) -> str:
        """What was written where `text[start:end]` came from."""
        inside = self._inside(start, end)
        return self.raw[inside[0].start : inside[-1].end].strip() if inside else ""

    def address(self, start: int, end: int) -> str:
        """The web address that `text[start:end]` stands for, or nothing."""
        inside = self._inside(start, end)
        return inside[0].address if len(inside) == 1 else ""

    def _inside(self, start: int, end: int) -> list[Word]:
        inside: list[Word] = []
        position = 0
        for word in self.words:
            if position < end and position + len(word.text) > start:
                inside.append(word)
            position += len(word.text) + 1
        return inside

    def part(self, first: int, last: int) -> Spoken:
        """The words from index `first` to before `last`."""
        return Spoken(self.raw, self.words[first:last])


def normalise(raw: str) -> Spoken:
    """Normalise an utterance.

    Args:
        raw: what was said, in any writing.
    """
    words: list[Word] = []
    for match in _PIECE.finditer(raw):
        start, end = match.span()
        address = written_address(match.group()) if match["address"] else None
        if address:
            words.append(Word(ADDRESS, start, end, address))
        elif match["address"]:
            words.extend(
                Word(text, start, end) for part in re.split(r"[\W_]+", match.group()) if part for text in _spell(part)
            )
        else:
            words.extend(Word(text, start, end) for text in _spell(match.group()))
    return Spoken(raw, tuple(_with_numbers(_with_addresses(words))))


def normalise_text(raw: str) -> str:
    """The text of `normalise`."""
    return normalise(raw).text


def normalise_template(template: str) -> str:
    """Normalise the literal text of a sentence template and leave its syntax as it is."""
    parts = []
    for part in _TEMPLATE_SYNTAX.split(template):
        if _TEMPLATE_SYNTAX.fullmatch(part):
            parts.append(part)
            continue
        edges = _WORD_EDGE.match(part)
        before, text, after = edges.groups() if edges else ("", part, "")
        parts.append(f"{' ' if before else ''}{normalise_text(text)}{' ' if after else ''}")
    return "".join(parts).strip()


def _spell(piece: str) -> Sequence[str]:
    symbol = _SYMBOLS.get(piece)
    if symbol is not None:
        return symbol.split()
    if piece[0] in "0123456789":
        return [_digits(piece)]
    lowered = _without_accents(piece.replace(_APOSTROPHE, "'").lower())
    return _CONTRACTED.get(lowered, lowered.replace("'", "")).split()


def _digits(piece: str) -> str:
    digits = piece.replace(",", "")
    return digits.rstrip("0").rstrip(".") if "." in digits else digits


def _without_accents(text: str) -> str:
    if text.isascii():
        return text
    return "".join(char for char in unicodedata.normalize("NFKD", text).lower() if char.isalpha() or char == "'")


def _with_addresses(words: Sequence[Word]) -> list[Word]:
    texts = [word.text for word in words]
    if "dot" not in texts:
        return list(words)
    out: list[Word] = []
    index = 0
    while index < len(words):
        spoken = spoken_address(texts, index)
        if spoken is None:
            out.append(words[index])
            index += 1
        else:
            address, end = spoken
            out.append(Word(ADDRESS, words[index].start, words[end - 1].end, address))
            index = end
    return out


def _with_numbers(words: Sequence[Word]) -> list[Word]:
    texts = [word.text for word in words]
    out: list[Word] = []
    index = 0
    while index < len(words):
        if texts[index : index + 2] == ["per", "cent"]:
            out.append(Word("percent", words[index].start, words[index + 1].end))
            index += 2
            continue
        number = read_number(texts, index)
        if number is None:
            out.append(words[index])
            index += 1
            continue
        digits, end = number
        out.append(Word(digits, words[index].start, words[end - 1].end))
        index = end
    return out
