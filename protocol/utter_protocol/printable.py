"""Text from elsewhere, made safe for a terminal or a log.

Rules here: pure; what comes out is one line, and of what is printable nothing is changed.
"""

from __future__ import annotations


def harmless(text: object) -> str:
    r"""One line of printable text.

    Control characters (ESC among them), line ends, bidirectional and zero-width marks, and lone surrogates come out as
    `\x1b`, `\u202e` and the like, so that they neither act on the terminal nor hide anything from the reader.
    """
    line = str(text)
    if line.isprintable():
        return line
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in line)
