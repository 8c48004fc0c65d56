"""The whisper plugin on the wire: stt.start, stt.feed, stt.finish, stt.cancel.

Rules here: audio is taken on the reading thread and transcribed on the worker lane, where the model is loaded first; so
feeding never waits, requests wait for the model, and health is answered in between.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import msgspec

from utter_protocol.errors import ErrorCode, RpcError
from utter_protocol.methods import SttFeedParams, SttSession, SttStartParams, Transcript
from utter_sdk import Cancelled, Plugin

from .bias import Hints
from .models import ModelMissingError, find_model
from .sessions import Sessions

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .recogniser import Recogniser

VERSION = "0.1.0"
PROVIDES = ("stt.transcribe@1",)
PERMISSIONS = ("files.read",)
NEEDED = "Install the extra utter-runner[whisper] (faster-whisper, numpy) for the runner's Python"
_LANE = "model"


class Settings(msgspec.Struct, forbid_unknown_fields=True):
    """The plugin's settings: `model` as `find_model` takes it, and how many CPU `threads` to use."""

    model: str | None = None
    threads: Annotated[int, msgspec.Meta(ge=1)] | None = None


class Whisper:
    """The sessions and the model."""

    def __init__(self, plugin: Plugin, env: Mapping[str, str]) -> None:
        self._plugin = plugin
        self._env = env
        self._sessions = Sessions()
        self._hints = (tuple[str, ...](), Hints(()))
        self._recogniser: Recogniser | None = None
        self._failed: RpcError | None = None

    def load(self, settings: dict[str, object]) -> None:
        """Load the model.

        Raises:
            RpcError: the settings are wrong, or the package or the model is missing or broken.
        """
        self._plugin.health("degraded", "The speech model is being loaded.")
        try:
            self._recogniser = self._load(settings)
        except RpcError as error:
            # For the requests that are waiting already.
            self._failed = error
            raise
        self._plugin.health("ok")

    def start(self, params: SttStartParams) -> None:
        """Answer stt.start."""
        recogniser = self._recogniser
        if recogniser and not recogniser.speaks(params.language.lower().partition("-")[0]):
            what = f"language: the model does not know {params.language!r}; set another model."
            raise RpcError(ErrorCode.INVALID_PARAMS, what, {"field": "language"})
        key = tuple(params.hints)
        if key != self._hints[0]:
            # The router's phrases are the same from one session to the next.
            self._hints = (key, Hints(key))
        self._sessions.start(params, self._hints[1])

    def feed(self, params: SttFeedParams) -> None:
        """Take stt.feed."""
        self._sessions.feed(params)

    def finish(self, params: SttSession) -> Transcript:
        """Answer stt.finish."""
        session = self._sessions.take(params.session)
        if session.gaps:
            self._plugin.log(f"session {params.session}: {session.gaps} pieces of audio are missing")
        if session.truncated:
            self._plugin.log(f"session {params.session}: what came after 60 s was dropped")
        if self._plugin.cancelled():
            raise Cancelled
        if self._recogniser is None:
            raise self._failed or RpcError(ErrorCode.PLUGIN_FAILED, "The speech model is not loaded; see the log.")
        heard = self._recogniser.transcribe(bytes(session.pcm), session.hints, session.language)
        return Transcript(text=heard.text, confidence=heard.confidence, audio_ms=session.milliseconds)

    def cancel(self, params: SttSession) -> None:
        """Answer stt.cancel."""
        self._sessions.drop(params.session)

    def _load(self, settings: dict[str, object]) -> Recogniser:
        try:
            wanted = msgspec.convert(settings, Settings)
            path = find_model(wanted.model, self._env)
        except msgspec.ValidationError as error:
            raise RpcError(ErrorCode.PLUGIN_FAILED, f"The settings of the plugin whisper: {error}.") from error
        except ModelMissingError as error:
            raise RpcError(ErrorCode.PLUGIN_FAILED, str(error)) from error
        try:
            from .recogniser import Recogniser  # noqa: PLC0415 - numpy and faster-whisper, after the handshake

            return Recogniser(path, wanted.threads)
        except ImportError as error:
            raise RpcError(ErrorCode.PLUGIN_FAILED, f"{NEEDED}: {error}.") from error
        except (RuntimeError, ValueError, OSError) as error:
            raise RpcError(ErrorCode.PLUGIN_FAILED, f"The speech model in {path} cannot be loaded: {error}") from error


def build(env: Mapping[str, str] = os.environ) -> Plugin:
    """The plugin, ready to run."""
    plugin = Plugin("whisper", version=VERSION, kind="stt", provides=PROVIDES, permissions=PERMISSIONS)
    whisper = Whisper(plugin, env)
    plugin.on_start(blocking=_LANE)(whisper.load)
    plugin.method("stt.start")(whisper.start)
    plugin.notification("stt.feed")(whisper.feed)
    plugin.method("stt.finish", blocking=_LANE)(whisper.finish)
    plugin.method("stt.cancel")(whisper.cancel)
    return plugin
