"""What only shows in a process of its own: pipes, signals, colours, the spinner."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from support.terminal import UTTER, Terminal

if TYPE_CHECKING:
    import pytest

    from support.fake_runner import Connection, FakeRunner


def test_a_reader_that_goes_away_is_no_error(runner: FakeRunner) -> None:
    runner.events = [{"event": "warning", "text": "one"}]
    with subprocess.Popen([*UTTER, "events"], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"warning: one\n"
        process.stdout.close()
        runner.connections[0].emit({"event": "warning", "text": "two"})
        assert process.stderr is not None
        assert process.stderr.read() == b""
        assert process.wait(60) == 141


def test_a_reader_that_is_gone_from_the_start(runner: FakeRunner) -> None:
    with subprocess.Popen(
        ["sh", "-c", 'read go; exec "$@"', "sh", *UTTER, "status", "--json"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        process.stdin.write(b"go\n")
        process.stdin.close()
        assert process.stderr.read() == b""
        assert process.wait(60) == 141


def test_ctrl_c_while_waiting_gives_the_request_up(runner: FakeRunner) -> None:
    reached, given_up = threading.Event(), threading.Event()

    def command(connection: Connection, _params: dict[str, Any]) -> dict[str, Any]:
        reached.set()
        # The end of the connection says the same, should the signal arrive before the client has begun to wait.
        message = connection._read()
        assert message is None or message["method"] == "$/cancel"
        given_up.set()
        return {"results": []}

    runner.answers["runner.command"] = command
    with subprocess.Popen(
        [*UTTER, "say", "x"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert reached.wait(60)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (130, b"", b"")
    assert given_up.wait(60)


def test_colour_on_a_terminal_and_none_elsewhere(runner: FakeRunner) -> None:
    with Terminal([*UTTER, "status"]) as terminal:
        assert terminal.finish()[0] == 0
        assert "\x1b[32mready" in terminal.shown
    with Terminal([*UTTER, "status"], {"NO_COLOR": "1"}) as terminal:
        assert terminal.finish()[0] == 0
        assert "ready" in terminal.shown
        assert "\x1b[32m" not in terminal.shown
    done = subprocess.run([*UTTER, "status"], capture_output=True, text=True, timeout=60, check=True)
    assert "\x1b" not in done.stdout


def test_a_spinner_where_it_takes_longer(runner: FakeRunner) -> None:
    shown = threading.Event()

    def command(_connection: Connection, _params: dict[str, Any]) -> dict[str, Any]:
        assert shown.wait(60)
        return {"results": [{"op": "a", "ok": True, "detail": "Finished."}]}

    runner.answers["runner.command"] = command
    with Terminal([*UTTER, "say", "x"], stdout_to_pipe=True) as terminal:
        terminal.wait_for("Working")
        shown.set()
        code, out = terminal.finish()
    assert (code, out.split()) == (0, ["done", "a", "Finished."])


LATE_SPINNER = """
import sys
from utter_runner.cli import busy, main

busy.DELAY_S = 60
sys.exit(main())
"""


def test_no_spinner_where_it_does_not(runner: FakeRunner) -> None:
    runner.answers["runner.command"] = {"results": [{"op": "a", "ok": True, "detail": "Finished."}]}
    # On a busy machine any wait may last half a second.
    with Terminal([sys.executable, "-c", LATE_SPINNER, "say", "x"], stdout_to_pipe=True) as terminal:
        assert terminal.finish()[0] == 0
        assert terminal.shown == ""


def test_output_where_only_ascii_can_be_shown(runner: FakeRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    runner.answers["runner.command"] = {"results": [{"op": "a", "ok": True, "detail": "Grüße"}]}
    done = subprocess.run([*UTTER, "say", "x"], capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert rb"Gr\xfc\xdfe" in done.stdout
    done = subprocess.run([*UTTER, "status"], capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    done = subprocess.run([*UTTER, "status", "--json"], capture_output=True, timeout=60, check=False)
    assert json.loads(done.stdout) == runner.answers["runner.status"]


def test_arguments_that_are_no_text(runner: FakeRunner) -> None:
    done = subprocess.run([*UTTER, "say", b"caf\xe9"], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (2, "utter: An argument is not text in UTF-8.\n")


def test_a_disk_that_is_full(runner: FakeRunner) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [*UTTER, "status"], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False
        )
    assert (done.returncode, done.stderr) == (1, "utter: The output cannot be written: No space left on device.\n")
