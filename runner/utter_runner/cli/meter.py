"""`utter audio level`: how loud the microphone is, as it is.

Rules here: on a terminal one line that is drawn again and again, in a pipe a line for each level; the terminal is left
as it was, whatever ends the command.
"""

from __future__ import annotations

import select
import sys
import time
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any, Protocol, Self

from utter_runner.cli.connection import CALL_TIMEOUT_S
from utter_runner.cli.exits import Exit
from utter_runner.cli.interrupts import ENDING, Interrupts
from utter_runner.cli.text import document, harmless

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.text import Text

    from utter_sdk.client import Client

QUIET_S = 1.0
"""Levels come 20 times a second; none for so long, and something is wrong."""
RANGE_DB = 60.0
"""What the bar shows, up to full scale."""

_TURN_S = 0.05
_LEAST_BAR = 10
_CLIP_HELD = 20


class Display(Protocol):
    """Where levels are shown."""

    def show(self, level: Mapping[str, Any]) -> None:
        """Show an item of `audio.level`."""

    def say_nothing_comes(self, why: str) -> None:
        """Show that there is no level, and why."""


class Lines:
    """A line for each level; with `as_json` the item itself."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json

    def show(self, level: Mapping[str, Any]) -> None:
        """See `Display.show`."""
        print(document(dict(level)) if self._as_json else figures(level), flush=True)

    def say_nothing_comes(self, why: str) -> None:
        """See `Display.say_nothing_comes`; on stderr, for the lines are levels."""
        print(f"utter: {harmless(why)}", file=sys.stderr, flush=True)


class Line:
    """One line of a terminal; a context manager that hides the cursor meanwhile."""

    def __init__(self) -> None:
        from rich.live import Live  # noqa: PLC0415 - rich only for people

        from utter_runner.cli.render import console  # noqa: PLC0415 - as above

        self._live = Live(console=console(), auto_refresh=False, redirect_stdout=False, redirect_stderr=False)
        self._clipped = 0

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def show(self, level: Mapping[str, Any]) -> None:
        """See `Display.show`. A peak that clipped stays to be read for a second."""
        self._clipped = _CLIP_HELD if level.get("clipped") else max(0, self._clipped - 1)
        self._draw(meter({**level, "clipped": self._clipped > 0}, self._live.console.width))

    def say_nothing_comes(self, why: str) -> None:
        """See `Display.say_nothing_comes`."""
        self._draw(harmless(why))

    def _draw(self, line: str) -> None:
        from rich.text import Text  # noqa: PLC0415 - rich only for people

        text: Text = Text(line, no_wrap=True, overflow="ellipsis")
        text.highlight_words([_CLIP], "bold red")
        self._live.update(text, refresh=True)


_CLIP = "CLIP"


def figures(level: Mapping[str, Any]) -> str:
    """`rms  -31.4 dB  peak  -18.9 dB`, and CLIP if the peak was at full scale."""
    text = f"rms {float(level['rms_db']):6.1f} dB  peak {float(level['peak_db']):6.1f} dB"
    return f"{text}  {_CLIP}" if level.get("clipped") else text


def meter(level: Mapping[str, Any], width: int) -> str:
    """The figures and a bar, in at most `width` columns: `#` up to the root mean square, `|` at the peak.

    On a terminal too narrow for a bar there are only the figures.
    """
    text = figures({**level, "clipped": False})
    room = width - len(text) - len(_CLIP) - 6
    if room >= _LEAST_BAR:
        bar = ["#"] * _column(level["rms_db"], room)
        bar += ["."] * (room - len(bar))
        peak = _column(level["peak_db"], room)
        if peak:
            bar[peak - 1] = "|"
        text = f"{text}  [{''.join(bar)}]"
    return f"{text}  {_CLIP}" if level.get("clipped") else text


def _column(decibels: float, width: int) -> int:
    share = 1 + float(decibels) / RANGE_DB
    return round(max(0.0, min(1.0, share)) * width)


def run(client: Client, seconds: float | None, *, as_json: bool) -> Exit:
    """Open the microphone and show its level, for so many seconds or until a signal comes.

    Raises:
        RpcError: the microphone cannot be opened.
        RunnerUnavailable: the runner went away.
    """
    with ExitStack() as stack:
        interrupts = stack.enter_context(Interrupts(ENDING))
        client.call("audio.open", {}, CALL_TIMEOUT_S)
        lines = as_json or not sys.stdout.isatty()
        display: Display = Lines(as_json=as_json) if lines else stack.enter_context(Line())
        _follow(client, display, seconds, interrupts, each=lines)
    return Exit.DONE


def _follow(client: Client, display: Display, seconds: float | None, interrupts: Interrupts, *, each: bool) -> None:
    poll = select.poll()
    poll.register(client.fileno(), select.POLLIN)
    poll.register(interrupts.fd, select.POLLIN)
    ends = None if seconds is None else time.monotonic() + seconds
    with client.subscribe("audio.level") as stream:
        while True:
            levels = []
            while stream.ready:
                levels.append(stream.get(None))
            # A terminal that is slower than the levels gets the newest.
            for level in levels if each else levels[-1:]:
                display.show(level)
            left = QUIET_S if ends is None else min(QUIET_S, ends - time.monotonic())
            if left <= 0:
                return
            ready = {fd for fd, _ in poll.poll(left * 1000)}
            if interrupts.fd in ready:
                return
            if ready:
                with suppress(TimeoutError):
                    client.wait_stream(stream, _TURN_S)
            elif left == QUIET_S:
                audio = client.call("runner.status", {}, CALL_TIMEOUT_S).get("audio", {})
                display.say_nothing_comes(f"No audio comes: {audio.get('detail') or 'the microphone is closed'}")
