"""How an epoch ended, in words, and whether that was the last one: pure functions.

Rules here: no state; the supervisor keeps the account of restarts and decides when the next epoch begins.
"""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from utter_protocol.errors import ErrorCode

if TYPE_CHECKING:
    from utter_protocol.errors import RpcError
    from utter_runner.supervision.spec import PluginSpec, Timing

EXIT_DO_NOT_RESTART = 125


def describe_end(exit_code: int | None, reason: str, last_words: str) -> str:
    """Say how an epoch ended.

    Args:
        exit_code: the process's, negative for a signal; None where the runner started none.
        reason: why it was ended, or why its wire was.
        last_words: its last line on stderr.
    """
    if exit_code is None:
        how = "the connection ended" if reason in ("", "end of file") else reason
    elif exit_code < 0:
        how = f"killed by {_signal_name(-exit_code)}"
    else:
        how = f"exited with code {exit_code}"
    parts = [how]
    if reason and reason not in (how, "end of file"):
        parts.insert(0, reason)
    if last_words:
        parts.append(f"its last line on stderr: {last_words[:300]}")
    return "; ".join(parts)


def why_final(
    reason: str,
    spec: PluginSpec,
    timing: Timing,
    *,
    exit_code: int | None,
    refused: RpcError | None,
    unwell: bool,
    recent: int,
) -> str | None:
    """Return why no other epoch follows, or None if one does.

    Args:
        reason: how this one ended.
        spec: the plugin's.
        timing: bounds.
        exit_code: the process's; None where the runner started none.
        refused: why it was not admitted, if it was not.
        unwell: whether it was ended because it did not answer `plugin.health`.
        recent: how many restarts lie within the restart window.
    """
    if refused is not None and refused.code == ErrorCode.CAPABILITY_MISSING:
        return refused.message
    why = None
    if not spec.spawn:
        # Whoever starts it may mend it meanwhile; what comes back too often is slowed down by the pauses.
        pass
    elif refused is not None and refused.code == ErrorCode.INCOMPATIBLE:
        why = refused.message
    elif exit_code == EXIT_DO_NOT_RESTART:
        why = f"{reason}; exit code 125 asks not to be restarted"
    elif spec.restart == "never" or (spec.restart == "on-failure" and exit_code == 0 and not unwell):
        why = f'{reason}; restart = "{spec.restart}"'
    elif recent >= timing.restarts_in_window:
        why = f"{reason}; {recent} restarts within {timing.restart_window:g} s are the limit"
    return why


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
