from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import inspect

from utter_runner.config import Config, PluginConfig
from utter_runner.config.effective import (
    BadKey,
    Effective,
    effective,
    is_secret,
    kind_of,
    parse_name,
    path_of,
    takes_text,
)
from utter_runner.config.load import fields_of, sections

EXAMPLE = Path(__file__).parents[2] / "config.example.toml"
SCHEMA = {
    "properties": {
        "model": {"type": "string"},
        "threads": {"type": "integer"},
        "api_key": {"type": "string", "writeOnly": True},
        "nested": {"properties": {"key": {"writeOnly": True}}},
    }
}


def described(text: str, schema: dict[str, Any] | None = None) -> Effective:
    return effective(tomllib.loads(text), text, lambda _table: schema or {})


def values(text: str, schema: dict[str, Any] | None = None) -> dict[str, Any]:
    return {".".join(one.name): one.shown for one in described(text, schema).settings}


def test_an_empty_file_has_every_key_with_its_default() -> None:
    found = {one.name: one for one in described("").settings}
    config = Config()
    for section, struct in sections().items():
        if section in {"plugin", "socket"}:
            continue
        for name in fields_of(struct):
            one = found[section, name]
            assert (one.value, one.line, one.secret) == (getattr(getattr(config, section), name), None, False)
    assert not any(name[0] == "plugin" for name in found)


def test_the_example_says_where_each_key_stands() -> None:
    text = EXAMPLE.read_text()
    lines = text.split("\n")
    found = described(text)
    assert found.unknown == []
    for one in found.settings:
        if one.line is not None:
            assert lines[one.line - 1].startswith(one.name[-1])
    assert {one.name[1] for one in found.settings if one.name[0] == "plugin"} == {
        "commands",
        "whisper",
        "desktop",
        "espeak",
    }
    wanted = {("plugin", "whisper", name) for name in fields_of(PluginConfig)}
    assert wanted <= {one.name for one in found.settings}


def test_what_may_be_secret_is_masked() -> None:
    text = """
[socket]
token = "0123456789abcdef0123"
[[plugin]]
id = "one"
secret_env = { KEY = "file:~/key" }
[plugin.env]
NAME = "value"
[plugin.settings]
model = "small"
threads = 4
api_key = "0123456789"
other = "who knows"
nested = { key = "deep" }
[[plugin]]
id = "two"
[plugin.settings]
api_key = "env:NAME"
"""
    shown = values(text, SCHEMA)
    assert shown["socket.token"] == "..."
    assert shown["plugin.one.secret_env.KEY"] == "file:~/key"
    assert shown["plugin.one.env.NAME"] == "..."
    assert shown["plugin.one.settings.model"] == "small"
    assert shown["plugin.one.settings.threads"] == 4
    assert shown["plugin.one.settings.api_key"] == "..."
    assert shown["plugin.one.settings.other"] == "..."
    assert shown["plugin.one.settings.nested"] == "..."
    assert shown["plugin.two.settings.api_key"] == "env:NAME"
    without = values(text)
    assert without["plugin.one.settings.model"] == "..."
    assert without["plugin.one.settings.threads"] == 4


def test_unknown_keys_are_found_and_the_rest_is_described() -> None:
    found = described(
        '[audioo]\na = 1\n[voice]\nlang = "en"\nlanguage = 5\n[[plugin]]\nid = "x"\nkinds = 1\n[policy.ops.y]\nz = 1\n'
    )
    assert found.unknown == [
        (("audioo",), 1),
        (("policy", "ops", "y", "z"), 10),
        (("plugin", "x", "kinds"), 8),
        (("voice", "lang"), 4),
    ]
    assert next(one for one in found.settings if one.name == ("voice", "language")).value == 5


def test_what_is_no_table_does_not_confuse_it() -> None:
    assert described("audio = 1\nplugin = 2\n[policy]\nops = 3\n").unknown == []
    assert described("plugin = [1, { id = 2 }]\n").unknown == []


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("audio.device", ("audio", "device")),
        ("plugin.whisper.settings.model", ("plugin", "whisper", "settings", "model")),
        ('plugin."a.b".env.X', ("plugin", "a.b", "env", "X")),
        ("policy.ops.'x=y'.rate", ("policy", "ops", "x=y", "rate")),
        (r'a."\""', ("a", '"')),
        ("voice", ("voice",)),
    ],
)
def test_names_are_read_as_toml_writes_them(text: str, name: tuple[str, ...]) -> None:
    assert parse_name(text) == name


@pytest.mark.parametrize("text", ["", ".", "a.", ".a", "a b", "a = 1", "a\nb", "a#", 'a."b', "ä", r'"\q"', "a..b"])
def test_what_is_no_name(text: str) -> None:
    with pytest.raises(BadKey, match="is no key"):
        parse_name(text)


def test_a_plugin_is_found_by_its_id() -> None:
    document = {"plugin": [{"id": "one"}, {"id": "two"}, 3]}
    assert path_of(document, ("plugin", "two", "env")) == ("plugin", 1, "env")
    assert path_of(document, ("plugin", "new")) == ("plugin", 3)
    assert path_of({}, ("plugin", "new", "id")) == ("plugin", 0, "id")
    assert path_of(document, ("audio", "device")) == ("audio", "device")
    for wrong in (({}, ("plugin",)), ({"plugin": {}}, ("plugin", "x"))):
        with pytest.raises(BadKey):
            path_of(*wrong)


def test_kinds_and_what_takes_a_bare_text() -> None:
    texts = {
        "audio.device",
        "audio.source",
        "hotkeys.toggle",
        "socket.token",
        "plugin.x.env.A",
        "plugin.x.settings.model",
    }
    others = {
        "audio.cues",
        "voice.max_ms",
        "audio",
        "policy.ops.x.enabled",
        "plugin.x.settings.threads",
        "plugin.x.pass_env",
    }
    for name in texts:
        assert takes_text(kind_of(parse_name(name), SCHEMA)), name
    for name in others:
        assert not takes_text(kind_of(parse_name(name), SCHEMA)), name
    assert isinstance(kind_of(("audio", "cues")), inspect.BoolType)
    assert takes_text(kind_of(("policy", "ops", "x", "rate")))
    assert kind_of(("nothing", "x")) is None
    assert kind_of(("audio", "x")) is None
    assert kind_of(("audio", "device", "x")) is None


def test_secrets() -> None:
    assert is_secret(("socket", "token"))
    assert is_secret(("plugin", "x", "secret_env", "A"))
    assert is_secret(("plugin", "x", "settings", "api_key"), SCHEMA)
    assert not is_secret(("plugin", "x", "settings", "api_key"))
    assert not is_secret(("plugin", "x", "settings", "model"), SCHEMA)
    assert is_secret(("plugin", "x", "settings", "nested", "key"), SCHEMA)
    assert not is_secret(("audio", "device"))


def test_every_marked_field_of_the_schema_is_masked() -> None:
    for section, struct in sections().items():
        for name, field in fields_of(struct).items():
            if "secret" in str(msgspec.inspect.type_info(field.type)):
                assert is_secret((section, "x", name) if section == "plugin" else (section, name))
