"""The voice room goes by another configuration: hotkeys at once, the rest between two sessions."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
import trio
import trio.testing

from utter_runner.config import AudioConfig, Config, HotkeysConfig, VoiceConfig
from utter_runner.supervision.fake import FakeSupervisor
from utter_runner.voice import build
from utter_runner.voice.build import Voice, VoiceError
from utter_runner.voice.capture.fake import FakeSource
from utter_runner.voice.hotkeys.fake import FakeBackend, FakeKeyboard
from utter_runner.voice.recogniser import PluginRecogniser
from utter_runner.voice.settings import VoiceSettings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from utter_runner.voice.recogniser import PluginStream

F13, F14 = 183, 184
KEYS = HotkeysConfig(push_to_talk="F13", cancel="")
QUIET = Config(audio=AudioConfig(capture="on-demand", cues=False), hotkeys=KEYS, voice=VoiceConfig(vad="off"))


class PatientRecogniser(PluginRecogniser):
    """A recogniser that never gets round to it, so that a session goes on until it is given up."""

    async def start(self, session: str, hints: Sequence[str] | None = None) -> PluginStream:  # noqa: ARG002 - its interface
        await trio.sleep_forever()
        raise AssertionError


class House:
    """A voice room with a keyboard and microphones that are fakes."""

    def __init__(self, config: Config, patch: pytest.MonkeyPatch) -> None:
        self.keyboard = FakeKeyboard("a keyboard")
        self.sources: list[FakeSource] = []
        self.events: list[dict[str, Any]] = []
        self._changed = trio.Event()
        patch.setattr(build, "_source", self._source)
        patch.setattr(build, "PluginRecogniser", PatientRecogniser)
        patch.setattr("utter_runner.voice.hotkeys.KernelBackend", self._backend)
        anything: Any = None
        self.voice = Voice(
            config,
            supervisor=FakeSupervisor(),  # type: ignore[arg-type] # the fake that the room ships
            commands=anything,
            hints=list,
            emit=self._emit,
            on_transcript=lambda *_: None,
            on_level=lambda _: None,
            open_stream=anything,
            timeout=1.0,
            environ={},
        )

    def _source(self, _audio: AudioConfig) -> FakeSource:
        self.sources.append(FakeSource())
        return self.sources[-1]

    def _backend(self) -> FakeBackend:
        backend = FakeBackend()
        backend.plug("/dev/input/event0", self.keyboard)
        return backend

    def _emit(self, event: dict[str, Any]) -> None:
        self.events.append(event)
        self._changed.set()
        self._changed = trio.Event()

    async def until(self, **wanted: Any) -> None:
        """Wait for an event that has these members."""
        with trio.fail_after(30):
            while not (found := [event for event in self.events if wanted.items() <= event.items()]):
                await self._changed.wait()
        # Others come in any order.
        self.events.remove(found[0])

    def adopt(self, config: Config) -> None:
        self.voice.reconfigure(config, timeout=1.0, answers=None)


@asynccontextmanager
async def running(patch: pytest.MonkeyPatch, config: Config = QUIET) -> AsyncIterator[House]:
    house = House(config, patch)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(house.voice.run)
        await house.until(event="hotkeys", available=True)
        yield house
        nursery.cancel_scope.cancel()
    house.voice.close()


def test_every_number_of_a_session_comes_from_the_configuration() -> None:
    voice = VoiceConfig(
        pre_roll_ms=1,
        post_roll_ms=2,
        tap_ms=3,
        tap="toggle",
        max_ms=4_000,
        silence_ms=500,
        no_speech_ms=6_001,
        stall_ms=7_000,
    )
    settings = asdict(build._settings(voice, 8.0))
    given = {name: getattr(voice, name) for name in settings if name in VoiceConfig.__struct_fields__}
    assert given == {name: settings[name] for name in given}
    usual = asdict(VoiceSettings())
    assert [name for name in given if given[name] == usual[name]] == []
    assert settings["stt_timeout_ms"] == 8_000


async def test_another_key_holds_at_once_and_a_held_one_goes_up(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(monkeypatch) as house:
        house.keyboard.press(F13)
        await house.until(event="session", state="listening")
        other = msgspec.structs.replace(QUIET, hotkeys=HotkeysConfig(push_to_talk="F14", cancel=""))
        house.adopt(other)
        await house.until(event="hotkeys", available=True)
        await house.until(event="report")
        house.keyboard.release(F13)
        await trio.testing.wait_all_tasks_blocked()
        house.keyboard.press(F13)
        house.keyboard.release(F13)
        house.keyboard.press(F14)
        await house.until(event="session", state="listening")
        assert house.voice.controller.status()["state"] == "listening"


async def test_hotkeys_can_be_switched_off_and_on(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(monkeypatch) as house:
        house.adopt(msgspec.structs.replace(QUIET, hotkeys=HotkeysConfig(enabled=False)))
        await house.until(event="hotkeys", detail=build._NO_HOTKEYS["detail"])
        assert house.voice.status(None)["hotkeys"]["available"] is False
        house.adopt(QUIET)
        await house.until(event="hotkeys", available=True)
        house.keyboard.press(F13)
        await house.until(event="session", state="listening")


async def test_a_key_that_is_wrong_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(monkeypatch) as house:
        wrong = msgspec.structs.replace(
            QUIET, hotkeys=HotkeysConfig(push_to_talk="F99"), audio=AudioConfig(device="other")
        )
        with pytest.raises(VoiceError, match="F99"):
            house.adopt(wrong)
        await trio.testing.wait_all_tasks_blocked()
        assert len(house.sources) == 1
        house.keyboard.press(F13)
        await house.until(event="session", state="listening")
        # And what comes next is compared with what holds.
        house.adopt(QUIET)
        assert house.voice.controller.status()["state"] == "listening"


async def test_a_session_that_records_is_not_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(monkeypatch) as house:
        controller = house.voice.controller
        controller.press()
        await house.until(event="audio", state="open")
        other = msgspec.structs.replace(
            QUIET,
            audio=msgspec.structs.replace(QUIET.audio, device="other", capture="always"),
            voice=msgspec.structs.replace(QUIET.voice, pre_roll_ms=7, pause_media=False, language="de"),
        )
        house.adopt(other)
        house.adopt(other)
        await trio.testing.wait_all_tasks_blocked()
        (first,) = house.sources
        assert first.is_open
        assert (controller._settings.pre_roll_ms, controller._quiet.wanted) == (300, True)
        controller.cancel()
        # Nothing of it is under way any more: now it is taken over.
        await house.until(event="audio", state="open")
        assert [one.is_open for one in house.sources] == [False, True]
        assert (controller._settings.pre_roll_ms, controller._quiet.wanted) == (7, False)
        assert house.voice.recogniser._language == "de"
        assert house.voice.status(None)["audio"]["capture"] == "always"


async def test_what_is_the_same_opens_no_other_microphone(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(monkeypatch) as house:
        for language in ("de", "fr"):
            house.adopt(msgspec.structs.replace(QUIET, voice=VoiceConfig(vad="off", language=language)))
        assert len(house.sources) == 1
        house.adopt(msgspec.structs.replace(QUIET, voice=VoiceConfig(vad="auto")))
        assert house.voice.status(None)["voice"]["vad"] != "off"
        house.adopt(QUIET)
        assert house.voice.status(None)["voice"]["vad"] == "off"
