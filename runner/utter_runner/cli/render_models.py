"""Models of plugins, for people.

Rules here: those of `render`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich import box
from rich.table import Table

from utter_runner.cli.render import cell, console
from utter_runner.cli.text import sized

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_STYLES = {"present": "green", "partial": "yellow", "missing": "red", "damaged": "red"}


def print_models(rows: Sequence[Mapping[str, Any]]) -> None:
    """One row for each model, and below the commands that fetch what configured plugins lack."""
    out = console()
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
    for header in ("Plugin", "Model", "Size", "State", "Configured", "Used by"):
        table.add_column(header, overflow="fold", no_wrap=header == "Plugin")
    for row in rows:
        state = str(row["state"])
        shown = f"{state} ({100 * row['have'] // row['size']} %)" if state == "partial" else state
        table.add_row(
            cell(row["plugin"], "bold"),
            cell(row["name"]),
            sized(row["size"]),
            cell(shown, _STYLES[state]),
            "yes" if row["configured"] else "no",
            cell(", ".join(row["used_by"])),
        )
    out.print(table)
    for plugin in dict.fromkeys(row["plugin"] for row in rows if row["configured"] and row["state"] != "present"):
        print(f"Not all of {plugin}'s models are there: utter models pull {plugin}")
