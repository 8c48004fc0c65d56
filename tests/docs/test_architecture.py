"""docs/architecture.md: the files, names and directions that it tells of are those of the source."""

from __future__ import annotations

import re
import tomllib

import pytest

from support.docs import ROOT, code, tables

PAGE = (ROOT / "docs" / "architecture.md").read_text()
RUNNER = ROOT / "runner" / "utter_runner"
_PATH = re.compile(r"[\w./-]*(?:/|\.(?:py|json|md|toml))")
_NAME = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*")


def spans() -> list[str]:
    """What is code inside of lines."""
    return re.findall(r"`([^`\n]+)`", PAGE)


@pytest.mark.parametrize("path", sorted({span for span in spans() if _PATH.fullmatch(span)}))
def test_files_exist(path: str) -> None:
    bases = [ROOT, RUNNER, ROOT / "protocol", ROOT / "plugins"]
    if "/" not in path:
        # A name alone is of the package that the section is about.
        bases += [
            ROOT / "protocol" / "utter_protocol",
            *(RUNNER / room for room in ("supervision", "rpc", "voice/hotkeys")),
        ]
        bases += [ROOT / "tests" / "bench"]
    assert any((base / path).exists() for base in bases), path


def test_names_exist() -> None:
    tests = (ROOT / "tests" / one for one in ("bench", "soak", "vm"))
    roots = (RUNNER, ROOT / "protocol", ROOT / "plugins", *tests)
    source = "\n".join(path.read_text() for root in roots for path in root.rglob("*.py"))
    words = set(re.findall(r"\w+", source))
    names = [span for span in spans() if _NAME.fullmatch(span) and not _PATH.fullmatch(span)]
    named = {word for name in names for word in name.split(".")}
    assert len(named) > 20
    assert named <= words


def layers(contract: str) -> list[list[str]]:
    """The layers of an import-linter contract, without prefixes."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (found,) = [one["layers"] for one in contracts if one["name"].startswith(contract)]
    return [[part.strip(" ()").removeprefix("utter_runner.") for part in layer.split("|")] for layer in found]


def test_the_directions_are_those_that_are_checked() -> None:
    drawn = [line.split(">") for line in code(PAGE) if " > " in line]
    said = [[[room.strip() for room in part.split(",")] for part in line] for line in drawn]
    house, beside = (layers(name) for name in ("the daemon's rooms", "the CLI talks"))
    exists = [layer for layer in beside if layer != ["operate"] or (RUNNER / "operate").exists()]
    assert said == [house[:-1], exists[:-1]]


def test_every_room_is_in_the_table() -> None:
    rows = tables(PAGE, "| Room | It alone |")
    rooms = {path.name for path in RUNNER.iterdir() if (path / "__init__.py").exists()}
    files = {path.stem for path in RUNNER.glob("*.py")} - {"__init__", "__main__"}
    assert {row[0].strip("`") for row in rows} == rooms | files
