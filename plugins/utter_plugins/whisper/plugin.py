"""The whisper plugin on the wire: stt.start, stt.feed, stt.finish, stt.cancel, and stt.partial.

Rules here: audio is taken on the reading thread, out of the ring too, and transcribed on the worker lane, where the
model is loaded first; so feeding never waits, requests wait for the model, and health is answered in between. What is
transcribed before stt.finish is so on a thread of its own, which `Scribe` keeps out of the lane's way.
"""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec

from utter_protocol.errors import ErrorCode, RpcError
from utter_protocol.kinds import SttPartial
from utter_protocol.methods import SttFeedParams, SttSession, SttStartParams, SttStartResult, Transcript
from utter_sdk import Cancelled, Plugin

from .bias import Hints
from .ear import Ear
from .models import ModelMissingError, find_model
from .sessions import Sessions

if TYPE_CHECKING:
    from collections.abc import Mapping

    from utter_sdk.plugin import Transport

    from .recogniser import Recogniser
    from .scribe import Scribe
    from .sessions import Session

VERSION = "0.1.0"
PROVIDES = ("stt.transcribe@1", "stt.partial@1")
PERMISSIONS = ("files.read", "microphone")
PARTIAL = "stt.partial"
NEEDED = "Install the extra utter-runner[whisper] (faster-whisper, numpy) for the runner's Python"
_LANE = "model"
_SOCKET = "UTTER_PLUGIN_SOCKET"


class Settings(msgspec.Struct, forbid_unknown_fields=True):
    """The plugin's settings.

    Attributes:
        model: as `find_model` takes it.
        threads: how many CPU threads to use.
        partials: whether to transcribe while the speaker pauses.
    """

    model: str | None = None
    threads: Annotated[int, msgspec.Meta(ge=1)] | None = None
    partials: bool = True


class Whisper:
    """The sessions and the model."""

    def __init__(self, plugin: Plugin, env: Mapping[str, str]) -> None:
        self._plugin = plugin
        self._env = env
        self._ear = Ear(plugin)
        self._sessions = Sessions(self._ear.read, self._forget)
        self._hints = (tuple[str, ...](), Hints(()))
        self._recogniser: Recogniser | None = None
        self._scribe: Scribe | None = None
        self._failed: RpcError | None = None

    def listen(self) -> None:
        """Get the audio ring, if it is to be had."""
        self._ear.open()

    def load(self, settings: dict[str, object]) -> None:
        """Load the model.

        Raises:
            RpcError: the settings are wrong, or the package or the model is missing or broken.
        """
        self._plugin.health("degraded", "The speech model is being loaded.")
        try:
            wanted = _settings(settings)
            self._recogniser = recogniser = self._load(wanted)
        except RpcError as error:
            # For the requests that are waiting already.
            self._failed = error
            raise
        from .scribe import Scribe  # noqa: PLC0415 - it needs numpy, which is there now

        self._scribe = scribe = Scribe(recogniser, self._tell, log=self._plugin.log, partials=wanted.partials)
        if wanted.partials:
            threading.Thread(target=scribe.run, name="utter-partials", daemon=True).start()
        # What came while the model was being loaded does not come again.
        for name, session in self._sessions.all():
            scribe.fed(name, session)
            if name not in self._sessions:
                scribe.drop(name)
        self._plugin.health("ok")

    def start(self, params: SttStartParams) -> SttStartResult:
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
        return SttStartResult(ring=self._ear.ready())

    def feed(self, params: SttFeedParams) -> None:
        """Take stt.feed."""
        session = self._sessions.feed(params)
        if self._scribe is not None:
            self._scribe.fed(params.session, session)

    def finish(self, params: SttSession) -> Transcript:
        """Answer stt.finish."""
        try:
            session = self._taken(params)
        except BaseException:
            self._forget(params.session)
            raise
        if self._scribe is None:
            raise self._failed or RpcError(ErrorCode.PLUGIN_FAILED, "The speech model is not loaded; see the log.")
        heard = self._scribe.finish(params.session, session)
        return Transcript(text=heard.text, confidence=heard.confidence, audio_ms=session.milliseconds)

    def _taken(self, params: SttSession) -> Session:
        session = self._sessions.take(params.session)
        if session.gaps:
            self._plugin.log(f"session {params.session}: {session.gaps} pieces of audio are missing")
        if session.truncated:
            self._plugin.log(f"session {params.session}: what came after 60 s was dropped")
        if self._plugin.cancelled():
            raise Cancelled
        return session

    def cancel(self, params: SttSession) -> None:
        """Answer stt.cancel."""
        self._sessions.drop(params.session)
        self._forget(params.session)

    def _forget(self, session: str) -> None:
        if self._scribe is not None:
            self._scribe.drop(session)

    def _tell(self, session: str, text: str) -> None:
        # When the runner has gone, there is nobody to tell.
        with suppress(RuntimeError):
            self._plugin.notify(PARTIAL, SttPartial(session=session, text=text))

    def _load(self, wanted: Settings) -> Recogniser:
        try:
            path = find_model(wanted.model, self._env)
        except ModelMissingError as error:
            raise RpcError(ErrorCode.PLUGIN_FAILED, str(error)) from error
        try:
            from .recogniser import Recogniser  # noqa: PLC0415 - numpy and faster-whisper, after the handshake

            return Recogniser(path, wanted.threads)
        except ImportError as error:
            raise RpcError(ErrorCode.PLUGIN_FAILED, f"{NEEDED}: {error}.") from error
        except (RuntimeError, ValueError, OSError) as error:
            raise RpcError(ErrorCode.PLUGIN_FAILED, f"The speech model in {path} cannot be loaded: {error}") from error


def _settings(settings: dict[str, object]) -> Settings:
    try:
        return msgspec.convert(settings, Settings)
    except msgspec.ValidationError as error:
        raise RpcError(ErrorCode.PLUGIN_FAILED, f"The settings of the plugin whisper: {error}.") from error


def _transport(env: Mapping[str, str]) -> Transport:
    """How the runner that started this process talks to it: it names a socket, and for `connect` has made it."""
    path = env.get(_SOCKET)
    if not path:
        return "stdio"
    return "connect" if Path(path).is_socket() else "listen"


def build(env: Mapping[str, str] = os.environ) -> Plugin:
    """The plugin, ready to run."""
    plugin = Plugin(
        "whisper",
        version=VERSION,
        kind="stt",
        provides=PROVIDES,
        permissions=PERMISSIONS,
        streams=[PARTIAL],
        transport=_transport(env),
    )
    whisper = Whisper(plugin, env)
    plugin.on_start(blocking="ring")(whisper.listen)
    plugin.on_start(blocking=_LANE)(whisper.load)
    plugin.method("stt.start")(whisper.start)
    plugin.notification("stt.feed")(whisper.feed)
    plugin.method("stt.finish", blocking=_LANE)(whisper.finish)
    plugin.method("stt.cancel")(whisper.cancel)
    return plugin
