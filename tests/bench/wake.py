"""How often each wake word is heard, where its end is found, how often it is heard though nobody said it, the cost.

The words are spoken by espeak-ng in several voices, three rates, alone and before a sentence, in a quiet and in a noisy
room (a fixed seed). Against false alarms stand the recordings of sentences and an hour or so of prose, this project's
documentation read aloud. The floor of the cost is turning the same sound into features, without any model.

    python tests/bench/wake.py [--recordings DIR] [--prose FILE ...] [--json]

DIR holds 16 kHz mono 16-bit WAV files.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
import time
import wave
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import soxr

from utter_plugins.wake.detector import Detector
from utter_plugins.wake.models import RATE, STEP, Frontend, load_words

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

    Samples = NDArray[np.float32]

ROOT = Path(__file__).parents[2]
RECORDINGS = ROOT / "tests/data/audio/en"
PROSE = [ROOT / "docs/operating.md", ROOT / "docs/writing-a-plugin.md"]
WORDS = ("okay_nabu", "alexa", "hey_mycroft", "hey_jarvis")
VOICES = ("en-gb", "en-us", "en-us+f3", "en-gb+f2", "en-gb-scotland", "en-us+m3", "en-us+m7", "en-gb+f4")
RATES = (130, 160, 190)
ROOMS = {"quiet": 3e-4, "noisy": 1e-2}
"""Noise beside speech whose loudest sample is 0.5: 50 dB and 20 dB below it."""
SENTENCE = "next track"
GAP_S = 0.2
TOLERANCE_S = 0.06
SEED = 15
REFRACTORY = 2 * RATE


def speak(text: str, voice: str, rate: int) -> Samples:
    """espeak-ng's speech, from its first sound to its last."""
    program = ["espeak-ng", "--stdout", "--stdin", "-b", "1", "-v", voice, "-s", str(rate)]
    out = subprocess.run(program, input=text.encode(), capture_output=True, check=True).stdout
    pcm = out[out.index(b"data") + 8 :]
    sound = np.frombuffer(pcm[: len(pcm) // 2 * 2], "<i2").astype("f4")
    sound = soxr.resample(sound / max(float(np.abs(sound).max()), 1.0) * 0.5, 22_050, RATE).astype("f4")
    loud = np.nonzero(np.convolve(np.abs(sound), np.ones(STEP) / STEP, "same") > 0.002)[0]
    trimmed: Samples = sound[loud[0] : loud[-1] + 1]
    return trimmed


def hear(detector: Detector, sound: Samples) -> list[Any]:
    """What is heard in it, from anew."""
    detector.restart(0)
    return list(detector.take(sound[: len(sound) // STEP * STEP].tobytes()))


def silence(seconds: float) -> Samples:
    return np.zeros(round(seconds * RATE), "f4")


def hits(word: str, random: np.random.Generator) -> dict[str, Any]:
    """In how many of the cases the word is heard, and in how many of these its end is."""
    counts: dict[str, int] = {}
    well, late = 0, []
    for voice in VOICES:
        for rate in RATES:
            said, then = (speak(text, voice, rate) for text in (word.replace("_", " "), SENTENCE))
            ended = RATE + len(said)
            for how, after in (("alone", silence(0)), ("before a sentence", then)):
                clean = np.concatenate([silence(1), said, silence(GAP_S), after, silence(1)])
                for room, noise in ROOMS.items():
                    sound = (clean + random.normal(0, noise, len(clean))).astype("f4")
                    # Every case has a detector of its own, for none may be deaf from the one before.
                    found = hear(Detector(load_words([word], None), Frontend(), REFRACTORY), sound)
                    counts[f"{how}, {room}"] = counts.get(f"{how}, {room}", 0) + bool(found)
                    if found:
                        late.append((found[0].noticed - ended) * 1000 / RATE)
                        begin, end = ended - TOLERANCE_S * RATE, ended + (GAP_S + TOLERANCE_S) * RATE
                        well += begin <= found[0].ended <= end
    return {
        "of": len(VOICES) * len(RATES),
        "heard": counts,
        "end_found": well,
        "of_heard": len(late),
        "noticed_after_ms": round(statistics.median(late)) if late else None,
    }


def recordings(folder: Path) -> Iterator[Samples]:
    for path in sorted(folder.glob("*.wav")):
        with wave.open(str(path)) as file:
            if (file.getframerate(), file.getnchannels(), file.getsampwidth()) != (RATE, 1, 2):
                sys.exit(f"{path} is not 16 kHz mono 16-bit.")
            yield (np.frombuffer(file.readframes(file.getnframes()), "<i2") / 32_768).astype("f4")


def read_aloud(files: Iterable[Path]) -> Iterator[Samples]:
    """The files' paragraphs, each in another voice."""
    for file in files:
        paragraphs = re.split(r"\n\s*\n", re.sub(r"(?s)```.*?```", "", file.read_text(encoding="utf-8")))
        for number, paragraph in enumerate(paragraphs):
            text = " ".join(re.findall(r"[A-Za-z',.;:?!-]+", paragraph))
            if re.search(r"[A-Za-z]{2}", text):
                yield speak(text, VOICES[number % len(VOICES)], 170)


def alarms(word: str, sounds: list[Samples]) -> dict[str, Any]:
    """How often the word is heard in what does not hold it, and what it costs to find out."""
    joined = np.concatenate([part for sound in sounds for part in (sound, silence(0.5))])
    detector = Detector(load_words([word], None), Frontend(), REFRACTORY)
    began = time.process_time()
    found = hear(detector, joined)
    share = (time.process_time() - began) / (len(joined) / RATE)
    return {"alarms": len(found), "processor": round(share, 4)}


def floor(sounds: list[Samples]) -> float:
    joined = np.concatenate([part for sound in sounds for part in (sound, silence(0.5))])
    began = time.process_time()
    for _ in hear(Detector([], Frontend(), 0), joined):
        raise AssertionError("nobody listens")
    return (time.process_time() - began) / (len(joined) / RATE)


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--recordings", type=Path, default=RECORDINGS, metavar="DIR")
    parser.add_argument("--prose", type=Path, nargs="*", default=PROSE, metavar="FILE")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of lines")
    options = parser.parse_args()
    sentences, prose = list(recordings(options.recordings)), list(read_aloud(options.prose))
    hours = sum(map(len, prose)) / RATE / 3600
    report: dict[str, Any] = {
        "sentences": len(sentences),
        "prose_hours": round(hours, 2),
        "floor": round(floor(prose), 4),
        "words": {},
    }
    for word in WORDS:
        report["words"][word] = {
            **hits(word, np.random.default_rng(SEED)),
            "in_sentences": alarms(word, sentences)["alarms"],
            **alarms(word, prose),
        }
    if options.json:
        print(json.dumps(report))
        return
    print(f"{len(sentences)} sentences, {hours:.2f} h of prose; features alone: {report['floor']:.2%} of a processor")
    for word, one in report["words"].items():
        heard = ", ".join(f"{how} {count}" for how, count in one["heard"].items())
        print(
            f"{word}: heard of {one['of']}: {heard}; noticed {one['noticed_after_ms']} ms after its end, which is found"
            f" {one['end_found']} times of {one['of_heard']}; heard in sentences {one['in_sentences']} times, in prose"
            f" {one['alarms']}; {one['processor']:.2%} of a processor"
        )


if __name__ == "__main__":
    main()
