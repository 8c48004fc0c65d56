"""The whisper plugin: speech to text with faster-whisper, offline.

Rules here: `plugin` alone knows the wire, `sessions` the audio of each session, `recogniser` the model, `bias` what the
model is told to expect, `models` where a model comes from.
"""

from __future__ import annotations
