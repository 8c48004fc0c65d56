"""Which texts in a plugin's settings and variables are secrets, and where they come from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from utter_protocol.packages import MANIFEST_NAME
from utter_protocol.settings import secret_settings
from utter_runner.config import load_config
from utter_runner.main import plugin_specs

if TYPE_CHECKING:
    from pathlib import Path

    from utter_runner.supervision.spec import PluginSpec

CANARY = "canary-sk-4711-hunter2"
SECRET = {"type": "string", "writeOnly": True}
MANIFEST = """\
name = "timer"
version = "1.2.0"
kind = "action"
protocol = "1.0"
abi = 1
runtime = "subprocess"
transport = "stdio"
entrypoint = ["timer"]

[settings]
planted = "env:KEY"

[config_schema]
type = "object"
additionalProperties = false

[config_schema.properties]
key = { type = "string", writeOnly = true, maxLength = 30 }
planted = { type = "string", writeOnly = true }
plain = { type = "string" }
servers = { type = "array", items = { type = "object", properties.key = { type = "string", writeOnly = true } } }
"""


def resolved(directory: Path, table: str, environ: dict[str, str] | None = None) -> tuple[list[PluginSpec], list[str]]:
    manifest = directory / "timer" / MANIFEST_NAME
    manifest.parent.mkdir()
    manifest.write_text(MANIFEST)
    config = directory / "runner.toml"
    config.write_text(f'[runner]\nplugin_dirs = ["{directory}"]\n[[plugin]]\nid = "timer"\n{table}')
    return plugin_specs(load_config(config), environ or {"KEY": CANARY})


def test_secrets_stand_where_their_references_stood(tmp_path: Path) -> None:
    (spec,), problems = resolved(
        tmp_path,
        'secret_env = { TIMER_KEY = "env:KEY" }\nenv = { A = "env:KEY" }\n'
        '[plugin.settings]\nkey = "env:KEY"\nplain = "env:KEY"\nservers = [{ key = "env:KEY" }]',
    )
    assert problems == []
    assert spec.env == {"A": "env:KEY", "TIMER_KEY": CANARY}
    # Only what the schema marks is taken for a reference, and only what the user wrote.
    assert spec.settings == {
        "key": CANARY,
        "plain": "env:KEY",
        "servers": [{"key": CANARY}],
        "planted": "env:KEY",
    }
    assert CANARY in spec.secrets
    assert CANARY not in repr(spec)
    assert "secret_env={}" in repr(spec)


def test_a_secret_that_is_given_is_a_secret_too(tmp_path: Path) -> None:
    (spec,), problems = resolved(tmp_path, f'[plugin.settings]\nkey = "{CANARY}"')
    assert (spec.settings["key"], problems) == (CANARY, [])
    assert CANARY in spec.secrets
    assert CANARY not in repr(spec)


def test_one_that_cannot_be_had_keeps_the_plugin_from_running_and_names_its_line(tmp_path: Path) -> None:
    specs, problems = resolved(
        tmp_path, 'secret_env = { A = "file:none" }\n[plugin.settings]\nservers = [{}, { key = "env:NONE" }]'
    )
    assert specs == []
    config = tmp_path / "runner.toml"
    assert problems == [
        f"Plugin timer: {config}:5: secret_env.A: The secret's file none cannot be read: No such file or directory.",
        f"Plugin timer: {config}:7: settings.servers[1].key: The environment variable NONE is not set for the runner.",
    ]


def test_the_schema_holds_for_the_secret_and_its_message_does_not_show_it(tmp_path: Path) -> None:
    specs, problems = resolved(tmp_path, '[plugin.settings]\nkey = "env:KEY"', {"KEY": CANARY * 2})
    assert specs == []
    (said,) = problems
    assert f"{tmp_path}/runner.toml:6: The setting key" in said
    assert CANARY not in said


@pytest.mark.parametrize(
    ("schema", "settings", "keys"),
    [
        ({}, {"a": "x"}, []),
        ({"properties": {"a": SECRET}}, {"a": "x", "b": "y"}, [("a",)]),
        ({"properties": {"a": SECRET}}, {"a": 3}, []),
        ({"properties": {"a": {"type": "string", "writeOnly": "yes"}}}, {"a": "x"}, []),
        ({"properties": {"a": {"properties": {"b": SECRET}}}}, {"a": {"b": "x", "c": "y"}}, [("a", "b")]),
        ({"properties": {"a": {"items": SECRET}}}, {"a": ["x", "y"]}, [("a", 0), ("a", 1)]),
        ({"additionalProperties": SECRET, "properties": {"b": {}}}, {"a": "x", "b": "y"}, [("a",)]),
        ({"properties": {"a": {"$ref": "#/$defs/k"}}, "$defs": {"k": SECRET}}, {"a": "x"}, [("a",)]),
        ({"properties": {"a": {"$ref": "#/$defs/none"}}}, {"a": "x"}, []),
        ({"properties": {"a": {"$ref": "#/properties/a"}}}, {"a": "x"}, []),
        ({"properties": 3}, {"a": "x"}, []),
        ({"properties": {"a": True}}, {"a": "x"}, []),
    ],
)
def test_what_a_schema_marks(schema: dict[str, Any], settings: dict[str, Any], keys: list[tuple[Any, ...]]) -> None:
    assert secret_settings(schema, settings) == keys
