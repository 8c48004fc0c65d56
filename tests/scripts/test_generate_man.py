"""The man pages: complete, current, and such that groff shows what was written."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
import generate_man  # noqa: E402 - scripts are no package

sys.path.remove(str(ROOT / "scripts"))

PAGES = sorted((ROOT / "man").glob("man?/*"))
# What shows, in the tables of the terminal's device; a space at the end of a line does not.
TEXT = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), min_size=1, max_size=40)


def test_they_are_current(capsys: pytest.CaptureFixture[str]) -> None:
    assert generate_man.main(["--check"]) == 0, capsys.readouterr().err


def test_a_page_that_is_stale_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(generate_man, "MAN", tmp_path / "man")
    monkeypatch.setattr(generate_man, "COMMANDS", tmp_path / "commands.json")
    assert generate_man.main(["--check"]) == 1
    assert generate_man.main([]) == 0
    assert generate_man.main(["--check"]) == 0
    (tmp_path / "man" / "man1" / "utter-old.1").touch()
    assert generate_man.main(["--check"]) == 1
    assert "utter-old.1: stale" in capsys.readouterr().err
    assert generate_man.main([]) == 0
    assert not (tmp_path / "man" / "man1" / "utter-old.1").exists()


def test_every_command_and_every_key_has_its_place() -> None:
    names = {page.name for page in PAGES}
    for name in generate_man.command_tree().commands:
        assert f"utter-{name}.1" in names
    page = (ROOT / "man" / "man5" / "runner.toml.5").read_text()
    for struct in (*generate_man.sections().values(), generate_man.OpConfig):
        for key in generate_man.fields_of(struct):
            assert key == "ops" or f"\\fB{key}\\fP = " in page
    assert "See config.example.toml." not in page


@pytest.mark.skipif(shutil.which("man") is None or shutil.which("groff") is None, reason="man or groff is missing")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_groff_has_nothing_to_say(page: Path) -> None:
    command = ["groff", "-man", "-Tutf8", "-ww", "-K", "utf8", "-z", str(page)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(shutil.which("groff") is None, reason="groff is missing")
@settings(max_examples=10, deadline=None)
@given(st.lists(TEXT, min_size=1, max_size=20))
def test_what_is_escaped_is_shown_as_it_was(texts: list[str]) -> None:
    lines = [".TH X 1", ".SH S", ".nf", ".nh"]
    for text in texts:
        lines += [generate_man.escaped(text), f".B {generate_man.argument(text)}"]
    command = ["groff", "-man", "-Tascii", "-P-cbou", "-rLL=500n"]
    done = subprocess.run(
        command, input="\n".join(lines) + "\n", capture_output=True, text=True, check=True, timeout=60
    )
    shown = [line.strip() for line in done.stdout.split("\n") if line.startswith("       ")][: 2 * len(texts)]
    assert done.stderr == ""
    assert shown == [text for text in texts for _ in range(2)]
