"""`utter plugins install`, `update`, `remove` and `digest`: what is shown, who agrees, and the exit codes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from support.packages import Signer, entries_of, package, places_in, tar_bytes
from support.terminal import UTTER, Terminal
from utter_protocol.packages import MANIFEST_NAME
from utter_runner.cli import main
from utter_runner.operate import lockfile
from utter_runner.operate.places import Places

ADA = Signer()


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda _descriptor: None)


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Places:
    """Those of a user without anything."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("XDG_DATA_HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_DATA_DIRS", str(tmp_path / "system"))
    return places_in(tmp_path / "home")


def archive(source: Path, name: str = "lamp.tar") -> Path:
    path = source.with_name(name)
    path.write_bytes(tar_bytes(entries_of(source)))
    return path


def run(*arguments: str | Path) -> int:
    return main(["plugins", *map(str, arguments)])


def answer(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> dict[str, Any]:
    assert run(*arguments, "--json") == 0
    return dict(json.loads(capsys.readouterr().out))


def test_a_package_is_shown_in_words(places: Places, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = package(tmp_path / "source", "1.0.0", "network", "telepathy")
    manifest = source / MANIFEST_NAME
    manifest.write_text(manifest.read_text() + 'description = "A lamp."\nrequires = ["tts.speak@1"]\n')
    assert run("digest", source) == 0
    digest = capsys.readouterr().out.strip()
    assert run("install", source, "--yes") == 0
    out, err = capsys.readouterr()
    assert err.splitlines() == [
        f"lamp 1.0.0, from {source}",
        "  A lamp.",
        "  signed by   nobody; compare the digest with what the author says it is",
        f"  digest      {digest}",
        "  is          of the kind action, and speaks protocol 1.0, abi 1",
        "  runs        ./bin/lamp --quiet (subprocess, stdio)",
        "  provides    action.invoke@1",
        "  requires    tts.speak@1",
        "  permissions",
        "    network: It may reach other machines.",
        "    telepathy: This version does not know it, and it has no effect.",
        *[line for line in err.splitlines() if line.startswith("  Warning: ")],
        "utter: Warning: nobody whom you trust has signed lamp, and --yes agrees to whatever it is.",
    ]
    assert out.splitlines()[0] == f"Installed lamp 1.0.0 in {places.plugins / 'lamp'}."
    assert out.endswith('\n[[plugin]]\nid = "lamp"\n')
    # Twice is once too often, and nothing is asked for what is there already.
    assert run("install", source, "--yes") == 2
    assert "lamp 1.0.0 is installed: use `utter plugins update`" in capsys.readouterr().err
    assert run("update", "lamp") == 0
    assert capsys.readouterr().out == "lamp 1.0.0 is what is installed already.\n"


def test_without_a_terminal_an_option_has_to_agree(
    places: Places, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = package(tmp_path / "source")
    assert run("install", source) == 3
    assert "There is no terminal to ask on" in capsys.readouterr().err
    assert run("install", source, "--json") == 3
    assert json.loads(capsys.readouterr().out)["error"]["kind"] == "untrusted"
    assert run("install", source, "--digest", "0" * 64, "--yes") == 3
    assert "--digest says sha256:0000" in capsys.readouterr().err
    assert run("install", source, "--digest", "0") == 2
    assert list(places.plugins.iterdir()) == []
    digest = answer(capsys, "digest", archive(source))["digest"]
    found = answer(capsys, "install", source, "--digest", digest)
    assert found == {
        "plugin": "lamp",
        "version": "1.0.0",
        "was": None,
        "changed": True,
        "directory": str(places.plugins / "lamp"),
        "digest": digest,
        "signed_by": None,
        "permissions": [],
        "models": [],
        "new_permissions": [],
        "warnings": [],
    }


def test_an_update_that_wants_more_is_not_what_yes_was_meant_for(
    places: Places, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = package(tmp_path / "source", "1.0.0", "network", "gpu")
    answer(capsys, "install", source, "--yes")
    package(source, "1.1.0", "network", "microphone")
    digest = answer(capsys, "digest", source)["digest"]
    for options in (["--yes"], ["--digest", digest]):
        assert run("update", "lamp", *options) == 3
        err = capsys.readouterr().err
        assert "    microphone (new): It may hear the microphone." in err
        assert "    network: It may reach other machines." in err
        assert "    gpu: It is no longer asked for." in err
        assert "lamp 1.0.0 -> 1.1.0, from" in err
        assert "permissions that the installed version does not have: microphone. --accept-permissions" in err
    assert lockfile.read(places.lockfile)["lamp"].version == "1.0.0"
    found = answer(capsys, "update", source, "--yes", "--accept-permissions")
    assert (found["was"], found["version"], found["new_permissions"]) == ("1.0.0", "1.1.0", ["microphone"])


def test_an_update_by_nobody_of_what_was_signed(
    places: Places, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = archive(package(tmp_path / "source"))
    ADA.sign_file(source)
    assert run("install", source, "--key", Signer(2).public, "--yes") == 3
    assert "not signed with the key that --key names" in capsys.readouterr().err
    found = answer(capsys, "install", source, "--key", ADA.public, "--yes")
    assert found["signed_by"] == ADA.public
    newer = archive(package(tmp_path / "source", "1.1.0"), "newer.tar")
    assert run("update", newer, "--yes") == 3
    err = capsys.readouterr().err
    assert f"The installed version is signed with another key: {ADA.public}" in err
    assert "the update is not signed with the same key" in err
    ADA.trusted_in(places)
    ADA.sign_file(newer)
    assert answer(capsys, "update", newer, "--yes")["changed"]
    assert "  signed by   ada.pub: made by Ada" not in capsys.readouterr().err


@pytest.mark.skipif(shutil.which("minisign") is None, reason="minisign is not installed")
def test_a_directory_is_signed_by_its_digest(
    places: Places, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = package(tmp_path / "source")
    assert run("digest", source) == 0
    (tmp_path / "lamp.digest").write_text(capsys.readouterr().out)
    for arguments in (
        ["-G", "-W", "-p", "key.pub", "-s", "key.sec"],
        ["-S", "-s", "key.sec", "-m", "lamp.digest", "-x", "source/utter-plugin.minisig"],
    ):
        subprocess.run(["minisign", *arguments], cwd=tmp_path, check=True, timeout=60, capture_output=True)
    places.trusted_keys.mkdir(parents=True)
    shutil.copy(tmp_path / "key.pub", places.trusted_keys / "ada.pub")
    assert answer(capsys, "install", archive(source), "--yes")["signed_by"]
    (source / "bin" / "lamp").write_text("something else")
    assert run("update", source, "--yes") == 3
    assert "is a wrong signature" in capsys.readouterr().err


def test_what_the_text_of_a_package_does_to_a_terminal(
    places: Places, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = package(tmp_path / "source")
    manifest = source / MANIFEST_NAME
    manifest.write_text(
        manifest.read_text().replace('"--quiet"', '"\\u001b[2J\\u202e"') + 'description = "A \\u202e lamp."\n'
    )
    assert run("install", source, "--yes") == 0
    err = capsys.readouterr().err
    assert r"  A \u202e lamp." in err
    assert r"\x1b[2J\u202e" in err
    assert "\x1b" not in err


def test_removing(places: Places, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answer(capsys, "install", package(tmp_path / "source"), "--yes")
    config = tmp_path / "home" / ".config" / "utter" / "runner.toml"
    config.parent.mkdir(parents=True)
    config.write_text('[[plugin]]\nid = "lamp"\n')
    assert run("remove", "lamp") == 3
    assert "There is no terminal to ask on" in capsys.readouterr().err
    assert (places.plugins / "lamp").exists()
    assert run("remove", "lamp", "--yes") == 0
    out, err = capsys.readouterr()
    assert out == "Removed lamp 1.0.0.\n"
    assert "The configuration still has a [[plugin]] table for lamp" in err
    assert list(places.plugins.iterdir()) == []
    for name, why in {"lamp": "No plugin named lamp is installed", "espeak": "espeak ships with the runner"}.items():
        assert run("remove", name, "--yes") == 2
        assert why in capsys.readouterr().err


def test_what_the_configuration_says_of_it(places: Places, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "home" / ".config" / "utter" / "runner.toml"
    config.parent.mkdir(parents=True)
    elsewhere = package(tmp_path / "more" / "lamp")
    config.write_text(f'[runner]\nplugin_dirs = ["{elsewhere.parent}"]\n[[plugin]]\nid = "lamp"\n')
    assert run("install", package(tmp_path / "source"), "--yes") == 0
    out, err = capsys.readouterr()
    assert out.endswith("The configuration names it. A runner that runs takes it over with:\n\nutter reload\n")
    assert f"The runner takes {elsewhere / MANIFEST_NAME} instead" in err
    before = config.read_text()
    config.write_text("rubbish")
    assert run("remove", "lamp", "--yes") == 0
    config.write_text(before)
    places.lockfile.write_text("version = 1\n[plugins\n")
    assert run("install", package(tmp_path / "source"), "--yes") == 2
    assert f"utter: {places.lockfile}:2: " in capsys.readouterr().err


def test_what_cannot_be_written_is_named(places: Places, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    places.plugins.parent.mkdir(parents=True)
    places.plugins.write_text("in the way")
    assert run("install", package(tmp_path / "source"), "--yes") == 2
    assert f"Files cannot be read or written: {places.plugins}: File exists." in capsys.readouterr().err


def test_a_person_is_asked(places: Places, tmp_path: Path) -> None:
    source = package(tmp_path / "source", "1.0.0", "network")
    env = {"HOME": str(tmp_path / "home"), "XDG_DATA_HOME": "", "XDG_STATE_HOME": "", "XDG_CONFIG_HOME": ""}
    for said, code in (("\n", 3), ("n\n", 3), ("\x04", 3), ("yes\n", 0)):
        with Terminal([*UTTER, "plugins", "install", str(source)], env) as terminal:
            terminal.wait_for("Install lamp? [y/N] ")
            assert "network: It may reach other machines." in terminal.shown
            assert not (places.plugins / "lamp").exists()
            terminal.type(said)
            assert terminal.finish()[0] == code, terminal.shown
    assert (places.plugins / "lamp").exists()


def test_what_it_needs_besides_is_shown_with_the_command(
    places: Places, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = package(tmp_path / "source")
    manifest = source / MANIFEST_NAME
    model = f'name = "base/model.bin"\nurl = "https://example.org/m"\nsha256 = "{"0" * 64}"\nsize = 78643200\n'
    manifest.write_text(f"{manifest.read_text()}[[models]]\n{model}")
    assert run("install", source, "--yes") == 0
    shown = capsys.readouterr()
    assert "needs       base/model.bin, 75.0 MiB from example.org, which `utter models pull` fetches\n" in shown.err
    assert shown.out.endswith("utter models pull lamp\n")
