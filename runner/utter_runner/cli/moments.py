"""Times as people type them, and as the runner's records have them.

Rules here: pure.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from utter_runner.cli.connection import UsageError

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


def moment(text: str, now: datetime) -> str:
    """The time that `--since` names, as it would stand in the trail or in the log.

    Raises:
        UsageError: it is none.
    """
    number, unit = text[:-1], text[-1:]
    try:
        if unit in _UNITS and number.isascii() and number.isdigit():
            then = now - timedelta(seconds=int(number) * _UNITS[unit])
        else:
            # Without a zone it is this machine's time.
            then = datetime.fromisoformat(text).astimezone(UTC)
    except (ValueError, OverflowError, OSError):
        raise UsageError(f"--since {text} is no time. Say 30s, 15m, 2h, 7d, or 2026-01-31T09:00.") from None
    return then.isoformat(timespec="milliseconds").replace("+00:00", "Z")
