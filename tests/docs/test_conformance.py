"""docs/conformance.md: its areas and options are those of the kit."""

from __future__ import annotations

import re

import pytest
import typer

from support.docs import ROOT, tables
from utter_runner.cli.app import app
from utter_sdk.conformance import runner_checks
from utter_sdk.conformance.plugin import CHECKS
from utter_sdk.conformance.report import Check

PAGE = (ROOT / "docs" / "conformance.md").read_text()


@pytest.mark.parametrize(
    ("head", "checks"), [("Area", CHECKS), ("Area of a runner", runner_checks.CHECKS)], ids=["plugin", "runner"]
)
def test_the_areas_are_those_of_the_checks(head: str, checks: tuple[Check, ...]) -> None:
    named = [re.findall(r"`([a-z]+)`", row[0]) for row in tables(PAGE, f"| {head} | What it is about |")]
    assert {area for row in named for area in row} == {check.id.partition(".")[0] for check in checks}


def test_every_option_is_on_the_page() -> None:
    command = typer.main.get_command(app).commands["conformance"]  # type: ignore[attr-defined]  # it is a group
    options = {name for one in command.params for name in one.opts if name.startswith("--")}
    rows = {row[0].strip("`").split()[0] for row in tables(PAGE, "| Option | What it does |")}
    assert rows | {"--runner", "--token-file"} == options


def test_the_example_of_a_report_is_a_check() -> None:
    (shown,) = re.findall(r"^ {4}fails  (\S+): (.+)$", PAGE, re.MULTILINE)
    assert shown in {(check.id, check.title) for check in CHECKS}
