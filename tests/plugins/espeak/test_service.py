"""Tests of the espeak plugin as a process: with an espeak-ng of the test's own, and with the real one."""

from __future__ import annotations

import os
import select
import shutil
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import utter_plugins.espeak
from utter_protocol.errors import ErrorCode, RpcError
from utter_protocol.manifest import load_manifest
from utter_sdk.testing import PluginProcess

if TYPE_CHECKING:
    from collections.abc import Iterator

ARGV = [sys.executable, "-P", "-m", "utter_plugins.espeak"]

# Says on the control pipe that it runs, and waits for a line from there if the text asks it to.
FAKE = """#!/bin/sh
printf '%s\\n' "$*" >>"$FAKE/argv"
cat >>"$FAKE/text"
echo >>"$FAKE/text"
if tail -n 1 "$FAKE/text" | grep -q wait; then
    echo "started $$" >"$FAKE/started"
    read -r _ <"$FAKE/go"
fi
if tail -n 1 "$FAKE/text" | grep -q fail; then echo "Error: no such voice" >&2; exit 1; fi
if tail -n 1 "$FAKE/text" | grep -q silent; then exit 3; fi
if tail -n 1 "$FAKE/text" | grep -q device; then echo "error: Host is down" >&2; fi
"""


class Fake:
    """An espeak-ng that records."""

    def __init__(self, directory: Path) -> None:
        self.bin = directory / "bin"
        self.bin.mkdir()
        self.directory = directory
        for name in ("started", "go"):
            os.mkfifo(directory / name)
        self.install()

    def install(self) -> None:
        program = self.bin / "espeak-ng"
        program.write_text(FAKE)
        program.chmod(0o755)

    @property
    def env(self) -> dict[str, str]:
        # The shell's own programs stay reachable, the machine's espeak-ng does not.
        tools = self.directory / "tools"
        if not tools.exists():
            tools.mkdir()
            for tool in ("sh", "cat", "tail", "grep", "sleep"):
                found = shutil.which(tool)
                assert found
                (tools / tool).symlink_to(found)
        return {"PATH": f"{self.bin}:{tools}", "FAKE": str(self.directory)}

    def started(self) -> int:
        """Wait until a run whose text contains "wait" has begun; return its process id."""
        return int((self.directory / "started").read_text().split()[1])

    def go_on(self) -> None:
        (self.directory / "go").write_text("\n")

    def lines(self, name: str) -> list[str]:
        path = self.directory / name
        return path.read_text().splitlines() if path.exists() else []


@pytest.fixture
def fake(tmp_path: Path) -> Fake:
    return Fake(tmp_path)


@pytest.fixture
def process(fake: Fake) -> Iterator[PluginProcess]:
    with PluginProcess(ARGV, env=fake.env) as started:
        yield started


def failure(process: PluginProcess, params: dict[str, Any]) -> RpcError:
    with pytest.raises(RpcError) as caught:
        process.call("tts.speak", params)
    return caught.value


def test_the_handshake_is_the_manifests(process: PluginProcess) -> None:
    path = Path(utter_plugins.espeak.__file__).with_name("utter-plugin.toml")
    manifest = load_manifest(path)
    assert process.hello.plugin.name == manifest.name
    assert process.hello.plugin.version == manifest.version
    assert process.hello.plugin.kind == manifest.kind
    assert process.hello.provides == manifest.provides
    assert process.hello.requires == manifest.requires
    assert process.hello.permissions == manifest.permissions
    assert tomllib.loads(path.read_text())["entrypoint"] == ["${PYTHON}", *ARGV[1:]]
    assert process.health.status == "ok"


def test_the_text_goes_to_stdin_and_settings_to_options(process: PluginProcess, fake: Fake) -> None:
    answer = process.call("tts.speak", {"text": "Guten\nTag, $(reboot) --help"})
    assert answer["spoken"] is True
    assert answer["duration_ms"] >= 0
    assert fake.lines("text") == ["Guten Tag, $(reboot) --help"]
    assert fake.lines("argv") == ["--stdin -b 1 -v en -s 175 -a 100"]


def test_settings_and_a_requests_voice(fake: Fake) -> None:
    settings = {"voice": "de", "rate": 200, "volume": 0, "output": "none"}
    with PluginProcess(ARGV, env=fake.env, settings=settings) as process:
        process.call("tts.speak", {"text": "one"})
        process.call("tts.speak", {"text": "two", "voice": "en-us+f3"})
    assert fake.lines("argv") == [
        "--stdin -b 1 -v de -s 200 -a 0 --stdout",
        "--stdin -b 1 -v en-us+f3 -s 200 -a 0 --stdout",
    ]


@pytest.mark.parametrize(
    "settings", [{"rate": 1000}, {"volume": -1}, {"output": "file"}, {"voice": "../x"}, {"pitch": 3}]
)
def test_wrong_settings_are_degraded_health_that_names_them(fake: Fake, settings: dict[str, Any]) -> None:
    with PluginProcess(ARGV, env=fake.env, settings=settings) as process:
        assert process.health.status == "degraded"
        (name,) = settings
        assert process.health.detail.endswith(f"(in {name})")
        assert failure(process, {"text": "x"}).message == process.health.detail
    assert fake.lines("argv") == []


@pytest.mark.parametrize(
    ("params", "field"),
    [
        ({}, "text"),
        ({"text": 7}, "text"),
        ({"text": "x" * 4001}, "text"),
        ({"text": "x", "voice": "-w /tmp/x"}, "voice"),
        ({"text": "x", "voice": "../../x"}, "voice"),
        ({"text": "x", "voice": "en\n"}, "voice"),
    ],
)
def test_wrong_params_are_refused(process: PluginProcess, fake: Fake, params: dict[str, Any], field: str) -> None:
    error = failure(process, params)
    assert (error.code, error.data) == (ErrorCode.INVALID_PARAMS, {"field": field})
    assert fake.lines("argv") == []


def test_the_longest_text_is_spoken(process: PluginProcess, fake: Fake) -> None:
    process.call("tts.speak", {"text": "ü" * 4000})
    assert fake.lines("text") == ["ü" * 4000]


def test_nothing_to_say_starts_nothing(process: PluginProcess, fake: Fake) -> None:
    assert process.call("tts.speak", {"text": " \n\t\x00 "}) == {"spoken": False, "duration_ms": 0}
    assert fake.lines("argv") == []


def test_texts_are_spoken_one_after_the_other(process: PluginProcess, fake: Fake) -> None:
    first = process.send("tts.speak", {"text": "wait one"})
    second = process.send("tts.speak", {"text": "two"})
    fake.started()
    assert process.call("plugin.health")["status"] == "ok"
    assert fake.lines("text") == ["wait one"]
    fake.go_on()
    assert first.result()["spoken"]
    assert second.result()["spoken"]
    assert fake.lines("text") == ["wait one", "two"]


def test_cancelling_kills_the_program_and_the_next_text_is_spoken(process: PluginProcess, fake: Fake) -> None:
    first = process.send("tts.speak", {"text": "wait one"})
    second = process.send("tts.speak", {"text": "two"})
    third = process.send("tts.speak", {"text": "three"})
    running = os.pidfd_open(fake.started())
    ended = select.poll()
    ended.register(running, select.POLLIN)
    assert not ended.poll(0)
    second.cancel()
    first.cancel()
    for pending in (first, second):
        with pytest.raises(RpcError) as caught:
            pending.result()
        assert caught.value.code == ErrorCode.CANCELLED
    assert third.result()["spoken"]
    assert fake.lines("text") == ["wait one", "three"]
    assert ended.poll(0)
    os.close(running)


@pytest.mark.parametrize("how", ["EOF", "SIGTERM"])
def test_the_end_of_the_plugin_is_the_end_of_what_it_speaks(process: PluginProcess, fake: Fake, how: str) -> None:
    process.send("tts.speak", {"text": "wait one"})
    running = os.pidfd_open(fake.started())
    ended = select.poll()
    ended.register(running, select.POLLIN)
    if how == "EOF":
        process.close_stdin()
    else:
        process.kill(15)
    assert process.wait() == 0
    assert ended.poll(5000)
    os.close(running)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("fail", "espeak-ng failed (exit code 1): Error: no such voice"),
        ("silent", "espeak-ng failed (exit code 3): it said nothing"),
        ("device", "espeak-ng failed (exit code 0): error: Host is down"),
    ],
)
def test_what_the_program_says_is_answered(process: PluginProcess, text: str, message: str) -> None:
    error = failure(process, {"text": text})
    assert (error.code, error.message) == (ErrorCode.PLUGIN_FAILED, message)


def test_without_the_program_it_is_degraded_until_it_is_installed(fake: Fake) -> None:
    (fake.bin / "espeak-ng").unlink()
    with PluginProcess(ARGV, env=fake.env) as process:
        assert process.health.status == "degraded"
        assert process.health.detail.startswith("The program espeak-ng is not installed.")
        error = failure(process, {"text": "x"})
        assert (error.code, error.message) == (ErrorCode.PLUGIN_FAILED, process.health.detail)
        fake.install()
        assert process.call("tts.speak", {"text": "x"})["spoken"]
        assert process.call("plugin.health") == {"status": "ok", "detail": ""}


def test_a_program_that_cannot_be_started_is_said(process: PluginProcess, fake: Fake) -> None:
    (fake.bin / "espeak-ng").write_text("#!/no/such/interpreter\n")
    assert failure(process, {"text": "x"}).message == "espeak-ng cannot be started: No such file or directory."


@pytest.mark.skipif(shutil.which("espeak-ng") is None, reason="espeak-ng is not installed")
def test_the_real_program_speaks() -> None:
    with PluginProcess(ARGV, settings={"output": "none"}) as process:
        assert process.call("tts.speak", {"text": "Opening YouTube.", "voice": "en-gb"})["spoken"] is True
        error = failure(process, {"text": "x", "voice": "xx-no-such"})
    assert error.message.startswith("espeak-ng failed (exit code 1): Error: The specified espeak-ng voice")
