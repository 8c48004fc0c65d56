"""The taught phrase that is nearest to what was heard, or none.

Rules here: pure; an index is built once and never changes. Spelling and sound of whole sentences choose candidates,
`align` scores them. The best must pass a bar, which is higher for short phrases, and lead the next one that does
something else by a margin.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rapidfuzz import fuzz, process

from .align import Aligner, NumberSlot, weight
from .sound import sound_key

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping, Sequence

THRESHOLD = 0.72
SHORT_THRESHOLD = 0.8
MARGIN = 0.06
# How much further off a user's own phrase may be than one that ships with the plugin.
OWN_MARGIN = 0.1
CANDIDATES = 24
# Less than three words that carry meaning: one that is misheard is then most of the phrase.
_SHORT_WEIGHT = 3.0


@dataclass(frozen=True)
class Entry:
    """A phrase that can be near.

    Attributes:
        words: normalised words and number slots.
        meaning: equal for two entries that do the same, so that they do not compete.
        preferred: wins against an entry that is not, when both are near enough.
        payload: the caller's.
    """

    words: tuple[str | NumberSlot, ...]
    meaning: Hashable
    preferred: bool = True
    payload: Any = field(default=None, compare=False)

    @property
    def text(self) -> str:
        """The words, joined; number slots as `{name}`."""
        return " ".join(word if isinstance(word, str) else f"{{{word.name}}}" for word in self.words)


@dataclass(frozen=True)
class Near:
    """An entry that matched: its score from 0.0 to 1.0, and the numbers that were said in its slots."""

    entry: Entry
    score: float
    numbers: Mapping[str, str]


@dataclass(frozen=True)
class Verdict:
    """What the search found.

    Attributes:
        best: the phrase that is meant, or None.
        why: one sentence that says why there is none.
        closest: the nearest phrase, whether it is near enough or not.
    """

    best: Near | None
    why: str = ""
    closest: Near | None = None


class NearestPhrases:
    """An index over entries."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        self._entries = list(entries)
        self._spelled = [_key(entry.words) for entry in self._entries]
        self._sounds = [_sound(entry.words) for entry in self._entries]
        self._known = {word for entry in self._entries for word in entry.words if isinstance(word, str)}

    def find(self, words: Sequence[str]) -> Verdict:
        """Find the nearest phrase.

        Args:
            words: the heard sentence, normalised.
        """
        ranked = sorted(self._scored(words), key=lambda near: near.score, reverse=True)
        if not ranked or ranked[0].score <= 0:
            return Verdict(None, "No phrase is like it.")
        return _judge(ranked)

    def like(self, words: Sequence[str]) -> list[Entry]:
        """The entries whose spelling or sound is most like a sentence as a whole, whether they can be meant or not."""
        chosen = self._alike(words)
        return [self._entries[index] for index in sorted(chosen, key=lambda index: (-chosen[index], index))]

    def _alike(self, words: Sequence[str]) -> dict[int, float]:
        """The indices of the entries that are most like a sentence, and how like they are."""
        chosen: dict[int, float] = {}
        for query, keys in ((_key(words), self._spelled), (_sound(words), self._sounds)):
            hits = process.extract(query, keys, scorer=fuzz.ratio, limit=CANDIDATES, processor=None)
            for _, score, index in hits:
                chosen[index] = max(score, chosen.get(index, 0.0))
        return chosen

    def _scored(self, words: Sequence[str]) -> list[Near]:
        aligner = Aligner(words, self._known)
        found = []
        for index in sorted(self._alike(words)):
            entry = self._entries[index]
            alignment = aligner.align(entry.words)
            if alignment is not None:
                found.append(Near(entry, alignment.score, alignment.numbers))
        return found


def _judge(ranked: Sequence[Near]) -> Verdict:
    best = ranked[0]
    if not best.entry.preferred:
        bar = best.score - OWN_MARGIN
        own = (near for near in ranked if near.entry.preferred and near.score >= max(bar, _bar(near)))
        best = next(own, best)
    if best.score < _bar(best):
        return Verdict(None, f"The nearest phrase, {best.entry.text!r}, is not near enough.", best)
    for other in ranked:
        rival = other.entry.meaning != best.entry.meaning and other.entry.preferred >= best.entry.preferred
        if rival and best.score - other.score < MARGIN and best.score < 1.0:
            return Verdict(None, f"It could be {best.entry.text!r} or {other.entry.text!r}.", best)
    return Verdict(best, closest=best)


def _bar(near: Near) -> float:
    words = (word for word in near.entry.words if isinstance(word, str))
    return SHORT_THRESHOLD if sum(map(weight, words)) < _SHORT_WEIGHT else THRESHOLD


def _key(words: Sequence[str | NumberSlot]) -> str:
    return "".join("#" if isinstance(word, NumberSlot) else word for word in words)


def _sound(words: Sequence[str | NumberSlot]) -> str:
    return "".join("#" if isinstance(word, NumberSlot) else sound_key(word) for word in words)
