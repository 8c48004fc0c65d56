from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from support.fake_runner import FakeRunner

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

STATUS: dict[str, Any] = {
    "version": "0.1.0",
    "protocol": "1.0",
    "abi": 1,
    "pid": 4711,
    "uptime_s": 3725.4,
    "state": "ready",
    "socket_path": "/run/user/1000/utter/runner.sock",
    "plugins": [
        {
            "id": "desktop",
            "kind": "action",
            "version": "0.1.0",
            "epoch": 1,
            "status": "ready",
            "pid": 4712,
            "restarts": 0,
            "ops": ["open_url", "ensure_url", "launch_app", "media", "volume"],
            "detail": "",
            "stderr_tail": "not shown for one that is ready",
        },
        {
            "id": "whisper",
            "kind": "stt",
            "version": "0.1.0",
            "epoch": 6,
            "status": "failed",
            "pid": None,
            "restarts": 5,
            "ops": [],
            "provides": ["stt.transcribe@1"],
            "detail": "It ended 5 times within 60 s. \x1b[31mSee [bold]below[/bold].",
            "stderr_tail": "first line\nsecond\nthird\nlast line",
        },
    ],
    "hotkeys": {"available": True, "devices": ["AT Keyboard"], "detail": ""},
    "audio": {"capture": "always", "open": True, "device": "Virtual Mic", "faults": 2, "detail": ""},
    "voice": {"state": "idle", "session": "", "vad": "silero"},
    "clients": 1,
    "content_logging": False,
    "warnings": ["Any program of this user may connect."],
}


@pytest.fixture
def runner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeRunner]:
    with FakeRunner(tmp_path / "runner.sock") as started:
        monkeypatch.setenv("UTTER_SOCKET", str(started.path))
        started.answers["runner.status"] = STATUS
        started.answers["runner.plugins"] = {"plugins": STATUS["plugins"]}
        yield started


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("UTTER_TOKEN_FILE", "UTTER_SOCKET", "NO_COLOR", "FORCE_COLOR", "XDG_RUNTIME_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "80")
