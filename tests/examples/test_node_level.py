"""Tests of the example in Node that hears the microphone, run by the real node."""

from __future__ import annotations

import array
import os
import re
import shutil
import signal
import subprocess
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from support.audio import babble, floats, write_wav
from support.conformance import PATIENT
from support.daemon import Daemon
from support.examples import assert_greets_as, failure, invoke
from utter_protocol.errors import ErrorCode
from utter_protocol.manifest import load_manifest
from utter_runner.voice.capture.resample import wav_to_pcm
from utter_sdk.conformance.plugin import Limits, Subject, check_plugin
from utter_sdk.ring import RingReader
from utter_sdk.testing import AudioRing, PluginProcess

if TYPE_CHECKING:
    from collections.abc import Iterator

    from utter_sdk.client import Client

EXAMPLES = Path(__file__).parents[2] / "plugins" / "examples"
HERE = EXAMPLES / "node-level"
MANIFEST = load_manifest(HERE / "utter-plugin.toml")
RATE = 1000

pytestmark = pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")


@contextmanager
def hearing(ring: AudioRing) -> Iterator[PluginProcess]:
    with PluginProcess(MANIFEST.entrypoint, cwd=HERE, fds=ring.fds) as process:
        yield process


def level(process: PluginProcess) -> dict[str, Any]:
    answer = process.call("action.invoke", invoke("microphone_level"))
    assert answer["ok"]
    return {**answer["data"], "detail": answer["detail"]}


def ramp(count: int, start: int = 0) -> array.array[float]:
    """Frames each of which is louder than the one before."""
    return array.array("f", (n / 2**20 for n in range(start, start + count)))


def test_the_handshake_is_the_manifests() -> None:
    with AudioRing() as ring, hearing(ring) as process:
        assert_greets_as(process, MANIFEST)


def test_it_hears_every_frame_also_around_the_end_of_the_ring() -> None:
    with AudioRing(2, RATE) as ring, hearing(ring) as process:
        assert level(process)["detail"] == "It is silent."
        for start in range(0, 10 * RATE, 700):
            ring.write(ramp(700, start).tobytes())
            heard = level(process)
            assert (heard["at"], heard["heard"], heard["lost"]) == (start + 700, start + 700, 0)
            last = np.array([0.0] * RATE + list(ramp(start + 700)), "f4")[-RATE:]
            assert heard["peak"] == last[-1]
            assert heard["rms"] == pytest.approx(float(np.sqrt(np.mean(last.astype("f8") ** 2))), rel=1e-9)
        assert heard["generation"] == 0
        ring.new_generation()
        assert level(process)["generation"] == 1


def test_it_begins_where_the_ring_is() -> None:
    with AudioRing(2, RATE) as ring:
        ring.write(ramp(5 * RATE).tobytes())
        with hearing(ring) as process:
            ring.write(array.array("f", [0.5]).tobytes())
            heard = level(process)
            assert (heard["heard"], heard["lost"], heard["at"], heard["peak"]) == (1, 0, 5 * RATE + 1, 0.5)
            assert heard["detail"] == "The peak is -6.0 dB, the mean -36.0 dB."


def test_what_it_was_too_slow_for_is_counted_and_it_goes_on() -> None:
    with AudioRing(2, RATE) as ring, hearing(ring) as process:
        ring.write(ramp(RATE).tobytes())
        assert level(process)["heard"] == RATE
        process.kill(signal.SIGSTOP)
        for start in range(RATE, 6 * RATE, 100):
            ring.write(ramp(100, start).tobytes())
        process.kill(signal.SIGCONT)
        heard = level(process)
        assert (heard["heard"], heard["lost"], heard["at"]) == (3 * RATE, 3 * RATE, 6 * RATE)
        assert heard["peak"] == ramp(1, 6 * RATE - 1)[0]
        process.wait_stderr(f"lost {3 * RATE} frames so far")


def test_it_is_woken_without_being_asked() -> None:
    with AudioRing(2, RATE) as ring, hearing(ring) as process:
        # It says so only when it looks, and it looks because it is woken.
        ring.write(ramp(5 * RATE).tobytes())
        process.wait_stderr(f"lost {3 * RATE} frames so far")
        ring.stop_waking()
        assert level(process)["heard"] == 2 * RATE


def test_without_a_ring_it_runs_and_says_so() -> None:
    with PluginProcess(MANIFEST.entrypoint, cwd=HERE) as process:
        assert process.health.status == "degraded"
        assert "inherited no audio ring" in process.health.detail
        assert failure(process, "action.invoke", invoke("microphone_level")).code == ErrorCode.INTERNAL_ERROR
    memory, other = os.memfd_create("no-ring"), os.memfd_create("no-pipe")
    try:
        fds = {"UTTER_AUDIO_RING_FD": memory, "UTTER_AUDIO_WAKE_FD": other}
        with PluginProcess(MANIFEST.entrypoint, cwd=HERE, fds=fds) as process:
            assert "not an audio ring" in process.health.detail
    finally:
        os.close(memory)
        os.close(other)


def test_it_is_a_copy_of_node_hello_but_for_what_it_does() -> None:
    copied = r"^// ---- (JSON-RPC 2\.0|Content-Length frames|The process) -+$.*?(?=^// ----|\Z)"
    parts = [
        [found.group().replace(name, "NAME") for found in re.finditer(copied, text, re.MULTILINE | re.DOTALL)]
        for name in ("node-hello", "node-level")
        for text in [(EXAMPLES / name / f"{name}.mjs").read_text()]
    ]
    assert len(parts[0]) == 3
    assert parts[0] == parts[1]


def test_the_file_needs_no_packages() -> None:
    source = (HERE / "node-level.mjs").read_text()
    assert {*re.findall(r'from "(.*)"', source)} == {"node:fs", "node:net"}
    assert "require(" not in source
    subprocess.run(["node", "--check", str(HERE / "node-level.mjs")], check=True, timeout=30)


def test_it_keeps_to_the_protocol() -> None:
    report = check_plugin(Subject.from_manifest(HERE), Limits(**PATIENT))
    # As node-hello: JavaScript rounds integers beyond 2^53.
    assert [one.check.id for one in report.outcomes if one.verdict == "fails"] == ["messages.ids-64bit"], report.text()
    assert {"ring.overrun", "ring.end"} <= {one.check.id for one in report.outcomes if one.verdict == "holds"}
    assert report.ok


# ---- in the runner


def ask(client: Client) -> dict[str, Any]:
    params = {"plugin": "node-level", "method": "action.invoke", "params": invoke("microphone_level")}
    return dict(client.call("runner.invoke", params, timeout=60)["data"])


def test_in_the_runner_it_hears_exactly_what_is_recorded_and_notices_when_it_was_stopped(tmp_path: Path) -> None:
    ring_seconds = 5
    write_wav(tmp_path / "speech.wav", babble(60))
    spoken = floats(wav_to_pcm((tmp_path / "speech.wav").read_bytes(), 120))
    config = (
        f'[audio]\nsource = "wav"\nwav_path = "{tmp_path}/speech.wav"\ncapture = "always"\n'
        f"ring_seconds = {ring_seconds}\ncues = false\n[hotkeys]\nenabled = false\n"
        f'[[plugin]]\nid = "node-level"\nmanifest = "{HERE}/utter-plugin.toml"\n'
    )

    def check(heard: dict[str, Any]) -> None:
        second = np.zeros(heard["at"] + 16_000, "f4")
        second[16_000 : 16_000 + len(spoken)] = spoken[: heard["at"]]
        second = second[heard["at"] :][:16_000]
        # Of a second that began before it started, it heard the rest.
        second[: max(0, 16_000 - heard["heard"])] = 0
        assert heard["peak"] == float(np.abs(second).max())
        assert heard["rms"] == pytest.approx(float(np.sqrt(np.mean(second.astype("f8") ** 2))), rel=1e-6, abs=1e-9)

    with Daemon(tmp_path, config, quiet=False) as daemon, daemon.client() as client:
        found = daemon.wait_plugin("node-level", "ready")
        assert (found["warnings"], found["permissions"]) == ([], ["microphone"])
        with client.fd_pass("memfd.ring", {"wake": True}) as got, RingReader(got.fd) as ring:
            first = ask(client)
            started = first["at"] - first["heard"]

            def until(position: int) -> None:
                while ring.position < position:
                    os.read(got.fds[1], 65536)

            until(first["at"] + 16_000)
            heard = ask(client)
            assert (heard["heard"], heard["lost"]) == (heard["at"] - started, 0)
            check(heard)
            os.kill(found["pid"], signal.SIGSTOP)
            stopped = ring.position
            until(stopped + (ring_seconds + 1) * 16_000)
            os.kill(found["pid"], signal.SIGCONT)
            late = ask(client)
            assert late["lost"] > 0
            assert late["heard"] + late["lost"] == late["at"] - started
            check(late)
