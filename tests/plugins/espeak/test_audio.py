"""The stream tts.audio: with an espeak-ng of the test's own, and with the real one."""

from __future__ import annotations

import os
import select
import shutil
import struct
import sys
from base64 import b64decode
from pathlib import Path
from typing import Any

import pytest

from utter_plugins.espeak.service import LEAD_S, pause
from utter_plugins.espeak.synthesis import MAX_PIECE
from utter_protocol.errors import ErrorCode, RpcError
from utter_sdk.testing import PluginProcess

ARGV = [sys.executable, "-P", "-m", "utter_plugins.espeak"]

# Writes what lies in the file `wav`; then, if the test wants it, says on one pipe that it runs and waits on another.
FAKE = """#!/bin/sh
printf '%s\\n' "$*" >>"$FAKE/argv"
cat >"$FAKE/text"
cat "$FAKE/wav"
if [ -p "$FAKE/go" ]; then echo $$ >"$FAKE/started"; read -r _ <"$FAKE/go"; fi
[ ! -f "$FAKE/errors" ] || cat "$FAKE/errors" >&2
exit $(cat "$FAKE/code")
"""


def wav(samples: bytes, *, rate: int = 16_000, channels: int = 1, bits: int = 16, kind: int = 1) -> bytes:
    """A WAV as a program writes it that does not know yet how long it will be."""
    width = channels * bits // 8
    fmt = struct.pack("<HHIIHH", kind, channels, rate, rate * width, width, bits)
    extra = b"LIST" + struct.pack("<I", 3) + b"abc\0"
    head = b"RIFF" + struct.pack("<I", 0x7FFFF000) + b"WAVE"
    return head + b"fmt " + struct.pack("<I", 16) + fmt + extra + b"data" + struct.pack("<I", 0x7FFFF000) + samples


class Fake:
    """An espeak-ng whose output the test decides."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.bin = directory / "bin"
        self.bin.mkdir()
        program = self.bin / "espeak-ng"
        program.write_text(FAKE)
        program.chmod(0o755)
        for tool in ("sh", "cat"):
            found = shutil.which(tool)
            assert found
            (self.bin / tool).symlink_to(found)
        self.says(wav(b"\1\2" * 4000))

    def says(self, output: bytes, code: int = 0, errors: str = "") -> None:
        (self.directory / "wav").write_bytes(output)
        (self.directory / "code").write_text(str(code))
        if errors:
            (self.directory / "errors").write_text(errors)

    def holds(self) -> None:
        """Let it wait after its output, until it is ended."""
        for name in ("started", "go"):
            os.mkfifo(self.directory / name)

    def started(self) -> int:
        return int((self.directory / "started").read_text())

    def plugin(self, **settings: Any) -> PluginProcess:
        return PluginProcess(ARGV, env={"PATH": str(self.bin), "FAKE": str(self.directory)}, settings=settings)


@pytest.fixture
def fake(tmp_path: Path) -> Fake:
    return Fake(tmp_path)


def subscribe(process: PluginProcess, text: str = "Hello", mode: str = "reliable", **more: Any) -> str:
    asked = {"method": "tts.audio", "params": {"text": text, **more}, "mode": mode}
    return str(process.call("stream.subscribe", asked)["stream_id"])


def until_closed(process: PluginProcess, stream_id: str) -> tuple[list[dict[str, Any]], str]:
    """All items, and why there are no more. They have all come when that has: frames keep their order."""
    reason = process.notification("stream.closed", 30)
    assert reason["stream_id"] == stream_id
    items: list[dict[str, Any]] = []
    while True:
        try:
            items.append(process.notification("tts.audio", 0))
        except TimeoutError:
            break
    items = [item for item in items if item["stream_id"] == stream_id]
    assert [item["seq"] for item in items] == list(range(len(items)))
    return [item["data"] for item in items], str(reason["reason"])


@pytest.mark.parametrize(("output", "streams"), [("runner", ["tts.audio"]), ("play", []), ("none", [])])
def test_it_is_listed_if_the_runner_is_to_play(fake: Fake, output: str, streams: list[str]) -> None:
    with fake.plugin(output=output) as process:
        assert process.description.streams == streams
        assert ("stream.subscribe" in process.description.methods) is bool(streams)
    with fake.plugin() as process:
        assert process.description.streams == ["tts.audio"]


@pytest.mark.parametrize("mode", ["lossy", "reliable"])
def test_samples_come_in_pieces_and_the_first_one_has_the_format(fake: Fake, mode: str) -> None:
    samples = bytes(range(256)) * 30
    fake.says(wav(samples, rate=16_000, channels=2))
    with fake.plugin(voice="de") as process:
        data, reason = until_closed(process, subscribe(process, "Guten\nTag [[h@]]", mode, voice="en-us"))
        assert reason == "end"
        assert data[0]["format"] == {"encoding": "s16le", "rate": 16_000, "channels": 2}
        assert all("format" not in item for item in data[1:])
        pieces = [b64decode(item["data_b64"]) for item in data]
    assert b"".join(pieces) == samples
    assert [len(piece) for piece in pieces] == [6400, 1280]
    assert (fake.directory / "argv").read_text() == "--stdin -b 1 -v en-us -s 175 -a 100 --stdout\n"
    assert (fake.directory / "text").read_text() == "Guten Tag [ [h@]]"


def test_pieces_are_never_larger_than_the_bound(fake: Fake) -> None:
    fake.says(wav(b"\0" * 200_000, rate=192_000, channels=2))
    with fake.plugin() as process:
        data, reason = until_closed(process, subscribe(process))
    assert reason == "end"
    assert max(len(b64decode(item["data_b64"])) for item in data) == MAX_PIECE
    assert max(len(item["data_b64"]) for item in data) <= 32 * 1024


def test_half_a_frame_at_the_end_is_left_out(fake: Fake) -> None:
    fake.says(wav(b"\1\2\3"))
    with fake.plugin() as process:
        data, _ = until_closed(process, subscribe(process))
    assert [b64decode(item["data_b64"]) for item in data] == [b"\1\2"]


def test_nothing_to_say_has_no_items(fake: Fake) -> None:
    with fake.plugin() as process:
        assert until_closed(process, subscribe(process, " \n ")) == ([], "end")
    assert not (fake.directory / "argv").exists()


@pytest.mark.parametrize(
    ("output", "code", "errors", "why"),
    [
        (b"", 1, "Error: no such voice\n", "espeak-ng failed (exit code 1): Error: no such voice"),
        (b"", 0, "", "espeak-ng did not write a WAV: it wrote nothing."),
        (b"hello, world", 0, "", "espeak-ng did not write a WAV: it does not begin like one."),
        (wav(b"")[:30], 0, "", "espeak-ng did not write a WAV: unpack"),
        (wav(b"", bits=8), 0, "", "its samples have 8 bits in format 1."),
        (wav(b"", kind=3), 0, "", "its samples have 16 bits in format 3."),
        (wav(b"", channels=7), 0, "", "espeak-ng did not write a WAV: "),
        (b"RIFF\0\0\0\0WAVEdata\0\0\0\0", 0, "", "it does not say in which format it is."),
        (b"RIFF\0\0\0\0WAVEjunk\xff\xff\xff\x7f", 0, "", "its header is too long."),
        (wav(b"\0\0" * 10), 3, "x" * 200_000, "espeak-ng failed (exit code 3): xxx"),
    ],
)
def test_what_goes_wrong_is_the_reason(fake: Fake, output: bytes, code: int, errors: str, why: str) -> None:
    fake.says(output, code, errors)
    with fake.plugin() as process:
        _, reason = until_closed(process, subscribe(process))
        assert why in reason
        assert process.stderr == ""


@pytest.mark.parametrize(("params", "field"), [({"text": 7}, "text"), ({"text": "x", "voice": "../x"}, "voice")])
def test_wrong_params_are_refused(fake: Fake, params: dict[str, Any], field: str) -> None:
    with fake.plugin() as process, pytest.raises(RpcError) as caught:
        process.call("stream.subscribe", {"method": "tts.audio", "params": params})
    assert (caught.value.code, caught.value.data) == (ErrorCode.INVALID_PARAMS, {"field": f"params.{field}"})


def test_a_missing_program_is_the_reason(fake: Fake) -> None:
    (fake.bin / "espeak-ng").unlink()
    with fake.plugin() as process:
        _, reason = until_closed(process, subscribe(process))
        assert reason.startswith("The program espeak-ng is not installed.")


@pytest.mark.parametrize("how", ["stop", "end of the plugin"])
def test_stopping_ends_the_program(fake: Fake, how: str) -> None:
    fake.holds()
    with fake.plugin() as process:
        stream_id = subscribe(process)
        running = os.pidfd_open(fake.started())
        ended = select.poll()
        ended.register(running, select.POLLIN)
        try:
            assert not ended.poll(0)
            if how == "stop":
                assert process.call("stream.stop", {"stream_id": stream_id}) == {}
            else:
                process.close_stdin()
                assert process.wait() == 0
            assert ended.poll(5000)
        finally:
            os.close(running)
        if how == "stop":
            (fake.directory / "go").unlink()
            assert until_closed(process, subscribe(process))[1] == "end"


def test_a_subscriber_that_is_behind_stops_the_program_from_running_ahead(fake: Fake) -> None:
    fake.says(wav(b"\0\1" * 100_000))
    with fake.plugin() as process:
        asked = {"method": "tts.audio", "params": {"text": "x"}, "mode": "reliable", "window": 2}
        stream_id = process.call("stream.subscribe", asked)["stream_id"]
        for _ in range(2):
            process.notification("tts.audio")
        with pytest.raises(TimeoutError):
            process.notification("tts.audio", 0.05)
        process.notify("stream.ack", {"stream_id": stream_id, "seq": 1})
        assert process.notification("tts.audio")["seq"] == 2
        process.call("stream.stop", {"stream_id": stream_id})


def test_a_lossy_stream_is_not_much_ahead_of_the_ear() -> None:
    assert pause(0.0, 0.0) == 0.0
    assert pause(LEAD_S, 0.0) == 0.0
    assert pause(LEAD_S + 2.5, 1.0) == 1.5
    assert pause(LEAD_S + 2.5, 60.0) == 0.0


@pytest.mark.skipif(shutil.which("espeak-ng") is None, reason="espeak-ng is not installed")
def test_the_real_program_speaks() -> None:
    with PluginProcess(ARGV) as process:
        data, reason = until_closed(process, subscribe(process, "Opening YouTube.", voice="en-gb"))
        assert reason == "end"
        assert data[0]["format"]["encoding"] == "s16le"
        samples = b"".join(b64decode(item["data_b64"]) for item in data)
        seconds = len(samples) / 2 / data[0]["format"]["rate"]
        assert 0.5 < seconds < 5
        loudest = max(abs(value) for (value,) in struct.iter_unpack("<h", samples))
        assert loudest > 1000
        _, reason = until_closed(process, subscribe(process, "x", voice="xx-no-such"))
        assert reason.startswith("espeak-ng failed (exit code 1): Error: The specified espeak-ng voice")
