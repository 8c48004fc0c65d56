"""The desktop plugin with all the time in the world, for tests of something else than that it gives up.

Rules here: what is waited for ends the waiting as it always does; only a machine that is busy makes it last.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from utter_plugins.desktop import bus, holding

if TYPE_CHECKING:
    import pytest

SECONDS = 30.0
PATIENT = [
    sys.executable,
    "-P",
    "-c",
    f"""
from utter_plugins.desktop import bus, holding, launch, ops, players, windows
launch.start_detached.__kwdefaults__["watch_s"] = ops.OPENER_WATCH_S = {SECONDS}
bus.SessionBus.call.__defaults__ = bus.SessionBus.call_all.__defaults__ = ({SECONDS},)
bus.CALL_TIMEOUT_S = holding.HOLD_S = players.KNOWN_S = windows.KNOWN_S = {SECONDS}
ops.build().run()
""",
]
"""The command that starts it. A program that it starts is watched until it ends, so one that stays is not for it."""


def give_players(seconds: float, patch: pytest.MonkeyPatch) -> None:
    """How long media players and the session bus may take to answer the code in this process."""
    patch.setattr(bus, "CALL_TIMEOUT_S", seconds)
    patch.setattr(bus.SessionBus.call, "__defaults__", (seconds,))
    patch.setattr(bus.SessionBus.call_all, "__defaults__", (seconds,))
    patch.setattr(holding, "HOLD_S", seconds)
