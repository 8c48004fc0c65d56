"""Builds the voice room from the configuration: capture, hotkeys, cues, recogniser, controller.

Rules here: only wiring; audio libraries are loaded by what uses them, when it opens a device.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import trio

from utter_protocol.methods import HotkeysAsked, SpeakParams
from utter_runner.rpc.params import decode_params
from utter_runner.voice.alarm import FaultAlarm
from utter_runner.voice.announcer import Announcer
from utter_runner.voice.capture.capture import Capture
from utter_runner.voice.capture.microphones_only import MicrophonesOnly
from utter_runner.voice.capture.resample import wav_to_pcm
from utter_runner.voice.capture.source import NoSource
from utter_runner.voice.cues import LATENCY, CuePlayer
from utter_runner.voice.devices import list_devices
from utter_runner.voice.level import LevelMeter
from utter_runner.voice.media import PluginMedia
from utter_runner.voice.playback import Playback
from utter_runner.voice.players import CHECKING
from utter_runner.voice.plugin_keys import PluginKeys
from utter_runner.voice.recogniser import PluginRecogniser
from utter_runner.voice.session import VoiceController
from utter_runner.voice.settings import VoiceSettings
from utter_runner.voice.speaker import Speaker
from utter_runner.voice.speech_output import PlayerOutput
from utter_runner.voice.vad.silero import SileroActivity

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from msgspec import Raw

    from utter_protocol.kinds import SpeakResult
    from utter_protocol.methods import AudioDevices, AudioLevel, Transcript
    from utter_runner.actions.commands import Commands
    from utter_runner.config import AudioConfig, Config, HotkeysConfig, VoiceConfig
    from utter_runner.supervision.instance import Instance
    from utter_runner.supervision.supervisor import Supervisor
    from utter_runner.supervision.work import Work
    from utter_runner.voice.capture.source import AudioSource
    from utter_runner.voice.collaborators import Answers
    from utter_runner.voice.hotkeys import Bindings, HotkeyEvent, KeyWatch
    from utter_runner.voice.speaker import StreamOpener


_NO_HOTKEYS: dict[str, Any] = {
    "available": False,
    "devices": [],
    "detail": "Hotkeys are switched off: set [hotkeys] enabled = true, or bind `utter ptt` in your compositor.",
    "path": "none",
    "evdev": {"available": False, "detail": ""},
    "portal": {"state": "off", "available": False, "version": None, "bound": False, "triggers": {}, "detail": ""},
    "seen": {"evdev": None, "portal": None},
}


class VoiceError(Exception):
    """A setting of the voice room is wrong; the message names it."""


class Voice:
    """The voice room, ready to run.

    Attributes:
        controller: the spoken session.
        speaker: speaks texts.
        recogniser: speech to text; it must hear what plugins announce as `stt.final`.
        level: measures the microphone.
        microphone: what keeps it open.
        ring: the microphone's audio.
        wav_to_pcm: decodes a WAV file to the session's audio.
    """

    wav_to_pcm = staticmethod(wav_to_pcm)

    def __init__(
        self,
        config: Config,
        *,
        supervisor: Supervisor,
        commands: Commands,
        hints: Callable[[], list[str]],
        emit: Callable[[dict[str, Any]], None],
        on_transcript: Callable[[str, Transcript], object],
        on_level: Callable[[AudioLevel], object],
        open_stream: StreamOpener,
        timeout: float,
        environ: Mapping[str, str],
        answers: Answers | None = None,
    ) -> None:
        voice, audio = config.voice, config.audio
        self._config = config
        self._emit = emit
        self._environ = environ

        def warn(text: str) -> None:
            emit({"event": "warning", "text": text})

        self._capture = self.microphone = Capture(
            _source(audio),
            mode=audio.capture,
            on_event=self._on_audio,
            ring_seconds=float(audio.ring_seconds),
            open_seconds=voice.open_ms / 1000,
            stall_seconds=voice.stall_ms / 1000,
            silence_seconds=voice.zeros_ms / 1000,
        )
        self.ring = self._capture.ring
        # What the microphone and the loudspeaker were last set to.
        self._heard = (audio.source, audio.device, audio.wav_path)
        self._output = audio.output_device or ""
        self._playback = Playback(self._output, on_failure=warn)
        self.speaker = Speaker(
            supervisor, open_stream=open_stream, output=PlayerOutput(audio.output_device or ""), timeout=timeout
        )
        self._announcer = Announcer(self.speaker, voice.speak, emit)
        self.level = LevelMeter(self._capture, on_level)
        self.recogniser = PluginRecogniser(
            supervisor, hints=hints, language=voice.language, start_timeout=timeout, ring=self.ring
        )
        self._activity = SileroActivity(wanted=voice.vad == "auto")
        self.controller = VoiceController(
            feed=self._capture,
            recogniser=self.recogniser,
            commander=commands,
            cues=self._cues(audio),
            answers=answers,
            activity=self._activity if voice.vad == "auto" else None,
            emit=self._announcer.emit,
            media=PluginMedia(supervisor, warn=warn),
            pause_media=voice.pause_media,
            heard_until=self.speaker.heard_until,
            on_transcript=on_transcript,
            settings=_settings(voice, timeout),
        )
        self._fault_alarm = FaultAlarm(self.controller.alarm, emit)
        self._plugin_keys = PluginKeys(open_stream, self.controller)
        self._hotkeys = self._watcher(config.hotkeys)
        self._hotkeys_scope = trio.CancelScope()

    def _cues(self, audio: AudioConfig) -> CuePlayer:
        latency = LATENCY + (CHECKING if audio.output_device else 0)
        return CuePlayer(self._playback, enabled=audio.cues, latency=latency)

    def _watcher(self, hotkeys: HotkeysConfig) -> KeyWatch | None:
        return _hotkeys(hotkeys, self.controller, self._emit, self._environ) if hotkeys.enabled else None

    async def devices(self) -> AudioDevices:
        """What the configuration can name; see `list_devices`."""
        return await list_devices(self._config.audio)

    def reconfigure(self, config: Config, *, timeout: float, answers: Answers | None) -> None:
        """Go by another configuration: by its hotkeys at once, and by the rest as soon as no session is under way.

        A key that is held goes up by that.

        Raises:
            VoiceError: a hotkey is wrong, and nothing has changed.
        """
        before, self._config = self._config, config
        if config.hotkeys != before.hotkeys:
            try:
                self._hotkeys = self._watcher(config.hotkeys)
            except VoiceError:
                self._config = before
                raise
            self._hotkeys_scope.cancel()
        self.controller.between_sessions(partial(self._adopt, timeout, answers))

    def _adopt(self, timeout: float, answers: Answers | None) -> None:
        """Take over what is configured now."""
        voice, audio = self._config.voice, self._config.audio
        heard = (audio.source, audio.device, audio.wav_path)
        self._capture.reconfigure(
            _source(audio) if heard != self._heard else None,
            mode=audio.capture,
            open_seconds=voice.open_ms / 1000,
            stall_seconds=voice.stall_ms / 1000,
            silence_seconds=voice.zeros_ms / 1000,
        )
        self._heard = heard
        output = audio.output_device or ""
        if output != self._output:
            self._output = output
            self._playback.reconfigure(output)
        self.speaker.reconfigure(PlayerOutput(output), timeout=timeout)
        self._announcer.reconfigure(voice.speak)
        self.recogniser.reconfigure(language=voice.language, start_timeout=timeout)
        if (self._activity.status != "off") != (voice.vad == "auto"):
            self._activity = SileroActivity(wanted=voice.vad == "auto")
        self.controller.reconfigure(
            _settings(voice, timeout),
            cues=self._cues(audio),
            answers=answers,
            activity=self._activity if voice.vad == "auto" else None,
            pause_media=voice.pause_media,
        )

    async def run(self) -> None:
        """Run until cancelled."""
        async with trio.open_nursery() as nursery:
            await nursery.start(self._run_controller)
            nursery.start_soon(self._capture.run)
            nursery.start_soon(self._playback.run)
            nursery.start_soon(self._announcer.run)
            nursery.start_soon(self.level.run)
            nursery.start_soon(self._run_hotkeys)

    def _on_audio(self, event: dict[str, Any]) -> None:
        self._fault_alarm.emit(event, permanent=bool(self._capture.hopeless))

    async def _run_controller(self, task_status: trio.TaskStatus[None]) -> None:
        await self.controller.run(task_status=task_status)

    async def _run_hotkeys(self) -> None:
        """Watch the keys, by whatever is configured now."""
        while True:
            with trio.CancelScope() as self._hotkeys_scope:
                if self._hotkeys is None:
                    await trio.sleep_forever()
                else:
                    await self._hotkeys.run()
            status = self._hotkeys_status()
            # Ages are told to whoever asks; by themselves they are no event.
            self._emit({"event": "hotkeys", **{key: value for key, value in status.items() if key != "seen"}})

    async def speak_for(self, plugin: Instance, params: Raw, work: Work, timeout: float) -> SpeakResult:
        """Speak what another plugin asked `plugin` to. Raises RpcError."""
        wanted = decode_params(params, SpeakParams)
        return await self.speaker.speak(wanted.text, wanted.voice, timeout=timeout, instance=plugin, work=work)

    def admitted(self, instance: Instance) -> None:
        """A plugin is up."""
        self._plugin_keys.admitted(instance)

    def status(self, ptt_at: float | None) -> dict[str, Any]:
        """Return the parts `hotkeys`, `audio` and `voice` of `runner.status`; `ptt_at`: when a client was the key."""
        hotkeys = self._hotkeys_status()
        ptt = None if ptt_at is None else round(trio.current_time() - ptt_at, 1)
        return {
            "hotkeys": {**hotkeys, "seen": {**hotkeys["seen"], "ptt": ptt}},
            "audio": self._capture.status,
            "voice": {**self.controller.status(), "vad": self._activity.status},
        }

    def _hotkeys_status(self) -> dict[str, Any]:
        return self._hotkeys.status() if self._hotkeys else _NO_HOTKEYS

    def ask_desktop(self) -> HotkeysAsked:
        """Ask the desktop for the hotkeys' shortcuts, or to show its settings for them."""
        if self._hotkeys is None:
            return HotkeysAsked(asked=False, detail=_NO_HOTKEYS["detail"])
        return self._hotkeys.ask()

    def close(self) -> None:
        """Free the ring."""
        self._capture.close()


build_voice = Voice


def hotkey_bindings(config: HotkeysConfig) -> Bindings:
    """Return the chords of `[hotkeys]`.

    Raises:
        VoiceError: one is wrong.
    """
    # Loads the table of keys, which is wanted only here.
    from utter_runner.voice.hotkeys import Bindings, HotkeyError  # noqa: PLC0415 - as said

    try:
        return Bindings.parse(push_to_talk=config.push_to_talk, toggle=config.toggle, cancel=config.cancel)
    except HotkeyError as error:
        raise VoiceError(f"[hotkeys] {error}") from None


def _hotkeys(
    config: HotkeysConfig,
    controller: VoiceController,
    emit: Callable[[dict[str, Any]], None],
    environ: Mapping[str, str],
) -> KeyWatch:
    from utter_runner.voice.hotkeys import (  # noqa: PLC0415 - only what is configured
        BusPortal,
        Cancel,
        KernelBackend,
        KeyWatch,
        Press,
        Release,
        Toggle,
    )

    act: dict[type[HotkeyEvent], Callable[[], object]] = {
        Press: controller.press,
        Release: controller.release,
        Toggle: controller.toggle,
        Cancel: controller.cancel,
    }

    def on_event(event: HotkeyEvent) -> None:
        act[type(event)]()

    return KeyWatch(
        hotkey_bindings(config),
        KernelBackend(),
        None if config.portal == "off" else BusPortal(environ),
        on_event,
        always=config.portal == "always",
        on_status=lambda status: emit({"event": "hotkeys", **status}),
        only=config.devices,
        ignore=config.ignore_devices,
    )


def _settings(voice: VoiceConfig, timeout: float) -> VoiceSettings:
    return VoiceSettings(
        pre_roll_ms=voice.pre_roll_ms,
        post_roll_ms=voice.post_roll_ms,
        tap_ms=voice.tap_ms,
        tap=voice.tap,
        max_ms=voice.max_ms,
        silence_ms=voice.silence_ms,
        no_speech_ms=voice.no_speech_ms,
        stall_ms=voice.stall_ms,
        stt_timeout_ms=round(timeout * 1000),
    )


def _source(audio: AudioConfig) -> AudioSource:
    if audio.source == "sounddevice":
        from utter_runner.voice.capture.portaudio import PortAudioSource  # noqa: PLC0415 - only what is configured

        return PortAudioSource(audio.device) if audio.device else MicrophonesOnly(PortAudioSource())
    if audio.source == "pw-record":
        from utter_runner.voice.capture.pw_record import PwRecordSource  # noqa: PLC0415 - as above

        return PwRecordSource(audio.device) if audio.device else MicrophonesOnly(PwRecordSource())
    if audio.source == "wav":
        from utter_runner.voice.capture.wav import WavSource  # noqa: PLC0415 - as above

        if audio.wav_path is None:
            raise VoiceError('[audio] source = "wav" needs wav_path.')
        return WavSource(audio.wav_path)
    return NoSource('[audio] source is "none". Set it to "sounddevice" to use a microphone.')
