"""The threads that count when a test asks whether one was left."""

from __future__ import annotations

import threading

# trio keeps idle worker threads for the next `to_thread`; they end by themselves, some time.
_KEPT = "Trio thread"


def running_threads() -> set[threading.Thread]:
    """Those that run, without trio's."""
    return {thread for thread in threading.enumerate() if not thread.name.startswith(_KEPT)}
