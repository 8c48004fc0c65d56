"""Plugin packages and what is wrong with a plugin, for people.

Rules here: those of `render`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich import box
from rich.table import Table
from rich.text import Text

from utter_runner.cli.render import cell, console

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def print_packages(packages: Sequence[Mapping[str, Any]]) -> None:
    """One row for each package, and below what keeps those from running that cannot be run."""
    out = console()
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
    for header in ("Package", "Kind", "Version", "Configured", "Runs here", "Where"):
        table.add_column(header, overflow="fold", no_wrap=header == "Package")
    for package in packages:
        runs = not package["problems"]
        table.add_row(
            cell(package["id"], "bold"),
            cell(package["kind"]),
            cell(package["version"]),
            Text("yes" if package["configured"] else "no"),
            Text("yes" if runs else "no", style="green" if runs else "red"),
            cell("ships with the runner" if package["bundled"] else package["path"]),
        )
    out.print(table)
    for package in packages:
        for problem in package["problems"]:
            out.print(Text.assemble(cell(package["id"], "bold"), ": ", cell(problem)))


def print_validation(plugin: str, answer: Mapping[str, Any]) -> None:
    """`runner.validate_plugin`."""
    out = console()
    ok = bool(answer.get("ok"))
    grid = Table(box=None, show_header=False, padding=(0, 2, 0, 0), pad_edge=False)
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    grid.add_row(cell(plugin, "bold"), Text("in order" if ok else "not in order", style="green" if ok else "red"))
    detail = answer.get("detail")
    grid.add_row("Status", cell(f"{answer.get('status', '?')}{f': {detail}' if detail else ''}"))
    error = answer.get("error")
    if error:
        grid.add_row("Refused", cell(f"{error.get('message', '')} ({error.get('code', '?')})", "red"))
    negotiated = answer.get("negotiated") or {}
    grid.add_row("Speaks", cell(f"protocol {negotiated.get('protocol', '?')}, abi {negotiated.get('abi', '?')}"))
    for one in answer.get("missing_requires", ()):
        grid.add_row("Missing", cell(f"{one}: nobody provides it", "red"))
    for one in answer.get("unknown_capabilities", ()):
        grid.add_row("Unknown", cell(one, "yellow"))
    for one in answer.get("deprecations", ()):
        grid.add_row("Deprecated", cell(_deprecation(one), "yellow"))
    for one in answer.get("warnings", ()):
        grid.add_row("Warning", cell(one, "yellow"))
    sandbox = answer.get("sandbox") or {}
    if sandbox:
        grid.add_row("Sandbox", cell(", ".join(map(str, sandbox.get("wrappers") or ["none"]))))
    for label, states in (("Permission", answer.get("permissions", ())), ("Kept off", sandbox.get("besides", ()))):
        for one in states:
            grid.add_row(label, cell(_permission(one, sandbox.get("reasons") or {})))
    out.print(grid)


def _permission(one: Mapping[str, Any], reasons: Mapping[str, Any]) -> str:
    reason = reasons.get(one.get("name", ""))
    state = "enforced" if one.get("enforced") else "advisory"
    return f"{one.get('name', '?')}: {state}{f' ({reason})' if reason else ''}"


def _deprecation(one: Mapping[str, Any]) -> str:
    text = f"{one.get('capability', '?')} since {one.get('since', '?')}"
    text += f": use {one['replacement']}" if one.get("replacement") else ""
    return text + (f"; removed in {one['removed']}" if one.get("removed") else "")
