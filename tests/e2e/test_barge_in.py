"""Speech of the runner that its own microphone hears: the key ends it, and what is recognised is not its echo."""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path

import pytest

from support import audio
from support.daemon import Daemon, environment
from support.pipewire import missing, pipewire_bed
from utter_sdk.client import Client

MOUTH = """
import base64, math, struct
from utter_sdk import Plugin, Stream

plugin = Plugin("mouth", version="1.0.0", kind="tts", provides=["tts.speak@1"])
SECOND = b"".join(struct.pack("<h", round(12000 * math.sin(n * 0.3))) for n in range(16000))

@plugin.method("tts.speak")
def speak(params: dict):
    raise AssertionError("the runner plays it")

@plugin.stream("tts.audio", mode="reliable")
def say(params: dict, stream: Stream) -> None:
    shape = {"encoding": "s16le", "rate": 16000, "channels": 1}
    for second in range(60):
        for at in range(0, len(SECOND), 6400):
            item = {"data_b64": base64.b64encode(SECOND[at : at + 6400]).decode()}
            stream.send(item | ({"format": shape} if not second and not at else {}))

plugin.run()
"""
EAR = """
import base64, sys
from pathlib import Path
from utter_sdk import Plugin

plugin = Plugin("ear", version="1.0.0", kind="stt", provides=["stt.transcribe@1"])
heard = bytearray()

for name in ("stt.start", "stt.cancel"):
    plugin.method(name)(lambda params: {})

@plugin.notification("stt.feed")
def feed(params: dict):
    heard.extend(base64.b64decode(params["data_b64"]))

@plugin.method("stt.finish")
def finish(params: dict):
    Path(sys.argv[1]).write_bytes(heard)
    return {"text": ""}

plugin.run()
"""


@pytest.mark.pipewire
@pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)}")
def test_the_key_ends_what_is_spoken_and_the_microphone_does_not_hear_it(tmp_path: Path) -> None:
    heard = tmp_path / "heard"
    entries = ""
    for name, source, *words in (("mouth", MOUTH), ("ear", EAR, str(heard))):
        (tmp_path / f"{name}.py").write_text(source)
        argv = ", ".join(f"'{word}'" for word in (sys.executable, tmp_path / f"{name}.py", *words))
        entries += f'[[plugin]]\nid = "{name}"\nentrypoint = [{argv}]\n'
    # The loudspeaker is the other side of the microphone: there is no worse echo.
    config = '[audio]\nsource = "pw-record"\ncues = false\noutput_device = "vmic_in"\n[hotkeys]\nenabled = false\n'
    # A machine that is too busy to deliver audio in time is no fault.
    config += "[voice]\nopen_ms = 8000\nstall_ms = 60000\nzeros_ms = 60000\n"
    with pipewire_bed(tmp_path) as bed:
        daemon = Daemon(tmp_path, config + entries, env={**environment(tmp_path), **bed.environment}, quiet=False)
        daemon.socket = Path(bed.environment["XDG_RUNTIME_DIR"]) / "utter" / "runner.sock"
        with daemon, daemon.client() as client, client.subscribe("audio.level") as level:
            spoken: list[object] = []
            speaking = threading.Thread(target=speak, args=(daemon, spoken))
            speaking.start()
            while level.get(60)["peak_db"] < -40:
                pass
            with client.subscribe("runner.events") as events:
                pressed = time.monotonic()
                client.call("ptt.press", {}, timeout=30)
                # It ends by the key alone, long before it has said everything.
                speaking.join(60)
                assert spoken == [False]
                while level.get(60)["peak_db"] > -40:
                    pass
                # The second half of what is heard is quiet, however long the sound was on its way.
                quiet = time.monotonic()
                while time.monotonic() < quiet + (quiet - pressed) + 2:
                    level.get(60)
                client.call("ptt.release", {}, timeout=30)
                while events.get(60)["event"] != "report":
                    pass
    samples = audio.floats(heard.read_bytes())
    loud = [index for index, sample in enumerate(samples) if abs(sample) > 0.01]
    # No pre-roll: what is left is what was already on its way through the sound server.
    assert len(samples) > 16_000 * 0.5
    assert not loud or loud[-1] < len(samples) / 2


def speak(daemon: Daemon, spoken: list[object]) -> None:
    with Client.connect(str(daemon.socket)) as client:
        params = {"text": "A long story.", "timeout_ms": 50_000}
        spoken.append(client.call("runner.speak", params, timeout=60)["spoken"])
