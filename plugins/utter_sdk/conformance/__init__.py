"""The conformance kit: does a plugin, or a runner, keep to PROTOCOL.md?

Rules here: the kit knows the protocol's document and nothing of the program that it tests; it speaks to it in bytes of
its own making, as a friendly and as a hostile other end would; every check names the section that it is about.
"""
