"""Voice: hotkeys, capture, cues and the push-to-talk session.

Rules here: this room turns a held key and a microphone into an utterance and hands it down to `actions`; what the rest
of the daemon wants to know of it leaves through callbacks that were handed in.
"""
