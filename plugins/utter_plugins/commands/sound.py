"""How alike two words are, in spelling and in sound.

Rules here: pure; the result is symmetric, 1.0 for the same word, and cached, because utterances and phrases share a
small vocabulary. The sound of a word is its Metaphone key (Philips 1990): consonants count, vowels only at the start.
"""

from __future__ import annotations

from functools import lru_cache

from jellyfish import metaphone
from rapidfuzz.distance import JaroWinkler, Levenshtein

# Consonants that a recogniser takes for each other: the same place of articulation, voiced or not.
_ALIKE = str.maketrans("BFVGTJXCQZDN", "PPPKTSSKKSTM")
_SOUND_SHARE = 0.55
_CLASS_SHARE = 0.4


@lru_cache(maxsize=16_384)
def sound_key(text: str) -> str:
    """The Metaphone key of a word; a word that has none, a number for example, is its own key."""
    return metaphone(text) or text if text.isascii() else text


@lru_cache(maxsize=65_536)
def likeness(one: str, other: str) -> float:
    """How likely it is that one word was heard for the other, from 0.0 to 1.0.

    Args:
        one: a normalised word, or several joined without spaces.
        other: likewise.
    """
    if one == other:
        return 1.0
    if one[0].isdigit() or other[0].isdigit():
        return 0.0
    spelling = (Levenshtein.normalized_similarity(one, other) + JaroWinkler.similarity(one, other)) / 2
    return max(spelling, (1 - _SOUND_SHARE) * spelling + _SOUND_SHARE * _sound_likeness(one, other))


def _sound_likeness(one: str, other: str) -> float:
    key, other_key = sound_key(one), sound_key(other)
    exact = Levenshtein.normalized_similarity(key, other_key)
    classes = Levenshtein.normalized_similarity(key.translate(_ALIKE), other_key.translate(_ALIKE))
    return (1 - _CLASS_SHARE) * exact + _CLASS_SHARE * classes
