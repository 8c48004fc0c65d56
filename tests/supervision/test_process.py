"""The parts of a plugin's process that need no supervisor: its words and its descendants."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from utter_runner.supervision.launch import INSTANCE_VARIABLE
from utter_runner.supervision.process import escape_line, kill_marked

if TYPE_CHECKING:
    from collections.abc import Iterator

MODEL = settings(derandomize=True, database=None, deadline=None, max_examples=500)

# ---- its words


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b"plain", "plain"),
        ("grüße ✓ 日本".encode(), "grüße ✓ 日本"),
        (b"dos\r", "dos"),
        (b"a\tb", "a\tb"),
        (b"\x1b[31mred\x1b[0m", "\\x1b[31mred\\x1b[0m"),
        (b"over\rwritten", "over\\rwritten"),
        (b"\x9b31m", "\\x9b31m"),
        (b"\xc2\x9b31m", "\\x9b31m"),
        (b"\x00\x07\x7f", "\\x00\\x07\\x7f"),
        (b"\xff\xfe bad", "\\xff\\xfe bad"),
        ("\u202egnp.exe".encode(), "\\u202egnp.exe"),
        ("\u2028new\u0085line".encode(), "\\u2028new\\x85line"),
        ("\U000e0041tag".encode(), "\\U000e0041tag"),
        ("zero\u200bwidth".encode(), "zero\\u200bwidth"),
        (b"", ""),
        (b"\r\r", ""),
    ],
)
def test_what_a_terminal_would_obey_is_escaped(raw: bytes, text: str) -> None:
    assert escape_line(raw) == text


@MODEL
@given(raw=st.binary() | st.text().map(str.encode))
def test_no_bytes_get_through_that_are_not_printable(raw: bytes) -> None:
    text = escape_line(raw)
    assert text.replace("\t", "").isprintable()
    assert len(text) <= 10 * len(raw)
    assert escape_line(text.encode()) == text


# ---- its descendants

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
