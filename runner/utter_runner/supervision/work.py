"""What a request to a plugin is part of: whose trust it carries, how deep it stands, and what it has asked for in turn.

Rules here: a work is made by whoever sends a request on somebody's behalf, and ends with it; trust is fixed at the
beginning and afterwards only sinks: what was read from the screen on the way taints this work and all that wait for it,
and so does what a language model said, which is remembered apart; cancelling a work cancels what it asked for
(PROTOCOL.md, "Host callbacks").
"""

from __future__ import annotations

import logging
from itertools import count
from typing import TYPE_CHECKING

from utter_protocol.errors import ErrorCode, RpcError
from utter_protocol.host import MAX_DEPTH
from utter_runner.policy import lower

if TYPE_CHECKING:
    from collections.abc import Callable

    from utter_protocol.methods import Provenance
    from utter_runner.policy.marks import Mark
    from utter_runner.rpc.requesters import Requester

logger = logging.getLogger(__name__)

SCREEN = ("context.", "perception.")
"""Beginnings of methods and streams: what is read through these comes from the screen."""
LLM = "llm"
"""The one source that is no screen: what a language model said. It leaves the grade as it is."""
MODEL = "llm."
"""Beginning of methods and streams: what is read through these was said by a language model."""

_number = count(1).__next__


class Work:
    """One request on its way through the plugins.

    Args:
        provenance: the most trust that anything done for it may have.
        session: the session that it belongs to; empty for none.
        parent: the work that this one was asked for by.
        step: (plugin, what it is asked); empty for work that no plugin has yet.
        llm: whether a language model had a part in what it is for.
        requesters: the clients that asked for it; empty for the user's own keys, and for what plugins do by themselves.

    Attributes:
        occasion: equal for all that is done in one session, or without one for one beginning; 0 where that is the
            screen's itself, so that there is nothing to remember about it.
        on_taint: told of each source, once the work knows of it.
    """

    __slots__ = (
        "_askers",
        "_children",
        "_sources",
        "_stated",
        "cancelled",
        "depth",
        "llm",
        "occasion",
        "on_taint",
        "parent",
        "requesters",
        "session",
        "step",
    )

    def __init__(
        self,
        provenance: Provenance = "screen",
        session: str = "",
        *,
        parent: Work | None = None,
        step: tuple[str, str] = ("", ""),
        llm: bool = False,
        requesters: frozenset[Requester] = frozenset(),
    ) -> None:
        self.parent = parent
        self.session = session
        self.step = step
        self.requesters: frozenset[Requester] = requesters if parent is None else requesters | parent.requesters
        self.depth: int = parent.depth + 1 if parent is not None else 0
        self.cancelled = False
        self._stated: Provenance = provenance
        self._sources: dict[str, None] = {}
        self._children: dict[Callable[[], None], None] | None = None
        self._askers: tuple[Work, ...] = () if parent is None else (parent,)
        self.llm = llm
        self.occasion: str | int = session or _occasion(parent, provenance)
        self.on_taint: Callable[[str], None] | None = None

    @property
    def provenance(self) -> Provenance:
        """The grade that counts now."""
        return "screen" if self._sources else self._stated

    @property
    def sources(self) -> tuple[str, ...]:
        """Where what it has read came from, besides the user and language models."""
        return tuple(self._sources)

    @property
    def mark(self) -> Mark:
        """What is to be remembered of content that is made for it."""
        if self.provenance == "screen":
            return "screen"
        return "llm" if self.llm else "user"

    def below(self, plugin: str, what: str, provenance: Provenance = "user") -> Work:
        """Return the work of a request that is sent to `plugin` for this one, with at most the grade `provenance`.

        Raises:
            RpcError: -32003, `plugin` is already doing exactly this further up (a loop), or the depth's bound is
                reached.
        """
        step = (plugin, what)
        path: list[str] = [f"{plugin} {what}"]
        above: Work | None = self
        while above is not None:
            if above.step[0]:
                path.append(" ".join(above.step))
            if above.step == step:
                path.reverse()
                raise RpcError(
                    ErrorCode.NOT_PERMITTED,
                    f"a loop of requests: {' -> '.join(path)}",
                    {"loop": path, "plugin": plugin},
                )
            above = above.parent
        if self.depth >= MAX_DEPTH:
            raise RpcError(
                ErrorCode.NOT_PERMITTED,
                f"requests stand at most {MAX_DEPTH} deep upon each other",
                {"bound": "max_depth_of_requests", "limit": MAX_DEPTH},
            )
        return Work(self.lowered(provenance), self.session, parent=self, step=step, llm=self.llm)

    def beside(self, others: list[Work]) -> Work:
        """Return a work that stands where this one does, and taints the others, too: it cannot be told whose it is."""
        llm = self.llm or any(other.llm for other in others)
        work = Work("screen", self.session, parent=self.parent, step=self.step, llm=llm, requesters=self.requesters)
        work.occasion = self.occasion
        work._askers = (*work._askers, *others)
        work.requesters = work.requesters.union(*(other.requesters for other in others))
        return work

    def taint(self, source: str) -> None:
        """Take note that something from `source` was read for this work; it reaches whoever waits for the result."""
        todo, seen = [self], set[int]()
        while todo:
            work = todo.pop()
            if id(work) in seen:
                continue
            seen.add(id(work))
            if source == LLM:
                work.llm = True
            else:
                work._sources[source] = None  # noqa: SLF001 - works taint each other
            if work.on_taint is not None:
                work.on_taint(source)
            todo += work._askers  # noqa: SLF001 - likewise

    def receive(self, mark: Mark, source: str) -> None:
        """Take note that content with this mark came from `source`; see `taint`."""
        if mark != "user":
            self.taint(LLM if mark == "llm" else source)

    def lowered(self, provenance: Provenance) -> Provenance:
        """Return the grade of something that is stated to be `provenance` and done for this work."""
        return lower(self.provenance, provenance)

    # ---- cancelling

    def add_child(self, cancel: Callable[[], None]) -> None:
        """Have `cancel` called when this work is cancelled; at once if it is already."""
        if self.cancelled:
            cancel()
            return
        if self._children is None:
            self._children = {}
        self._children[cancel] = None

    def remove_child(self, cancel: Callable[[], None]) -> None:
        """Forget a child that has ended."""
        if self._children is not None:
            self._children.pop(cancel, None)

    def cancel(self) -> None:
        """Nobody wants the result any more: cancel what was asked for it. Idempotent."""
        self.cancelled = True
        children, self._children = self._children, None
        for cancel in children or ():
            try:
                cancel()
            except Exception:
                logger.exception("a nested request could not be cancelled")


def _occasion(parent: Work | None, provenance: Provenance) -> str | int:
    if parent is not None:
        return parent.occasion
    return 0 if provenance == "screen" else _number()
