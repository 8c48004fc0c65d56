"""Tables for people about microphones.

Rules here: as in `render`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich import box
from rich.table import Table
from rich.text import Text

from utter_runner.cli.exits import Exit
from utter_runner.cli.render import cell, name_grid

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.console import Console

_STYLES = {Exit.DONE: "green", Exit.FAILED: "yellow", Exit.UNAVAILABLE: "red"}
_CAPTURE = {
    "always": "always: the microphone is open all the time",
    "on-demand": "on-demand: the microphone is opened when the key goes down, so there is no pre-roll",
}


def print_devices(out: Console, answer: Mapping[str, Any]) -> None:
    """`audio.devices`: what there is, and which key of the configuration takes its name."""
    source = answer.get("source", "?")
    _print_list(out, f'Microphones, for [audio] device with source = "{source}":', answer.get("inputs", ()))
    out.print()
    _print_list(out, "Outputs, for [audio] output_device:", answer.get("outputs", ()))
    if answer.get("detail"):
        out.print()
        out.print(cell(answer["detail"], "yellow"))


def _print_list(out: Console, title: str, devices: Sequence[Mapping[str, Any]]) -> None:
    out.print(cell(title))
    if not devices:
        out.print("  (none)")
        return
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
    for header in ("Name", "Description", "In use"):
        table.add_column(header, overflow="fold")
    for device in devices:
        marks = [word for word, key in (("chosen", "chosen"), ("default", "default")) if device.get(key)]
        style = "bold" if device.get("chosen") else ""
        table.add_row(cell(device.get("name", "?"), style), cell(device.get("description", "")), ", ".join(marks))
    out.print(table)


def print_trial(out: Console, told: Mapping[str, Any], grade: Exit) -> None:
    """What `utter audio test` found: the microphone, what was heard, the verdict and what to do."""
    rows = name_grid()
    rows.add_row("Microphone", cell(told.get("device") or "?"))
    capture = str(told.get("capture", ""))
    rows.add_row("Capture", cell(_CAPTURE.get(capture, capture)))
    if "loudest_db" in told:
        heard = "loudest {loudest_db:.1f} dB, background {floor_db:.1f} dB, peak {peak_db:.1f} dB, in {seconds:.1f} s"
        rows.add_row("Heard", heard.format(**told))
        rows.add_row("Lost", f"{told['lost_s']:.1f} s" if told["lost_s"] else "nothing")
    verdict = Text.assemble(cell(told["verdict"], _STYLES[grade]), ": ", cell(told["detail"]))
    rows.add_row("Verdict", verdict)
    if told.get("advice"):
        rows.add_row("To do", cell(told["advice"]))
    out.print(rows)
