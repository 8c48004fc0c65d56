"""`utter plugins lock` and `drift`: what is shown, who agrees, with a runner and without, and the exit codes."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from support.packages import package, places_in
from support.terminal import UTTER, Terminal
from utter_protocol.errors import ErrorCode, RpcError
from utter_runner.cli import main
from utter_runner.operate import lockfile

if TYPE_CHECKING:
    from support.fake_runner import FakeRunner
    from utter_runner.operate.places import Places

DIGEST = "sha256:" + "7" * 64


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda _descriptor: None)


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Places:
    """Those of a user with a lamp that is configured and not installed, and without a runner."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    for name in ("XDG_DATA_HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME", "UTTER_SOCKET"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_DATA_DIRS", str(tmp_path / "system"))
    configure(tmp_path / "home", "lamp", tmp_path / "lamp")
    package(tmp_path / "lamp", "1.0.0", "network")
    return places_in(tmp_path / "home")


def configure(home: Path, name: str, directory: Path) -> None:
    path = home / ".config/utter/runner.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'[[plugin]]\nid = "{name}"\nmanifest = "{directory}"\n')


def run(*arguments: str) -> int:
    return main(["plugins", *arguments])


def answer(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> dict[str, Any]:
    assert run(*arguments, "--json") == code
    return dict(json.loads(capsys.readouterr().out))


def said(side_effect: str = "local", *permissions: str, **more: Any) -> dict[str, Any]:
    """What `runner.drift` answers of a lamp that says this."""
    tool = {"side_effect": side_effect, "needs_confirm": False, "digest": DIGEST}
    process = {"version": "1.0.0", "protocol": "1.0", "abi": 1, "permissions": [*permissions], "tools": {"on": tool}}
    return {"locked": False, "drift": [], "announced": {"lamp": process}, **more}


def test_what_is_there_is_recorded_without_a_runner(
    places: Places, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("drift") == 1
    assert capsys.readouterr().out == (
        "lamp is configured and not recorded. `utter plugins lock` records what is there.\n"
    )
    assert run("lock", "--yes") == 0
    out, err = capsys.readouterr()
    entry = lockfile.read(places.lockfile)["lamp"]
    assert err.splitlines() == [
        "lamp 1.0.0, not recorded before",
        f"  digest          {entry.digest}",
        "  permissions     network: It may reach other machines.",
        "utter: What the processes of lamp say is left as it was recorded: no runner could be asked.",
    ]
    assert out == f"Recorded in {places.lockfile}: lamp.\n"
    assert (entry.version, entry.permissions, entry.source, entry.process) == ("1.0.0", ["network"], "", None)
    assert run("drift") == 0
    assert capsys.readouterr().out == "Every plugin is what is recorded of it.\n"
    assert run("lock") == 0
    assert capsys.readouterr().out == "Nothing has changed since it was recorded.\n"
    # What is recorded is not installed: it is neither updated nor removed, and can be installed.
    assert run("remove", "lamp", "--yes") == 2
    assert "No plugin named lamp is installed" in capsys.readouterr().err
    assert run("update", str(tmp_path / "lamp"), "--yes") == 2
    assert "there is nothing to update" in capsys.readouterr().err
    assert run("install", str(tmp_path / "lamp"), "--yes") == 0
    assert lockfile.read(places.lockfile)["lamp"].source == str(tmp_path / "lamp")


def test_more_permissions_are_shown_as_such_and_not_what_yes_was_meant_for(
    places: Places, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answer(capsys, "lock", "--yes")
    before = lockfile.read(places.lockfile)
    package(tmp_path / "lamp", "1.1.0", "microphone")
    assert run("lock", "--yes") == 3
    err = capsys.readouterr().err.splitlines()
    assert err[0] == "lamp 1.0.0 -> 1.1.0"
    assert err[1].startswith(f"  digest          {before['lamp'].digest} -> sha256:")
    assert err[2:4] == [
        "  NEW PERMISSION  microphone: It may hear the microphone.",
        "  permissions     network: It is no longer asked for.",
    ]
    assert err[-1].endswith(
        "These ask for permissions that are not recorded: lamp: microphone. --accept-permissions agrees to them."
    )
    assert lockfile.read(places.lockfile) == before
    found = answer(capsys, "lock", "--yes", "--accept-permissions")
    (changed,) = found["changed"]
    assert (changed["plugin"], changed["new_permissions"]) == ("lamp", ["microphone"])
    assert (changed["before"]["version"], changed["after"]["version"]) == ("1.0.0", "1.1.0")
    assert found["not_asked"] == ["lamp"]


def test_what_the_processes_say_is_asked_of_the_runner(
    places: Places, runner: FakeRunner, capsys: pytest.CaptureFixture[str]
) -> None:
    runner.answers["runner.drift"] = said()
    assert run("lock", "--yes") == 0
    assert "  ops             on: recorded for the first time" in capsys.readouterr().err
    process = lockfile.read(places.lockfile)["lamp"].process
    assert process is not None
    assert process.tools["on"].side_effect == "local"
    runner.answers["runner.drift"] = said("external", "screen", locked=True)
    assert run("drift") == 1
    assert "The op on of lamp has the side effect external, and local is recorded." in capsys.readouterr().out
    assert run("lock", "--yes", "--accept-permissions") == 0
    err = capsys.readouterr().err
    assert f"  tools           on local {DIGEST} -> on external {DIGEST}" in err
    assert "  NEW PERMISSION  screen: It may see the screen." in err
    assert "started by `utter plugins start ID`" in err
    # One that cannot say it leaves that part alone, and is no reason not to record the rest.
    before = lockfile.read(places.lockfile)
    runner.answers["runner.drift"] = RpcError(ErrorCode.METHOD_NOT_FOUND, "there is no method 'runner.drift'")
    assert run("lock") == 0
    assert "The runner was not asked: there is no method 'runner.drift'" in capsys.readouterr().err
    assert lockfile.read(places.lockfile) == before


def test_a_person_is_asked_on_a_terminal(places: Places) -> None:
    for said_, code in (("\n", 3), ("n\n", 3), ("yes\n", 0)):
        with Terminal([*UTTER, "plugins", "lock"]) as terminal:
            terminal.wait_for("Record this? [y/N] ")
            assert "network: It may reach other machines." in terminal.shown
            assert lockfile.read(places.lockfile) == {}
            terminal.type(said_)
            assert terminal.finish()[0] == code, terminal.shown
    assert lockfile.read(places.lockfile).keys() == {"lamp"}


def test_without_a_terminal_an_option_has_to_agree(places: Places, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("lock") == 3
    assert "There is no terminal to ask on" in capsys.readouterr().err
    assert lockfile.read(places.lockfile) == {}


def test_some_are_chosen_and_strangers_refused(
    places: Places, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    package(tmp_path / "door", name="door")
    config = tmp_path / "other.toml"
    tables = (f'[[plugin]]\nid = "{name}"\nmanifest = "{tmp_path / name}"\n' for name in ("lamp", "door"))
    config.write_text("".join(tables) + '[[plugin]]\nid = "nowhere"\n')
    assert run("lock", "stranger", "--config", str(config), "--yes") == 2
    assert "stranger is neither in the configuration nor recorded." in capsys.readouterr().err
    answer(capsys, "lock", "door", "--config", str(config), "--yes")
    assert lockfile.read(places.lockfile).keys() == {"door"}
    # One that cannot be looked at is said, and the others are recorded all the same.
    os.mkfifo(tmp_path / "door" / "pipe")
    found = answer(capsys, "lock", "--config", str(config), "--yes", code=1)
    assert found["unclear"] == {
        "door": f"{tmp_path / 'door' / 'pipe'} is neither a file, a directory nor a link.",
        "nowhere": "It has no entrypoint, and no package of it is found.",
    }
    assert lockfile.read(places.lockfile).keys() == {"door", "lamp"}
    # What is gone from the configuration goes from the record, for a person who agrees to that.
    found = answer(capsys, "lock", "--yes")
    assert [(one["plugin"], one["after"]) for one in found["changed"]] == [("door", None)]
    assert lockfile.read(places.lockfile).keys() == {"lamp"}


def test_one_with_another_name_takes_what_was_recorded_along(
    places: Places, tmp_path: Path, runner: FakeRunner, capsys: pytest.CaptureFixture[str]
) -> None:
    runner.answers["runner.drift"] = said("local", "screen")
    answer(capsys, "lock", "--yes", "--accept-permissions")
    before = lockfile.read(places.lockfile)["lamp"]
    shutil.rmtree(tmp_path / "lamp")
    package(tmp_path / "light", "1.0.0", "network", name="light")
    configure(tmp_path / "home", "light", tmp_path / "light")
    runner.answers["runner.drift"] = said(announced={})
    found = answer(capsys, "drift", code=1)
    assert [(one["plugin"], one["field"]) for one in found["drift"]] == [("light", "renamed")]
    # Nothing that was agreed to has to be agreed to again.
    answer(capsys, "lock", "light", "--yes")
    record = lockfile.read(places.lockfile)
    assert record.keys() == {"light"}
    assert record["light"] == msgspec.structs.replace(before, digest=record["light"].digest)


def test_a_record_that_cannot_be_used_is_left_alone(
    places: Places, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    places.lockfile.parent.mkdir(parents=True)
    places.lockfile.write_text("version = 2\n[plugins\n")
    for command in ("lock", "drift"):
        assert run(command) == 2
        assert f"{places.lockfile}:2: The record of plugins cannot be used" in capsys.readouterr().err
    assert places.lockfile.read_text() == "version = 2\n[plugins\n"
    places.lockfile.unlink()

    # Somebody else writes it between the question and the answer.
    from utter_runner.cli import ask  # noqa: PLC0415 - what is replaced here is looked up there when it is needed

    def meanwhile(_question: str) -> bool:
        lockfile.write(places.lockfile, {"other": OTHER})
        return True

    monkeypatch.setattr(ask, "agreed", meanwhile)
    assert run("lock") == 2
    assert "Another command has changed the record meanwhile: look again." in capsys.readouterr().err
    assert lockfile.read(places.lockfile) == {"other": OTHER}


OTHER = lockfile.Entry(version="1", protocol="1.0", abi=1, digest=DIGEST, permissions=[])
