"""Whether a microphone hears well enough: figures of what was heard, and what they mean, for `utter audio test`.

Rules here: pure. Figures are decibels of full scale of pieces of 20 ms. The bounds were set beside recordings of people
with good and with poor microphones: what is spoken reaches -35 to -10 dB there, and stands out of the background by
18 dB or more.
"""

from __future__ import annotations

import math
from array import array
from operator import mul
from typing import NamedTuple

from utter_runner.cli.exits import Exit

SILENCE_DB = -120.0
"""What silence is called; nothing is quieter."""
CLIPPED = 0.999
"""From this amplitude on a sample has hit the end of its range; 16-bit devices reach no more than 0.99997."""
QUIET_DB = -45.0
"""Speech that stays below this is too quiet."""
CONTRAST_DB = 12.0
"""Speech that is louder than the background by less than this drowns in it."""
LOST_SHARE = 0.05
"""More than this share of the time without audio is heard as gaps in words."""

_PIECE_S = 0.02
_LOUD_PIECES = 10
"""The level that is reached for 200 ms in all: a knock on the table is not speech."""
_FLOOR_SHARE = 0.1
_RUN = 3
_CLIPPED_PIECES = 2
"""Several samples in a row at the end of the range, more than once, are speech that was cut; one alone is chance."""


class Figures(NamedTuple):
    """What was heard.

    Args:
        seconds: how long.
        floor_db: the background: the level below which a tenth of the time was.
        loudest_db: the level that was reached for 200 ms in all.
        peak_db: of the largest amplitude.
        clipped: how many samples were at the end of their range.
        clipped_pieces: in how many pieces of 20 ms several in a row were.
        silent: whether it was nothing but zeros.
    """

    seconds: float
    floor_db: float
    loudest_db: float
    peak_db: float
    clipped: int
    clipped_pieces: int
    silent: bool


class Verdict(NamedTuple):
    """What the figures mean.

    Args:
        name: in one word, for programs.
        detail: in a sentence, for people.
        advice: what to do; empty if there is nothing to do.
        exit: how the command ends: done, failed for what is heard badly, unavailable for what is not heard at all.
    """

    name: str
    detail: str
    advice: str
    exit: Exit


def measure(frames: bytes, rate: int) -> Figures:
    """The figures of f32le mono audio, of any length. What is no number counts as silence."""
    samples = array("f", frames)
    # One sum tells whether there is anything that is not a number.
    if not math.isfinite(math.fsum(map(abs, samples)) if samples else 0.0):
        samples = array("f", (sample if math.isfinite(sample) else 0.0 for sample in samples))
    size = max(1, round(rate * _PIECE_S))
    pieces = [samples[at : at + size] for at in range(0, len(samples), size)]
    # The last one may be too short to say anything, unless there is no other.
    if len(pieces) > 1 and len(pieces[-1]) < size:
        pieces.pop()
    levels = sorted(_level(piece) for piece in pieces) or [SILENCE_DB]
    peak = max(map(abs, samples), default=0.0)
    return Figures(
        seconds=len(samples) / rate,
        floor_db=levels[int(len(levels) * _FLOOR_SHARE)],
        loudest_db=levels[-min(len(levels), _LOUD_PIECES)],
        peak_db=_decibels(peak),
        clipped=sum(abs(sample) >= CLIPPED for sample in samples) if peak >= CLIPPED else 0,
        clipped_pieces=sum(map(_clips, pieces)) if peak >= CLIPPED else 0,
        silent=not peak,
    )


def judge(figures: Figures, *, lost_s: float, fault: str) -> Verdict:
    """What the figures mean; of several things that are wrong the gravest.

    Args:
        figures: of what was heard.
        lost_s: seconds of audio that were due and did not arrive.
        fault: what the runner said that went wrong with the microphone and is not over, or nothing.
    """
    if not figures.seconds:
        return _broken("nothing", fault or "No audio came from the microphone.", "`utter status` says what is wrong.")
    if figures.silent:
        return _broken(
            "silent",
            "The microphone delivers nothing but zeros: it is muted, or it is the wrong one.",
            "Unmute it in the sound settings, or choose another one: `utter audio devices` lists them.",
        )
    if fault:
        return _broken("fault", fault, "The runner opens it again by itself; `utter status` says how it goes.")
    return _judge_sound(figures, lost_s)


def _judge_sound(figures: Figures, lost_s: float) -> Verdict:
    loudest, floor = f"{figures.loudest_db:.0f} dB", f"{figures.floor_db:.0f} dB"
    if figures.clipped_pieces >= _CLIPPED_PIECES:
        return _bad(
            "clips",
            f"It is too loud: {figures.clipped} samples hit the end of the range, which distorts what is said.",
            "Lower the microphone's volume in the sound settings, or speak from farther away.",
        )
    if figures.loudest_db < QUIET_DB:
        return _bad(
            "quiet",
            f"The microphone works, and the loudest that it heard is {loudest}; speech should be {QUIET_DB:.0f} dB or"
            " more.",
            "If you did speak, raise the microphone's volume in the sound settings, or come nearer.",
        )
    if figures.loudest_db - figures.floor_db < CONTRAST_DB:
        return _bad(
            "noisy",
            f"The background is at {floor} and the loudest at {loudest}: nothing stands out of it as speech does.",
            "If you did speak, come nearer to the microphone, or choose one that hears less of the room; lower its"
            " volume if the background is mostly hum or hiss.",
        )
    if lost_s > LOST_SHARE * (figures.seconds + lost_s):
        return _bad(
            "gaps",
            f"It hears you, and {lost_s:.1f} s of audio did not arrive: words will have gaps.",
            "The machine or the sound server is too busy. Try again; if it lasts, try the other [audio] source.",
        )
    return Verdict("fine", f"It hears you well: speech at {loudest} over a background of {floor}.", "", Exit.DONE)


def _broken(name: str, detail: str, advice: str) -> Verdict:
    return Verdict(name, detail, advice, Exit.UNAVAILABLE)


def _bad(name: str, detail: str, advice: str) -> Verdict:
    return Verdict(name, detail, advice, Exit.FAILED)


def unavailable(reason: str) -> Verdict:
    """The verdict on a microphone that cannot be opened, for the reason that the runner gives."""
    return _broken("unavailable", reason, "`utter audio devices` lists what there is.")


def _level(piece: array[float]) -> float:
    return _decibels(math.sqrt(sum(map(mul, piece, piece)) / len(piece)))


def _clips(piece: array[float]) -> bool:
    run = 0
    for sample in piece:
        run = run + 1 if abs(sample) >= CLIPPED else 0
        if run == _RUN:
            return True
    return False


def _decibels(amplitude: float) -> float:
    return max(SILENCE_DB, round(20 * math.log10(amplitude), 1)) if amplitude > 0 else SILENCE_DB
