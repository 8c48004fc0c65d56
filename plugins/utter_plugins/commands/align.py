"""How far a heard sentence is from a phrase, aligned word by word.

Rules here: pure. Every difference costs what the word weighs; one word may stand for two ("eco beam" for "ecobee").
Never bridged, whatever the rest: another number, the opposite word (on and off, lock and unlock), a word that carries
meaning and has nothing like it on the other side.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from .numerals import is_number
from .sound import likeness, sound_key
from .vocabulary import FILLERS, FUNCTION_WORDS, opposed, polar, reversible, same_stem

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

# A substitution below this likeness is no mis-hearing but another word.
ALIKE = 0.6
ALIKE_JOINED = 0.7
_FILLER, _FUNCTION, _CONTENT, _POLAR = 0.1, 0.4, 1.0, 1.4
_JOIN_COST = 0.06
# "garage" is no mis-hearing of "garage door": a word that is missing makes one side that much shorter.
_JOINED_LENGTHS = 0.7
# Number words that a recogniser writes for little words: "set the volume 2 50 percent".
_HOMOPHONES = {"2": ("to", "too"), "4": ("for",)}
# Of two words that are both taught, neither is a mis-hearing of the other.
_KNOWN_LIKENESS = 0.4


@dataclass(frozen=True)
class NumberSlot:
    """A place in a phrase where a number is said, within bounds."""

    name: str
    low: float
    high: float
    step: float = 1

    def accepts(self, word: str) -> bool:
        """Whether a normalised word is a number within the bounds."""
        if not is_number(word):
            return False
        value = float(word)
        return self.low <= value <= self.high and (value - self.low) % self.step == 0


class Alignment(NamedTuple):
    """A score from 0.0 to 1.0, and the numbers said in a phrase's slots."""

    score: float
    numbers: Mapping[str, str]


class _Cell(NamedTuple):
    """The cheapest way to align a beginning: its cost, and the numbers said in the slots so far."""

    cost: float
    numbers: tuple[tuple[str, str], ...] = ()


class _Move(NamedTuple):
    """How many words of each side an alignment goes on by, what it costs, and the number said in a slot."""

    heard: int
    phrase: int
    cost: float
    number: tuple[tuple[str, str], ...] = ()


def weight(word: str | NumberSlot) -> float:
    """What a word weighs: the less it means, the less."""
    if isinstance(word, NumberSlot) or is_number(word) or polar(word):
        return _POLAR
    if word in FILLERS:
        return _FILLER
    return _FUNCTION if word in FUNCTION_WORDS else _CONTENT


class Aligner:
    """Aligns one heard sentence with phrases.

    Args:
        heard: normalised words.
        known: every word that is taught.
    """

    def __init__(self, heard: Sequence[str], known: Collection[str]) -> None:
        self._heard = heard
        self._known = known
        self._total = sum(map(weight, heard))

    def align(self, phrase: Sequence[str | NumberSlot]) -> Alignment | None:
        """The best alignment with a phrase, or None if something must not be bridged."""
        cells: list[list[_Cell | None]] = [[None] * (len(phrase) + 1) for _ in range(len(self._heard) + 1)]
        cells[0][0] = _Cell(0.0)
        for i, row in enumerate(cells):
            for j, cell in enumerate(row):
                if cell is None:
                    continue
                for move in self._moves(i, phrase, j):
                    cost = cell.cost + move.cost
                    there = cells[i + move.heard][j + move.phrase]
                    if there is None or cost < there.cost:
                        cells[i + move.heard][j + move.phrase] = _Cell(cost, cell.numbers + move.number)
        end = cells[-1][-1]
        if end is None:
            return None
        total = max(self._total, sum(map(weight, phrase)))
        return Alignment(max(0.0, 1.0 - end.cost / total), dict(end.numbers))

    def _moves(self, i: int, phrase: Sequence[str | NumberSlot], j: int) -> Iterator[_Move]:
        said = self._heard[i : i + 2]
        meant = phrase[j : j + 2]
        # A word with nothing on the other side: only one that carries little meaning, and is no misheard "un-".
        if said and weight(said[0]) < _CONTENT and not (said[0] in FUNCTION_WORDS and any(map(reversible, said[1:]))):
            yield _Move(1, 0, weight(said[0]))
        if meant and weight(meant[0]) < _CONTENT:
            yield _Move(0, 1, weight(meant[0]))
        if not said or not meant:
            return
        first = meant[0]
        if isinstance(first, NumberSlot):
            if first.accepts(said[0]):
                yield _Move(1, 1, 0.0, ((first.name, said[0]),))
            return
        if (cost := self._word_cost(said[0], first)) is not None:
            yield _Move(1, 1, cost)
        if len(said) > 1 and (cost := _joined_cost(said, (first,))) is not None:
            yield _Move(2, 1, cost)
        words = tuple(word for word in meant if isinstance(word, str))
        if len(words) > 1 and (cost := _joined_cost(said[:1], words)) is not None:
            yield _Move(1, 2, cost)

    def _word_cost(self, said: str, meant: str) -> float | None:
        if said == meant:
            return 0.0
        if meant in _HOMOPHONES.get(said, ()):
            return _FILLER
        if is_number(said) or is_number(meant) or opposed((said,), (meant,)):
            return None
        alike = likeness(said, meant)
        taught = said in self._known and said not in FUNCTION_WORDS
        if taught and not same_stem(said, meant) and sound_key(said) != sound_key(meant):
            alike = min(alike, _KNOWN_LIKENESS)
        heavier = max(weight(said), weight(meant))
        if alike < ALIKE:
            return heavier if heavier < _CONTENT else None
        return heavier * (1 - alike)


def _joined_cost(said: Sequence[str], meant: Sequence[str]) -> float | None:
    """The cost of one word on one side for two on the other."""
    if any(is_number(word) for word in (*said, *meant)):
        return None
    one, other = "".join(said), "".join(meant)
    if one == other:
        return _JOIN_COST
    # A word that is there as it is was not split; the other one is too much.
    if said[0] in meant or meant[0] in said or opposed(said, meant):
        return None
    if min(len(one), len(other)) < _JOINED_LENGTHS * max(len(one), len(other)):
        return None
    alike = likeness(one, other)
    pair = said if len(said) > 1 else meant
    return None if alike < ALIKE_JOINED else sum(map(weight, pair)) * (1 - alike) + _JOIN_COST
