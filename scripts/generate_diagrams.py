#!/usr/bin/env python3
"""Writes docs/state-machines.md from the transition tables in the code; with --check, says whether it is current."""

from __future__ import annotations

import sys
from pathlib import Path

from utter_runner.dataplane import streams
from utter_runner.supervision import states
from utter_runner.voice import machine

PAGE = Path(__file__).resolve().parent.parent / "docs" / "state-machines.md"


def page() -> str:
    """The page's text."""
    parts = [
        "# State machines",
        "",
        "Generated from the transition tables in the code by `make docs`; do not edit.",
    ]
    for title, source, diagram in (
        ("A plugin instance", "runner/utter_runner/supervision/states.py", states.diagram()),
        ("A voice session", "runner/utter_runner/voice/machine.py", machine.mermaid()),
        ("A subscription", "runner/utter_runner/dataplane/streams.py", streams.diagram()),
    ):
        parts += ["", f"## {title}", "", f"The table is in `{source}`.", "", "```mermaid", diagram.strip(), "```"]
    return "\n".join(parts) + "\n"


def main(arguments: list[str]) -> int:
    """Write the page, or with --check say whether it is current."""
    text = page()
    if "--check" not in arguments:
        PAGE.write_text(text, encoding="utf-8")
    elif not PAGE.exists() or PAGE.read_text(encoding="utf-8") != text:
        print(f"{PAGE.name} is stale: run make docs", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
