"""The plugin on the wire: settings, `tts.speak`, the stream `tts.audio`, health.

Rules here: one text is spoken at a time, a later `tts.speak` waits for its turn; to cut one short its caller cancels
it, which kills the program at once; the end of the plugin is the end of what it speaks. `tts.audio` plays nothing, so
each subscriber has a run of the program for itself.
"""

from __future__ import annotations

import threading
import time
from base64 import b64encode
from typing import Annotated, Literal

import msgspec

from utter_protocol.errors import ErrorCode, RpcError
from utter_protocol.kinds import SpeechItem
from utter_protocol.methods import SpeakParams
from utter_sdk import Cancelled, Plugin, Stream

from .synthesis import Synthesis, SynthesisError, frame_size
from .voice import MAX_TEXT, VOICE, Speech, clean, find_program

MISSING = "The program espeak-ng is not installed. Install the package espeak-ng; the next sentence is spoken then."

AUDIO = "tts.audio"
LEAD_S = 5.0
"""How far a lossy stream may be ahead of the time that it takes to hear it; more could get lost on the way."""

plugin = Plugin("espeak", version="0.1.0", kind="tts", provides=["tts.speak@1"])


class Settings(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The plugin's table in the runner's config.

    Attributes:
        voice: a name from `espeak-ng --voices`, used where a request names none.
        rate: words per minute.
        volume: 100 is the program's usual volume.
        output: "runner" hands the speech over as `tts.audio`, "play" plays it through the default audio device, "none"
            does all the work and plays nothing. What is asked of `tts.speak` is played here in the first two.
    """

    voice: Annotated[str, msgspec.Meta(pattern=VOICE)] = "en"
    rate: Annotated[int, msgspec.Meta(ge=80, le=450)] = 175
    volume: Annotated[int, msgspec.Meta(ge=0, le=200)] = 100
    output: Literal["runner", "play", "none"] = "runner"


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
    """Keep the settings; offer the stream or not, before anybody asks; find out whether there is an espeak-ng."""
    _State.settings = settings
    plugin.streams.pop(AUDIO, None)
    if settings.output == "runner":
        plugin.streams[AUDIO] = _audio
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
            play=settings.output != "none",
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


@plugin.stream(AUDIO)
def audio(params: Params, stream: Stream) -> None:
    """Send a text as samples; the first item has the format. A text without anything to say has no items.

    Raises:
        RpcError: -32000, espeak-ng is missing or failed, with what it said.
    """
    text = clean(params.text)
    if not text:
        return
    settings = _State.settings
    stopped = threading.Event()
    try:
        synthesis = Synthesis(_find(), voice=params.voice or settings.voice, rate=settings.rate, volume=settings.volume)
    except OSError as error:
        raise _failed(f"espeak-ng cannot be started: {error.strerror}.") from None
    with synthesis:
        plugin.on_cancel(stopped.set)
        plugin.on_cancel(synthesis.kill)
        try:
            speech = synthesis.begin(text)
            started, sent = time.monotonic(), 0
            for piece in synthesis.pieces(speech):
                if stream.mode == "lossy":
                    sent_s = sent / frame_size(speech) / speech.rate
                    stopped.wait(pause(sent_s, time.monotonic() - started))
                stream.send(SpeechItem(data_b64=b64encode(piece).decode(), format=None if sent else speech))
                sent += len(piece)
        except SynthesisError as error:
            raise _failed(str(error)) from None


_audio = plugin.streams[AUDIO]


def pause(sent_s: float, elapsed_s: float) -> float:
    """How long a lossy stream waits that has sent so many seconds of speech in so many seconds."""
    return max(0.0, sent_s - LEAD_S - elapsed_s)


def _find() -> str:
    program = find_program()
    if program is None:
        plugin.health("degraded", MISSING)
        raise _failed(MISSING)
    plugin.health("ok")
    return program


def _failed(why: str) -> RpcError:
    return RpcError(ErrorCode.PLUGIN_FAILED, why, {"program": "espeak-ng"})
