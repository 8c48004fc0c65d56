"""`utter token`, and where `utter` finds its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.fake_runner import FakeRunner
from utter_runner.cli import main
from utter_runner.cli.connection import own_token
from utter_runner.config.tokens import MAX_TOKENS, matching, read_tokens


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the file of tokens is to be."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "utter" / "tokens.toml"


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o7777


def test_a_new_token_is_printed_once_and_only_its_hash_is_stored(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["token", "new", "waybar"]) == 0
    shown = capsys.readouterr()
    token = shown.out.strip()
    assert len(token) == 43
    assert "waybar" in shown.err
    assert token not in shown.err
    assert token not in state.read_text()
    (stored,) = read_tokens(state)
    assert matching([stored], token) is stored
    assert matching([stored], token[:-1]) is None
    assert (mode(state), mode(state.parent)) == (0o600, 0o700)
    assert sorted(one.name for one in state.parent.iterdir()) == ["tokens.toml", "tokens.toml.lock"]
    assert main(["token", "list"]) == 0
    listed = capsys.readouterr().out
    assert listed == f"{stored.created:%Y-%m-%d}  waybar\n"


def test_the_umask_and_what_a_killed_command_left_do_no_harm(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state.parent.mkdir(parents=True)
    (state.parent / "tokens.toml.new").write_text("half of a file")
    old = os.umask(0)
    try:
        assert main(["token", "new", "a"]) == 0
    finally:
        os.umask(old)
    assert mode(state) == 0o600
    assert [one.name for one in read_tokens(state)] == ["a"]


def test_names_are_found_checked_and_unique(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):
        assert main(["token", "new"]) == 0
    assert main(["token", "new", "--json", "a.b-c_9"]) == 0
    made = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert made["name"] == "a.b-c_9"
    tokens = read_tokens(state)
    assert [one.name for one in tokens] == ["token-1", "token-2", "a.b-c_9"]
    assert matching(tokens, made["token"]) is tokens[2]
    assert made["created"] == tokens[2].created.isoformat()
    for name, complaint in (
        ("token-1", "There is a token token-1 already."),
        ("Ä", "is no name for a token: 1 to 64 of"),
        ("a" * 65, "is no name for a token"),
        ("a\n", "is no name for a token"),
        ("", "is no name for a token"),
    ):
        assert main(["token", "new", name]) == 2
        assert complaint in capsys.readouterr().err
    assert len(read_tokens(state)) == 3


def test_revoking(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a", "b"):
        assert main(["token", "new", name]) == 0
    capsys.readouterr()
    assert main(["token", "revoke", "a"]) == 0
    assert capsys.readouterr().out == "The token a is revoked.\n"
    assert [one.name for one in read_tokens(state)] == ["b"]
    assert main(["token", "revoke", "a"]) == 2
    assert capsys.readouterr().err == "utter: There is no token 'a'. There are: b.\n"
    assert main(["token", "revoke", "b", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"revoked": "b"}
    assert main(["token", "list", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"path": str(state), "tokens": []}


def test_there_are_only_so_many(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["token", "new", "first"]) == 0
    entry = state.read_text().partition("[[token]]")[2]
    more = "".join(f"[[token]]{entry.replace('first', f'more-{n}')}" for n in range(1, MAX_TOKENS))
    state.write_text(state.read_text() + more)
    assert main(["token", "new"]) == 2
    assert f"There are {MAX_TOKENS} tokens, which is the limit (max_tokens)." in capsys.readouterr().err
    assert len(read_tokens(state)) == MAX_TOKENS


@pytest.mark.parametrize("command", [["new"], ["list"], ["revoke", "a"]])
def test_a_file_that_others_can_read_is_refused_and_left_alone(
    state: Path, command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["token", "new", "a"]) == 0
    state.chmod(0o640)
    before = state.read_bytes()
    capsys.readouterr()
    assert main(["token", *command]) == 2
    shown = capsys.readouterr()
    assert (shown.out, state.read_bytes()) == ("", before)
    assert f"is open to other users (mode 0640). If none of them could have changed it, run: chmod 600 {state}" in (
        shown.err
    )
    state.chmod(0o600)
    state.parent.chmod(0o777)
    assert main(["token", *command]) == 2
    assert f"is writable by others (mode 0777). Run: chmod 700 {state.parent}" in capsys.readouterr().err


def test_a_file_that_is_no_such_file_is_not_overwritten(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state.parent.mkdir(parents=True)
    state.write_text("something of mine\n")
    state.chmod(0o600)
    assert main(["token", "new"]) == 2
    assert "it is no TOML in UTF-8. Correct it, or move it away." in capsys.readouterr().err
    assert state.read_text() == "something of mine\n"
    state.unlink()
    state.symlink_to("/dev/zero")
    assert main(["token", "new"]) == 2
    assert "cannot be read: Too many levels of symbolic links." in capsys.readouterr().err


def test_commands_at_the_same_time_lose_nothing(state: Path) -> None:
    names = [f"program-{n}" for n in range(6)]
    script = "import sys; from utter_runner.cli import main; raise SystemExit(main(['token', 'new', sys.argv[1]]))"
    processes = [
        subprocess.Popen([sys.executable, "-c", script, name], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        for name in names
    ]
    shown = [process.communicate(timeout=100)[0].decode().strip() for process in processes]
    tokens = read_tokens(state)
    assert sorted(one.name for one in tokens) == names
    found = [matching(tokens, token) for token in shown]
    assert [one.name for one in found if one is not None] == names


# ---- where utter finds its own


def test_its_own_token(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    config = tmp_path / "config"
    assert own_token({"XDG_CONFIG_HOME": str(config)}) is None
    assert own_token({"HOME": str(tmp_path)}) is None
    file = config / "utter" / "token"
    file.parent.mkdir(parents=True)
    file.write_text("in the file\n")
    file.chmod(0o600)
    assert own_token({"XDG_CONFIG_HOME": str(config)}) == "in the file"
    assert own_token({"XDG_CONFIG_HOME": str(config), "UTTER_TOKEN": "in the environment"}) == "in the environment"
    assert own_token({"XDG_CONFIG_HOME": str(config), "UTTER_TOKEN": " "}) == "in the file"
    file.chmod(0o604)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(config))
    assert main(["status"]) == 2
    assert f"The token file {file} is open to other users (mode 0604). Run: chmod 600 {file}" in capsys.readouterr().err


def test_it_is_presented(runner: FakeRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    runner.token = "s3cret"  # noqa: S105 - a test's own
    runner.answers["runner.hush"] = {"stopped": False}
    assert main(["hush"]) == 3
    monkeypatch.setenv("UTTER_TOKEN", "s3cret")
    assert main(["hush"]) == 0
