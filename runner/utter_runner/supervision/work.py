"""What a request to a plugin is part of: whose trust it carries, how deep it stands, and what it has asked for in turn.

Rules here: a work is made by whoever sends a request on somebody's behalf, and ends with it; trust is fixed at the
beginning and afterwards only sinks: what was read from the screen on the way taints this work and all that wait for it;
cancelling a work cancels what it asked for (PROTOCOL.md, "Host callbacks").
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from utter_protocol.errors import ErrorCode, RpcError
from utter_protocol.host import MAX_DEPTH
from utter_runner.policy import lower

if TYPE_CHECKING:
    from collections.abc import Callable

    from utter_protocol.methods import Provenance
    from utter_runner.rpc.requesters import Requester

logger = logging.getLogger(__name__)

SCREEN = ("context.", "perception.")
"""Beginnings of methods and streams: what is read through these comes from the screen."""


class Work:
    """One request on its way through the plugins.

    Args:
        provenance: the most trust that anything done for it may have.
        session: the session that it belongs to; empty for none.
        parent: the work that this one was asked for by.
        step: (plugin, what it is asked); empty for work that no plugin has yet.
        requesters: the clients that asked for it; empty for the user's own keys, and for what plugins do by themselves.
    """

    __slots__ = (
        "_askers",
        "_children",
        "_sources",
        "_stated",
        "cancelled",
        "depth",
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

    @property
    def provenance(self) -> Provenance:
        """The grade that counts now."""
        return "screen" if self._sources else self._stated

    @property
    def sources(self) -> tuple[str, ...]:
        """Where what it has read came from, besides the user."""
        return tuple(self._sources)

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
        return Work(self.lowered(provenance), self.session, parent=self, step=step)

    def beside(self, others: list[Work]) -> Work:
        """Return a work that stands where this one does, and taints the others, too: it cannot be told whose it is."""
        work = Work("screen", self.session, parent=self.parent, step=self.step, requesters=self.requesters)
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
            work._sources[source] = None  # noqa: SLF001 - works taint each other
            todo += work._askers  # noqa: SLF001 - likewise

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


def work_of_any(plugin: str, works: list[Work]) -> Work:
    """Return the work of a request of `plugin` that does not say which of `works` it is for: the worst of them."""
    if not works:
        return Work(step=(plugin, ""))
    return max(works, key=lambda work: work.depth).beside(works)
