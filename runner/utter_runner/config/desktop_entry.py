"""The runner as an application that desktops know: its id, and the desktop entry that says so.

Rules here: names, paths and text only; who writes the file is `operate/desktop_entry.py`. Desktops give shortcuts to
applications, and find an application by an installed entry of its id's name.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

APP_ID = "org.utter.Runner"

_ENTRY = """[Desktop Entry]
Type=Application
Name=utter-runner
Comment=Hold a key, speak, and the desktop acts
Exec={program}
Icon=audio-input-microphone
Categories=Utility;Accessibility;
NoDisplay=true
"""
_ESCAPES = str.maketrans({char: f"\\{char}" for char in '\\"`$'} | {"%": "%%"})


def entry_text(program: Path) -> str:
    """Return the entry; `program` is the daemon's absolute path, for an entry whose program is not found is none."""
    quoted = str(program).translate(_ESCAPES)
    # A value of the file is unescaped once before the command in it is.
    return _ENTRY.format(program='"' + quoted.replace("\\", "\\\\") + '"')


def entry_path(environ: Mapping[str, str]) -> Path:
    """Return where the entry of this user lies: below $XDG_DATA_HOME, or ~/.local/share."""
    data = environ.get("XDG_DATA_HOME", "")
    base = Path(data) if data.startswith("/") else Path(environ.get("HOME", "~")).expanduser() / ".local" / "share"
    return base / "applications" / f"{APP_ID}.desktop"
