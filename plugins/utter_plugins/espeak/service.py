"""The plugin on the wire: settings, `tts.speak`, health.

Rules here: one text is spoken at a time, a later `tts.speak` waits for its turn; to cut one short its caller cancels
it, which kills the program at once; the end of the plugin is the end of what it speaks.
"""

from __future__ import annotations

import time
from typing import Annotated, Literal

import msgspec

from utter_protocol.errors import ErrorCode, RpcError
from utter_protocol.methods import SpeakParams
from utter_sdk import Cancelled, Plugin

from .voice import MAX_TEXT, VOICE, Speech, clean, find_program

MISSING = "The program espeak-ng is not installed. Install the package espeak-ng; the next sentence is spoken then."

plugin = Plugin("espeak", version="0.1.0", kind="tts", provides=["tts.speak@1"])


class Settings(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The plugin's table in the runner's config.

    Attributes:
        voice: a name from `espeak-ng --voices`, used where a request names none.
        rate: words per minute.
        volume: 100 is the program's usual volume.
        output: "play" through the default audio device, or "none", which does all the work and plays nothing.
    """

    voice: Annotated[str, msgspec.Meta(pattern=VOICE)] = "en"
    rate: Annotated[int, msgspec.Meta(ge=80, le=450)] = 175
    volume: Annotated[int, msgspec.Meta(ge=0, le=200)] = 100
    output: Literal["play", "none"] = "play"


class Params(SpeakParams, kw_only=True):
    """`tts.speak`, with this plugin's bounds.

    Attributes:
        text: what to say.
        voice: a name from `espeak-ng --voices`; empty: the one from the settings.
    """

    text: Annotated[str, msgspec.Meta(max_length=MAX_TEXT)]
    voice: Annotated[str, msgspec.Meta(pattern=rf"^\Z|{VOICE}")] = ""


class Spoken(msgspec.Struct, kw_only=True):
    """Answer to `tts.speak`, when the last word was said.

    Attributes:
        spoken: whether the text held anything to say.
        duration_ms: how long it took, in milliseconds.
    """

    spoken: bool
    duration_ms: int


class _State:
    settings = Settings()


@plugin.on_start
def start(settings: Settings) -> None:
    """Keep the settings; find out whether there is an espeak-ng."""
    _State.settings = settings
    if find_program() is None:
        plugin.health("degraded", MISSING)


@plugin.method("tts.speak", blocking=True)
def speak(params: Params) -> Spoken:
    """Speak a text, and answer when it has been spoken.

    Raises:
        RpcError: -32000, espeak-ng is missing or failed, with what it said.
        Cancelled: the caller gave up.
    """
    text = clean(params.text)
    if not text:
        return Spoken(spoken=False, duration_ms=0)
    settings = _State.settings
    started = time.monotonic()
    program = _find()
    try:
        speech = Speech(
            program,
            voice=params.voice or settings.voice,
            rate=settings.rate,
            volume=settings.volume,
            play=settings.output == "play",
        )
    except OSError as error:
        raise _failed(f"espeak-ng cannot be started: {error.strerror}.") from None
    plugin.on_cancel(speech.kill)
    failure = speech.say(text)
    if plugin.cancelled():
        raise Cancelled
    if failure:
        raise _failed(failure)
    return Spoken(spoken=True, duration_ms=round((time.monotonic() - started) * 1000))


def _find() -> str:
    program = find_program()
    if program is None:
        plugin.health("degraded", MISSING)
        raise _failed(MISSING)
    plugin.health("ok")
    return program


def _failed(why: str) -> RpcError:
    return RpcError(ErrorCode.PLUGIN_FAILED, why, {"program": "espeak-ng"})
