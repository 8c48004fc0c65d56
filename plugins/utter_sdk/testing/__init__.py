"""What a plugin is tested with: `PluginProcess` runs it as the runner does, `PluginHarness` without a process.

`AudioRing` is the microphone of either.

Rules here: both are the runner's end of a connection and know no more than the wire; every wait has an end.
"""

from utter_sdk.testing.harness import PluginHarness
from utter_sdk.testing.parts import Asked, OfferedStream, Passing, Pending, PluginDiedError, PluginStream
from utter_sdk.testing.process import PluginProcess
from utter_sdk.testing.ring import AudioRing

__all__ = [
    "Asked",
    "AudioRing",
    "OfferedStream",
    "Passing",
    "Pending",
    "PluginDiedError",
    "PluginHarness",
    "PluginProcess",
    "PluginStream",
]
