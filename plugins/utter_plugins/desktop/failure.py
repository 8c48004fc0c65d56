"""The one exception with which the desktop's modules say that an action did not happen.

Rules here: the text is what the user hears or reads: what went wrong and what to do about it, in plain sentences.
"""

from __future__ import annotations


class Failure(Exception):
    """An action that could not be carried out; `str()` is one or two plain sentences for the user."""
