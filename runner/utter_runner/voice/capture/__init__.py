"""The microphone: sources of audio, and the one that owns the ring and keeps a source alive.

Rules here: every source delivers float32, 16 kHz, mono; a library or a program that records is loaded or started by the
source that needs it and nowhere else.
"""
