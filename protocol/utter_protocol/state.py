"""Where the runner keeps what outlives it.

Rules here: pure; a relative path in a variable of the XDG base directories counts as unset, as their specification
says.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


def state_directory(environ: Mapping[str, str]) -> Path:
    """Return `$XDG_STATE_HOME/utter`, usually `~/.local/state/utter`. Whether it exists is not looked at."""
    base = Path(environ.get("XDG_STATE_HOME", ""))
    return (base if base.is_absolute() else Path(environ.get("HOME") or "/", ".local", "state")) / "utter"
