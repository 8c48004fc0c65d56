"""One line of text for each event of `runner.events`.

Rules here: pure; an event that this version does not know is shown as its JSON, so that nothing is left out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from utter_runner.cli.text import document, harmless

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_LATENCY_DIGITS = 0


def event_line(event: Mapping[str, Any]) -> str:
    """A harmless line that says what happened."""
    name = event.get("event")
    write = _WRITERS.get(str(name))
    return harmless(write(event) if write else f"{name}: {document(dict(event))}")


def keys_text(hotkeys: Mapping[str, Any]) -> str:
    """The keyboards that are watched and the desktop's shortcuts, or why there are none."""
    detail = str(hotkeys.get("detail") or "")
    if not hotkeys.get("available"):
        return f"not available: {detail}" if detail else "not available"
    devices = ", ".join(
        str(item.get("name", item) if isinstance(item, dict) else item) for item in hotkeys.get("devices", ())
    )
    portal = hotkeys.get("portal") or {}
    shortcuts = _shortcuts_text(portal) if portal.get("bound") else ""
    parts = [devices or ("" if shortcuts else "no keyboard"), shortcuts]
    if devices and shortcuts:
        parts.append("delivered by the desktop" if hotkeys.get("path") == "portal" else "delivered by the keyboards")
    return "; ".join(part for part in (*parts, detail) if part)


def _shortcuts_text(portal: Mapping[str, Any]) -> str:
    triggers = ", ".join(f"{name} {text}" for name, text in dict(portal.get("triggers") or {}).items())
    return f"shortcuts of the desktop ({triggers})" if triggers else "shortcuts of the desktop"


def session_of(event: Mapping[str, Any]) -> str | None:
    """The voice session that an event belongs to, or None."""
    found = event.get("session") or event.get("report", {}).get("session")
    return None if found is None else str(found)


def _call_text(op: object, args: object) -> str:
    return f"{op} {document(args)}" if args else str(op)


def _because(text: object) -> str:
    return f": {text}" if text else ""


def _state(event: Mapping[str, Any]) -> str:
    status = event.get("status", {})
    plugins = status.get("plugins", ())
    ready = sum(plugin.get("status") == "ready" for plugin in plugins)
    return f"runner {status.get('version', '?')} is {status.get('state', '?')}, {ready} of {len(plugins)} plugins ready"


def _plugin(event: Mapping[str, Any]) -> str:
    plugin = event.get("plugin", {})
    return f"plugin {plugin.get('id', '?')} is {plugin.get('status', '?')}{_because(plugin.get('detail'))}"


def _session(event: Mapping[str, Any]) -> str:
    outcome = event.get("outcome")
    return f"{event.get('state', '?')}" + (f" ({outcome})" if outcome else "")


def _plan(event: Mapping[str, Any]) -> str:
    steps = [_call_text(step.get("op"), step.get("args")) for step in event.get("steps", ())]
    return "plan: " + ("; ".join(steps) or "no steps")


def _decision(event: Mapping[str, Any]) -> str:
    call = _call_text(event.get("op"), event.get("args"))
    return f"decision: {event.get('decision')} {call}{_because(event.get('detail') or event.get('rule'))}"


def _confirm(event: Mapping[str, Any]) -> str:
    return f"confirmation {event.get('state', '?')}{_because(event.get('text'))}"


def _result(event: Mapping[str, Any]) -> str:
    step = event.get("result", {})
    detail = step.get("detail") or (step.get("error") or {}).get("message")
    return f"result: {step.get('op')} {'done' if step.get('ok') else 'failed'}{_because(detail)}"


def _report(event: Mapping[str, Any]) -> str:
    report = event.get("report", {})
    latency = report.get("latency_ms", {})
    took = ", ".join(f"{name} {float(value):.{_LATENCY_DIGITS}f} ms" for name, value in latency.items())
    return f"report: {report.get('outcome', '?')}{_because(report.get('detail'))}" + (f" ({took})" if took else "")


def _audio(event: Mapping[str, Any]) -> str:
    return f"audio: {event.get('state', '?')}{_because(event.get('detail'))}"


_WRITERS: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "state": _state,
    "plugin": _plugin,
    "session": _session,
    "heard": lambda event: f"heard: {event.get('text') or '(nothing)'}",
    "partial": lambda event: f"hearing: {event.get('text', '')}",
    "plan": _plan,
    "decision": _decision,
    "confirm": _confirm,
    "result": _result,
    "report": _report,
    "warning": lambda event: f"warning: {event.get('text', '')}",
    "audio": _audio,
    "hotkeys": lambda event: f"keys: {keys_text(event)}",
}
