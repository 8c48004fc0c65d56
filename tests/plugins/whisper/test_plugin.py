"""The whisper plugin as a process: what is wrong is told, and with the real model a few recordings are understood."""

from __future__ import annotations

import base64
import subprocess
import sys
import tomllib
import wave
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pytest

import utter_plugins.whisper
from utter_protocol.errors import ErrorCode, RpcError
from utter_protocol.framing import encode_frame
from utter_protocol.manifest import load_manifest
from utter_protocol.messages import decode_error, request_body
from utter_sdk.testing import PluginProcess

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from utter_sdk.plugin import Transport

ARGV = [sys.executable, "-P", "-m", "utter_plugins.whisper"]
RECORDINGS = Path(__file__).parents[2] / "data/audio/en"
RATE = 16_000
PIECE = RATE // 10
LOAD_S = 60.0
PHRASES = [
    "lock the Front Door",
    "is the Front Door locked",
    "is the Front Door unlocked",
    "set Bed Light brightness to 50 percent",
    "set a timer for 3 hours and 10 minutes",
    "what's the temp of the EcoBee",
    "cancel all timers",
]


def start(**settings: Any) -> PluginProcess:
    return PluginProcess(ARGV, settings=settings, timeout=LOAD_S)


def recording(name: str) -> NDArray[np.float32]:
    with wave.open(str(RECORDINGS / f"{name}.wav"), "rb") as file:
        frames = file.readframes(file.getnframes())
    return (np.frombuffer(frames, dtype="<i2") / 32768).astype(np.float32)


def feed(process: PluginProcess, session: str, samples: NDArray[np.float32], first: int = 0) -> None:
    for seq, begin in enumerate(range(0, len(samples), PIECE), start=first):
        data = base64.b64encode(samples[begin : begin + PIECE].astype("<f4").tobytes()).decode()
        process.notify("stt.feed", {"session": session, "seq": seq, "data_b64": data})


def hear(process: PluginProcess, samples: NDArray[np.float32], hints: list[str] = PHRASES) -> dict[str, Any]:
    process.call("stt.start", {"session": "s", "hints": hints})
    feed(process, "s", samples)
    answer = process.call("stt.finish", {"session": "s"})
    assert isinstance(answer, dict)
    return answer


def test_the_handshake_says_what_the_manifest_says_before_the_model_is_loaded() -> None:
    path = Path(utter_plugins.whisper.__file__).parent / "utter-plugin.toml"
    manifest = tomllib.loads(path.read_text())
    load_manifest(path)
    with start(model="/nonexistent/model") as process:
        assert process.hello.plugin.name == manifest["name"]
        assert process.hello.plugin.version == manifest["version"]
        assert process.hello.plugin.kind == manifest["kind"]
        assert process.hello.provides == manifest["provides"]
        assert process.hello.permissions == manifest["permissions"]
        assert {"stt.start", "stt.finish", "stt.cancel"} <= set(process.description.methods)


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"model": "/nonexistent/model"}, "/nonexistent/model, which holds no CTranslate2 model"),
        ({"model": "no-such-model"}, "no-such-model is not installed"),
        ({"threads": 0}, "threads"),
        ({"modell": "x"}, "modell"),
    ],
)
def test_without_a_model_the_plugin_says_why_and_stays(settings: dict[str, Any], why: str) -> None:
    with start(**settings) as process:
        process.wait_stderr("could not start")
        health = process.call("plugin.health")
        assert health["status"] == "degraded"
        assert why in health["detail"]
        with pytest.raises(RpcError, match=why) as caught:
            process.call("stt.start", {"session": "a"})
        assert caught.value.code == ErrorCode.PLUGIN_FAILED
        assert process.close() == 0


def test_a_broken_model_is_named(tmp_path: Path) -> None:
    (tmp_path / "model.bin").write_bytes(b"nothing")
    with start(model=str(tmp_path)) as process:
        process.wait_stderr("could not start", timeout=LOAD_S)
        assert f"in {tmp_path} cannot be loaded" in process.call("plugin.health")["detail"]


def test_importing_the_plugin_loads_nothing_heavy() -> None:
    code = (
        "import sys, utter_plugins.whisper.plugin as plugin; plugin.build();"
        "print([name for name in ('numpy', 'faster_whisper', 'ctranslate2') if name in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout == b"[]\n"


@pytest.fixture(scope="module")
def process() -> Iterator[PluginProcess]:
    with start() as process:
        yield process


@pytest.mark.model
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("recorded_cancel_all_timers", "cancel all timers"),
        ("recorded_set_bed_light_brightness_to_50_percent", "set Bed Light brightness to 50 percent"),
        ("synthetic_whats_the_temp_of_the_ecobee", "what's the temp of the EcoBee"),
        ("synthetic_is_the_front_door_unlocked", "is the Front Door unlocked"),
    ],
)
def test_recordings_are_heard_as_the_hints_have_them(process: PluginProcess, name: str, said: str) -> None:
    samples = recording(name)
    answer = hear(process, samples)
    assert answer["text"].rstrip(".?").lower() == said.lower()
    assert 0.0 < answer["confidence"] <= 1.0
    assert answer["audio_ms"] == len(samples) * 1000 // RATE


@pytest.mark.model
def test_speech_that_is_no_hint_is_not_bent_into_one(process: PluginProcess) -> None:
    assert "beatles" in hear(process, recording("recorded_oov_1"))["text"].lower()


@pytest.mark.model
def test_silence_noise_and_very_little_audio_are_nothing(process: PluginProcess) -> None:
    noise = np.random.default_rng(1).normal(0.0, 0.05, 2 * RATE).astype(np.float32)
    hum = (0.05 * np.sin(2 * np.pi * 50 * np.arange(2 * RATE) / RATE)).astype(np.float32)
    wrong = np.full(RATE, np.nan, dtype=np.float32)
    for samples in (np.zeros(0), np.zeros(100), np.zeros(RATE), noise, hum, noise[:800], wrong):
        assert hear(process, samples.astype(np.float32))["text"] == ""


@pytest.mark.model
def test_more_than_whisper_hears_at_once_is_heard_in_parts(process: PluginProcess) -> None:
    pause = np.zeros(13 * RATE, dtype=np.float32)
    parts = [recording("recorded_cancel_all_timers"), pause, pause, recording("recorded_lock_the_front_door")]
    text = hear(process, np.concatenate(parts), [])["text"].lower()
    assert "cancel" in text
    assert "front door" in text


@pytest.mark.model
def test_sessions_side_by_side_and_cancelled_ones() -> None:
    first, second = recording("recorded_lock_the_front_door"), recording("recorded_cancel_all_timers")
    # One that transcribes beforehand may have nothing left to do.
    with start(partials=False) as process:
        # Nothing is heard before the model is there.
        hear(process, first[:0])
        for session in ("a", "b", "c"):
            process.call("stt.start", {"session": session, "hints": PHRASES})
        feed(process, "a", first[:RATE])
        feed(process, "b", second)
        feed(process, "c", second)
        feed(process, "a", first[RATE:], first=RATE // PIECE)
        assert process.call("stt.cancel", {"session": "c"}) == {}
        asked = [request_body(name, "stt.finish", msgspec.json.encode({"session": name})) for name in ("a", "b", "c")]
        asked.append(request_body("health", "plugin.health", b"{}"))
        # All at once, so that the recogniser has not finished before the last of them is even sent.
        process.write(b"".join(encode_frame(body) for body in asked))
        answers = {answer.id: answer for answer in (process.unmatched() for _ in asked)}
    # Answered while the recogniser works.
    assert [*answers] == ["health", "a", "b", "c"]
    told = {name: msgspec.json.decode(one.result) for name, one in answers.items() if one.error is msgspec.UNSET}
    assert told["health"]["status"] == "ok"
    assert "front door" in told["a"]["text"].lower()
    assert "timers" in told["b"]["text"].lower()
    assert isinstance(answers["c"].error, msgspec.Raw)
    refused = decode_error(answers["c"].error)
    assert "no session 'c' is open" in str(refused)
    assert refused.code == ErrorCode.INVALID_PARAMS


@pytest.mark.model
def test_wrong_requests_name_the_field(process: PluginProcess) -> None:
    for params, field in (
        ({"session": "x", "language": "de"}, "language"),
        ({"session": "x", "format": {"encoding": "f32le", "rate": 8000}}, "format.rate"),
        ({"session": 5}, "session"),
    ):
        with pytest.raises(RpcError, match=field) as caught:
            process.call("stt.start", params)
        assert caught.value.code == ErrorCode.INVALID_PARAMS
    process.call("stt.start", {"session": "x"})
    process.notify("stt.feed", {"session": "x", "seq": 0, "data_b64": "AAAA"})
    with pytest.raises(RpcError, match="data_b64"):
        process.call("stt.finish", {"session": "x"})


@pytest.mark.model
@pytest.mark.parametrize("level", [0.0, 0.0005, 0.002])
def test_how_long_it_was_quiet_before_does_not_decide_what_is_heard(process: PluginProcess, level: float) -> None:
    said = recording("recorded_pause")
    random = np.random.default_rng(1)
    for milliseconds in (0, 100, 340, 500):
        quiet = (level * random.standard_normal(milliseconds * RATE // 1000)).astype(np.float32)
        assert "pause" in hear(process, np.concatenate((quiet, said)), ["pause", "resume", "next"])["text"].lower()


@pytest.mark.model
@pytest.mark.parametrize("name", ["recorded_cancel_all_timers", "synthetic_is_the_front_door_unlocked"])
def test_what_was_said_so_far_is_told_at_a_pause_and_changes_nothing(process: PluginProcess, name: str) -> None:
    quiet = np.zeros(RATE // 2, dtype=np.float32)
    samples = np.concatenate((quiet, recording(name), quiet))
    with start(partials=False) as other:
        answer = hear(other, samples)
        with pytest.raises(TimeoutError):
            other.notification("stt.partial", timeout=0)
    process.call("stt.start", {"session": "p", "hints": PHRASES})
    feed(process, "p", samples)
    # What was said so far comes first, on a machine that is quick enough.
    while process.notification("stt.partial", timeout=LOAD_S) != {"session": "p", "text": answer["text"]}:
        pass
    assert process.call("stt.finish", {"session": "p"}) == answer


# The model is loaded once the last piece of a sentence has come.
LATE = """
import sys
import threading
from functools import wraps
from utter_plugins.whisper.plugin import Whisper, build

complete = threading.Event()
load, feed = Whisper._load, Whisper.feed

def load_late(whisper, wanted):
    complete.wait()
    return load(whisper, wanted)

@wraps(feed)
def feed_and_tell(whisper, params):
    feed(whisper, params)
    if params.seq == int(sys.argv[1]):
        complete.set()

Whisper._load, Whisper.feed = load_late, feed_and_tell
build().run()
"""


@pytest.mark.model
def test_what_was_said_while_the_model_was_being_loaded_is_told_before_the_key_goes_up() -> None:
    samples = recording("recorded_cancel_all_timers")
    last = (len(samples) - 1) // PIECE
    with PluginProcess([sys.executable, "-P", "-c", LATE, str(last)], timeout=LOAD_S) as process:
        process.call("stt.start", {"session": "early", "hints": PHRASES})
        feed(process, "early", samples)
        told = process.notification("stt.partial", timeout=LOAD_S)
        assert told["session"] == "early"
        assert "cancel all" in told["text"].lower()
        assert process.call("stt.finish", {"session": "early"})["text"] == told["text"]


@pytest.mark.parametrize("transport", ["stdio", "connect", "listen"])
def test_it_speaks_over_whatever_the_runner_has_started_it_with(transport: Transport) -> None:
    with PluginProcess(ARGV, settings={"model": "/nonexistent"}, timeout=LOAD_S, transport=transport) as process:
        assert process.hello.transport == transport
