"""utter bench, against the daemon and without one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from support.daemon import Daemon, environment
from support.terminal import UTTER

STT = Path(__file__).parents[1] / "support" / "counting_stt.py"
AUDIO = Path(__file__).parents[1] / "data" / "audio" / "en"
CONFIG = f"""
[[plugin]]
id = "commands"
[[plugin]]
id = "desktop"
[plugin.settings]
dry_run = true
[[plugin]]
id = "ear"
entrypoint = ['{sys.executable}', '{STT}', 'ear', 'heard']
[log]
level = "debug"
"""


def bench(env: dict[str, str], *arguments: str) -> tuple[int, dict[str, Any], str]:
    done = subprocess.run(
        [*UTTER, "bench", "--json", *arguments], env=env, capture_output=True, text=True, check=False, timeout=110
    )
    return done.returncode, json.loads(done.stdout), done.stderr


def test_with_a_runner(tmp_path: Path) -> None:
    with Daemon(tmp_path, CONFIG) as daemon, daemon.client() as client, client.subscribe("runner.events") as events:
        code, found, _ = bench(daemon.env)
        assert code == 0
        assert found["skipped"] == []
        figures = {one["name"]: one for one in found["figures"]}
        assert list(figures) == [
            "to the runner and back",
            "to the plugin commands and back",
            "to the plugin desktop and back",
            "to the plugin ear and back",
            "from the release to the text (ear)",
        ]
        assert all(one["ms"] > 0 and one["floor_ms"] > 0 for one in found["figures"][:-1])
        # This recogniser takes less than can be told.
        assert found["figures"][-1]["floor_ms"] > 500
        # "next" is a command that the runner knows, and nothing was done.
        seen = []
        while sum(event["event"] == "report" for event in seen) < 3:
            seen.append(events.get(30))
        assert {event["report"]["heard"] for event in seen if event["event"] == "report"} == {"next"}
        assert not {"plan", "decision", "result"} & {event["event"] for event in seen}


def test_without_a_runner_a_bare_one_is_started_and_leaves_nothing(tmp_path: Path) -> None:
    runtime = tmp_path / "run"
    runtime.mkdir(mode=0o700)
    # The path of a socket must be short.
    with TemporaryDirectory() as name:
        temporary = Path(name)
        code, found, said = bench(environment(runtime, TMPDIR=name))
        assert list(temporary.iterdir()) == []
    assert code == 0, said
    assert [one["name"] for one in found["figures"]] == ["from start to socket", "to the runner and back"]
    assert len(found["skipped"]) == 2
    assert {one.name for one in runtime.iterdir()} == {"home", "tmp"}
    assert not [*(runtime / "tmp").iterdir()]


def test_what_is_no_recording(tmp_path: Path) -> None:
    runtime = tmp_path / "run"
    runtime.mkdir(mode=0o700)
    for file in (__file__, str(tmp_path / "none.wav")):
        code, found, said = bench(environment(runtime), "--file", file)
        assert code == 2
        assert f"{file} is no recording that can be used" in said
        assert found["error"]["kind"] == "usage"


def test_the_recording_that_is_shipped_is_the_tests_own() -> None:
    from utter_runner.cli.bench import _recording  # noqa: PLC0415 - only here

    data, milliseconds = _recording(None)
    assert data == (AUDIO / "recorded_lock_the_front_door.wav").read_bytes()
    assert 500 < milliseconds < 5000
