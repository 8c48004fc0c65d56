"""What a log record is about, as attributes that handlers read: the journal's fields, and the backlog's.

Rules here: pure; every room that logs about a plugin or a spoken session uses these, so that nobody has to read names
out of messages. A record has the attribute or it has not: nothing is set to None.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import logging

FIELDS = ("plugin", "epoch", "session")
"""The attributes: a plugin's id, the number of its incarnation, the id of a session."""


class Incarnation(Protocol):
    """A plugin in one of its epochs."""

    @property
    def id(self) -> str:
        """The plugin's id."""

    @property
    def epoch(self) -> int:
        """Which incarnation of it."""


def about(plugin: Incarnation | str, session: str = "") -> dict[str, str | int]:
    """Return `extra` of a record about a plugin: `plugin`, `epoch` unless only the id is known, and `session` if given.

    Args:
        plugin: the incarnation, or the id where it is about none in particular.
        session: the session that it is about as well.
    """
    fields: dict[str, str | int] = (
        {"plugin": plugin} if isinstance(plugin, str) else {"plugin": plugin.id, "epoch": plugin.epoch}
    )
    return {**fields, **in_session(session)}


def in_session(session: str) -> dict[str, str | int]:
    """Return `extra` of a record about a session: `session`, or nothing if there is none."""
    return {"session": session} if session else {}


def fields_of(record: logging.LogRecord) -> dict[str, str | int]:
    """Return those of `FIELDS` that a record has."""
    return {name: getattr(record, name) for name in FIELDS if hasattr(record, name)}
