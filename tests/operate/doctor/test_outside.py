"""How long the real machine is waited for: `Outside.pace` times what is usual."""

from __future__ import annotations

import os
import socket
import sys
import time
from typing import TYPE_CHECKING

import pytest

from utter_runner.operate.doctor import contact
from utter_runner.operate.doctor.outside import Machine, Ran

if TYPE_CHECKING:
    from pathlib import Path

PYTHON = [sys.executable, "-S", "-E", "-c"]
# It says something, and then goes on until it is killed.
PROGRAM = [*PYTHON, "import time; print('here', flush=True); time.sleep(1000)"]


@pytest.mark.parametrize("pace", [1.0, 3.0])
def test_a_silent_runner_is_waited_for_in_proportion(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pace: float
) -> None:
    monkeypatch.setattr(contact, "ANSWER_S", 0.1)
    monkeypatch.setattr(contact, "OPEN_S", 0.1)
    path = str(tmp_path / "runner.sock")
    machine = Machine({}, pace)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path)
        listening.listen()
        began = time.monotonic()
        found = machine.reach(path, None)
        waited = time.monotonic()
        heard = machine.hear(path, None)
        heard_after = time.monotonic()
    assert (found.state, found.reason) == ("wedged", f"it has not answered within {0.1 * pace:g} s")
    assert found.pid == os.getpid()
    assert heard.problem == f"The microphone has not opened within {0.1 * pace:g} s."
    # No machine is so fast that it waits less.
    assert waited - began >= 0.1 * pace
    assert heard_after - waited >= 0.1 * pace


def test_a_program_is_waited_for_in_proportion() -> None:
    # No interpreter starts within a millisecond, and none needs a minute.
    slow, usual = Machine(dict(os.environ), 60_000.0), Machine(dict(os.environ))
    assert slow.run([*PYTHON, "print('there')"], timeout=0.001).out == "there\n"
    assert slow.sample(PROGRAM, 4, timeout=0.001)[0] == b"here"
    assert usual.run(PROGRAM, timeout=0.001) == Ran(None)
    assert usual.sample(PROGRAM, 4, timeout=0.001)[0] == b""
