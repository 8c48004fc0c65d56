"""What may be picked by id under `screen` provenance.

Rules here: entries come from user, config and knowledge sources only. An id belongs to whoever recorded it first,
until that owner forgets it or it expires; nobody else can change what it stands for. One that was recorded for a plugin
fills arguments of no other plugin's ops; those of a session always are. Values are kept encoded, so
nobody holds a reference into the store. Time is monotonic seconds, handed in.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import msgspec
from msgspec import UNSET

if TYPE_CHECKING:
    from collections.abc import Iterable

    from utter_protocol.methods import Candidate

CandidateSource = Literal["user", "config", "knowledge"]
SOURCES: frozenset[str] = frozenset({"user", "config", "knowledge"})
MAX_ID = 256
MAX_VALUE_BYTES = 8 * 1024


class CandidateLimitError(ValueError):
    """A bound of the store would be passed. The message names the bound; nothing was recorded."""


class _Entry(msgspec.Struct, frozen=True):
    owner: str
    value: bytes
    source: CandidateSource
    expires: float | None
    plugin: str | None


class Recorded(msgspec.Struct, frozen=True):
    """What an id stands for: a fresh copy of the value, and where it came from."""

    value: Any
    source: CandidateSource


class CandidateStore:
    """A bounded table of candidates, per session and global.

    Args:
        limit: the most entries held at a time, over all sessions and owners.
    """

    def __init__(self, limit: int = 4096) -> None:
        self._limit = limit
        self._entries: dict[tuple[str | None, str], _Entry] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def record(
        self,
        candidates: Iterable[Candidate],
        *,
        source: CandidateSource,
        owner: str,
        now: float,
        session: str | None = None,
        ttl_s: float | None = None,
        plugin: str | None = None,
    ) -> tuple[str, ...]:
        """Record candidates, all or none.

        Args:
            candidates: what may be picked; a later one replaces an earlier one of the same id and owner.
            source: who vouches for the values.
            owner: the plugin, session or file that they come from.
            now: the present time.
            session: the only session that may pick them, or None for all (config and knowledge only).
            ttl_s: seconds until they expire; None only for global ones, which last until their owner forgets them.
            plugin: the only plugin whose ops may be given them; None is the one that each candidate names, and for
                global ones that name none any plugin.

        Returns:
            The ids that were left out because another owner holds them.

        Raises:
            ValueError: a source that may not record, or a scope that the source may not have.
            CandidateLimitError: too many entries, too long an id, too large a value.
        """
        if source not in SOURCES:
            raise ValueError(f"Candidates may come from {', '.join(sorted(SOURCES))}, not from {source!r}.")
        if session is None and source == "user":
            raise ValueError("Candidates that the user named belong to a session.")
        if session is not None and ttl_s is None:
            raise ValueError("Candidates of a session need a time to live.")
        if session is not None and plugin is None:
            raise ValueError("Candidates of a session need the plugin whose ops may be given them.")
        self._expire(now)
        fresh: dict[tuple[str | None, str], _Entry] = {}
        refused: list[str] = []
        for candidate in candidates:
            key = (session, candidate.id)
            held = self._entries.get(key)
            if held is not None and held.owner != owner:
                refused.append(candidate.id)
                continue
            named = None if candidate.plugin is UNSET else candidate.plugin
            expires = None if ttl_s is None else now + ttl_s
            fresh[key] = _Entry(owner, _encoded(candidate), source, expires, named if plugin is None else plugin)
        if len(self._entries.keys() | fresh.keys()) > self._limit:
            raise CandidateLimitError(f"More than {self._limit} candidates would be held at a time.")
        self._entries.update(fresh)
        return tuple(refused)

    def resolve(self, candidate_id: str, session: str, now: float, *, plugin: str | None) -> Recorded | None:
        """What `candidate_id` stands for in `session` for an op of `plugin`; None if nothing.

        The session's own come first, then global ones. For no plugin, only what any may be given is found.
        """
        for scope in (session, None):
            entry = self._entries.get((scope, candidate_id))
            if entry is None or (entry.expires is not None and now >= entry.expires):
                continue
            if entry.plugin is None or entry.plugin == plugin:
                return Recorded(msgspec.json.decode(entry.value), entry.source)
        return None

    def forget(self, owner: str) -> None:
        """Remove everything that `owner` recorded."""
        self._entries = {key: entry for key, entry in self._entries.items() if entry.owner != owner}

    def end_session(self, session: str) -> None:
        """Remove everything that was recorded for `session`."""
        self._entries = {key: entry for key, entry in self._entries.items() if key[0] != session}

    def _expire(self, now: float) -> None:
        gone = [k for k, entry in self._entries.items() if entry.expires is not None and entry.expires <= now]
        for key in gone:
            del self._entries[key]


def _encoded(candidate: Candidate) -> bytes:
    if not 0 < len(candidate.id) <= MAX_ID:
        raise CandidateLimitError(f"A candidate's id has 1 to {MAX_ID} characters.")
    try:
        value = msgspec.json.encode(candidate.value)
    except (TypeError, ValueError, RecursionError) as error:
        raise CandidateLimitError(f"The value of candidate {candidate.id!r} is not JSON: {error}") from None
    if len(value) > MAX_VALUE_BYTES:
        raise CandidateLimitError(f"The value of candidate {candidate.id!r} is longer than {MAX_VALUE_BYTES} bytes.")
    return value
