"""What the policy decides and what is on, for people.

Rules here: those of `render`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich import box
from rich.table import Table
from rich.text import Text

from utter_runner.cli.render import cell, console, name_grid
from utter_runner.cli.text import document, harmless_lines

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_STYLES = {"allow": "green", "confirm": "yellow", "deny": "red", "on": "green", "asks": "yellow", "off": "red"}


def print_explanation(explanation: Mapping[str, Any]) -> None:
    """`policy.explain`, with the very text that a person would read."""
    decision = str(explanation.get("decision", "?"))
    rules = explanation.get("rules") or [explanation.get("rule", "")]
    grid = name_grid()
    grid.add_row("Decision", cell(decision, _STYLES.get(decision, "")))
    grid.add_row("Why", cell(explanation.get("detail", "")))
    grid.add_row("Rule" if len(rules) == 1 else "Rules", cell(", ".join(map(str, rules))))
    if explanation.get("plugin"):
        grid.add_row("Plugin", cell(explanation["plugin"]))
    grid.add_row("Arguments", cell(document(explanation.get("args", {}))))
    if explanation.get("text"):
        grid.add_row("Question", Text("\n".join(harmless_lines(explanation["text"]))))
    console().print(grid)


def print_ops(ops: Sequence[Mapping[str, Any]]) -> None:
    """`policy.list`: one row for each op of each plugin."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
    for header in ("Op", "Plugin", "Effect", "State", "Rate", "Why"):
        table.add_column(header, overflow="fold", no_wrap=header in {"Effect", "State"})
    for op in ops:
        state = str(op.get("state", "?"))
        plugin = str(op.get("plugin") or "")
        table.add_row(
            cell(op.get("op", "?"), "bold"),
            cell(plugin if op.get("provider") or not plugin else f"({plugin})"),
            cell(op.get("side_effect") or ""),
            cell(state, _STYLES.get(state, "")),
            cell(op.get("rate") or ""),
            cell(op.get("key") or _because(op)),
        )
    console().print(table)


def _because(op: Mapping[str, Any]) -> str:
    """The rule, where no key of the configuration made it so; nothing where an op is simply on."""
    rule = str(op.get("rule", ""))
    return "" if rule == "allowed" else rule
