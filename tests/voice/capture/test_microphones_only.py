"""What is recorded when no microphone is left, with programs in place of PipeWire's."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import pytest
import trio

from utter_runner.voice.capture import microphones_only
from utter_runner.voice.capture.fake import FakeSource
from utter_runner.voice.capture.microphones_only import MicrophonesOnly
from utter_runner.voice.capture.source import SourceError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class Server:
    """PipeWire's programs: `pw-link` says a line whenever `change` is called."""

    def __init__(self, directory: Path) -> None:
        self._dump = directory / "dump"
        self._lines = directory / "lines"
        os.mkfifo(self._lines)
        self.programs = directory / "programs"
        self.programs.mkdir()
        for name, body in {
            "stdbuf": 'shift; exec "$@"',
            "pw-link": f"exec cat {self._lines}",
            "pw-dump": f"test -e {self._dump} && exec cat {self._dump}",
        }.items():
            (self.programs / name).write_text(f"#!/bin/sh\n{body}\n")
            (self.programs / name).chmod(0o755)
        # Whoever reads may come later.
        self._writer = os.open(self._lines, os.O_RDWR)

    def is_now(self, default: str, *, unknown: bool = False) -> None:
        """The default source is this; `unknown`: nobody can find out."""
        nodes = [
            {"id": 1, "info": {"props": {"node.name": "desk", "media.class": "Audio/Source"}}},
            {"id": 2, "info": {"props": {"node.name": "speaker", "media.class": "Audio/Sink"}}},
        ]
        chosen = {"key": "default.audio.source", "value": {"name": default}}
        metadata = {"id": 3, "props": {"metadata.name": "default"}, "metadata": [chosen]}
        self._dump.unlink(missing_ok=True)
        if not unknown:
            part = self._dump.with_suffix(".part")
            part.write_text(json.dumps([*nodes, metadata]))
            part.rename(self._dump)

    def tell(self) -> None:
        os.write(self._writer, b"update\n")

    def close(self) -> None:
        os.close(self._writer)


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    server = Server(tmp_path)
    monkeypatch.setenv("PATH", f"{server.programs}:/usr/bin:/bin")
    monkeypatch.setattr(microphones_only, "_PAUSE", 0.001)
    yield server
    server.close()


async def recording(source: Any) -> str:
    """Why it ended."""
    with trio.fail_after(20), pytest.raises(SourceError) as caught:
        await source.run(lambda _: None)
    return caught.value.reason


async def test_a_loudspeaker_that_becomes_the_default_ends_the_recording_and_is_not_opened(server: Server) -> None:
    source = FakeSource()
    guarded = MicrophonesOnly(source)
    assert (guarded.description, guarded.live) == (source.description, True)
    server.is_now("desk")
    server.tell()
    async with trio.open_nursery() as nursery:
        reasons: list[str] = []

        async def record() -> None:
            reasons.append(await recording(guarded))

        nursery.start_soon(record)
        server.is_now("speaker")
        server.tell()
    assert "what the loudspeaker 'speaker' plays" in reasons[0]
    assert (source.openings, source.is_open) == (1, False)
    assert "what the loudspeaker 'speaker' plays" in await recording(guarded)
    assert source.openings == 1
    server.is_now("desk")
    source.refuse = SourceError("It is in use.")
    assert await recording(guarded) == "It is in use."
    assert source.openings == 2


async def test_who_cannot_tell_looks_again(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[bool] = []
    look = MicrophonesOnly._look

    async def counted(self: MicrophonesOnly) -> bool:
        looks.append(True)
        if len(looks) == 3:
            server.is_now("gone already")
        if len(looks) == 5:
            server.is_now("speaker")
        return await look(self)

    monkeypatch.setattr(MicrophonesOnly, "_look", counted)
    server.is_now("", unknown=True)
    server.tell()
    assert "'speaker'" in await recording(MicrophonesOnly(FakeSource()))
    assert len(looks) == 5


@pytest.mark.parametrize("missing", ["stdbuf", "pw-link", "pw-dump"])
async def test_where_nobody_can_be_asked_the_source_is_left_alone(
    server: Server, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    monkeypatch.setenv("PATH", str(server.programs))
    (server.programs / missing).unlink()
    server.is_now("speaker")
    server.tell()
    source = FakeSource()
    async with trio.open_nursery() as nursery:
        reasons: list[str] = []

        async def record() -> None:
            reasons.append(await recording(MicrophonesOnly(source)))

        nursery.start_soon(record)
        while not source.is_open:
            await trio.lowlevel.checkpoint()
        source.end("It fell over.")
    assert reasons == ["It fell over."]
