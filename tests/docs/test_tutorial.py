"""docs/writing-a-plugin.md does what it says: its code blocks are built and run, its terminals are typed anew."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from support.audio import write_wav
from support.conformance import PATIENT
from support.daemon import Daemon, environment
from support.docs import ROOT, Block, blocks, write_files
from support.terminal import UTTER, Terminal
from utter_protocol.errors import ErrorCode, RpcError
from utter_protocol.manifest import load_manifest
from utter_sdk.client import Client
from utter_sdk.conformance.plugin import Limits, Subject, check_plugin
from utter_sdk.testing import PluginProcess

PAGE = (ROOT / "docs" / "writing-a-plugin.md").read_text()
_EXPORT = "export UTTER_SOCKET=$PWD/"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """`~/lamp-tutorial` of a reader who has finished the page."""
    write_files(PAGE, tmp_path / "lamp-tutorial")
    return tmp_path / "lamp-tutorial"


def lamp_daemon(directory: Path) -> Daemon:
    """The runner as the reader starts it, in a home of its own."""
    (directory / "run").mkdir(mode=0o700, exist_ok=True)
    env = environment(directory / "run", HOME=str(directory.parent))
    daemon = Daemon(directory, (directory / "runner.toml").read_text(), env=env, quiet=False)
    daemon.socket = directory / "run" / "runner.sock"
    return daemon


def comparable(text: str) -> list[str]:
    """The lines that count: without rules, widths and figures, which differ from run to run."""
    lines = (" ".join(re.sub(r"\d+", "#", line).split()) for line in text.splitlines())
    return [line for line in lines if line.strip("─ ")]


def commands(block: Block) -> list[tuple[str, str]]:
    """Each command of a console block, and what the page shows below it."""
    found = []
    for part in ("\n" + block.text).split("\n$ ")[1:]:
        command, _, shown = part.partition("\n")
        found.append((command, shown))
    return found


def shown_by(command: str, block: Block, daemon: Daemon) -> str:
    """Type a command and return what the terminal shows."""
    program, *arguments = shlex.split(command)
    assert program == "utter", command
    # Neither colours nor a spinner, which a slow machine would show.
    env = {**daemon.env, "UTTER_SOCKET": str(daemon.socket), "TERM": "dumb"}
    typed = block.arguments.removeprefix("types ")
    if not typed:
        done = subprocess.run([*UTTER, *arguments], env=env, capture_output=True, text=True, timeout=30, check=False)
        return done.stdout + done.stderr
    with Terminal([*UTTER, *arguments], env) as terminal:
        terminal.wait_for("[y/N] ")
        terminal.type(f"{typed}\n")
        terminal.finish()
        return terminal.shown


def test_the_terminals_show_what_the_page_shows(tmp_path: Path) -> None:
    directory = tmp_path / "lamp-tutorial"
    before = 0
    typed = 0
    marked = blocks(PAGE)
    markers = list(re.finditer(r"^<!-- .*$", PAGE, re.MULTILINE))
    assert len(markers) == len(marked), "a marker without a fenced block below it"
    for marker, block in zip(markers, marked, strict=True):
        if block.what != "console":
            continue
        write_files(PAGE[before : marker.start()], directory)
        before = marker.start()
        with lamp_daemon(directory) as daemon:
            for command, shown in commands(block):
                if command.startswith(_EXPORT):
                    assert directory / command.removeprefix(_EXPORT) == daemon.socket
                    continue
                assert comparable(shown_by(command, block, daemon)) == comparable(shown), command
                typed += 1
    assert typed > 3


def test_the_manifest_says_what_the_plugin_says(directory: Path) -> None:
    manifest = load_manifest(directory / "lamp" / "utter-plugin.toml")
    with PluginProcess([sys.executable, "lamp.py"], cwd=directory / "lamp") as lamp:
        assert (lamp.hello.plugin.name, lamp.hello.plugin.version) == (manifest.name, manifest.version)
        assert (lamp.hello.plugin.kind, lamp.hello.provides) == (manifest.kind, manifest.provides)
        assert lamp.hello.permissions == manifest.permissions


def test_the_readers_tests_pass(directory: Path) -> None:
    argv = [sys.executable, "-m", "pytest", "lamp", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(argv, cwd=directory, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{PAGE.count('def test_')} passed" in done.stdout


def test_the_ear_lives_with_what_happens_to_the_ring(directory: Path) -> None:
    report = check_plugin(Subject.from_manifest(directory / "ear"), Limits(**PATIENT), only=("ring.", "stream."))
    assert report.ok, report.text()
    assert {"ring.overrun", "ring.end"} <= {one.check.id for one in report.outcomes if one.verdict == "holds"}


def test_the_ear_hears(directory: Path) -> None:
    # A minute of which any quarter of a second is as loud.
    write_wav(directory / "loud.wav", ([0.0] * 2000 + [0.5, -0.75] * 1000) * 240)
    config = (
        f'[audio]\nsource = "wav"\nwav_path = "{directory}/loud.wav"\ncapture = "always"\ncues = false\n'
        f'[hotkeys]\nenabled = false\n[[plugin]]\nid = "ear"\nmanifest = "{directory}/ear/utter-plugin.toml"\n'
    )
    with (
        Daemon(directory, config, quiet=False) as daemon,
        daemon.client() as client,
        client.subscribe("ear.peak") as peaks,
    ):
        assert peaks.get(60)["peak"] == pytest.approx(0.75, abs=1e-4)


def test_the_lamp_in_the_runner(directory: Path) -> None:
    lamp = directory / "lamp.txt"

    def params(op: str, provenance: str = "user", **args: object) -> dict[str, object]:
        return {"plugin": "lamp", "method": "action.invoke", "params": step(op, provenance, **args)}

    with lamp_daemon(directory) as daemon, daemon.client() as client:
        answer = client.call("runner.command", {"utterance": "Dim the lamp to two percent."}, timeout=10)
        assert (answer["results"][0]["detail"], lamp.read_text()) == ("The lamp is at 2 percent.", "2\n")
        assert client.call("runner.invoke", params("lamp_fade", percent=4, seconds=0.01), timeout=10)["ok"] is True
        assert lamp.read_text() == "4\n"
        # What the page says about confirmations: nobody can ask, a no, a yes.
        assert refusal(client.call, params("lamp_reset")) == ErrorCode.NOT_PERMITTED
        asked: list[dict[str, object]] = []
        answers = iter([False, True])
        with daemon.client() as other:
            other.on_request("host.confirm", lambda question: asked.append(question) or {"approved": next(answers)})
            assert refusal(other.call, params("lamp_reset")) == ErrorCode.NOT_PERMITTED
            assert lamp.exists()
            assert other.call("runner.invoke", params("lamp_reset"), timeout=10)["ok"] is True
        assert not lamp.exists()
        assert {question["text"] for question in asked} == {'Do "lamp_reset"'}
        # Nothing from the screen writes an argument.
        assert refusal(client.call, params("lamp", "screen", state="on")) == ErrorCode.UNTRUSTED_PROVENANCE
        # Who goes away cancels.
        with daemon.client() as other:
            other._send_request("runner.invoke", params("lamp_fade", percent=100, seconds=20))
            daemon.wait_for("lamp: fading to 100 %")
        daemon.wait_for("lamp: stopped at ")
        # A question of the plugin's own, and the stream of what its answer lets happen.
        with daemon.client() as other, daemon.client() as watcher:
            other.on_request("host.confirm", lambda question: asked.append(question) or {"approved": True})
            watching = watcher.subscribe("lamp.brightness")
            first = watching.get(10)["percent"]
            assert other.call("runner.invoke", params("lamp_blink"), timeout=10)["ok"] is True
            assert watching.get(10)["percent"] in {0, 100}
            assert lamp.read_text() == f"{first}\n"
            assert asked[-1]["text"].startswith("The plugin lamp asks: ")
        watch_until_bright(directory, daemon, client)
        # Health.
        lamp.unlink(missing_ok=True)
        lamp.mkdir()
        assert client.call("runner.invoke", params("lamp", state="on"), timeout=10)["ok"] is False
        shown = client.call("runner.plugins", {}, timeout=10)["plugins"][0]
        assert (shown["status"], "cannot be written" in shown["detail"]) == ("degraded", True)
        lamp.rmdir()
        assert client.call("runner.invoke", params("lamp", state="off"), timeout=10)["ok"] is True
        assert client.call("runner.plugins", {}, timeout=10)["plugins"][0]["status"] == "ready"


def watch_until_bright(directory: Path, daemon: Daemon, client: Client) -> None:
    """Run the reader's `watch.py` while the lamp is switched."""
    env = {**daemon.env, "UTTER_SOCKET": str(daemon.socket)}
    switch = {"plugin": "lamp", "method": "action.invoke"}
    client.call("runner.invoke", {**switch, "params": step("lamp", state="off")}, timeout=10)
    with subprocess.Popen([sys.executable, "watch.py"], cwd=directory, env=env, stdout=subprocess.PIPE) as watching:
        assert watching.stdout is not None
        assert watching.stdout.readline() == b"0 %\n"
        client.call("runner.invoke", {**switch, "params": step("lamp", state="on")}, timeout=10)
        assert watching.stdout.readline() == b"100 %\n"
        assert watching.wait(20) == 0


def step(op: str, provenance: str = "user", **args: object) -> dict[str, object]:
    """The params of `action.invoke`."""
    return {"op": op, "args": args, "provenance": provenance}


def refusal(call: object, params: dict[str, object]) -> int:
    """The code of the error that `runner.invoke` is answered with."""
    assert callable(call)
    with pytest.raises(RpcError) as caught:
        call("runner.invoke", params, timeout=10)
    return caught.value.code
