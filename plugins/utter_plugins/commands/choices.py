"""Which of the taught phrases a model may choose among for what was not understood.

Rules here: pure. A model knows what sentences mean and not what it must not do, so what `align` never bridges is left
out before it is asked: another number, the opposite word, a "not" too many or too few.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .align import NumberSlot
from .numerals import is_number
from .vocabulary import NEGATIONS, opposed

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from utter_protocol.methods import PlanResult

    from .nearest import Entry

MAX_CHOICES = 64
_ONE = "1"


@dataclass(frozen=True)
class Choice:
    """A sentence, and the plan that it stands for."""

    text: str
    plan: PlanResult


def is_fixed(entry: Entry) -> bool:
    """Whether a phrase has no slots, so that nothing needs to have been said to mean it."""
    _, slots = entry.payload
    return not slots and all(isinstance(word, str) for word in entry.words)


def plausible(
    heard: Sequence[str], groups: Iterable[Sequence[Entry]], most: int = MAX_CHOICES
) -> Iterator[tuple[str, Entry, Mapping[str, str]]]:
    """The phrases that a sentence could mean, one for each meaning.

    Args:
        heard: the sentence, normalised.
        groups: phrases, those first that are wanted most.
        most: how many at most.

    Yields:
        The phrase with its numbers, its entry, and the numbers by slot.
    """
    said = [word for word in heard if is_number(word)]
    seen: set[tuple[object, tuple[str, ...]]] = set()
    for entry in (entry for group in groups for entry in group):
        # "Skip this one" holds no number, though it is written with one.
        numbers = _fill(entry, said)
        if numbers is None and _ONE in said:
            numbers = _fill(entry, [number for number in said if number != _ONE])
        if numbers is None or _contrary(heard, entry):
            continue
        meaning = (entry.meaning, tuple(numbers.values()))
        if meaning in seen:
            continue
        seen.add(meaning)
        yield (
            " ".join(numbers[word.name] if isinstance(word, NumberSlot) else word for word in entry.words),
            entry,
            numbers,
        )
        if len(seen) >= most:
            return


def _fill(entry: Entry, said: Sequence[str]) -> dict[str, str] | None:
    """The numbers said, in the places of a phrase where numbers are, in order; None if they are not the same ones."""
    places = [word for word in entry.words if isinstance(word, NumberSlot) or is_number(word)]
    if len(places) != len(said):
        return None
    numbers: dict[str, str] = {}
    for place, number in zip(places, said, strict=True):
        if isinstance(place, NumberSlot):
            if not place.accepts(number):
                return None
            numbers[place.name] = number
        elif place != number:
            return None
    return numbers


def _contrary(heard: Sequence[str], entry: Entry) -> bool:
    """Whether a phrase says the opposite of what was said."""
    one, other = set(heard), {word for word in entry.words if isinstance(word, str)}
    return bool(NEGATIONS & (one ^ other)) or opposed(one - other, other - one)
