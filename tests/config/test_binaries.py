"""Warnings about executables that let in more, or less, than they seem to."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from utter_runner.config import load_config
from utter_runner.config.binaries import binary_warnings


@pytest.mark.parametrize(
    "name",
    ["python3", "python3.12", "pypy3.10", "node", "bash", "sh", "dash", "env", "perl5.36", "lua5.4", "gjs", "busybox"],
)
def test_interpreters(tmp_path: Path, name: str) -> None:
    program = tmp_path / name
    (warning,) = binary_warnings([str(program)], "[socket] allow_binaries")
    assert warning == (
        f"[socket] allow_binaries names {program}, which runs any program that it is given ({name}): all of those are "
        "let in."
    )
    # Whatever the link is called.
    link = tmp_path / "my-status-bar"
    link.symlink_to(program)
    (warning,) = binary_warnings([str(link)], "x")
    assert f"({name})" in warning


@pytest.mark.parametrize("name", ["waybar", "pythonista", "shell", "fishy", "publish", "environment", "node-red"])
def test_others(tmp_path: Path, name: str) -> None:
    program = tmp_path / name
    program.write_bytes(b"\x7fELF")
    assert [*binary_warnings([str(program), str(tmp_path), str(tmp_path / "missing")], "x")] == []


def test_a_script_lets_nobody_in(tmp_path: Path) -> None:
    script = tmp_path / "status-bar"
    script.write_text("#!/usr/bin/env python3\n")
    (warning,) = binary_warnings([str(script)], "x")
    assert f"x names {script}, which is a script" in warning
    assert "utter token new" in warning


def test_the_configuration_warns_of_them(tmp_path: Path) -> None:
    file = tmp_path / "runner.toml"
    entry = '[[plugin]]\nid = "mine"\ntransport = "connect"\nspawn = false\n'
    file.write_text(f'[socket]\nallow_binaries = ["{sys.executable}"]\n{entry}allow_binaries = ["/bin/sh"]\n')
    first, second = load_config(file).warnings
    assert first.startswith(f"[socket] allow_binaries names {sys.executable}")
    assert second.startswith('[[plugin]] "mine" allow_binaries names /bin/sh')
