"""The schemas in the shipped manifests say what the plugins themselves say of their settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

import utter_plugins
from utter_plugins.commands.teaching import Settings as CommandsSettings
from utter_plugins.desktop.ops import Settings as DesktopSettings
from utter_plugins.espeak.service import Settings as EspeakSettings
from utter_plugins.llm.settings import Settings as LlmSettings
from utter_plugins.wake.plugin import Settings as WakeSettings
from utter_plugins.whisper.plugin import Settings as WhisperSettings
from utter_protocol.manifest import load_manifest
from utter_protocol.settings import wrong_settings

SETTINGS: dict[str, type[msgspec.Struct]] = {
    "commands": CommandsSettings,
    "desktop": DesktopSettings,
    "espeak": EspeakSettings,
    "llm": LlmSettings,
    "wake": WakeSettings,
    "whisper": WhisperSettings,
}
GOOD: list[tuple[str, dict[str, Any]]] = [
    ("commands", {"phrases": "~/p.toml"}),
    ("commands", {"phrases": ["a.toml", "b.toml"], "lists": {"lamp": ["desk"]}}),
    ("commands", {"phrase": [{"say": ["a", "b"], "op": "media", "args": {"command": "stop"}, "confirm": True}]}),
    ("commands", {"phrase": [{"say": "a", "steps": [{"op": "media"}, {"op": "volume", "args": {}}]}]}),
    ("commands", {"site": [{"name": "wiki", "url": "https://wiki.example/", "say": ["my wiki"]}]}),
    ("commands", {"use_llm": True, "llm_min_probability": 1, "llm_timeout_ms": 20_000}),
    ("desktop", {"dry_run": True, "opener": ["firefox", "--new-tab"], "terminal": []}),
    ("espeak", {"voice": "en-gb+f3", "rate": 80, "volume": 200, "output": "none"}),
    ("espeak", {"voice": "mb/mb-de4"}),
    ("espeak", {"output": "play"}),
    ("llm", {"base_url": "https://llm.example/v1", "model": "qwen", "timeout_s": 0.5, "request": {"top_k": 1}}),
    ("llm", {"api_key_env": "LLM_KEY"}),
    ("llm", {"api_key": "sk-one"}),
    ("wake", {"words": ["alexa", "~/models/computer.json"], "cutoff": 0.5, "refractory_ms": 60_000}),
    ("whisper", {"model": "~/models/small.en", "threads": 4}),
]
BAD: list[tuple[str, dict[str, Any]]] = [
    ("commands", {"phrases": 3}),
    ("commands", {"phrases": [3]}),
    ("commands", {"phrase": "open"}),
    ("commands", {"lists": []}),
    ("commands", {"use_llm": 1}),
    ("commands", {"llm_min_probability": 1.01}),
    ("commands", {"llm_timeout_ms": 99}),
    ("desktop", {"dry_run": "yes"}),
    ("desktop", {"opener": []}),
    ("desktop", {"opener": [""]}),
    ("desktop", {"terminal": "foot"}),
    ("espeak", {"voice": "--help"}),
    ("espeak", {"voice": "en\n"}),
    ("espeak", {"voice": ""}),
    ("espeak", {"rate": 79}),
    ("espeak", {"rate": 450.5}),
    ("espeak", {"volume": 201}),
    ("espeak", {"output": "file"}),
    ("llm", {"base_url": ""}),
    ("llm", {"api_secret": "secret"}),
    ("llm", {"api_key": 3}),
    ("llm", {"api_key": "k" * 4097}),
    ("llm", {"api_key_env": "A-B"}),
    ("llm", {"timeout_s": 0}),
    ("llm", {"timeout_s": 61}),
    ("llm", {"temperature": 2.1}),
    ("llm", {"max_tokens": 0}),
    ("wake", {"words": "alexa"}),
    ("wake", {"words": []}),
    ("wake", {"words": [""]}),
    ("wake", {"words": ["alexa"] * 9}),
    ("wake", {"cutoff": 0.49}),
    ("wake", {"cutoff": 1}),
    ("wake", {"refractory_ms": 999}),
    ("wake", {"refractory_ms": 60_001}),
    ("whisper", {"model": 3}),
    ("whisper", {"threads": 0}),
]


def schema(plugin: str) -> dict[str, Any]:
    return load_manifest(Path(utter_plugins.__path__[0], plugin, "utter-plugin.toml")).config_schema


def test_no_shipped_plugin_is_left_out() -> None:
    assert {path.parent.name for path in Path(utter_plugins.__path__[0]).glob("*/utter-plugin.toml")} == set(SETTINGS)


@pytest.mark.parametrize("plugin", SETTINGS)
def test_they_know_the_same_settings(plugin: str) -> None:
    assert set(schema(plugin)["properties"]) == set(SETTINGS[plugin].__struct_fields__)
    for unknown in ({"nothing_of_that_name": 1}, {"nothing_of_that_name": None}):
        assert wrong_settings(schema(plugin), unknown)
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert(unknown, SETTINGS[plugin])


@pytest.mark.parametrize("plugin", SETTINGS)
def test_the_defaults_are_the_plugins(plugin: str) -> None:
    own = msgspec.to_builtins(SETTINGS[plugin]())
    for name, described in schema(plugin)["properties"].items():
        assert described["description"], name
        if "default" in described:
            assert described["default"] == own[name]


@pytest.mark.parametrize(("plugin", "settings"), GOOD)
def test_what_the_plugin_takes_fits(plugin: str, settings: dict[str, Any]) -> None:
    msgspec.convert(settings, SETTINGS[plugin])
    assert wrong_settings(schema(plugin), settings) == []


@pytest.mark.parametrize(("plugin", "settings"), BAD)
def test_what_the_plugin_refuses_does_not(plugin: str, settings: dict[str, Any]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(settings, SETTINGS[plugin])
    assert wrong_settings(schema(plugin), settings)


def test_phrases_in_the_settings_are_looked_into() -> None:
    phrase = {"sya": "open", "steps": [{"op": 3}]}
    assert {one.key for one in wrong_settings(schema("commands"), {"phrase": [phrase], "site": [{"name": "x"}]})} == {
        ("phrase", 0, "sya"),
        ("phrase", 0, "say"),
        ("phrase", 0, "steps", 0, "op"),
        ("site", 0, "url"),
    }
