"""Hotkeys: a held chord on any keyboard, without grabbing it, or a shortcut that the desktop delivers.

Rules here: this package knows keys and devices, and nothing of sessions or audio.
"""

from utter_runner.machine.keys import Bindings, Chord, HotkeyError
from utter_runner.voice.hotkeys.backend import InputBackend, InputDevice
from utter_runner.voice.hotkeys.kernel import KernelBackend, KernelDevice
from utter_runner.voice.hotkeys.matcher import Cancel, ChordMatcher, HotkeyEvent, Press, Release, Toggle
from utter_runner.voice.hotkeys.portal_bus import BusPortal
from utter_runner.voice.hotkeys.service import INJECTOR_NAME, Hotkeys
from utter_runner.voice.hotkeys.watch import KeyWatch

__all__ = [
    "INJECTOR_NAME",
    "Bindings",
    "BusPortal",
    "Cancel",
    "Chord",
    "ChordMatcher",
    "HotkeyError",
    "HotkeyEvent",
    "Hotkeys",
    "InputBackend",
    "InputDevice",
    "KernelBackend",
    "KernelDevice",
    "KeyWatch",
    "Press",
    "Release",
    "Toggle",
]
