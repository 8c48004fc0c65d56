"""python-context: a plugin for utter-runner that tells something about the desktop."""

import os
from typing import Any

from utter_protocol.kinds import SnapshotParams
from utter_sdk import Plugin

plugin = Plugin("python-context", version="0.1.0", kind="context", provides=["context.snapshot@1"])


def load() -> dict[str, float]:
    """How many processes wanted to run, on average over the last 1, 5 and 15 minutes."""
    return dict(zip(("1", "5", "15"), os.getloadavg(), strict=True))


# Each field of the context, and what finds it out.
FIELDS = {"load": load}


@plugin.method("context.snapshot")
def snapshot(params: SnapshotParams) -> dict[str, Any]:
    """Answer the fields that are asked for; none means all. What is here counts as read from the screen."""
    return {name: find() for name, find in FIELDS.items() if not params.sources or name in params.sources}


if __name__ == "__main__":
    plugin.run()
