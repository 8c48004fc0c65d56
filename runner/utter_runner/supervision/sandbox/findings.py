"""What a trial of a sandbox finds out.

Rules here: plain data, without anything that is slow to import: it is loaded also where nobody wants a sandbox.
"""

from __future__ import annotations

from typing import Final

import msgspec

BESIDES: Final = ("other processes", "input devices", "system secrets", "the runner's socket")
"""What nobody gets, whatever his permissions are."""


class Finding(msgspec.Struct, frozen=True):
    """Whether what was tried was refused, and in words what came of it."""

    refused: bool
    reason: str
