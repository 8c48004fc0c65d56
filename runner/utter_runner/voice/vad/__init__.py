"""Voice activity: what of a session's audio is speech.

Rules here: the model is in `silero`, the logic in `segments`, which is pure, and `screen` puts both into the way from
the recorder to the recogniser.
"""
