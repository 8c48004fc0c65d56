"""Where the daemon of an installation is, for what starts it later: a unit, a desktop entry.

Rules here: it is the one beside the interpreter, never one that merely is in PATH, which may be of another version.
"""

from __future__ import annotations

import os
from pathlib import Path

from utter_runner.operate.errors import OperateError


def runner_program(interpreter: str) -> Path:
    """Return the runner of an installation by its interpreter. Raises OperateError when it is not there."""
    program = Path(interpreter).absolute().with_name("utter-runner")
    if not os.access(program, os.X_OK):
        raise OperateError(
            f"There is no {program} beside this Python: install utter-runner with pipx or uv, or with pip into a "
            "virtual environment."
        )
    return program
