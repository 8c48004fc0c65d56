"""What a plugin has learned in one epoch, and for which of its works that counts.

Rules here: nobody sees what a plugin keeps in its memory, so what it has once read counts for all that it does on the
same occasion, and what it has read on none counts until its epoch ends (PROTOCOL.md, "Host callbacks"). Nothing that
was learned is taken back.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from utter_runner.supervision.work import LLM, MODEL, Work

if TYPE_CHECKING:
    from utter_protocol.messages import RequestId

MAX_SESSIONS = 4096
"""Of how many sessions an epoch remembers that it has learned something in them; the oldest one is forgotten."""
UNTRUSTED = "request"
"""The source of what a plugin was told by a request that is itself the screen's."""


class Memory:
    """One epoch of a plugin.

    Args:
        plugin: its id.

    Attributes:
        works: what its requests in flight are part of, as far as that was said.
        version: another one whenever it has learned something.
    """

    def __init__(self, plugin: str) -> None:
        self.works: dict[RequestId, Work] = {}
        self.version = 0
        self._plugin = plugin
        self._always: dict[str, None] = {}
        self._sessions: dict[str | int, tuple[str, ...]] = {}

    @property
    def screen(self) -> bool:
        """Whether all that it does in this epoch is the screen's."""
        return any(source != LLM for source in self._always)

    def begin(self, work: Work, method: str, *, model: bool) -> None:
        """A request is about to be sent to it.

        Args:
            work: what it is part of.
            method: what it is asked.
            model: whether the plugin is a language model.
        """
        if model or method.startswith(MODEL):
            # Whatever it asks for meanwhile is the model's. Whoever waits is told with the answer.
            work.llm = True
        for source in self._always:
            work.taint(source)
        for source in self._sessions.get(work.occasion, ()):
            work.taint(source)
        if work.provenance == "screen":
            self._learn(work.occasion, UNTRUSTED)
        if work.llm:
            self._learn(work.occasion, LLM)
        work.on_taint = partial(self._learn, work.occasion)

    def reads(self, source: str) -> None:
        """From now on it knows what comes from `source`, whatever it works on."""
        self.version += source not in self._always
        self._always[source] = None
        for work in [*self.works.values()]:
            work.taint(source)

    def hears(self, other: Memory, source: str) -> None:
        """From now on it knows, on each occasion, what another plugin knows there, through the stream `source`."""
        for learned in other._always:
            self.reads(_through(source, learned))
        known = {occasion: {_through(source, one) for one in learned} for occasion, learned in other._sessions.items()}
        for occasion, through in known.items():
            for one in through:
                self._learn(occasion, one)
        for work in [*self.works.values()]:
            for one in known.get(work.occasion, ()):
                work.taint(one)

    def stray(self) -> Work:
        """Return the work of what it asks on no occasion: what it reads then, it knows for good."""
        work = Work(step=(self._plugin, ""))
        work.on_taint = self.reads
        return work

    def unnamed(self) -> Work:
        """Return the work of a request that does not say which one it is for: the worst of those in flight.

        What it reads taints those that are in flight by then, too.
        """
        works = [*self.works.values()]
        if not works:
            return self.stray()
        work = max(works, key=lambda work: work.depth).beside(works)
        work.on_taint = self._read_unnamed
        return work

    def _read_unnamed(self, source: str) -> None:
        works = [*self.works.values()]
        if not works:
            self.reads(source)
        for work in works:
            work.taint(source)

    def _learn(self, occasion: str | int, source: str) -> None:
        learned = self._sessions.get(occasion, ())
        if occasion and source not in learned:
            if not learned and len(self._sessions) >= MAX_SESSIONS:
                del self._sessions[next(iter(self._sessions))]
            self.version += 1
            self._sessions[occasion] = (*learned, source)


def _through(stream: str, source: str) -> str:
    return LLM if source == LLM else stream


def is_model(kind: str, provides: tuple[str, ...]) -> bool:
    """Whether a plugin is a language model, whatever else it is."""
    return kind == "llm" or any(one.startswith(MODEL) for one in provides)
