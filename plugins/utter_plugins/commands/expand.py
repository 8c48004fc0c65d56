"""Writes a sentence template out: every sentence that it stands for, within bounds.

Rules here: works on hassil's parsed expressions; a bound that is hit makes the template simpler (first without its
optional parts, then with the first of its alternatives only), never longer to enumerate.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from itertools import islice, permutations
from typing import TYPE_CHECKING, Any

from .align import NumberSlot
from .phrases import NumberList, TextList

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from hassil.expression import Expression

    from .phrases import SlotList

MAX_FORMS = 64
MAX_FILLED = 1_000
_MAX_PERMUTED = 4


class Breadth(Enum):
    """How much of a template is written out."""

    ALL = 0
    NO_OPTIONALS = 1
    FIRST = 2


@dataclass(frozen=True)
class Slot:
    """A place for a list's value: the list, the name under which args know it, and bounds of an inline range."""

    list_name: str
    name: str
    bounds: tuple[int, int, int] | None = None


@dataclass(frozen=True)
class Filled:
    """One sentence with its slots filled.

    Attributes:
        parts: text and number slots, in order.
        slots: what the text slots stand for.
        open: it ends before a slot that takes any words.
    """

    parts: tuple[str | NumberSlot, ...]
    slots: Mapping[str, Any]
    open: bool = False

    @property
    def words(self) -> tuple[str | NumberSlot, ...]:
        """The sentence as single words."""
        words: list[str | NumberSlot] = []
        for part in self.parts:
            words.extend([part] if isinstance(part, NumberSlot) else part.split())
        return tuple(words)


def write_out(
    expression: Expression,
    lists: Mapping[str, SlotList],
    *,
    written: bool = False,
    most: int = MAX_FILLED,
    breadths: Iterable[Breadth] = Breadth,
) -> list[Filled]:
    """The sentences that a template stands for, as broad as `most` allows.

    A slot that takes any words, or an address, ends its sentence (`open`).

    Args:
        expression: a parsed template.
        lists: the values of the slots.
        written: keep the writing of the template instead of hassil's normal form.
        most: how many sentences at most.
        breadths: what to try, the broadest first.
    """
    found: list[Filled] = []
    for breadth in breadths:
        forms = list(islice(_walk(expression, breadth, written=written), MAX_FORMS + 1))
        filled = (sentence for form in forms[:MAX_FORMS] for sentence in _filled(_joined(form), lists))
        found = list(islice(filled, most + 1))
        if len(forms) <= MAX_FORMS and len(found) <= most:
            break
    return found[:most]


def _filled(form: Sequence[str | Slot], lists: Mapping[str, SlotList]) -> list[Filled]:
    """Fill a form's text slots with every value of their lists."""
    sentences: list[tuple[tuple[str | NumberSlot, ...], dict[str, Any]]] = [((), {})]
    for item in form:
        if isinstance(item, str):
            sentences = [((*parts, item), slots) for parts, slots in sentences]
            continue
        values = lists.get(item.list_name)
        if item.bounds is not None:
            values = NumberList(*item.bounds)
        if isinstance(values, NumberList):
            slot = NumberSlot(item.name, values.low, values.high, values.step)
            sentences = [((*parts, slot), slots) for parts, slots in sentences]
        elif isinstance(values, TextList):
            grown = (
                ((*parts, said), {**slots, item.name: value})
                for parts, slots in sentences
                for said, value in values.values
            )
            sentences = list(islice(grown, MAX_FILLED))
        else:
            return [Filled(parts, slots, open=True) for parts, slots in sentences]
    return [Filled(parts, slots) for parts, slots in sentences]


def _walk(expression: Expression, breadth: Breadth, *, written: bool) -> Iterator[tuple[str | Slot, ...]]:
    from hassil.expression import Alternative, Group, ListReference, Permutation, TextChunk  # noqa: PLC0415 - see main

    if isinstance(expression, TextChunk):
        yield (expression.original_text if written else expression.text,)
    elif isinstance(expression, ListReference):
        yield (Slot(expression.list_name, expression.slot_name, expression.get_inline_range()),)
    elif isinstance(expression, Alternative):
        if expression.is_optional and breadth is not Breadth.ALL:
            yield ()
            return
        for item in expression.items[:1] if breadth is Breadth.FIRST else expression.items:
            yield from _walk(item, breadth, written=written)
    elif isinstance(expression, Permutation):
        orders = permutations(expression.items[:_MAX_PERMUTED])
        for order in islice(orders, 1 if breadth is Breadth.FIRST else None):
            yield from _sequence(order, breadth, written=written)
    elif isinstance(expression, Group):
        yield from _sequence(expression.items, breadth, written=written)


def _sequence(items: Sequence[Expression], breadth: Breadth, *, written: bool) -> Iterator[tuple[str | Slot, ...]]:
    if not items:
        yield ()
        return
    for head in _walk(items[0], breadth, written=written):
        for tail in _sequence(items[1:], breadth, written=written):
            yield (*head, *tail)


def _joined(form: Sequence[str | Slot]) -> list[str | Slot]:
    """Join neighbouring text, so that `light[s]` stays one word."""
    out: list[str | Slot] = []
    for item in form:
        if isinstance(item, str) and out and isinstance(out[-1], str):
            out[-1] += item
        else:
            out.append(item)
    return out
