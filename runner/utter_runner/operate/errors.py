"""What keeps a package from being installed, updated or removed.

Rules here: pure; `str()` of an error is the sentence for the user, and names the file, the entry or the bound.
"""

from __future__ import annotations


class OperateError(Exception):
    """Something named on the command line, or found on disk, cannot be used."""


class Untrusted(OperateError):
    """The package may be whole, but nobody vouches for it, or nobody has agreed to it."""
