"""Audio to text with faster-whisper: an unbiased hearing, then one that knows the nearest hints.

Rules here: one transcription at a time, which can be given up between its steps; nothing is downloaded; nothing of one
transcription is kept for the next. faster-whisper is imported when the model is loaded. Its `transcribe` always encodes
30 s; commands are short, so the encoder is called here with as much as it needs, which halves the time.
"""

from __future__ import annotations

import math
import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from .bias import Hints, alike, as_long_as, prompt, without_repeats
from .loudness import BLOCK, QUIET, RATE, samples_of
from .scribe import GivenUp, Heard

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from .loudness import Samples

MIN_S = 0.1
MAX_THREADS = 4
# Peak amplitude of what is silence for certain: -60 dB of full scale.
SILENCE = 1e-3
# What is cut must be long enough to make a difference.
_SHIFT = RATE // 20
# Below 20 s of context, tiny.en says short commands twice.
_MIN_FRAMES = 2_000
_GLANCE_FRAMES = 1_000
_MAX_FRAMES = 3_000
_FRAMES_PER_S = 100
_PADDING_FRAMES = 200
_WINDOW_S = 28
_SEARCH_S = 5
_BEAM = 5
_HEARINGS = 3
_MAX_TOKENS = 200
# Measured: noise, hum, clicks and tones are at 0.69 and more, speech with noise at 12 dB below 0.43.
_NO_SPEECH = 0.6
_UNLIKELY = -0.5
# Hints lead astray. A hearing that knows them must either be much likelier than one that does not, or sound like it:
# the gain in mean log probability and the share of common letter pairs (0.0 to 1.0) must come to this. Measured on 320
# recordings, with and without noise: hearings that the hints put right are at 0.69 and more, those made up below 0.63.
_PLAUSIBLE = 0.65


@dataclass(frozen=True)
class _Hearing:
    text: str
    logprob: float
    no_speech: float


class Recogniser:
    """A loaded model.

    Args:
        path: a directory with a CTranslate2 Whisper model.
        threads: CPU threads; None: as many as there are cores, at most four.

    Raises:
        ImportError: faster-whisper is not installed.
        RuntimeError, ValueError, OSError: the model cannot be loaded.
    """

    def __init__(self, path: Path, threads: int | None = None) -> None:
        os.environ["HF_HUB_OFFLINE"] = "1"
        from faster_whisper import WhisperModel  # noqa: PLC0415 - not before the line above

        self._model = WhisperModel(
            str(path),
            device="cpu",
            compute_type="int8",
            local_files_only=True,
            cpu_threads=threads or min(MAX_THREADS, len(os.sched_getaffinity(0))),
        )
        self._tokenizers: dict[str, Any] = {}
        self._give_up: Callable[[], bool] = bool
        # Seconds that the encoder took for each frame of its input, last time. It is nine tenths of a glance.
        self._pace = 0.0
        # The first call allocates; a second of silence now is a second less for the first command.
        self._hearings(self._encode(np.zeros(RATE, dtype=np.float32)), self._tokenizer("en"), "")

    def speaks(self, language: str) -> bool:
        """Whether the model knows a language, such as "en"."""
        if not self._model.model.is_multilingual:
            return language == "en"
        return language in self._model.supported_languages

    def transcribe(self, pcm: bytes, hints: Hints, language: str = "en", give_up: Callable[[], bool] = bool) -> Heard:
        """Transcribe mono audio at 16 kHz.

        Args:
            pcm: little-endian float32 samples.
            hints: phrases that are likely.
            language: a language that the model `speaks`.
            give_up: asked before each step of the model.

        Raises:
            GivenUp: `give_up` said so.
        """
        samples = samples_of(pcm)
        if _is_silent(samples):
            return Heard("")
        tokenizer = self._tokenizer(language)
        self._give_up = give_up
        first = self._heard(samples, hints, tokenizer)
        trimmed = self._trimmed(samples)
        if not first.text or hints.written(first.text) or len(samples) - len(trimmed) < _SHIFT:
            return first
        # Whisper's text depends on how long it is quiet before the speech. A second hearing counts if it is a hint.
        second = self._heard(trimmed, hints, tokenizer)
        return second if hints.written(second.text) else first

    def glance_seconds(self, frames: int) -> float:
        """How long a glance at so many frames of audio takes, as the last step of the model went."""
        return self._pace * _frames_for(frames, _GLANCE_FRAMES)

    def glance(self, pcm: bytes, language: str = "en", give_up: Callable[[], bool] = bool) -> str:
        """Transcribe what fits into one window in a third of the time, without hints; takes and raises as above."""
        samples = samples_of(pcm)
        if _is_silent(samples):
            return ""
        self._give_up = give_up
        return self._hearings(self._encode(samples, _GLANCE_FRAMES), self._tokenizer(language), "", beam=1)[0].text

    def _heard(self, samples: Samples, hints: Hints, tokenizer: Any) -> Heard:
        heard = [self._window(window, hints, tokenizer) for window in self._windows(samples)]
        said = [hearing for hearing in heard if hearing is not None and hearing.text]
        if not said:
            return Heard("")
        confidence = math.exp(min(hearing.logprob for hearing in said))
        return Heard(" ".join(hearing.text for hearing in said), round(min(1.0, confidence), 3))

    def _trimmed(self, samples: Samples) -> Samples:
        """Cut what is next to silent before the speech; words end softly, so that the end stays."""
        blocks = samples[: len(samples) // BLOCK * BLOCK].reshape(-1, BLOCK)
        level = np.sqrt(np.square(blocks).mean(axis=1))
        loud = np.flatnonzero(level > QUIET * level.max())
        return samples[loud[0] * BLOCK :] if len(loud) else samples

    def _windows(self, samples: Samples) -> list[Samples]:
        """Cut what is longer than Whisper's 30 s where it is quietest."""
        windows: list[Samples] = []
        while len(samples) > _WINDOW_S * RATE:
            step = RATE // 10
            start = (_WINDOW_S - _SEARCH_S) * RATE
            tail = samples[start : _WINDOW_S * RATE].reshape(-1, step)
            cut = start + int(np.square(tail).mean(axis=1).argmin()) * step + step // 2
            windows.append(samples[:cut])
            samples = samples[cut:]
        return [*windows, samples]

    def _window(self, samples: Samples, hints: Hints, tokenizer: Any) -> _Hearing | None:
        encoded = self._encode(samples)
        plain = self._hearings(encoded, tokenizer, "")
        first = plain[0]
        if first.no_speech > _NO_SPEECH and first.logprob < _UNLIKELY:
            return None
        if not first.text or hints.written(first.text):
            return first
        expected = self._expected(hints.near([hearing.text for hearing in plain]), tokenizer)
        if not expected:
            return first
        told = self._hearings(encoded, tokenizer, expected)[0]
        text = as_long_as(told.text, first.text)
        nearness = max(alike(text, hearing.text) for hearing in plain)
        if not text or told.logprob - first.logprob + nearness < _PLAUSIBLE:
            return first
        return _Hearing(text, told.logprob, told.no_speech)

    def _expected(self, shown: list[str], tokenizer: Any) -> str:
        """The prompt, with as many of the hints as fit into half of the model's context, the nearest ones first."""
        while shown and len(tokenizer.encode(prompt(shown))) >= self._model.max_length // 2:
            shown = shown[:-1]
        return prompt(shown)

    def _encode(self, samples: Samples, least: int = _MIN_FRAMES) -> Any:
        if self._give_up():
            raise GivenUp
        from faster_whisper.audio import pad_or_trim  # noqa: PLC0415 - see __init__

        features = self._model.feature_extractor(samples)
        frames = _frames_for(len(samples), least)
        began = time.monotonic()
        encoded = self._model.encode(pad_or_trim(features, frames))
        self._pace = (time.monotonic() - began) / frames
        return encoded

    def _hearings(self, encoded: Any, tokenizer: Any, expected: str, beam: int = _BEAM) -> list[_Hearing]:
        if self._give_up():
            raise GivenUp
        tokens = self._model.get_prompt(tokenizer, [], without_timestamps=True, hotwords=expected or None)
        result = self._model.model.generate(
            encoded,
            [tokens],
            beam_size=beam,
            num_hypotheses=1 if expected else min(_HEARINGS, beam),
            max_length=min(self._model.max_length, len(tokens) + _MAX_TOKENS),
            sampling_temperature=0.0,
            return_scores=True,
            return_no_speech_prob=True,
            suppress_blank=True,
            suppress_tokens=[-1],
        )[0]
        hearings = []
        for ids, score in zip(result.sequences_ids, result.scores, strict=True):
            text = without_repeats(tokenizer.decode([token for token in ids if token < tokenizer.eot]))
            if not any(char.isalnum() for char in text):
                text = ""
            hearings.append(_Hearing(text, score * len(ids) / (len(ids) + 1), result.no_speech_prob))
        return hearings

    def _tokenizer(self, language: str) -> Any:
        from faster_whisper.tokenizer import Tokenizer  # noqa: PLC0415 - see __init__

        if language not in self._tokenizers:
            multilingual = self._model.model.is_multilingual
            self._tokenizers[language] = Tokenizer(
                self._model.hf_tokenizer, multilingual, task="transcribe", language=language
            )
        return self._tokenizers[language]


def _frames_for(samples: int, least: int) -> int:
    """How many frames of its own the encoder is given for so much audio."""
    wanted = samples * _FRAMES_PER_S // RATE + _PADDING_FRAMES
    return min(_MAX_FRAMES, max(least, wanted + wanted % 2))


def _is_silent(samples: Samples) -> bool:
    return len(samples) < MIN_S * RATE or float(np.abs(samples).max()) < SILENCE
