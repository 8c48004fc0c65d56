"""Hours of audio through the real daemon while everything around it fails: see `make soak`.

The daemon records from `soak.source`, whose frames are numbered. Beside it run two followers of the ring in processes
of their own, one of which is stopped now and then, or killed and replaced; and the daemon itself reads, in sessions
that are spoken, whose recogniser looks at the numbers, too.
"""

from __future__ import annotations

import fcntl
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from soak.follower import resources
from support.daemon import Daemon, environment
from utter_sdk.ring import RingReader

if TYPE_CHECKING:
    from collections.abc import Callable

    from utter_sdk.client import Client

RATE = 16_000
RING_SECONDS = 30
_HERE = Path(__file__).parent
_STT = _HERE.parent / "support" / "counting_stt.py"
CONFIG = f"""
[[plugin]]
id = "commands"
[[plugin]]
id = "desktop"
[plugin.settings]
dry_run = true
[[plugin]]
id = "ear"
entrypoint = ['{sys.executable}', '{_STT}', 'ear', 'counted']
[audio]
source = "pw-record"
capture = "always"
ring_seconds = {RING_SECONDS}
cues = false
[hotkeys]
enabled = false
"""
WARM_UP = 0.25
"""The part of the run that memory may grow in: caches fill, the allocator finds its size."""
MOST_GROWTH_KIB = 4 * 1024
"""Between the middle of the first and of the last third after that."""


@dataclass
class Result:
    """What a campaign found; `problems` is empty if all was as it must be."""

    frames: int = 0
    seconds: float = 0.0
    openings: dict[str, int] = field(default_factory=dict)
    outcomes: dict[str, int] = field(default_factory=dict)
    faults: int = 0
    readers: dict[str, dict[str, Any]] = field(default_factory=dict)
    samples: list[dict[str, int]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def lines(self) -> list[str]:
        """A report."""
        lines = [
            f"{self.frames} frames ({self.frames / RATE:.0f} s of audio) in {self.seconds:.0f} s",
            f"the source's openings: {_told(self.openings)}",
            f"sessions: {_told(self.outcomes)}",
            f"faults of the microphone: {self.faults}",
        ]
        for name, one in self.readers.items():
            lines.append(
                f"{name}: {one['read']} frames read, {one['declared']} lost and declared in {one['overruns']} overruns,"
                f" {len(one['openings'])} openings seen whole, {len(one['wrong'])} wrong"
            )
        if self.samples:
            lines.append(f"the daemon at first: {_told(self.samples[0])}; at last: {_told(self.samples[-1])}")
            lines += [f"  {name}: {first} -> {last}" for name, (first, last) in self.thirds().items()]
        return lines + [f"PROBLEM: {problem}" for problem in self.problems]

    def thirds(self) -> dict[str, tuple[int, int]]:
        """The medians of the first and last third after the warm-up."""
        warm = self.samples[round(len(self.samples) * WARM_UP) :]
        third = len(warm) // 3
        if not third:
            return {}
        return {
            name: (
                round(statistics.median(one[name] for one in warm[:third])),
                round(statistics.median(one[name] for one in warm[-third:])),
            )
            for name in warm[0]
        }


def _told(numbers: dict[str, int]) -> str:
    return ", ".join(f"{name} {number}" for name, number in sorted(numbers.items()))


class Campaign:
    """One run.

    Args:
        directory: an empty one.
        seconds: of audio.
        speed: how many times faster than time.
        seed: what the faults are drawn from.
        progress: told a line now and then.
    """

    def __init__(
        self, directory: Path, *, seconds: float, speed: float, seed: int, progress: Callable[[str], None]
    ) -> None:
        self._directory = directory
        self._frames = round(seconds * RATE)
        self._speed = speed
        self._random = random.Random(seed)
        self._seed = seed
        self._progress = progress
        self._followers: dict[str, subprocess.Popen[bytes]] = {}
        self.result = Result()

    def run(self) -> Result:
        """All of it."""
        began = time.monotonic()
        daemon = Daemon(self._directory, CONFIG, env=self._environment(), quiet=False)
        with ExitStack() as stack:
            stack.callback(self._end_followers)
            with daemon, daemon.client() as client:
                assert daemon.process is not None
                assert daemon.process.stderr is not None
                # What it logs is read at its end.
                fcntl.fcntl(daemon.process.stderr, fcntl.F_SETPIPE_SZ, 1 << 20)
                for plugin in ("commands", "desktop", "ear"):
                    daemon.wait_plugin(plugin, "ready")
                with client.fd_pass("memfd.ring") as received:
                    view = stack.enter_context(RingReader(received.fd))
                for name in ("steady", "hindered"):
                    self._follow(name, daemon)
                self._soak(client, view, daemon)
                self.result.faults = client.call("runner.status", {}, timeout=30)["audio"]["faults"]
            # What was written last is read, too: the followers still map the ring.
            self._gather()
            self.result.frames = view.position
        self.result.seconds = time.monotonic() - began
        self._judge()
        return self.result

    def _environment(self) -> dict[str, str]:
        programs = self._directory / "programs"
        for directory in (programs, self._directory / "openings"):
            directory.mkdir()
        source = programs / "pw-record"
        source.write_text(f'#!/bin/sh\nexec {sys.executable} -S -E {_HERE / "source.py"} "$@"\n')
        source.chmod(0o755)
        runtime = self._directory / "run"
        runtime.mkdir(mode=0o700)
        return {
            **environment(runtime),
            "PATH": f"{programs}:{os.environ['PATH']}",
            "SOAK_DIRECTORY": str(self._directory),
            "SOAK_SPEED": str(self._speed),
            "SOAK_SEED": str(self._seed),
        }

    def _soak(self, client: Client, view: RingReader, daemon: Daemon) -> None:
        """Speak, hinder and measure until enough audio has passed."""
        assert daemon.process is not None
        told = 0
        while view.position < self._frames:
            self._speak(client)
            self._hinder(daemon)
            self.result.samples.append(resources(daemon.process.pid))
            if view.position // (600 * RATE) > told:
                told = view.position // (600 * RATE)
                self._progress(f"{view.position // RATE} s of audio; the daemon: {_told(self.result.samples[-1])}")

    def _speak(self, client: Client) -> None:
        with client.subscribe("runner.events") as events:
            session = client.call("ptt.press", {}, timeout=30)["session"]
            self._pass_time(self._random.uniform(0.2, 0.6))
            client.call("ptt.release", {}, timeout=30)
            while True:
                event = events.get(60)
                if event["event"] == "report" and event["report"]["session"] == session:
                    break
        report = event["report"]
        outcome = report["outcome"]
        self.result.outcomes[outcome] = self.result.outcomes.get(outcome, 0) + 1
        if outcome not in {"done", "unavailable", "nothing_heard"}:
            self.result.problems.append(f"a session ended as {outcome}: {report['heard']} {report['detail']}")

    def _hinder(self, daemon: Daemon) -> None:
        """Now and then a reader is stopped for longer than the ring holds, or killed and replaced."""
        what = self._random.random()
        process = self._followers["hindered"]
        if what < 0.1:
            process.send_signal(signal.SIGSTOP)
            self._pass_time(1.5 * RING_SECONDS / self._speed)
            process.send_signal(signal.SIGCONT)
        elif what < 0.15:
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()
            self._follow("hindered", daemon)

    @staticmethod
    def _pass_time(seconds: float) -> None:
        # A campaign is about what time does; nothing is waited for here.
        time.sleep(seconds)

    def _follow(self, name: str, daemon: Daemon) -> None:
        report = self._directory / f"{name}.json"
        self._followers[name] = process = subprocess.Popen(
            [sys.executable, str(_HERE / "follower.py"), str(daemon.socket), str(report)], stdout=subprocess.PIPE
        )
        assert process.stdout is not None
        assert process.stdout.readline() == b"following\n"

    def _gather(self) -> None:
        for name, process in self._followers.items():
            if process.wait(timeout=60):
                self.result.problems.append(f"the reader {name} ended with exit status {process.returncode}")
            else:
                self.result.readers[name] = json.loads((self._directory / f"{name}.json").read_text())

    def _end_followers(self) -> None:
        for process in self._followers.values():
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()

    def _judge(self) -> None:
        result = self.result
        ends = {
            path.stem: json.loads(path.read_text())
            for path in (self._directory / "openings").iterdir()
            if path.stat().st_size
        }
        for end in ends.values():
            result.openings[end["fate"]] = result.openings.get(end["fate"], 0) + 1
        for name, reader in result.readers.items():
            result.problems += [f"{name}: {wrong}" for wrong in reader["wrong"]]
            for number, frames in reader["openings"].items():
                end = ends.get(number)
                if end is None:
                    result.problems.append(f"{name}: opening {number} ended before its time, after {frames} frames")
                # While there are zeros it is ended from the other side.
                elif frames < end["frames"] or (end["fate"] != "zeros" and frames != end["frames"]):
                    result.problems.append(f"{name}: of opening {number}, {end}, {frames} frames were seen")
        if result.readers.get("steady", {}).get("read", 0) < result.frames / 2:
            result.problems.append("the steady reader has seen less than half of the frames")
        if not result.outcomes.get("done"):
            result.problems.append("no session was done")

    def judge_growth(self) -> None:
        """What a run that is long enough must show besides."""
        for name, (first, last) in self.result.thirds().items():
            most = MOST_GROWTH_KIB if name == "rss_kib" else 0
            if last - first > most:
                self.result.problems.append(f"{name} has grown from {first} to {last}")
