"""What both sides of the wire share: framing, messages, errors, capabilities, manifest, versions, ring layout.

Pure: nothing in this package does I/O or imports trio.
"""

PROTOCOL = "1.0"
ABI = 1
