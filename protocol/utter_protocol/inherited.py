"""What a plugin's process inherits beside its pipes (PROTOCOL.md, "Inherited descriptors").

Rules here: names only, because both ends read them before anything slow is loaded.
"""

RING_CAPABILITY = "host.audio.ringbuffer@1"
"""What a plugin over stdio requires in order to inherit the audio ring."""
MICROPHONE = "microphone"
"""The permission that it needs."""
RING_VARIABLE = "UTTER_AUDIO_RING_FD"
"""Names the descriptor of the ring, read-only."""
WAKE_VARIABLE = "UTTER_AUDIO_WAKE_FD"
"""Names the reading end of the pipe that says when there is more."""
