"""Installing the runner's desktop entry, without which newer desktops give it no shortcuts.

Rules here: the file is replaced as a whole, and left alone when it says the right thing already.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import TYPE_CHECKING

from utter_runner.config.desktop_entry import entry_path, entry_text
from utter_runner.operate.errors import OperateError
from utter_runner.operate.lockfile import replace_file
from utter_runner.operate.program import runner_program

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


def install(environ: Mapping[str, str]) -> Path | None:
    """Write the entry, unless it is there; return where, or None if there was nothing to write.

    Raises:
        OperateError: it cannot be written, or there is no daemon beside this Python.
    """
    path, text = entry_path(environ), entry_text(runner_program(sys.executable))
    with suppress(OSError, UnicodeDecodeError):
        if path.read_text(encoding="utf-8") == text:
            return None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, text.encode(), 0o644)
    except OSError as error:
        raise OperateError(f"The desktop entry {path} cannot be written: {error.strerror}.") from None
    return path


def remove(environ: Mapping[str, str]) -> Path | None:
    """Take the entry away; return where it was, or None if there was none. Raises OperateError."""
    path = entry_path(environ)
    try:
        path.unlink()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise OperateError(f"The desktop entry {path} cannot be removed: {error.strerror}.") from None
    return path
