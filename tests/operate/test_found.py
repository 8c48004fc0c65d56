"""What is there of a plugin: what its digest is over, the bounds, and what is no part of it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from support.packages import Signer, package, places_in
from utter_protocol.packages import MANIFEST_NAME
from utter_runner.config.load import parse_config
from utter_runner.operate import packages
from utter_runner.operate.contents import contents_of, digest_of, drop_left_out
from utter_runner.operate.errors import OperateError
from utter_runner.operate.found import Subject, look, looked_at, survey
from utter_runner.operate.lockfile import read
from utter_runner.operate.packages import Demand, offered
from utter_runner.operate.tree import Limits

ENVIRON = {"PATH": os.defpath, "HOME": "/nowhere"}


def digest(subject: Subject, environ: dict[str, str] | None = None) -> str:
    return look("lamp", subject, environ or ENVIRON).digest


def test_a_package_has_the_digest_that_is_installed(tmp_path: Path) -> None:
    source = package(tmp_path / "lamp", "1.0.0", "network")
    found = look("lamp", Subject(source / MANIFEST_NAME), ENVIRON)
    assert found.digest == digest_of(source) == packages.package_digest(source)
    assert (found.version, found.protocol, found.abi, found.permissions) == ("1.0.0", "1.0", 1, ("network",))
    assert found.problem == ""
    # The code is the same under another name, and another one when a byte of it is.
    other = look("light", Subject(package(tmp_path / "light", name="light") / MANIFEST_NAME), ENVIRON)
    assert (other.code == found.code, other.digest == found.digest) == (True, False)
    (source / "bin/lamp").write_text("#!/bin/sh\n#")
    again = look("lamp", Subject(source / MANIFEST_NAME), ENVIRON)
    assert again.digest != found.digest
    assert again.code != found.code


def test_a_package_of_a_manifest_alone_has_no_code(tmp_path: Path) -> None:
    (tmp_path / MANIFEST_NAME).write_text((package(tmp_path / "lamp") / MANIFEST_NAME).read_text())
    (tmp_path / "lamp").rename(tmp_path.with_name(f"{tmp_path.name}-away"))
    assert contents_of(tmp_path).code == ""


def test_a_command_is_its_words_and_the_files_that_they_name(tmp_path: Path) -> None:
    program = tmp_path / "lamp.py"
    program.write_text("print()")
    words = ("python3", str(program), "--on")
    first = digest(Subject(None, words))
    assert first == digest(Subject(None, words))
    # Beside `cwd` a name without a directory is the same file; the words are others.
    near = digest(Subject(None, ("python3", "lamp.py"), str(tmp_path)))
    assert digest(Subject(None, ("python3", "lamp.py"), str(tmp_path / "nowhere"))) != near
    for changed in (("python3", str(program), "--off"), ("python3", str(program)), ("python", str(program), "--on")):
        assert digest(Subject(None, changed)) != first
    program.write_text("print(1)")
    assert digest(Subject(None, words)) != first
    assert digest(Subject(None, ("python3", "lamp.py"), str(tmp_path))) != near


def test_an_interpreter_is_no_part_of_a_plugin_and_a_program_is(tmp_path: Path) -> None:
    directory = tmp_path / "bin"
    directory.mkdir()
    script = tmp_path / "lamp.sh"
    script.write_text("true")
    program = directory / "tool"
    environ = {**ENVIRON, "PATH": str(directory)}

    def found(*words: str) -> str:
        return digest(Subject(None, words), environ)

    program.write_text("one")
    program.chmod(0o755)
    before = [found("tool"), found(str(program)), found("tool", str(script))]
    program.write_text("two")
    after = [found("tool"), found(str(program)), found("tool", str(script))]
    assert [one != other for one, other in zip(before, after, strict=True)] == [True, True, False]
    # The runner's own Python is the runner's.
    own = tmp_path / "python"
    own.symlink_to(sys.executable)
    before = [found(str(own), "-m", "lamp"), found("${PYTHON}", "-m", "lamp")]
    assert before[0] != before[1]
    with pytest.raises(OperateError, match="There is no executable 'missing' in PATH"):
        found("missing")
    assert looked_at("lamp", Subject(None, (str(tmp_path / "gone"),)), environ).problem == (
        f"{tmp_path / 'gone'}: No such file or directory."
    )


def test_a_command_beside_a_manifest_is_both(tmp_path: Path) -> None:
    source = package(tmp_path / "lamp")
    plain, own = Subject(source / MANIFEST_NAME), Subject(source / MANIFEST_NAME, ("./bin/lamp", "--loud"))
    first = digest(own)
    assert first != digest(plain)
    (source / "docs/lies/deep/read me.txt").write_text("Others.")
    assert digest(own) != first


def test_the_bounds_of_a_package_hold_for_what_is_looked_at(tmp_path: Path) -> None:
    source = package(tmp_path / "lamp")
    manifest = source / MANIFEST_NAME
    with pytest.raises(OperateError, match=r"more than 3 files, the limit of a package \(max_package_files\)"):
        look("lamp", Subject(manifest), ENVIRON, Limits(max_package_files=3))
    with pytest.raises(OperateError, match=r"larger than 100 bytes, the limit of a package \(max_package_bytes\)"):
        look("lamp", Subject(manifest), ENVIRON, Limits(max_package_bytes=100))
    with pytest.raises(OperateError, match=r"are larger than 5 bytes, .*\(max_package_bytes\)"):
        look("lamp", Subject(None, (str(source / "bin/lamp"),)), ENVIRON, Limits(max_package_bytes=5))
    (source / "/".join(["d"] * 33)).mkdir(parents=True)
    with pytest.raises(OperateError, match="lies deeper than 32 directories"):
        look("lamp", Subject(manifest), ENVIRON)


def test_what_is_no_package_is_told(tmp_path: Path) -> None:
    source = package(tmp_path / "lamp")
    manifest = source / MANIFEST_NAME
    assert "is of a plugin named lamp." in looked_at("light", Subject(manifest), ENVIRON).problem
    os.mkfifo(source / "pipe")
    assert looked_at("lamp", Subject(manifest), ENVIRON).problem == (
        f"{source / 'pipe'} is neither a file, a directory nor a link."
    )
    manifest.write_text("name = 3")
    assert f"{manifest}:1: " in looked_at("lamp", Subject(manifest), ENVIRON).problem


def test_what_has_no_digest_is_not_there_to_be_run(tmp_path: Path) -> None:
    source = package(tmp_path / "lamp")
    digest_before = digest_of(source)
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").touch()
    (source / "__pycache__").symlink_to(outside)
    (source / "docs/__pycache__").write_text("a file")
    (source / "docs/lies/__pycache__/deep").mkdir(parents=True)
    drop_left_out(source)
    assert not list(source.rglob("__pycache__"))
    assert (outside / "precious").exists()
    assert digest_of(source) == digest_before


def test_a_survey_has_what_is_configured_and_what_is_installed_besides(tmp_path: Path) -> None:
    environ = {**ENVIRON, "HOME": str(tmp_path)}
    places = places_in(tmp_path)
    for name in ("lamp", "radio", "gone"):
        with offered(places, package(tmp_path / "sources" / name, name=name), Demand()) as offer:
            offer.accept()
    packages.remove(places, "gone", packages.installed_entry(places, "gone"))
    record = read(places.lockfile)
    (tmp_path / "door.sh").write_text("true")
    config = parse_config(
        f"""
        [[plugin]]
        id = "lamp"
        [[plugin]]
        id = "commands"
        enabled = false
        [[plugin]]
        id = "door"
        entrypoint = ["sh", "{tmp_path}/door.sh"]
        [[plugin]]
        id = "other"
        transport = "connect"
        spawn = false
        [[plugin]]
        id = "nowhere"
        [[plugin]]
        id = "broken"
        manifest = "{tmp_path}/none"
        """,
        tmp_path / "runner.toml",
    )
    found = survey(config, environ, places, record)
    assert found.keys() == {"lamp", "commands", "door", "other", "broken", "radio"}
    assert {name: one.digest for name, one in found.items() if name in record} == {
        name: one.digest for name, one in record.items()
    }
    assert "none" in found["broken"].problem
    assert all(not one.problem for name, one in found.items() if name != "broken")


def test_who_has_signed_is_not_part_of_it(tmp_path: Path) -> None:
    source = package(tmp_path / "lamp")
    before = look("lamp", Subject(source / MANIFEST_NAME), ENVIRON)
    (source / "utter-plugin.minisig").write_text(Signer().sign(b"x"))
    assert look("lamp", Subject(source / MANIFEST_NAME), ENVIRON) == before
