"""What is remembered of where content came from when it outlives the work that it was made for.

Rules here: there are three marks, `user` above `llm` above `screen`, so that one word is enough: whatever a language
model may not have a part in, the screen may not either. Marks only go down, and what is unknown is the screen's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from utter_protocol.methods import Provenance

Mark = Literal["user", "llm", "screen"]

_HEIGHT: dict[str, int] = {"user": 2, "llm": 1}
_MARKS: tuple[Mark, ...] = ("screen", "llm", "user")


def lowest(*marks: Mark) -> Mark:
    """Return the least trusted of some marks; what is none of the three counts as `screen`."""
    return _MARKS[min(_HEIGHT.get(mark, 0) for mark in marks)]


def below(mark: Mark) -> tuple[Mark, ...]:
    """Return a mark and those that it can become, in the order in which it can."""
    return _MARKS[_HEIGHT.get(mark, 0) :: -1]


def provenance_of(mark: Mark) -> Provenance:
    """Return the grade of what carries a mark."""
    return "screen" if lowest(mark) == "screen" else "user"
