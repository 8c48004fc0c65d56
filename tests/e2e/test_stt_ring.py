"""What a recogniser is fed out of the ring and by messages: the same audio, and with the real one the same text."""

from __future__ import annotations

import base64
import shutil
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from support.audio import babble, wav, write_wav
from support.daemon import Daemon
from utter_protocol.inherited import RING_CAPABILITY
from utter_runner.voice.capture.resample import wav_to_pcm

if TYPE_CHECKING:
    from utter_sdk.client import Client

RECORDINGS = Path(__file__).parents[1] / "data" / "audio" / "en"
ENOUGH = 16_000
"""Frames after which the plugin says something, so that the test need not wait for the clock."""
WHOLE = 60
"""Levels, 20 in a second, that are measured no faster than the recording of 2.6 s is played to its end."""

EAR = """
import base64
from utter_protocol.errors import RpcError
from utter_protocol.methods import SttFeedParams, SttSession, SttStartParams, SttStartResult, Transcript
from utter_sdk import Plugin

plugin = Plugin(
    "ear", version="1", kind="stt", transport=TRANSPORT, provides=["stt.transcribe@1", "stt.partial@1"],
    permissions=["microphone"],
)
ring = None
fed = []

@plugin.on_start(blocking=True)
def open_ring() -> None:
    global ring
    try:
        ring = plugin.microphone()
    except RpcError as error:
        plugin.log(f"no ring: {error}")
    plugin.log("has looked for the ring")

@plugin.method("stt.start")
def start(params: SttStartParams) -> SttStartResult:
    fed.clear()
    return SttStartResult(ring=ring is not None)

@plugin.notification("stt.feed")
def feed(params: SttFeedParams) -> None:
    assert params.seq == len(fed)
    if params.frames:
        fed.append(("frames", ring.read(params.frames.start, params.frames.count)))
    else:
        fed.append(("data", base64.b64decode(params.data_b64)))
    before = sum(len(data) for _, data in fed[:-1])
    if before < 4 * ENOUGH <= before + len(fed[-1][1]):
        plugin.notify("stt.partial", {"session": params.session, "text": "enough"})

@plugin.method("stt.finish")
def finish(params: SttSession) -> Transcript:
    return Transcript(text="")

@plugin.method("stt.cancel")
def cancel(params: SttSession) -> None:
    pass

@plugin.method("fed")
def what() -> dict:
    audio = b"".join(data for _, data in fed)
    return {"ways": sorted({way for way, _ in fed}), "audio": base64.b64encode(audio).decode()}

plugin.run()
"""

WAYS = {
    "stdio": ('transport = "stdio"', ["data"]),
    "stdio with the ring": (f'transport = "stdio"\nrequires = ["{RING_CAPABILITY}"]', ["frames"]),
    "connect": ('transport = "connect"', ["frames"]),
    "listen": ('transport = "listen"', ["frames"]),
}


def microphone(recording: Path, *, vad: str = "auto") -> str:
    """The config of a microphone that records a file whenever it is opened."""
    return (
        f'[audio]\nsource = "wav"\nwav_path = "{recording}"\ncapture = "on-demand"\ncues = false\n'
        f'[hotkeys]\nenabled = false\n[voice]\nvad = "{vad}"\n'
    )


def ear(directory: Path, how: str) -> str:
    """Write the plugin that keeps what it is fed; return its `[[plugin]]` entry."""
    transport = how.partition('"')[2].partition('"')[0]
    script = directory / "ear.py"
    script.write_text(f"TRANSPORT = {transport!r}\nENOUGH = {ENOUGH}\n" + textwrap.dedent(EAR))
    return (
        f'[[plugin]]\nid = "ear"\nentrypoint = ["{sys.executable}", "{script}"]\npermissions = ["microphone"]\n{how}\n'
    )


def hold(client: Client, *, levels: int = 0) -> dict[str, Any]:
    """Hold the key until something was understood and the microphone heard for so many levels; return the report."""
    with client.subscribe("runner.events") as events, client.subscribe("audio.level") as level:
        next(events)
        session = client.call("ptt.press", {}, timeout=30)["session"]
        while (event := events.get(120))["event"] != "partial":
            assert event["event"] != "report", event
        assert event["session"] == session
        for _ in range(levels):
            level.get(60)
        client.call("ptt.release", {}, timeout=30)
        while (event := events.get(120))["event"] != "report":
            pass
    report: dict[str, Any] = event["report"]
    return report


def fed(client: Client) -> tuple[list[str], bytes]:
    answer = client.call("runner.invoke", {"plugin": "ear", "method": "fed", "params": {}}, timeout=30)
    return answer["ways"], base64.b64decode(answer["audio"])


@pytest.mark.parametrize("way", WAYS)
def test_the_audio_is_the_same_byte_by_byte(tmp_path: Path, way: str) -> None:
    how, ways = WAYS[way]
    recording = write_wav(tmp_path / "speech.wav", babble(8.0))
    pcm = wav_to_pcm(recording.read_bytes(), 60)
    # What is no speech would be held back to the end.
    with Daemon(tmp_path, microphone(recording, vad="off") + ear(tmp_path, how), quiet=False) as daemon:
        daemon.said("has looked for the ring")
        with daemon.client() as client:
            hold(client)
            used, audio = fed(client)
            assert used == ways
            assert len(audio) >= 4 * ENOUGH
            # The file begins when the microphone is opened, which it is for the key; then there is silence.
            assert audio == pcm.ljust(len(audio), b"\0")[: len(audio)]
            # A recording that is handed in does not lie in the ring.
            handed = wav(babble(1.0, seed=2))
            client.call("runner.listen", {"wav_b64": base64.b64encode(handed).decode()}, timeout=60)
            assert fed(client) == (["data"], wav_to_pcm(handed, 60))


@pytest.mark.model
@pytest.mark.timeout(300)
def test_the_text_is_the_same_whichever_way_the_audio_goes(tmp_path: Path) -> None:
    heard = {}
    for number, (way, (how, _)) in enumerate(WAYS.items()):
        directory = tmp_path / str(number)
        directory.mkdir()
        shutil.copy(RECORDINGS / "recorded_cancel_all_timers.wav", directory / "speech.wav")
        config = microphone(directory / "speech.wav") + f'[[plugin]]\nid = "whisper"\n{how}\n'
        with Daemon(directory, config, quiet=False) as daemon:
            daemon.wait_plugin("whisper", "ready", timeout=120)
            with daemon.client() as client:
                heard[way] = hold(client, levels=WHOLE)["heard"]
    assert len(set(heard.values())) == 1, heard
    assert "cancel all" in heard["stdio"].lower()
