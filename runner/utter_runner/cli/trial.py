"""`utter audio test`: listens for a moment, and says whether the microphone hears well.

Rules here: what the figures mean is `hearing`'s to say; nothing of what was heard is kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from utter_protocol.errors import ErrorCode, RpcError
from utter_runner.cli.connection import CALL_TIMEOUT_S
from utter_runner.cli.exits import Exit
from utter_runner.cli.guard import say
from utter_runner.cli.hearing import Figures, Verdict, judge, measure, unavailable
from utter_runner.cli.interrupts import ENDING, Interrupts
from utter_runner.cli.microphone import Microphone
from utter_runner.cli.text import document

if TYPE_CHECKING:
    from utter_sdk.client import Client


def trial(client: Client, seconds: float, *, as_json: bool) -> Exit:
    """Ask for speech, listen, and print the verdict.

    Raises:
        RpcError: the runner cannot be asked; a microphone that cannot be opened is a verdict.
        RunnerUnavailable: the runner went away.
    """
    audio = dict(client.call("runner.status", {}, CALL_TIMEOUT_S).get("audio", {}))
    told: dict[str, Any] = {"device": audio.get("device", ""), "capture": audio.get("capture", "")}
    with Interrupts(ENDING) as interrupts:
        try:
            verdict, figures, lost_s = _listen(client, seconds, interrupts)
        except RpcError as error:
            if error.code != ErrorCode.PLUGIN_FAILED:
                raise
            verdict, figures, lost_s = unavailable(error.message), None, 0.0
        if interrupts.came:
            return Exit.INTERRUPTED
    told |= {"verdict": verdict.name, "detail": verdict.detail, "advice": verdict.advice}
    if figures is not None:
        told |= figures._asdict() | {"lost_s": round(lost_s, 3)}
    if as_json:
        print(document(told))
    else:
        from utter_runner.cli.render import console  # noqa: PLC0415 - rich only for people
        from utter_runner.cli.render_audio import print_trial  # noqa: PLC0415 - as above

        print_trial(console(), told, verdict.exit)
    return verdict.exit


def _listen(client: Client, seconds: float, interrupts: Interrupts) -> tuple[Verdict, Figures, float]:
    frames, lost = bytearray(), 0
    with Microphone(client, say) as microphone:
        say(f"Speak now, as you usually do, for {seconds:g} s.")
        for piece in microphone.listen(seconds, interrupts):
            frames += piece.frames
            lost += piece.lost
    lost_s = lost / microphone.rate + microphone.late_s
    figures = measure(bytes(frames), microphone.rate)
    return judge(figures, lost_s=lost_s, fault=microphone.fault), figures, lost_s
