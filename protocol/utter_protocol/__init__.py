"""What both sides of the wire share: framing, messages, errors, capabilities, manifest, versions, ring layout.

Pure: nothing in this package imports trio or does I/O, but for reading manifests and looking where packages lie.
"""

PROTOCOL = "1.0"
ABI = 1
