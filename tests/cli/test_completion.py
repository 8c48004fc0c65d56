"""Completion: which words, how fast they come, and that a real shell takes them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from utter_runner.cli import completion, main
from utter_runner.cli.completion import FILES, candidates

if TYPE_CHECKING:
    from support.fake_runner import FakeRunner

CONFIG = """\
[audio]
device = "pipewire"
[[plugin]]
id = "whisper"
[[plugin]]
id = "my.own"
[plugin.settings]
x = 1
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "utter" / "runner.toml"
    path.parent.mkdir()
    path.write_text(CONFIG)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    return tmp_path


def words(line: str) -> list[str]:
    return candidates(completion._joined(line.split(" ")[1:]), os.environ)


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("utter sta", ["status"]),
        ("utter plugins val", ["validate"]),
        ("utter logs --lev", ["--level"]),
        ("utter logs --level w", ["warning"]),
        ("utter logs --level=w", ["warning"]),
        ("utter logs --level = w", ["warning"]),
        ("utter logs --level =", ["debug", "error", "info", "warning"]),
        ("utter ptt ", ["cancel", "press", "release", "toggle"]),
        ("utter logs -n 5 wh", ["whisper"]),
        ("utter plugins validate ", ["my.own", "whisper"]),
        ("utter config get audio.dev", ["audio.device"]),
        ("utter config get plugin.whisper.ena", ["plugin.whisper.enabled"]),
        ("utter config set audio.cues ", ["false", "true"]),
        ("utter config set audio.source s", ["sounddevice"]),
        ("utter config set voice.max_ms ", []),
        ("utter listen --file ", [FILES]),
        ("utter config check ", [FILES]),
        ("utter say he", []),
    ],
)
@pytest.mark.usefixtures("home")
def test_words(line: str, wanted: list[str]) -> None:
    assert words(line) == wanted


def test_what_only_the_runner_knows(runner: FakeRunner) -> None:
    runner.answers["policy.list"] = {"ops": [{"op": "open_url"}, {"op": "media"}]}
    runner.answers["audio.devices"] = {"inputs": [{"name": "My Mic"}], "outputs": [{"name": "Speaker"}]}
    assert words("utter policy explain op") == ["open_url"]
    assert words("utter config set audio.device ") == ["My Mic"]
    assert words("utter config set audio.output_device ") == ["Speaker"]


def test_what_goes_wrong_says_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("UTTER_SOCKET", str(tmp_path / "none.sock"))
    assert main(["__complete", "policy", "explain", ""]) == 0
    monkeypatch.setattr(completion, "TREE", "none.json")
    assert main(["__complete", ""]) == 0
    assert capsys.readouterr() == ("", "")


def test_control_characters_are_not_completed(runner: FakeRunner, capsys: pytest.CaptureFixture[str]) -> None:
    runner.answers["policy.list"] = {"ops": [{"op": "a\x1b[31m"}, {"op": "b"}]}
    assert main(["__complete", "policy", "explain", ""]) == 0
    assert capsys.readouterr().out == "b\n"


def test_nothing_heavy_is_imported(home: Path) -> None:
    code = (
        "import sys; from utter_runner.cli import main; main(sys.argv[1:]);"
        "sys.exit(', '.join({'typer', 'rich', 'click', 'trio', 'tomlkit', 'socket'} & sys.modules.keys()) or 0)"
    )
    for line in (["plugins", ""], ["logs", ""], ["ptt", "p"]):
        command = [sys.executable, "-c", code, "__complete", *line]
        env = {**os.environ, "XDG_CONFIG_HOME": str(home)}
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=60)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout


def complete_in(shell: str, home: Path, line: str) -> list[str]:
    """What a real shell offers for a line."""
    script = home / f"script.{shell}"
    script.write_text(completion.SCRIPTS[shell])
    program = home / "bin" / "utter"
    program.parent.mkdir(exist_ok=True)
    run = "import sys; from utter_runner.cli import main; sys.exit(main())"
    program.write_text(f"#!/bin/sh\nexec {sys.executable} -c '{run}' \"$@\"\n")
    program.chmod(0o755)
    asked = {
        "bash": f"source {script}; COMP_WORDS=({line}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); _utter; "
        "printf '%s\\n' \"${COMPREPLY[@]}\"",
        "zsh": f"autoload -Uz compinit; compdef() {{ :; }}; compadd() {{ print -l -- $found }}; source {script}; "
        f"words=({line}); CURRENT=${{#words}}; _utter",
        "fish": f"source {script}; complete -C '{line}'",
    }[shell]
    env = {
        **os.environ,
        "PATH": f"{program.parent}:{os.environ['PATH']}",
        "XDG_CONFIG_HOME": str(home),
        "HOME": str(home),
    }
    command = {
        "bash": ["bash", "--norc", "-c", asked],
        "zsh": ["zsh", "-f", "-c", asked],
        "fish": ["fish", "-N", "-c", asked],
    }
    done = subprocess.run(command[shell], env=env, capture_output=True, text=True, check=False, timeout=60)
    assert done.stderr == ""
    return done.stdout.split("\n")[:-1]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_real_shell_completes(shell: str, home: Path) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    assert complete_in(shell, home, "utter plugins val") == ["validate"]
    assert complete_in(shell, home, "utter logs --level w") == ["warning"]
    assert complete_in(shell, home, "utter plugins validate w") == ["whisper"]


def test_bash_quotes_what_needs_it(home: Path, runner: FakeRunner) -> None:
    runner.answers["audio.devices"] = {"inputs": [{"name": "My $(Mic)"}]}
    assert complete_in("bash", home, "utter config set audio.device M") == [r"My\ \$\(Mic\)"]
    # Files are left to bash.
    assert complete_in("bash", home, "utter listen --file x") == [""]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_is_printed(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    assert capsys.readouterr().out == completion.SCRIPTS[shell]
