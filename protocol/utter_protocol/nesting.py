"""How deep JSON is nested, found out without decoding it.

Rules here: the bound is ours, because interpreters differ in how deep their decoders can go and in what happens beyond;
a document with few brackets costs little, and one that is too deep is refused at the bracket that goes too far.
"""

from __future__ import annotations

import re

MAX_DEPTH = 256

_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
_NO_BRACKET = bytes(set(range(256)) - set(b"[]{}"))
_SLICE = 64 * 1024
_UP = frozenset(b"[{")
# From so many bytes on, looking for the next bracket is quicker than counting, as long as there are few.
_LONG = 1024
_FEW = 16


def nests_too_deep(body: bytes) -> bool:
    """Whether arrays and objects in `body` are nested more than `MAX_DEPTH` deep. `body` need not be valid JSON."""
    if len(body) <= MAX_DEPTH or (len(body) >= _LONG and _opens_little(body)):
        return False
    if body.count(b"[") + body.count(b"{") <= MAX_DEPTH:
        return False
    depth = 0
    brackets = _STRING.sub(b"", body).translate(None, _NO_BRACKET)
    for start in range(0, len(brackets), _SLICE):
        part = brackets[start : start + _SLICE]
        # A part that cannot reach the bound, whatever its order, needs only its sum.
        opened = part.count(b"[") + part.count(b"{")
        if depth + opened > MAX_DEPTH:
            here = depth
            for bracket in part:
                here += 1 if bracket in _UP else -1
                if here > MAX_DEPTH:
                    return True
        depth += 2 * opened - len(part)
    return False


def _opens_little(body: bytes) -> bool:
    """Whether each of both brackets is there a few times at most."""
    for bracket in (b"{", b"["):
        at = -1
        for _ in range(_FEW + 1):
            at = body.find(bracket, at + 1)
            if at < 0:
                break
        else:
            return False
    return True
