"""The wake plugin: a spoken word in place of the key.

Rules here: `models` alone knows the package with the models, `detector` how a word is found in sound, `listening` how
the microphone is followed, `plugin` the wire. What is heard stays in this process: what leaves it is that a word was
said, and where it ended.
"""
