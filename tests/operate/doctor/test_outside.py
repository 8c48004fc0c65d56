"""How long the real machine is waited for: `Outside.pace` times what is usual."""

from __future__ import annotations

import os
import socket
import sys
from typing import TYPE_CHECKING

import pytest

from utter_runner.operate.doctor import contact, outside
from utter_runner.operate.doctor.outside import Machine

if TYPE_CHECKING:
    from pathlib import Path


# It says something, and then nothing for as long as the pipe that it was given stays open.
PROGRAM = [sys.executable, "-S", "-E", "-c", "import sys; print('here', flush=True); sys.stdin.read()"]


@pytest.mark.parametrize("pace", [1.0, 3.0])
def test_a_silent_runner_is_waited_for_in_proportion(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pace: float
) -> None:
    monkeypatch.setattr(contact, "ANSWER_S", 0.1)
    path = str(tmp_path / "runner.sock")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path)
        listening.listen()
        found = Machine({}, pace).reach(path, None)
    assert (found.state, found.reason) == ("wedged", f"it has not answered within {0.1 * pace:g} s")
    assert found.pid == os.getpid()


def test_a_program_has_as_much_more_time(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(dict(os.environ), 300.0)
    # With the usual patience, here next to nothing, the interpreter would not even have begun.
    assert machine.run([*PROGRAM[:-1], "print('there')"], timeout=0.2).out == "there\n"
    assert machine.sample(PROGRAM, 4, timeout=0.2)[0] == b"here"
    machine.pace = 0.001
    assert machine.run(["sleep", "1000"], timeout=100.0) == outside.Ran(None)
