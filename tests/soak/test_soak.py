"""A slice of the soak on every run, and the whole of it with `make soak`."""

from __future__ import annotations

import array
import contextlib
import os
import random
import shutil
from typing import TYPE_CHECKING

import pytest

from soak import source
from soak.campaign import Campaign
from soak.follower import Follower
from utter_runner.dataplane.ring import RingReader, RingWriter

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

needs_stdbuf = pytest.mark.skipif(shutil.which("stdbuf") is None, reason="not installed: stdbuf")


@needs_stdbuf
def test_a_slice(tmp_path: Path) -> None:
    # With this seed the first openings are short, and each ends in another way.
    campaign = Campaign(tmp_path, seconds=70, speed=15, seed=7260, progress=lambda _: None)
    result = campaign.run()
    assert result.problems == []
    assert result.frames >= 70 * 16_000
    assert len(result.openings) >= 3
    assert result.faults >= 3


@needs_stdbuf
@pytest.mark.soak
@pytest.mark.timeout(0)
def test_hours(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seconds = float(os.environ.get("SOAK_SECONDS", "3600"))
    speed = float(os.environ.get("SOAK_SPEED", "20"))
    seed = int(os.environ.get("SOAK_SEED", str(random.randrange(2**24))))

    def progress(line: str) -> None:
        with capsys.disabled():
            print(line, flush=True)  # noqa: T201 - who waits for minutes wants to see something

    progress(f"\nseed {seed}")
    campaign = Campaign(tmp_path, seconds=seconds, speed=speed, seed=seed, progress=progress)
    campaign.run()
    campaign.judge_growth()
    progress("\n".join(campaign.result.lines()))
    assert campaign.result.problems == []


# What the follower must not overlook.


@pytest.fixture
def ring() -> Iterator[tuple[RingWriter, Follower]]:
    with contextlib.closing(RingWriter.create(1)) as writer, RingReader(writer.fd) as view:
        yield writer, Follower(view)


def opened(writer: RingWriter, number: int, count: int) -> None:
    writer.new_generation()
    writer.write(array.array("f", [-float(number)]).tobytes() + source.frames(1, count - 1))


def test_what_is_whole_is_right(ring: tuple[RingWriter, Follower]) -> None:
    writer, follower = ring
    opened(writer, 1, 1_000)
    follower.catch_up()
    writer.write(bytes(4 * 50))
    writer.write(source.frames(1_050, 500))
    opened(writer, 2, 700)
    opened(writer, 3, 1)
    follower.catch_up()
    assert follower.wrong == []
    assert follower.openings == {1: 1_550, 2: 700}
    assert (follower.read, follower.declared) == (writer.position, 0)


def test_a_missing_frame_a_repeated_one_and_a_strange_one_are_found(ring: tuple[RingWriter, Follower]) -> None:
    writer, follower = ring
    opened(writer, 1, 100)
    writer.write(source.frames(101, 50))
    follower.catch_up()
    assert follower.wrong == ["in opening 1 frame 102 came where 101 was due"]
    writer.write(source.frames(150, 50))
    follower.catch_up()
    assert len(follower.wrong) == 2
    writer.write(array.array("f", [0.5]).tobytes())
    follower.catch_up()
    assert len(follower.wrong) == 3


def test_an_opening_that_nobody_declared_is_found(ring: tuple[RingWriter, Follower]) -> None:
    writer, follower = ring
    opened(writer, 1, 100)
    writer.write(array.array("f", [-2.0]).tobytes())
    follower.catch_up()
    assert follower.wrong == ["opening 2 began in generation 1"]


def test_what_was_overwritten_is_declared(ring: tuple[RingWriter, Follower]) -> None:
    writer, follower = ring
    opened(writer, 1, 1_600)
    follower.catch_up()
    for start in range(1_600, 40_000, 1_600):
        writer.write(source.frames(start, 1_600))
    follower.catch_up()
    assert follower.wrong == []
    assert (follower.overruns, follower.declared) == (1, 40_000 - 1_600 - 16_000)
    assert follower.read + follower.declared == writer.position
    opened(writer, 2, 10)
    opened(writer, 3, 10)
    follower.catch_up()
    # Of the first not all was seen.
    assert follower.openings == {2: 10}
