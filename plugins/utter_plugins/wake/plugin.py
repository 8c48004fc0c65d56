"""The plugin on the wire: settings, the stream `input.keys`, health.

Rules here: the stream's thread is the one that listens, so that it ends with the stream; the models are loaded there,
too. A wake word is the key `listen`, which begins to listen and ends nothing.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from utter_protocol.errors import ErrorCode, RpcError
from utter_protocol.kinds import KeyItem
from utter_sdk import Plugin, Stream
from utter_sdk.microphone import MicrophoneClosed, RingError

from .models import RATE, Frontend, WordError, find_words, load_words

if TYPE_CHECKING:
    from .detector import Heard
    from .listening import Microphone

KEYS = "input.keys"
DEFAULT_WORD = "okay_nabu"
"""Of the models that ship, the one that is heard well and the least often when nobody said it (tests/bench/wake.py)."""

_Word = Annotated[str, msgspec.Meta(min_length=1)]


class Settings(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The plugin's table in the runner's config.

    Attributes:
        words: names of words whose models ship with the extra, or paths.
        cutoff: how sure to be; None is each model's own.
        refractory_ms: for how long after a word no other is heard.
    """

    words: Annotated[list[_Word], msgspec.Meta(min_length=1, max_length=8)] = msgspec.field(
        default_factory=lambda: [DEFAULT_WORD]
    )
    cutoff: Annotated[float, msgspec.Meta(ge=0.5, le=0.99)] | None = None
    refractory_ms: Annotated[int, msgspec.Meta(ge=1_000, le=60_000)] = 2_000


class Wake:
    """What the plugin does.

    Args:
        plugin: whose wire it is.
    """

    def __init__(self, plugin: Plugin) -> None:
        self._plugin = plugin
        self._settings = Settings()

    def start(self, settings: Settings) -> None:
        """Keep the settings.

        Raises:
            RpcError: a word is missing, or the package.
        """
        self._settings = settings
        try:
            find_words(settings.words)
        except WordError as error:
            raise RpcError(ErrorCode.PLUGIN_FAILED, str(error)) from error

    def keys(self, _params: dict[str, Any], stream: Stream) -> None:
        """Listen for as long as the stream is open.

        Raises:
            RpcError: a model is missing or broken, or the microphone may not be heard.
        """
        try:
            with self._plugin.microphone() as microphone:
                self._listen(microphone, stream)
        except MicrophoneClosed:
            # The runner has gone, and nobody is left who could be told.
            return
        except (WordError, RingError) as error:
            self._plugin.health("degraded", str(error))
            raise RpcError(ErrorCode.PLUGIN_FAILED, str(error)) from error
        except RpcError as error:
            self._plugin.health("degraded", error.message)
            raise

    def _listen(self, microphone: Microphone, stream: Stream) -> None:
        words = load_words(self._settings.words, self._settings.cutoff)
        from .detector import Detector  # noqa: PLC0415 - numpy, after the handshake
        from .listening import CLOSED, Listening  # noqa: PLC0415 - as above

        def heard(word: Heard) -> None:
            since = (word.noticed - word.ended) * 1000 // RATE
            self._plugin.log(f"heard {word.word} ({word.probability:.2f}); what was said {since} ms ago follows it")
            stream.send(KeyItem(key="listen", pressed=True, at=word.ended))

        refractory = self._settings.refractory_ms * RATE // 1000
        detector = Detector(words, Frontend(), refractory)
        health = self._plugin.health
        listening = Listening(
            microphone,
            detector,
            on_word=heard,
            on_closed=partial(health, "degraded", CLOSED),
            on_open=partial(health, "ok"),
            log=self._plugin.log,
        )
        health("ok")
        self._plugin.log(f"listening for {', '.join(word.name for word in words)}")
        listening.run()


def build() -> Plugin:
    """The plugin, ready to run."""
    plugin = Plugin(
        "wake",
        version="0.1.0",
        kind="input",
        provides=["input.keys@1"],
        requires=["host.audio.ringbuffer@1"],
        permissions=["microphone"],
    )
    wake = Wake(plugin)
    plugin.on_start(wake.start)
    plugin.stream(KEYS, mode="reliable")(wake.keys)
    return plugin
