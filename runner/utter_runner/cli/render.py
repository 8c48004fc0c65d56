"""Tables and lines for people.

Rules here: whatever came from elsewhere goes through `harmless` and then into `rich.text.Text`, never into markup;
colour only repeats what the words say; everything fits 80 columns. Nothing here is stable output: that is `--json`.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from utter_runner.cli.exits import Exit, of_step
from utter_runner.cli.lines import keys_text
from utter_runner.cli.text import document, harmless

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_PIPE_WIDTH = 160
_STDERR_LINES = 3
_STATUS_STYLES = {"ready": "green", "failed": "red", "backoff": "yellow", "degraded": "yellow", "waiting": "yellow"}
_STEP_WORDS = {
    Exit.DONE: ("done", "green"),
    Exit.FAILED: ("failed", "red"),
    Exit.BLOCKED: ("blocked", "yellow"),
    Exit.UNAVAILABLE: ("unavailable", "red"),
}
_LATENCIES = ("capture", "stt", "router", "policy", "confirm", "action", "total")


def console(*, stderr: bool = False) -> Console:
    """A console on stdout or stderr that interprets no markup; a pipe gets lines of up to 160 columns."""
    stream = sys.stderr if stderr else sys.stdout
    made = Console(file=stream, markup=False, highlight=False, emoji=False)
    if not stream.isatty() and "COLUMNS" not in os.environ:
        made.width = _PIPE_WIDTH
    return made


def cell(value: object, style: str = "") -> Text:
    """A table cell or line with text from elsewhere in it."""
    return Text(harmless(value), style=style)


def name_grid() -> Table:
    """An empty table of names and values."""
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    return table


def duration(seconds: float) -> str:
    """`95` as "1 min", `7260` as "2 h 1 min"."""
    minutes, hours = int(seconds) // 60, int(seconds) // 3600
    if not minutes:
        return f"{int(seconds)} s"
    return f"{hours} h {minutes % 60} min" if hours else f"{minutes} min"


def latency_line(latency: Mapping[str, Any]) -> str:
    """`{"stt": 512.3, "action": 8.1}` as "stt 512 ms, action 8 ms", in the order in which things happen."""
    known = [name for name in _LATENCIES if name in latency]
    others = sorted(set(latency) - set(known))
    return ", ".join(f"{name} {float(latency[name]):.0f} ms" for name in [*known, *others])


def steps_table(results: Sequence[Mapping[str, Any]]) -> Table:
    """What became of each step: a word, the op, and the sentence."""
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    table.add_column(overflow="fold")
    for step in results:
        word, style = _STEP_WORDS[of_step(step)]
        table.add_row(Text(word, style=style), cell(step.get("op", "")), cell(step_detail(step)))
    return table


def step_detail(step: Mapping[str, Any]) -> str:
    """A step's sentence: the plugin's own, or the error's."""
    error = step.get("error") or {}
    return str(step.get("detail") or error.get("message") or "")


def print_results(out: Console, results: Sequence[Mapping[str, Any]], latency: Mapping[str, Any]) -> None:
    """The steps, and how long the parts took."""
    if results:
        out.print(steps_table(results))
    if latency:
        out.print(cell(latency_line(latency), "dim"))


def print_report(out: Console, report: Mapping[str, Any]) -> None:
    """A SessionReport: what was heard and what came of it."""
    out.print(Text.assemble("heard: ", cell(report.get("heard") or "(nothing)", "bold")))
    print_results(out, report.get("results", ()), report.get("latency_ms", {}))


def print_status(out: Console, status: Mapping[str, Any]) -> None:
    """`runner.status`."""
    versions = f"{status.get('version', '?')} (protocol {status.get('protocol', '?')}, abi {status.get('abi', '?')})"
    out.print(Text.assemble(("utter-runner ", "bold"), cell(versions)))
    grid = name_grid()
    state = str(status.get("state", "?"))
    since = f"{state}, for {duration(float(status.get('uptime_s', 0)))}, pid {status.get('pid', '?')}"
    grid.add_row("State", cell(since, "green" if state == "ready" else "yellow"))
    grid.add_row("Socket", cell(status.get("socket_path", "")))
    grid.add_row("Clients", cell(status.get("clients", 0)))
    for label, text in (
        ("Keys", keys_text(status.get("hotkeys", {}))),
        ("Audio", _audio_text(status.get("audio", {}))),
        ("Voice", _voice_text(status.get("voice", {}))),
    ):
        grid.add_row(label, cell(text))
    if status.get("content_logging"):
        grid.add_row("Log", Text("what is said and shown is written to the log", style="yellow"))
    if trouble := status.get("audit", {}).get("detail"):
        grid.add_row("Audit", cell(trouble, "yellow"))
    for warning in status.get("warnings", ()):
        grid.add_row("Warning", cell(warning, "yellow"))
    out.print(grid)
    out.print()
    print_plugins(out, status.get("plugins", ()))


def _audio_text(audio: Mapping[str, Any]) -> str:
    words = ["open" if audio.get("open") else "closed", str(audio.get("device") or ""), str(audio.get("capture") or "")]
    faults = audio.get("faults")
    if faults:
        words.append("1 fault" if faults == 1 else f"{faults} faults")
    return ", ".join(word for word in words if word) + (f": {audio['detail']}" if audio.get("detail") else "")


def _voice_text(voice: Mapping[str, Any]) -> str:
    session = voice.get("session")
    vad = voice.get("vad")
    return f"{voice.get('state', '?')}" + (f" (session {session})" if session else "") + (f", vad {vad}" if vad else "")


def print_plugins(out: Console, plugins: Sequence[Mapping[str, Any]], drift: Sequence[Mapping[str, Any]] = ()) -> None:
    """`runner.plugins`: one row for each, and below what is wrong with those that are not ready, or have drifted."""
    if not plugins:
        out.print("No plugins are configured.")
        return
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
    for header, justify in (("Plugin", "left"), ("Kind", "left"), ("Status", "left"), ("Version", "left")):
        table.add_column(header, justify=justify, overflow="fold")  # type: ignore[arg-type] # a Literal, widened by the loop
    table.add_column("PID", justify="right", no_wrap=True)
    table.add_column("Restarts", justify="right", no_wrap=True)
    table.add_column("Offers", overflow="fold")
    for plugin in plugins:
        status = str(plugin.get("status", "?"))
        table.add_row(
            cell(plugin.get("id", "?"), "bold"),
            cell(plugin.get("kind", "")),
            cell(status, _STATUS_STYLES.get(status, "")),
            cell(plugin.get("version") or ""),
            cell(plugin.get("pid") or ""),
            cell(plugin.get("restarts", 0)),
            cell(" ".join(map(str, plugin.get("ops") or plugin.get("provides", ())))),
        )
    out.print(table)
    for plugin in plugins:
        _print_trouble(out, plugin)
    for one in drift:
        if one.get("field") == "unrecorded":
            # Where that matters, the plugin says so itself, or the status does.
            continue
        if one.get("plugin"):
            out.print(
                Text.assemble(cell(one["plugin"], "bold"), " has drifted: ", cell(one.get("detail", ""), "yellow"))
            )
        else:
            out.print(cell(one.get("detail", ""), "red"))
    if any((plugin.get("sandbox") or {}).get("wrappers") for plugin in plugins):
        for plugin in plugins:
            _print_permissions(out, plugin)


def _print_permissions(out: Console, plugin: Mapping[str, Any]) -> None:
    """One line for a plugin that names permissions: which of them a sandbox was shown to hold back."""
    sandbox = plugin.get("sandbox") or {}
    states = [f"{one.get('name', '?')} {_held(one)}" for one in sandbox.get("permissions", ())]
    what = ", ".join(states) or "no permissions"
    how = "in the sandbox" if sandbox.get("wrappers") else "without a sandbox"
    out.print(Text.assemble(cell(plugin.get("id", "?"), "bold"), f" {how}: ", cell(what)))


def _held(state: Mapping[str, Any]) -> str:
    return "enforced" if state.get("enforced") else "advisory"


def _print_trouble(out: Console, plugin: Mapping[str, Any]) -> None:
    if plugin.get("status") == "ready":
        return
    if plugin.get("detail"):
        out.print(Text.assemble(cell(plugin.get("id", "?"), "bold"), ": ", cell(plugin["detail"])))
    if plugin.get("status") not in {"failed", "backoff"}:
        return
    for line in str(plugin.get("stderr_tail") or "").splitlines()[-_STDERR_LINES:]:
        out.print(Text.assemble("  | ", cell(line, "dim")))


def print_context(out: Console, context: Mapping[str, Any]) -> None:
    """Each field of the context: its name, its value, who told it, and its age."""
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    table.add_column(no_wrap=True)
    for name, about in sorted(context.get("meta", {}).items()):
        value = context.get(name)
        shown = value if isinstance(value, str) else document(value)
        age = duration(float(about.get("age_ms", 0)) / 1000)
        table.add_row(cell(name), cell(shown), cell(f"{about.get('source', '?')}, {age} ago"))
    out.print(table)
