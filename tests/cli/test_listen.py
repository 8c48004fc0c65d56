from __future__ import annotations

import base64
import json
import signal
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from support.terminal import UTTER, Terminal
from utter_protocol.errors import RpcError
from utter_runner.cli import main

if TYPE_CHECKING:
    from pathlib import Path

    from support.fake_runner import Connection, FakeRunner

REPORT: dict[str, Any] = {
    "session": "s1",
    "outcome": "done",
    "heard": "open youtube",
    "results": [{"op": "open_url", "ok": True, "detail": "would open https://www.youtube.com/", "decision": "allow"}],
    "detail": "",
    "latency_ms": {"capture": 20.0, "stt": 512.0, "total": 700.0},
}
WAV = b"RIFF\x24\0\0\0WAVEfmt "


def recording(directory: Path, data: bytes = WAV) -> str:
    path = directory / "my recording.wav"
    path.write_bytes(data)
    return str(path)


def test_a_recording(runner: FakeRunner, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runner.answers["runner.listen"] = REPORT
    path = recording(tmp_path)
    assert main(["listen", "--file", path]) == 0
    assert [line.rstrip() for line in capsys.readouterr().out.splitlines()] == [
        "heard: open youtube",
        "done  open_url  would open https://www.youtube.com/",
        "capture 20 ms, stt 512 ms, total 700 ms",
    ]
    assert runner.calls == [("runner.listen", {"wav_b64": base64.b64encode(WAV).decode()})]
    assert main(["listen", "--file", path, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == REPORT


@pytest.mark.parametrize(
    ("change", "code", "complaint"),
    [
        (
            {"outcome": "nothing_heard", "heard": "", "results": [], "detail": "Nothing was heard."},
            1,
            "Nothing was heard.",
        ),
        ({"outcome": "unavailable", "results": [], "detail": "No recogniser runs."}, 4, "No recogniser runs."),
        ({"outcome": "blocked", "results": [{"op": "terminal", "ok": False, "decision": "deny"}]}, 3, ""),
    ],
)
def test_outcomes(
    runner: FakeRunner,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    *,
    change: dict[str, Any],
    code: int,
    complaint: str,
) -> None:
    runner.answers["runner.listen"] = {**REPORT, **change}
    assert main(["listen", "--file", recording(tmp_path)]) == code
    assert capsys.readouterr().err == (f"utter: {complaint}\n" if complaint else "")


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (None, "cannot be read: No such file or directory."),
        (b"", "is not a WAV file."),
        (b"ID3\x03 an mp3 file", "is not a WAV file."),
        (WAV + b"\0" * 12_000_000, "is larger than 12000000 bytes."),
    ],
)
def test_files_that_are_no_recordings(
    runner: FakeRunner, tmp_path: Path, capsys: pytest.CaptureFixture[str], data: bytes | None, complaint: str
) -> None:
    path = str(tmp_path / "none.wav") if data is None else recording(tmp_path, data)
    assert main(["listen", "--file", path]) == 2
    err = capsys.readouterr().err
    assert path in err
    assert complaint in err
    assert runner.calls == []


def test_what_the_runner_says_about_the_file_names_it(
    runner: FakeRunner, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runner.answers["runner.listen"] = RpcError(-32602, "wav_b64: the recording is longer than 60 s.")
    path = recording(tmp_path)
    assert main(["listen", "--file", path]) == 2
    assert capsys.readouterr().err == f"utter: {path}: wav_b64: the recording is longer than 60 s.\n"
    runner.answers["runner.listen"] = RpcError(-32005, "No plugin recognises speech.")
    assert main(["listen", "--file", path]) == 4
    assert capsys.readouterr().err == "utter: No plugin recognises speech.\n"


def state(name: str, **more: Any) -> dict[str, Any]:
    return {"event": "session", "session": "s1", "state": name, **more}


def script(runner: FakeRunner) -> None:
    """A microphone session that ends when the key is released."""

    def press(connection: Connection, _params: dict[str, Any]) -> dict[str, Any]:
        connection.emit({"event": "state", "status": {}})
        connection.emit({"event": "heard", "session": "another", "text": "not ours"})
        connection.emit(state("listening"))
        return {"session": "s1", "state": "listening"}

    def release(connection: Connection, _params: dict[str, Any]) -> dict[str, Any]:
        connection.emit(state("recognising"))
        connection.emit({"event": "heard", "session": "s1", "text": "open youtube"})
        connection.emit({"event": "result", "session": "s1", "result": REPORT["results"][0]})
        connection.emit(state("idle", outcome="done"))
        connection.emit({"event": "report", "report": REPORT})
        return {"session": "s1", "state": "recognising"}

    runner.answers |= {"ptt.press": press, "ptt.release": release, "ptt.cancel": {"cancelled": True}}


SHOWN = [
    "listening",
    "recognising",
    "heard: open youtube",
    "result: open_url done: would open https://www.youtube.com/",
    "idle (done)",
    "report: done (capture 20 ms, stt 512 ms, total 700 ms)",
]


@pytest.mark.parametrize("how", ["enter", "end of input", "ctrl-c"])
def test_the_microphone(runner: FakeRunner, how: str) -> None:
    script(runner)
    with Terminal([*UTTER, "listen"], stdout_to_pipe=True) as terminal:
        terminal.wait_for("Press Enter when you have finished speaking.")
        runner.wait_call("ptt.press")
        if how == "ctrl-c":
            terminal.process.send_signal(signal.SIGINT)
        else:
            terminal.type("\n" if how == "enter" else "\x04")
        code, out = terminal.finish()
    assert (code, out.splitlines()) == (0, SHOWN)
    # Nothing answers it: the process may be gone before it is read.
    runner.wait_call("stream.stop")
    assert runner.methods() == ["stream.subscribe", "ptt.press", "ptt.release", "stream.stop"]


def test_the_microphone_as_json(runner: FakeRunner) -> None:
    script(runner)
    with Terminal([*UTTER, "listen", "--json"], stdout_to_pipe=True) as terminal:
        terminal.wait_for("Press Enter")
        terminal.type("\n")
        code, out = terminal.finish()
    events = [json.loads(line) for line in out.splitlines()]
    assert (code, events[0], events[-1]) == (0, state("listening"), {"event": "report", "report": REPORT})


def test_a_second_ctrl_c_gives_the_session_up(runner: FakeRunner) -> None:
    script(runner)
    runner.answers["ptt.release"] = {"session": "s1", "state": "recognising"}
    with Terminal([*UTTER, "listen"]) as terminal:
        terminal.wait_for("Press Enter")
        terminal.process.send_signal(signal.SIGINT)
        runner.wait_call("ptt.release")
        terminal.process.send_signal(signal.SIGINT)
        runner.wait_call("ptt.cancel")
        assert terminal.finish()[0] == 130
        assert "Traceback" not in terminal.shown


def test_a_release_elsewhere_ends_the_recording_too(runner: FakeRunner) -> None:
    script(runner)
    with Terminal([*UTTER, "listen"], stdout_to_pipe=True) as terminal:
        terminal.wait_for("Press Enter")
        release = runner.answers["ptt.release"]
        assert callable(release)
        release(runner.connections[0], {})
        code, out = terminal.finish()
    assert (code, out.splitlines()) == (0, SHOWN)
    assert "ptt.release" not in runner.methods()


def test_a_confirmation_in_the_middle(runner: FakeRunner) -> None:
    script(runner)
    question = {"id": "c", "text": "Run it?", "timeout_ms": 60_000}

    def release(connection: Connection, _params: dict[str, Any]) -> dict[str, Any]:
        connection.emit(state("confirming"))
        approved = connection.ask("host.confirm", question)["approved"]
        connection.emit({"event": "report", "report": {**REPORT, "outcome": "done" if approved else "blocked"}})
        return {"session": "s1", "state": "recognising"}

    runner.answers["ptt.release"] = release
    with Terminal([*UTTER, "listen"], stdout_to_pipe=True) as terminal:
        terminal.wait_for("Press Enter")
        terminal.type("\n")
        terminal.wait_for("[y/N] ")
        terminal.type("y\n")
        assert terminal.finish()[0] == 0


def test_without_a_terminal_the_key_alone_ends_the_recording(runner: FakeRunner) -> None:
    script(runner)
    with subprocess.Popen(
        [*UTTER, "listen"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "listening\n"
        release = runner.answers["ptt.release"]
        assert callable(release)
        release(runner.connections[0], {})
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out.splitlines(), err.count("\n")) == (0, SHOWN[1:], 1)
    assert "ptt.release" not in runner.methods()


def test_no_microphone(runner: FakeRunner, capsys: pytest.CaptureFixture[str]) -> None:
    runner.answers["ptt.press"] = RpcError(-32000, "There is no microphone. Plug one in.")
    assert main(["listen"]) == 4
    assert capsys.readouterr() == ("", "utter: There is no microphone. Plug one in.\n")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
