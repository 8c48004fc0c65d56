"""What people read of `utter doctor`: problems first, in any width, and nothing but text in a pipe."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from inspect import signature
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from support.terminal import UTTER, Terminal
from utter_runner.cli import main
from utter_runner.cli.doctor import doctor, lines
from utter_runner.operate.doctor.model import Finding, Identity, Report, broken, ok, warning
from utter_runner.operate.doctor.registry import DEADLINE_S, LONGEST_S

if TYPE_CHECKING:
    from pathlib import Path

    from utter_runner.operate.doctor.look import Options
    from utter_runner.operate.doctor.outside import Outside

MEND = "systemctl --user reset-failed utter-runner && systemctl --user start utter-runner"


def report(*findings: Finding) -> Report:
    return Report(
        ok=False,
        exit=2,
        utter="1",
        state="down",
        socket="/s",
        runner=Identity(),
        plugins=[],
        drift=[],
        findings=[*findings],
    )


FOUND = report(
    broken(f"It has failed, and {'so it is said at length ' * 8}.", "Nothing is heard.", MEND),
    warning("A plugin says \x1b[31mred\x07.", "It is odd.", "utter logs hello"),
    ok("The rest is fine."),
)


@pytest.mark.parametrize("columns", [30, 80, 200])
def test_words_fit_and_what_is_copied_is_whole(columns: int) -> None:
    shown = [*lines(FOUND, columns)]
    assert f"  -> {MEND}" in shown
    assert all(len(line) <= columns for line in shown if not line.startswith("  -> "))
    assert shown[0].startswith("BROKEN")
    assert next(line for line in shown if line.startswith("WARNING")) in shown[3:]
    assert "Broken: 1; warnings: 1; in order: 1." in " ".join(" ".join(shown).split())


def test_what_comes_from_elsewhere_cannot_steer_a_terminal() -> None:
    shown = "\n".join(lines(FOUND, 80))
    assert "red" in shown
    assert not {"\x1b", "\x07"} & {*shown}


def test_what_is_in_order_is_shown_if_that_is_wanted() -> None:
    assert "The rest is fine." not in "\n".join(lines(FOUND, 80))
    assert "The rest is fine." in "\n".join(lines(FOUND, 80, everything=True))


def test_all_is_well_in_one_line() -> None:
    assert [*lines(report(ok("Fine.")), 80)] == ["All is well (1 findings). The runner is down."]


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """A home without anything, and no runner."""
    (tmp_path / "run").mkdir(mode=0o700)
    kept = {name: os.environ[name] for name in ("PATH", "PYTHONPATH", "LANG") if name in os.environ}
    return {**kept, "HOME": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path / "run")}


def test_in_a_pipe_it_is_text_with_problems_first(env: dict[str, str]) -> None:
    done = subprocess.run(
        [*UTTER, "doctor", "--no-microphone", "--all"],
        env=env,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert (done.returncode, done.stderr) == (2, "")
    assert "\x1b" not in done.stdout
    shown = done.stdout.splitlines()
    kinds = [line.split()[0] for line in shown if line.startswith(("BROKEN ", "WARNING ", "ok "))]
    assert kinds == sorted(kinds, key=["BROKEN", "WARNING", "ok"].index)
    assert {*kinds} == {"BROKEN", "WARNING", "ok"}
    assert "  -> utter config init" in shown
    assert shown[-1].startswith("The runner is down. Broken: ")


def test_the_bounds_of_its_time_are_those_of_the_checks(env: dict[str, str]) -> None:
    assert signature(doctor).parameters["timeout"].default == DEADLINE_S
    for seconds, said in ((LONGEST_S, ""), (LONGEST_S + 1, "1<=x<=600"), (0.5, "1<=x<=600")):
        argv = [*UTTER, "doctor", "--no-microphone", "--json", "--timeout", f"{seconds:g}"]
        done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=100, check=False)
        assert done.returncode == 2
        if said:
            assert "--timeout" in done.stderr
            assert said in done.stderr
        else:
            assert json.loads(done.stdout)["state"] == "down"


@pytest.mark.parametrize(("seconds", "pace"), [(5.0, 1.0), (10.0, 1.0), (40.0, 4.0)])
def test_whoever_gives_it_more_time_gives_everything_more(
    monkeypatch: pytest.MonkeyPatch, seconds: float, pace: float
) -> None:
    given: list[tuple[float, float]] = []

    def examine(outside: Outside, _options: Options, *, seconds: float) -> Report:
        given.append((outside.pace, seconds))
        return report(ok("Fine."))

    monkeypatch.setattr("utter_runner.operate.doctor.examine.examine", examine)
    monkeypatch.setattr("utter_runner.cli.doctor.atexit", SimpleNamespace(register=lambda *_: None))
    assert main(["doctor", "--timeout", f"{seconds:g}"]) == 2
    assert given == [(pace, seconds)]


def test_on_a_narrow_terminal_it_is_wrapped(env: dict[str, str]) -> None:
    with Terminal([*UTTER, "doctor", "--no-microphone"], {**env, "COLUMNS": "40"}) as terminal:
        assert terminal.finish()[0] == 2
    said = terminal.shown.splitlines()
    assert said[0].startswith("BROKEN ")
    assert "Broken: " in " ".join(said[-3:])
    # A long word is not broken, for it may be a path.
    assert [line for line in said if len(line) > 40 and not line.startswith("  -> ") and len(line.split()) > 1] == []


HELD_UP = """
import atexit, sys, threading
import utter_runner.operate.doctor.examine
from utter_runner.cli import main
from utter_runner.operate.doctor.model import ok
from utter_runner.operate.doctor.registry import CHECKS

def check(look):
    if "held up" in sys.argv:
        threading.Event().wait()
    yield ok("It is well.")

CHECKS.clear()
CHECKS["limits.test"] = check
atexit.register(print, "the interpreter is taken down")
sys.exit(main(["doctor", "--json", "--timeout", "2" if "held up" in sys.argv else "60"]))
"""


@pytest.mark.parametrize("how", ["held up", "well"])
def test_the_interpreter_is_not_taken_down_under_a_check_that_waits(tmp_path: Path, how: str) -> None:
    env = {**os.environ, "HOME": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", HELD_UP, how], env=env, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stderr == ""
    report, *rest = done.stdout.splitlines()
    (finding,) = json.loads(report)["findings"]
    assert done.returncode == json.loads(report)["exit"]
    assert (finding["mend"] == "utter doctor --timeout 60") == (how == "held up")
    assert (finding["status"] == "ok", rest) == (how == "well", ["the interpreter is taken down"] * (how == "well"))
