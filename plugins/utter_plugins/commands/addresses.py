"""Web addresses in what was said: "github.com/torvalds" as it is typed, "github dot com" as it is spoken.

Rules here: pure; recognises what is meant as an address, and judges nothing: whether it may be opened is the runner's.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_DOMAINS = frozenset(
    """
    com org net edu gov mil int info biz name pro io dev app ai co me tv fm gg sh to ly xyz online site tech store shop
    blog cloud wiki page link live news world zone space art eu uk us ca au nz ie de at ch fr be nl lu it es pt gr pl
    cz sk hu ro bg hr si rs ua ru ee lv lt fi se no dk is jp cn kr tw hk sg my th vn id ph in pk il tr ae sa eg za ng
    ke br ar cl mx pe local lan home internal test example
    """.split()  # noqa: SIM905 - a list of quoted words is a page long
)
_LABEL = r"[a-z0-9](?:[a-z0-9-]*[a-z0-9])?"
_REST = r"(?::[0-9]{1,5})?(?:[/?\#][^\s<>\"]*)?"
PATTERN = rf"""(?:https?://|mailto:)[^\s<>"]+
             | (?:{_LABEL}\.)+[a-z]{{2,24}}\b{_REST}
             | localhost(?::[0-9]{{1,5}}|/){_REST}
             | (?:[0-9]{{1,3}}\.){{3}}[0-9]{{1,3}}{_REST}"""
_HOST = re.compile(
    rf"((?:{_LABEL}\.)+([a-z]{{2,24}})|localhost|(?:[0-9]{{1,3}}\.){{3}}[0-9]{{1,3}})({_REST})", re.IGNORECASE
)
_SCHEME = re.compile(r"(?:https?://|mailto:)", re.IGNORECASE)
_TRAILING = ".,;:!?'\")]}"
_MAX_LABELS = 6


def written_address(piece: str) -> str | None:
    """The address that a piece of text is, with its scheme, or None.

    Args:
        piece: text that `PATTERN` matched.
    """
    piece = piece.rstrip(_TRAILING)
    if _SCHEME.match(piece):
        return piece
    host = _HOST.fullmatch(piece)
    if not host:
        return None
    domain, rest = host[2], host[3]
    if domain is None:
        return f"http://{piece}"
    return f"https://{piece}" if domain.lower() in _DOMAINS or rest else None


def spoken_address(words: Sequence[str], start: int) -> tuple[str, int] | None:
    """The address that is spoken from `words[start]` on: "example dot org slash about".

    Returns:
        The address and the index of the first word behind it, or None.
    """
    labels = [words[start]]
    end = start + 1
    while end + 1 < len(words) and words[end] == "dot" and len(labels) < _MAX_LABELS:
        labels.append(words[end + 1])
        end += 2
    if len(labels) == 1 or labels[-1] not in _DOMAINS or not all(label.isascii() for label in labels):
        return None
    path = ""
    while end + 1 < len(words) and words[end] == "slash":
        path += f"/{words[end + 1]}"
        end += 2
    return f"https://{'.'.join(labels)}{path}", end
