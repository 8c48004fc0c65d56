"""From the key's release to the recogniser's order to transcribe, beside a bare hop to the same plugin, in one run.

A real daemon records sentences from a file at the pace of a microphone, in blocks of 20 ms, and looks for speech in
them as it does by default. A client holds the key for about 300 ms, each time for another part of a block, and lets go;
the plugin says when `stt.finish` had arrived. `beyond` is what has passed then since the client began to send the
release, in milliseconds, less the post-roll. Negative is early: the frames of the post-roll are counted from the last
block that had arrived when the key went up. The floor is one `runner.invoke` to the same plugin after each session,
from the client to the plugin, measured by the same clocks. `short_ms` is how much less audio the plugin was given than
there is from the pre-roll to the end of the post-roll: up to a block at each end, and what was silence.

Everything runs pinned to one CPU where the system allows it, beside a bystander that only sleeps for a millisecond at a
time. `calm_*` are the sessions in which the bystander was never more than 2 ms late from the release to the plugin: the
others measure what else the machine had to do.

    python tests/bench/release.py [--json] [--sessions 120] [--source wav]
    python scripts/headless_audio.py -- python tests/bench/release.py --source pw-record
"""

from __future__ import annotations

import random
import statistics
import subprocess
import sys
import tempfile
import time
import wave
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from common import arguments, daemon, p50_and_p99, patiently, pin, show

from utter_sdk.client import Client, RunnerUnavailable

PLUGIN = Path(__file__).with_name("stt_plugin.py")
RECORDINGS = Path(__file__).parent.parent / "data/audio/en"
SESSION_S = 2
"""More than a session takes, with what is between it and the next."""
RATE = 16_000
HELD_S = 0.3
BLOCK_S = 0.02
PRE_ROLL_S, POST_ROLL_S = 0.3, 0.2
"""The defaults of the configuration."""
FEWEST = 10
"""Of fewer sessions nothing is said."""

REST = """
[[plugin]]
id = "stamp"
kind = "stt"
entrypoint = ["{python}", "{plugin}"]
"""

BYSTANDER = """
import sys, time
while True:
    before = time.monotonic_ns()
    time.sleep(0.001)
    after = time.monotonic_ns()
    if after - before > 3_000_000:
        print(before, after, flush=True)
"""


class Session(NamedTuple):
    """One session: when it was released and when the plugin was asked, in nanoseconds; milliseconds of the rest."""

    released: int
    asked: int
    short: float
    hop: float

    @property
    def beyond(self) -> float:
        """Milliseconds from the end of the post-roll to the plugin."""
        return (self.asked - self.released) / 1e6 - POST_ROLL_S * 1000


class Key:
    """A client that holds the key and hears what the plugin made of it."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._events = client.subscribe("runner.events")

    def speak(self, held: float) -> tuple[int, int, float] | None:
        """One session: when it was released, when the plugin was asked, milliseconds of audio; None: no audio."""
        pressed = time.monotonic()
        self._client.call("ptt.press")
        # This is the person, who holds the key by the clock.
        time.sleep(max(0.0, pressed + held - time.monotonic()))
        released = time.monotonic_ns()
        self._client.call("ptt.release")
        while (event := self._events.get(30.0))["event"] != "report":
            pass
        at, _, frames = event["report"]["heard"].partition(" ")
        return (released, int(at), int(frames) * 1000 / RATE) if at else None

    def hop(self) -> float:
        """Milliseconds from the client to the plugin."""
        sent = time.monotonic_ns()
        answer = self._client.call("runner.invoke", {"plugin": "stamp", "method": "bench.stamp", "params": {}})
        return float(answer["at"] - sent) / 1e6


def wait_for_microphone(client: Client) -> None:
    """Wait until the plugin is there and audio arrives."""
    deadline = time.monotonic() + 30
    while True:
        status = client.call("runner.status")
        if status["state"] == "ready" and status["audio"]["open"]:
            return
        if time.monotonic() > deadline:
            raise SystemExit(f"no audio: {status['audio']}")
        time.sleep(0.01)


def write_speech(path: Path, sessions: int) -> None:
    """Write recorded sentences one after the other, enough for so many sessions."""
    frames = []
    for name in sorted(RECORDINGS.glob("*.wav")):
        with wave.open(str(name), "rb") as file:
            if (file.getframerate(), file.getnchannels(), file.getsampwidth()) != (RATE, 1, 2):
                raise SystemExit(f"{name} is not 16 kHz mono 16-bit.")
            frames.append(file.readframes(file.getnframes()))
    once = b"".join(frames)
    if not once:
        raise SystemExit(f"there are no recordings in {RECORDINGS}")
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes(once * (2 * RATE * SESSION_S * sessions // len(once) + 1))


def run(sessions: int, source: str, chance: random.Random) -> list[Session]:
    """Hold the key so often, after once that finds everything cold."""
    found = []
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        recording = directory / "speech.wav"
        if source == "wav":
            write_speech(recording, sessions + 1)
        audio = f'source = "{source}"' + (f'\nwav_path = "{recording}"' if source == "wav" else "")
        path = stack.enter_context(daemon(directory, REST.format(python=sys.executable, plugin=PLUGIN), audio))
        client = stack.enter_context(patiently(lambda: Client.connect(path), RunnerUnavailable))
        wait_for_microphone(client)
        key = Key(client)
        key.speak(HELD_S)
        for _ in range(sessions):
            held = HELD_S + BLOCK_S * chance.random()
            # The pre-roll reaches back to the session before, and no further.
            time.sleep(PRE_ROLL_S)
            spoken = key.speak(held)
            time.sleep(BLOCK_S * chance.random())
            hop = key.hop()
            if spoken is not None:
                released, asked, audio_ms = spoken
                short = (PRE_ROLL_S + held + POST_ROLL_S) * 1000 - audio_ms
                found.append(Session(released, asked, short, hop))
    return found


def measure(sessions: int, source: str) -> dict[str, object]:
    """Run everything; return the report."""
    pinned = pin()
    with subprocess.Popen([sys.executable, "-c", BYSTANDER], stdout=subprocess.PIPE, text=True) as bystander:
        try:
            found = run(sessions, source, random.Random(1))
        finally:
            bystander.terminate()
        # The last line may have been cut short.
        late = [tuple(map(int, line.split())) for line in bystander.communicate()[0].split("\n")[:-1]]
    calm = [one for one in found if not any(begin < one.asked and end > one.released for begin, end in late)]
    report: dict[str, object] = {
        "source": source,
        "pinned": pinned,
        "sessions": len(found),
        # What a sound server did not deliver is a matter of its own.
        "without_audio": sessions - len(found),
        "calm": len(calm),
    }
    for name, some in (("", found), ("calm_", calm)):
        if len(some) < FEWEST:
            continue
        beyond, hops, short = ([getattr(one, key) for one in some] for key in ("beyond", "hop", "short"))
        report[f"{name}beyond_p50_ms"], report[f"{name}beyond_p99_ms"] = p50_and_p99(beyond)
        report[f"{name}beyond_max_ms"] = round(max(beyond), 1)
        report[f"{name}beyond_min_ms"] = round(min(beyond), 1)
        report[f"{name}floor_p50_ms"], report[f"{name}floor_p99_ms"] = p50_and_p99(hops)
        report[f"{name}short_p50_ms"] = round(statistics.median(short), 1)
        report[f"{name}short_max_ms"] = round(max(short), 1)
    return report


def main() -> None:
    """Print the report."""
    options = arguments(
        __doc__,
        sessions=(120, "how often the key is held"),
        source=("wav", "wav, or a real one: pw-record, sounddevice"),
    )
    show(measure(options.sessions, options.source), as_json=options.json)


if __name__ == "__main__":
    main()
