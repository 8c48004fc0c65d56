"""The part of a plugin's process that needs no supervisor: its descendants."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from utter_runner.supervision.launch import INSTANCE_VARIABLE
from utter_runner.supervision.process import kill_marked

if TYPE_CHECKING:
    from collections.abc import Iterator

SLEEP = "import time; print('up', flush=True); time.sleep(600)"
FAMILY = f"""
import subprocess, sys
child = subprocess.Popen([sys.executable, "-S", "-c", {SLEEP!r}], start_new_session=True)
{SLEEP}
"""


@contextmanager
def marked(mark: str | None, code: str = SLEEP, lines: int = 1) -> Iterator[subprocess.Popen[bytes]]:
    """A process that carries a mark; returns once it and its children are up."""
    env = {"PATH": os.defpath} | ({INSTANCE_VARIABLE: mark} if mark is not None else {})
    process = subprocess.Popen([sys.executable, "-S", "-c", code], env=env, stdout=subprocess.PIPE)
    with process:
        assert process.stdout is not None
        for _ in range(lines):
            assert process.stdout.readline() == b"up\n"
        try:
            yield process
        finally:
            process.kill()


def test_every_process_with_the_mark_is_killed_and_no_other(tmp_path: Path) -> None:
    mark = f"plugin/1/{tmp_path.name}"
    with (
        marked(mark) as first,
        marked(mark) as second,
        marked(mark + "0") as longer,
        marked(mark[:-1]) as shorter,
        marked(None) as unmarked,
    ):
        assert kill_marked(mark) == 2
        assert (first.wait(10), second.wait(10)) == (-signal.SIGKILL, -signal.SIGKILL)
        assert [one.poll() for one in (longer, shorter, unmarked)] == [None] * 3
        assert kill_marked(mark) == 0


def test_a_descendant_in_a_session_of_its_own_is_found(tmp_path: Path) -> None:
    mark = f"plugin/2/{tmp_path.name}"
    with marked(mark, FAMILY, lines=2) as process:
        assert kill_marked(mark) == 2
        process.wait(10)
        # The pipe that the grandchild inherited is at its end: it is gone, too.
        assert process.stdout is not None
        assert process.stdout.read() == b""


def test_a_value_that_only_contains_the_mark_is_another_variable(tmp_path: Path) -> None:
    mark = f"plugin/3/{tmp_path.name}"
    env = {"PATH": os.defpath, "OTHER": f"{INSTANCE_VARIABLE}={mark}", f"X{INSTANCE_VARIABLE}": mark}
    process = subprocess.Popen([sys.executable, "-S", "-c", SLEEP], env=env, stdout=subprocess.PIPE)
    with process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            assert kill_marked(mark) == 0
            assert process.poll() is None
        finally:
            process.kill()


def test_a_process_that_has_ended_and_was_not_reaped_counts_for_nothing(tmp_path: Path) -> None:
    mark = f"plugin/4/{tmp_path.name}"
    with marked(mark) as process:
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert kill_marked(mark) == 0


def test_the_search_ends_when_processes_come_faster_than_they_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = f"plugin/5/{tmp_path.name}"
    with marked(mark) as process:
        sent: list[int] = []
        # The signal has no effect, as if another took the place of each that was killed.
        monkeypatch.setattr(signal, "pidfd_send_signal", lambda fd, number: sent.append(number) or os.fstat(fd))
        assert kill_marked(mark) == 1
        assert sent == [signal.SIGKILL] * 10
        assert process.poll() is None


def test_a_pid_that_was_recycled_is_not_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mark = f"plugin/6/{tmp_path.name}"
    plain = Path.read_bytes
    seen: list[str] = []

    def recycled(path: Path) -> bytes:
        # The first look finds the mark; by the second the pid is a stranger's.
        if str(path) == f"/proc/{stranger.pid}/environ":
            seen.append(str(path))
            return f"{INSTANCE_VARIABLE}={mark}\0".encode() if len(seen) == 1 else b"A=1\0"
        return plain(path)

    with marked(None) as stranger:
        monkeypatch.setattr(Path, "read_bytes", recycled)
        assert kill_marked(mark) == 0
        assert len(seen) == 2
        assert stranger.poll() is None
