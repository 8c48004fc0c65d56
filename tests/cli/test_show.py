"""status, plugins, events and version."""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING, Any

import pytest

from utter_runner.cli import main
from utter_runner.cli.render import duration

if TYPE_CHECKING:
    from support.fake_runner import FakeRunner


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [line.rstrip() for line in capsys.readouterr().out.splitlines()]


def test_status_for_people(runner: FakeRunner, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status"]) == 0
    shown = lines(capsys)
    assert shown[:7] == [
        "utter-runner 0.1.0 (protocol 1.0, abi 1)",
        "State    ready, for 1 h 2 min, pid 4711",
        "Socket   /run/user/1000/utter/runner.sock",
        "Clients  1",
        "Keys     AT Keyboard",
        "Audio    open, Virtual Mic, always, 2 faults",
        "Voice    idle, vad silero",
    ]
    assert "Warning  Any program of this user may connect." in shown
    assert max(map(len, shown)) <= 80
    text = "\n".join(shown)
    assert "\x1b" not in text
    assert r"whisper: It ended 5 times within 60 s. \x1b[31mSee [bold]below[/bold]." in text
    assert "first line" not in text
    assert "  | last line" in shown
    assert "not shown for one that is ready" not in text


def test_status_tells_when_the_audit_trail_is_not_kept(runner: FakeRunner, capsys: pytest.CaptureFixture[str]) -> None:
    trouble = "The audit trail /x/audit.jsonl cannot be written: No space left on device."
    runner.answers["runner.status"] = {"audit": {"mode": "on", "detail": trouble, "lost": 3}}
    assert main(["status"]) == 0
    shown = " ".join(" ".join(lines(capsys)).split())
    assert f"Audit {trouble}" in shown


def test_status_of_a_bare_runner(runner: FakeRunner, capsys: pytest.CaptureFixture[str]) -> None:
    runner.answers["runner.status"] = {
        "state": "starting",
        "uptime_s": 0.4,
        "hotkeys": {"available": False, "detail": "No keyboard may be read. Add yourself to the group input."},
        "audio": {"capture": "on-demand", "open": False, "faults": 1, "detail": "No sound."},
        "voice": {"state": "listening", "session": "s7", "vad": "not installed"},
        "content_logging": True,
    }
    assert main(["status"]) == 0
    shown = lines(capsys)
    assert "State    starting, for 0 s, pid ?" in shown
    assert shown[4] == "Keys     not available: No keyboard may be read. Add yourself to the group"
    assert shown[5] == "         input."
    assert "Audio    closed, on-demand, 1 fault: No sound." in shown
    assert "Voice    listening (session s7), vad not installed" in shown
    assert "Log      what is said and shown is written to the log" in shown
    assert "No plugins are configured." in shown


def test_plugins_for_people(
    runner: FakeRunner, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["plugins"]) == 0
    shown = lines(capsys)
    assert shown[1].split() == ["Plugin", "Kind", "Status", "Version", "PID", "Restarts", "Offers"]
    assert shown[3].split()[:6] == ["desktop", "action", "ready", "0.1.0", "4712", "0"]
    assert max(map(len, shown)) <= 80
    monkeypatch.setenv("COLUMNS", "120")
    assert main(["plugins"]) == 0
    shown = lines(capsys)
    assert shown[3].endswith("open_url ensure_url launch_app media volume")
    assert shown[4].endswith("stt.transcribe@1")


@pytest.mark.parametrize("command", ["status", "plugins"])
def test_json_is_what_the_runner_answered(runner: FakeRunner, capsys: pytest.CaptureFixture[str], command: str) -> None:
    assert main([command, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == runner.answers[f"runner.{command}"]


EVENTS: list[dict[str, Any]] = [
    {"event": "state", "status": {"version": "0.1.0", "state": "ready", "plugins": [{"status": "ready"}, {}]}},
    {"event": "plugin", "plugin": {"id": "whisper", "status": "failed", "detail": "It crashed."}},
    {"event": "session", "session": "s1", "state": "idle", "outcome": "done"},
    {"event": "heard", "session": "s1", "text": "open\x1b[2J youtube"},
    {"event": "heard", "session": "s1", "text": ""},
    {"event": "partial", "session": "s1", "text": "open"},
    {"event": "plan", "session": "s1", "steps": [{"op": "open_url", "args": {"url": "https://a/"}}, {"op": "x"}]},
    {"event": "plan", "session": "s1", "steps": []},
    {"event": "decision", "session": "s1", "op": "a", "args": {}, "decision": "deny", "rule": "off", "detail": ""},
    {"event": "confirm", "session": "s1", "id": "c", "text": "Run it?", "state": "asked"},
    {"event": "result", "session": "s1", "result": {"op": "a", "ok": False, "error": {"code": 1, "message": "No."}}},
    {"event": "report", "report": {"session": "s1", "outcome": "failed", "latency_ms": {"stt": 512.4, "total": 700.0}}},
    {"event": "warning", "text": "Careful."},
    {"event": "audio", "state": "fault", "detail": "No sound for 3 s."},
    {"event": "hotkeys", "available": True, "devices": [{"name": "A"}, "B"], "detail": "push-to-talk"},
    {"event": "news", "what": "\u202e"},
]
LINES = [
    "runner 0.1.0 is ready, 1 of 2 plugins ready",
    "plugin whisper is failed: It crashed.",
    "idle (done)",
    "heard: open\\x1b[2J youtube",
    "heard: (nothing)",
    "hearing: open",
    'plan: open_url {"url":"https://a/"}; x',
    "plan: no steps",
    "decision: deny a: off",
    "confirmation asked: Run it?",
    "result: a failed: No.",
    "report: failed (stt 512 ms, total 700 ms)",
    "warning: Careful.",
    "audio: fault: No sound for 3 s.",
    "keys: A, B; push-to-talk",
    'news: {"event":"news","what":"\\u202e"}',
]


def test_events_for_people(runner: FakeRunner, capsys: pytest.CaptureFixture[str]) -> None:
    runner.events = EVENTS
    assert main(["events", "--count", str(len(EVENTS))]) == 0
    assert capsys.readouterr().out.splitlines() == LINES


def test_events_as_json_one_on_a_line(runner: FakeRunner, capsys: pytest.CaptureFixture[str]) -> None:
    runner.events = EVENTS
    assert main(["events", "--count", "3", "--json"]) == 0
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == EVENTS[:3]


def test_events_end_when_the_runner_does(runner: FakeRunner, capsys: pytest.CaptureFixture[str]) -> None:
    runner.events = EVENTS[:1]

    def hang_up() -> None:
        runner.wait_call("stream.subscribe")
        runner.connections[0].hang_up()

    thread = threading.Thread(target=hang_up)
    thread.start()
    assert main(["events"]) == 4
    thread.join()
    assert "The runner is not available" in capsys.readouterr().err


@pytest.mark.parametrize("count", ["0", "-1", "many"])
def test_a_count_that_is_none(runner: FakeRunner, capsys: pytest.CaptureFixture[str], count: str) -> None:
    assert main(["events", "--count", count]) == 2
    assert "--count" in capsys.readouterr().err
    assert runner.calls == []


def test_version_is_an_option_too(runner: FakeRunner, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["version", "--json"]) == 0
    told = capsys.readouterr().out
    assert main(["--version", "--json"]) == 0
    assert capsys.readouterr().out == told
    assert json.loads(told)["runner"]["version"] == "0.1.0"


def test_version(runner: FakeRunner, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(["version"]) == 0
    shown = lines(capsys)
    assert shown[0].startswith("utter 0.")
    assert shown[1] == "utter-runner 0.1.0 (protocol 1.0, abi 1)"
    monkeypatch.setenv("UTTER_SOCKET", "/nowhere/runner.sock")
    assert main(["version"]) == 0
    assert lines(capsys)[1] == "no runner is running"
    assert main(["version", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["protocol"], document["abi"], document["runner"]) == ("1.0", 1, None)


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.9, "0 s"), (59, "59 s"), (60, "1 min"), (3600, "1 h 0 min"), (90061, "25 h 1 min")]
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


CONTEXT = {
    "window": {"app": "foot", "title": "\x1b[31mroot"},
    "clipboard": "a [bold]text[/bold]",
    "meta": {
        "window": {"source": "niri", "age_ms": 1200, "provenance": "screen"},
        "clipboard": {"source": "clip", "age_ms": 125_000, "provenance": "screen"},
    },
}


def test_context_for_people_and_programs(runner: FakeRunner, capsys: pytest.CaptureFixture[str]) -> None:
    runner.answers["context.snapshot"] = CONTEXT
    assert main(["context"]) == 0
    clipboard, window = lines(capsys)
    assert clipboard.split("  ")[:: len(clipboard.split("  ")) - 1] == ["clipboard", "clip, 2 min ago"]
    assert "a [bold]text[/bold]" in clipboard
    assert r'{"app":"foot","title":"\u001b[31mroot"}' in window
    assert window.endswith("niri, 1 s ago")
    assert main(["context", "window", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == CONTEXT
    assert [params for method, params in runner.calls if method == "context.snapshot"] == [
        {"sources": []},
        {"sources": ["window"]},
    ]


def test_an_empty_context_says_so(runner: FakeRunner, capsys: pytest.CaptureFixture[str]) -> None:
    runner.answers["context.snapshot"] = {"meta": {}}
    assert main(["context"]) == 0
    captured = capsys.readouterr()
    assert "no context plugin" in captured.err
    assert captured.out.strip() == ""


@pytest.mark.parametrize(("result", "code"), [({"spoken": True}, 0), ({"spoken": False, "duration_ms": 3}, 1)])
def test_speak(runner: FakeRunner, capsys: pytest.CaptureFixture[str], result: dict[str, Any], code: int) -> None:
    runner.answers["runner.speak"] = result
    assert main(["speak", "Your tea is ready.", "--voice", "alto"]) == code
    assert ("cut short" in capsys.readouterr().err) == (code == 1)
    assert runner.calls[-1] == (
        "runner.speak",
        {"text": "Your tea is ready.", "voice": "alto", "timeout_ms": 60_000},
    )
    assert main(["speak", "Tea.", "--json"]) == code
    assert json.loads(capsys.readouterr().out) == result


def test_hush(runner: FakeRunner, capsys: pytest.CaptureFixture[str]) -> None:
    runner.answers["runner.hush"] = {"stopped": True}
    assert main(["hush", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"stopped": True}
    assert main(["hush"]) == 0
    assert capsys.readouterr().out == ""
