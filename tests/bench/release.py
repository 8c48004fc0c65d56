"""From the key's release to the recogniser's order to transcribe, beside a bare hop to the same plugin, in one run.

A real daemon records a file at the pace of a microphone, in blocks of 20 ms. A client holds the key for about 300 ms,
each time for another part of a block, and lets go; the plugin says when `stt.finish` had arrived. `beyond` is what has
passed then since the client began to send the release, in milliseconds, less the post-roll. Negative is early: the
frames of the post-roll are counted from the last block that had arrived when the key went up. The floor is one
`runner.invoke` to the same plugin after each session, from the client to the plugin, measured by the same clocks.
`short_ms` is how much less audio the plugin was given than there is from the pre-roll to the end of the post-roll; a
block at each end cannot be known better.

    python tests/bench/release.py [--json] [--sessions 120] [--source wav]
    python scripts/headless_audio.py -- python tests/bench/release.py --source pw-record
"""

from __future__ import annotations

import random
import statistics
import sys
import tempfile
import time
import wave
from contextlib import ExitStack
from pathlib import Path

from common import arguments, daemon, p50_and_p99, patiently, show

from utter_sdk.client import Client, RunnerUnavailable

PLUGIN = Path(__file__).with_name("stt_plugin.py")
RATE = 16_000
HELD_S = 0.3
BLOCK_S = 0.02
PRE_ROLL_S, POST_ROLL_S = 0.3, 0.2
"""The defaults of the configuration."""

REST = """
[[plugin]]
id = "stamp"
kind = "stt"
entrypoint = ["{python}", "{plugin}"]
"""


class Key:
    """A client that holds the key and hears what the plugin made of it."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._events = client.subscribe("runner.events")

    def speak(self, held: float) -> tuple[float, float] | None:
        """One session; milliseconds from the release to the plugin, and of audio that it was given; None: no audio."""
        pressed = time.monotonic()
        self._client.call("ptt.press")
        # This is the person, who holds the key by the clock.
        time.sleep(max(0.0, pressed + held - time.monotonic()))
        released = time.monotonic_ns()
        self._client.call("ptt.release")
        while (event := self._events.get(30.0))["event"] != "report":
            pass
        at, _, frames = event["report"]["heard"].partition(" ")
        return ((int(at) - released) / 1e6, int(frames) * 1000 / RATE) if at else None

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


def measure(sessions: int, source: str) -> dict[str, object]:
    """Run everything; return the report."""
    chance = random.Random(1)
    beyond: list[float] = []
    short: list[float] = []
    floor: list[float] = []
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        recording = directory / "noise.wav"
        with wave.open(str(recording), "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(RATE)
            file.writeframes(chance.randbytes(20 * RATE))
        audio = f'source = "{source}"' + (f'\nwav_path = "{recording}"' if source == "wav" else "")
        path = stack.enter_context(daemon(directory, REST.format(python=sys.executable, plugin=PLUGIN), audio))
        client = stack.enter_context(patiently(lambda: Client.connect(path), RunnerUnavailable))
        wait_for_microphone(client)
        key = Key(client)
        for number in range(sessions):
            held = HELD_S + BLOCK_S * chance.random()
            # The pre-roll reaches back to the session before, and no further.
            time.sleep(PRE_ROLL_S)
            found = key.speak(held)
            time.sleep(BLOCK_S * chance.random())
            hop = key.hop()
            # The first one finds everything cold; what a sound server did not deliver is a matter of its own.
            if number and found is not None:
                taken, audio_ms = found
                beyond.append(taken - POST_ROLL_S * 1000)
                short.append((PRE_ROLL_S + held + POST_ROLL_S) * 1000 - audio_ms)
                floor.append(hop)
    p50, p99 = p50_and_p99(beyond)
    floor_p50, floor_p99 = p50_and_p99(floor)
    return {
        "sessions": len(beyond),
        "without_audio": sessions - 1 - len(beyond),
        "source": source,
        "beyond_p50_ms": p50,
        "beyond_p99_ms": p99,
        "beyond_max_ms": round(max(beyond), 1),
        "beyond_min_ms": round(min(beyond), 1),
        "floor_p50_ms": floor_p50,
        "floor_p99_ms": floor_p99,
        "short_p50_ms": round(statistics.median(short), 1),
        "short_max_ms": round(max(short), 1),
    }


def main() -> None:
    """Print the report."""
    options = arguments(
        __doc__, sessions=(120, "how often the key is held"), source=("wav", "wav, or a real one: pw-record, sounddevice")
    )
    show(measure(options.sessions, options.source), as_json=options.json)


if __name__ == "__main__":
    main()
