"""How far a step and each of its arguments may be trusted.

Rules here: there are two grades, `user` above `screen`. Trust is stated, never assumed, and only ever goes down: what a
plugin states is combined with what the runner itself knows by `lower`. Nothing in this package calls a function that
raises a grade, because there is none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from utter_protocol.methods import Provenance  # noqa: TC001 - the annotations of Origin resolve to it

if TYPE_CHECKING:
    from collections.abc import Iterable

    from utter_protocol.methods import PlannedStep

# Exact names. Anything else that data can come from, known or not, is the screen's.
USER_SOURCES = frozenset({"user", "config", "knowledge"})


class Origin(msgspec.Struct, kw_only=True, frozen=True):
    """What the runner knows about where a step came from, whatever the step says of itself.

    Attributes:
        provenance: the most trust that anything in the step may have.
        session: the session that candidates must have been recorded in; empty for none.
        sources: everything that the request carried besides the utterance ("context.snapshot", "clipboard", ...).
            One source that is not the user's makes the whole step `screen`.
        plugin: the plugin that the caller named to run the op, or None for the registry's provider.
        llm: whether a language model had a part in making the step.
    """

    provenance: Provenance = "screen"
    session: str = ""
    sources: tuple[str, ...] = ()
    plugin: str | None = None
    llm: bool = False


class Effective(msgspec.Struct, frozen=True):
    """The grades that count.

    Attributes:
        step: who chose the op.
        tainted: names of the arguments that are `screen`; all of them when the step is.
    """

    step: Provenance
    tainted: frozenset[str]

    @property
    def lowest(self) -> Provenance:
        """The grade of the step as a whole, which is what its plugin is told."""
        return "screen" if self.tainted or self.step == "screen" else "user"


_NOTHING_TAINTED = Effective("user", frozenset())


def lower(a: Provenance, b: Provenance) -> Provenance:
    """The less trusted of two grades. Anything that is not exactly "user" counts as `screen`."""
    return "user" if a == "user" and b == "user" else "screen"


def of_sources(sources: Iterable[str]) -> Provenance:
    """The grade of data that came from `sources`: `user` only if every one of them is in USER_SOURCES."""
    return "user" if all(source in USER_SOURCES for source in sources) else "screen"


def effective(step: PlannedStep, origin: Origin) -> Effective:
    """Combine what a step states with its origin.

    An argument is at most as trusted as its step, and a step at most as trusted as its origin.
    """
    grade = lower(origin.provenance, step.provenance)
    if origin.sources:
        grade = lower(grade, of_sources(origin.sources))
    if grade == "screen":
        return Effective("screen", frozenset(step.args))
    if not step.arg_provenance:
        return _NOTHING_TAINTED
    return Effective("user", frozenset(n for n, stated in step.arg_provenance.items() if stated != "user"))
