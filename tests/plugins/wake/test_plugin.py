"""The plugin on the wire."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from support.microphone import RATE, SPEECH, WORDS, ScriptedMicrophone, Silent, pause, recording
from utter_plugins.wake import models
from utter_plugins.wake.listening import CLOSED, CLOSED_S
from utter_plugins.wake.plugin import build
from utter_protocol.errors import ErrorCode, RpcError
from utter_protocol.ring import RingLayout
from utter_sdk.testing import PluginHarness

if TYPE_CHECKING:
    from utter_sdk import Plugin

WORD = recording(WORDS / "okay_nabu.wav")
COMMAND = recording(SPEECH / "recorded_next.wav")


def hears(*steps: object, **how: Any) -> tuple[Plugin, ScriptedMicrophone]:
    """The plugin, with a microphone in place of the runner's."""
    plugin, microphone = build(), ScriptedMicrophone(steps, **how)
    plugin.microphone = lambda: microphone  # type: ignore[assignment,method-assign,return-value]  # for all that it asks
    return plugin, microphone


def until_closed(harness: PluginHarness) -> tuple[list[dict[str, Any]], str]:
    """The keys, and why there are no more."""
    with harness.subscribe("input.keys") as stream:
        reason = stream.wait_closed(60)
        keys = []
        while (item := stream.next_item(0)) is not None:
            keys.append(item.data)
    return keys, reason


def test_it_is_an_input_plugin_that_hears_the_microphone() -> None:
    with PluginHarness(build()) as harness:
        assert harness.hello.plugin.kind == "input"
        assert harness.hello.provides == ["input.keys@1"]
        assert harness.hello.requires == ["host.audio.ringbuffer@1"]
        assert harness.hello.permissions == ["microphone"]
        assert harness.description.streams == ["input.keys"]
        assert harness.health.status == "ok"


def test_a_word_is_a_key_that_begins_to_listen_at_its_end() -> None:
    start = 5_000_000
    plugin, microphone = hears(pause(1), WORD, pause(0.2), COMMAND, pause(1), start=start)
    with PluginHarness(plugin) as harness:
        (key,), reason = until_closed(harness)
    ended = start + RATE + len(WORD)
    assert ended - 800 <= key.pop("at") <= ended + round(0.25 * RATE)
    assert key == {"key": "listen", "pressed": True}
    assert reason == "end"
    assert microphone.closed


def test_without_a_word_there_is_no_key() -> None:
    plugin, _ = hears(pause(1), COMMAND, pause(1))
    with PluginHarness(plugin) as harness:
        assert until_closed(harness) == ([], "end")


@pytest.mark.parametrize(("refractory_ms", "keys"), [(1_000, 3), (3_000, 2), (60_000, 1)])
def test_a_word_is_not_heard_again_at_once(refractory_ms: int, keys: int) -> None:
    plugin, _ = hears(pause(1), *[WORD, pause(1.2)] * 3)
    with PluginHarness(plugin, settings={"refractory_ms": refractory_ms}) as harness:
        assert len(until_closed(harness)[0]) == keys


def test_the_word_and_how_sure_to_be_are_settings() -> None:
    for words, keys in ((["alexa"], 0), (["alexa", "okay_nabu"], 1)):
        plugin, _ = hears(pause(1), WORD, pause(1))
        with PluginHarness(plugin, settings={"words": words}) as harness:
            assert len(until_closed(harness)[0]) == keys


def test_a_closed_microphone_is_told_as_ill_health_until_it_is_open() -> None:
    opened = [pause(1, seed) for seed in range(round(CLOSED_S) + 1)]
    plugin, _ = hears(Silent, *opened)
    with PluginHarness(plugin) as harness:
        until_closed(harness)
        assert harness.notification("plugin.health_changed", 0) == {"status": "degraded", "detail": CLOSED}
        assert harness.notification("plugin.health_changed", 0) == {"status": "ok", "detail": ""}


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"words": ["computer"]}, "no wake word 'computer'. There are alexa, hey_jarvis, hey_mycroft, okay_nabu"),
        ({"words": ["./nothing.json"]}, "no file nothing.json"),
        ({"words": []}, "words"),
        ({"cutoff": 0.4}, "cutoff"),
        ({"word": "alexa"}, "word"),
    ],
)
def test_settings_that_are_wrong_are_said_to_be(settings: dict[str, Any], expected: str) -> None:
    plugin, microphone = hears()
    with PluginHarness(plugin, settings=settings) as harness:
        assert harness.health.status == "degraded"
        assert expected in harness.health.detail
        with pytest.raises(RpcError) as caught:
            harness.subscribe("input.keys")
        assert expected in caught.value.message
    assert microphone.waits == []


def test_without_the_package_it_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "find_spec", lambda _name: None)
    plugin, _ = hears()
    with PluginHarness(plugin) as harness:
        assert "Install the extra utter-runner[wake]" in harness.health.detail


def test_a_microphone_that_it_may_not_hear_is_ill_health() -> None:
    plugin = build()
    refused = RpcError(ErrorCode.NOT_PERMITTED, "wake lacks the permission microphone")

    def refuse(_params: object) -> None:
        raise refused

    with PluginHarness(plugin, host={"fd.pass": refuse}) as harness:
        assert until_closed(harness) == ([], refused.message)
        changed = harness.notification("plugin.health_changed", 0)
        assert changed == {"status": "degraded", "detail": refused.message}


def test_a_microphone_that_it_cannot_use_is_ill_health() -> None:
    plugin, microphone = hears(layout=RingLayout(rate=48_000, channels=2, capacity=10))
    with PluginHarness(plugin) as harness:
        _, reason = until_closed(harness)
        assert "2 channels at 48000 Hz" in reason
        assert [harness.notification("plugin.health_changed", 0)["detail"]] == [reason]
    assert microphone.closed


def test_a_model_that_is_none_is_ill_health(tmp_path: Any) -> None:
    path = tmp_path / "computer.json"
    path.write_text("{}")
    plugin, _ = hears()
    with PluginHarness(plugin, settings={"words": [str(path)]}) as harness:
        assert harness.health.status == "ok"
        _, reason = until_closed(harness)
        assert "does not describe a wake word model" in reason
        assert harness.notification("plugin.health_changed", 0)["status"] == "degraded"
