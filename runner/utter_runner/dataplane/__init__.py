"""Bytes that do not travel as JSON: the audio ring.

Rules here: descriptors and memory of this room are owned by the objects that made them.
"""
