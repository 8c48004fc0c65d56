"""`utter conformance`: the report for people and for programs, the options, the exit codes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.conformance import BAD_PLUGIN, argv
from support.daemon import Daemon
from support.terminal import UTTER
from utter_runner.cli import main

EXAMPLES = Path(__file__).parents[2] / "plugins" / "examples"
MANIFEST = f"""
name = "conformance"
version = "1.0.0"
kind = "bundle"
protocol = "1.0"
abi = 1
runtime = "subprocess"
transport = "listen"
entrypoint = ["${{PYTHON}}", "-I", "-S", "{BAD_PLUGIN}", "transport=listen"]
"""


def document(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    return dict(json.loads(capsys.readouterr().out))


def holding(found: dict[str, Any]) -> set[str]:
    return {check["id"] for check in found["checks"] if check["verdict"] == "holds"}


def test_a_good_plugin(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["conformance", "--only", "health.", "--only", "framing.bytes", "--", *argv()]) == 0
    shown = capsys.readouterr()
    assert shown.out.splitlines()[-1].endswith("(stdio): 8 hold, 0 fail, 0 warnings, 2 not looked at")
    assert "not looked at  It announced nothing. (sent.announcements)" in shown.out
    assert shown.err == ""


def test_a_bad_plugin(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["conformance", "--only", "messages.unknown-method", "--", *argv("unknown-is-null")]) == 1
    shown = capsys.readouterr().out.splitlines()
    assert shown[0] == "fails  messages.unknown-method: A request with an unknown method is answered -32601."
    assert shown[1].startswith(
        "    The unknown method 'conformance.there_is_no_such_method' was answered with a result"
    )
    assert shown[2:4] == ['    see       PROTOCOL.md, "Messages"', "    expected  the error -32601"]
    assert any(line.startswith('    sent      {"jsonrpc":"2.0","id":1,"method":"protocol.hello"') for line in shown)
    assert any('"result": null' in line for line in shown)


def test_a_warning_is_no_failure(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["conformance", "--only", "messages.nan", "--", *argv("nan")]) == 0
    assert capsys.readouterr().out.startswith("warning  messages.nan: A body with NaN is answered -32700")


def test_a_document_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["conformance", "--json", "--only", "messages.unknown-method", "--", *argv("unknown-is-null")]) == 1
    found = document(capsys)
    assert (found["ok"], found["counts"]["fails"]) == (False, 1)
    check = found["checks"][0]
    assert (check["id"], check["section"], check["level"]) == ("messages.unknown-method", "Messages", "must")
    assert (check["verdict"], check["expected"]) == ("fails", "the error -32601")
    assert check["sent"]
    assert check["got"]


def test_a_manifest_and_its_directory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "utter-plugin.toml").write_text(MANIFEST)
    for named in (tmp_path, tmp_path / "utter-plugin.toml"):
        assert main(["conformance", "--json", "--only", "transport.", "--only", "manifest.", str(named)]) == 0
        found = document(capsys)
        assert found["subject"] == f"{named} (listen)"
        assert {"transport.socket-mode", "manifest.identity"} <= holding(found)


def test_another_transport_and_an_id(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["--", *argv(transport="connect")]
    options = ["--transport", "connect", "--id", "some-name", "--only", "hello."]
    assert main(["conformance", "--json", *options, *command]) == 0
    assert "hello.transport" in holding(document(capsys))


def test_settings_and_variables_reach_the_plugin(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import os, sys\n"
        "from utter_sdk import Plugin\n"
        "plugin = Plugin('told', version='1.0.0', kind='bundle')\n"
        "@plugin.on_start\n"
        "def start(settings: dict) -> None:\n"
        "    assert settings.get('voice') == 'en' and os.environ['TOLD'] == 'a=b', 'not told'\n"
        "    assert os.environ.get('UNTOLD') is None\n"
        "    assert os.listdir(os.environ['TMPDIR']) == []\n"
        "plugin.run()\n"
    )
    os.environ["UNTOLD"] = "1"
    try:
        options = ["--settings", '{"voice": "en"}', "--env", "TOLD=a=b", "--only", "health.shape", "--json"]
        assert main(["conformance", *options, "--", sys.executable, str(program)]) == 0
    finally:
        del os.environ["UNTOLD"]
    assert "health.shape" in holding(document(capsys))


def test_side_effects_are_asked_for_only_with_the_option(capsys: pytest.CaptureFixture[str]) -> None:
    only = ["--only", "method.", "--only", "describe.listed", "--json"]
    assert main(["conformance", *only, "--", *argv("no-effects")]) == 0
    quiet = document(capsys)
    assert quiet["ok"]
    assert main(["conformance", "--with-side-effects", *only, "--", *argv("no-effects")]) == 1
    broken = {check["id"] for check in document(capsys)["checks"] if check["verdict"] == "fails"}
    assert broken == {
        "method.tts.speak",
        "method.ui.render",
        "method.input.inject",
        "method.media.hold",
        "method.action.invoke",
        "describe.listed",
    }


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "Name a manifest, or a command after --."),
        (["does-not-exist.toml"], "The manifest cannot be used: does-not-exist.toml:1: The manifest cannot be read"),
        (["--settings", "[]", "--", "true"], "--settings must be a JSON object"),
        (["--settings", "{", "--", "true"], "--settings is not JSON"),
        (["--env", "NAME", "--", "true"], "--env NAME: write NAME=VALUE."),
        (["--only", "nothing", "--", "true"], "No check begins with 'nothing'."),
        (["--id", "x", "."], "--id is for commands"),
        (["--runner", "socket", "--", "true"], "Name a plugin or a runner, not both."),
    ],
)
def test_wrong_usage(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["conformance", *arguments]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("option", [["--timeout", "0"], ["--transport", "pigeon"]])
def test_wrong_values(option: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["conformance", *option, "--", "true"]) == 2
    assert capsys.readouterr().out == ""


def test_a_program_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["conformance", "--", "./does-not-exist"]) == 1
    shown = capsys.readouterr().out
    assert "It cannot be started: there is no executable './does-not-exist'." in shown
    assert "not looked at  The handshake fails." in shown


def test_what_a_plugin_wrote_is_harmless(capsys: pytest.CaptureFixture[str]) -> None:
    script = r"printf '\033[31mred\033[0m\n' >&2; exit 3"
    assert main(["conformance", "--", "sh", "-c", script]) == 1
    shown = capsys.readouterr().out
    assert r"it ended with exit code 3; stderr: \x1b[31mred\x1b[0m" in shown
    assert "\x1b" not in shown


def test_a_runner(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "token").write_text("correct-horse-battery-staple\n")
    (tmp_path / "token").chmod(0o600)
    with Daemon(tmp_path, '[socket]\ntoken = "correct-horse-battery-staple"\n') as daemon:
        runner = ["conformance", "--json", "--runner", str(daemon.socket), "--only", "api.", "--only", "auth."]
        assert main([*runner, "--token-file", str(tmp_path / "token")]) == 0
        assert {"api.status", "auth.token"} <= holding(document(capsys))
        assert main([*runner, "--timeout", "30"]) == 0
        assert "api.status" not in holding(document(capsys))
    assert main(["conformance", "--runner", str(tmp_path / "nobody.sock")]) == 1
    assert "fails  connect.answers: " in capsys.readouterr().out
    assert main(["conformance", "--runner", str(tmp_path / "nobody.sock"), "--only", "hello."]) == 2
    assert "No check begins with 'hello.'." in capsys.readouterr().err


def test_ctrl_c_ends_it_and_all_that_it_started(tmp_path: Path) -> None:
    # The plugin says that it runs, and answers nothing.
    pids = tmp_path / "pids"
    os.mkfifo(pids)
    script = f"echo $$ >{pids}; sleep 600"
    env = {**os.environ, "COLUMNS": "80"}
    with subprocess.Popen([*UTTER, "conformance", "--", "sh", "-c", script], env=env, stdout=subprocess.PIPE) as kit:
        pid = int(pids.read_text())
        kit.send_signal(signal.SIGINT)
        out, _ = kit.communicate(timeout=60)
    assert (kit.returncode, out) == (130, b"")
    assert not Path(f"/proc/{pid}").exists()
