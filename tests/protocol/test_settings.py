"""Settings against a schema: what is found, what it is called, and which schema is refused."""

from __future__ import annotations

import datetime as dt
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from utter_protocol.json_schema import SchemaError, compile_schema
from utter_protocol.manifest import Manifest, ManifestError, load_manifest
from utter_protocol.settings import WrongSetting, check_manifest, need_checking, schema_error, wrong_settings

if TYPE_CHECKING:
    from pathlib import Path

HEAD = """\
name = "timer"
version = "1.0.0"
kind = "action"
protocol = "1.0"
abi = 1
runtime = "subprocess"
transport = "stdio"
entrypoint = ["timer"]
"""
SCHEMA: dict[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "required": ["token"],
    "properties": {
        "token": {"type": "string", "pattern": "^[a-z]+$"},
        "rate": {"type": "integer", "minimum": 80},
        "voice": {
            "type": "object",
            "additionalProperties": False,
            "required": ["name"],
            "properties": {"name": {"type": "string"}, "pitch": {"type": "number"}},
        },
        "bells": {"type": "array", "items": {"$ref": "#/$defs/bell"}},
    },
    "$defs": {"bell": {"type": "object", "additionalProperties": False, "properties": {"tone": {"enum": ["a", "b"]}}}},
}
GOOD: dict[str, Any] = {"token": "x", "rate": 80, "voice": {"name": "n"}, "bells": [{"tone": "a"}]}


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "utter-plugin.toml"
    path.write_text(HEAD + text)
    return path


def problems(path: Path) -> list[str]:
    with pytest.raises(ManifestError) as caught:
        check_manifest(path)
    return [line.removeprefix(f"{path}:") for line in str(caught.value).splitlines()]


# ---- settings


def test_what_fits_passes() -> None:
    assert wrong_settings(SCHEMA, GOOD) == []


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"rate": 79}, [(("rate",), "The setting rate: the value is less than the minimum of 80.")]),
        ({"rate": "fast"}, [(("rate",), 'The setting rate: the value is not of type "integer".')]),
        ({"rtae": 1}, [(("rtae",), "There is no setting rtae. Did you mean rate?")]),
        ({"zzz": 1}, [(("zzz",), "There is no setting zzz. The known ones are token, rate, voice, bells.")]),
        ({"token": None}, [(("token",), "The setting token is missing.")]),
        ({"voice": {}}, [(("voice", "name"), "The setting voice.name is missing.")]),
        (
            {"voice": {"name": "n", "pich": 1}},
            [(("voice", "pich"), "There is no setting voice.pich. Did you mean pitch?")],
        ),
        (
            {"bells": [{}, {"ton": "a"}]},
            [(("bells", 1, "ton"), "There is no setting bells[1].ton. Did you mean tone?")],
        ),
        (
            {"when": dt.date(2020, 1, 1)},
            [(("when",), "The setting when is a date, which JSON cannot express. Write it as a string.")],
        ),
        (
            {"voice": {"pitch": float("nan")}},
            [(("voice", "pitch"), "The setting voice.pitch is nan, which JSON cannot express. Write it as a string.")],
        ),
    ],
)
def test_what_does_not_is_named(changes: dict[str, Any], expected: list[tuple[Any, str]]) -> None:
    settings = {key: value for key, value in {**GOOD, **changes}.items() if value is not None}
    assert wrong_settings(SCHEMA, settings) == [WrongSetting(*one) for one in expected]


def test_everything_is_found_at_once_but_not_without_end() -> None:
    assert len(wrong_settings(SCHEMA, {"rate": 1, "voice": {}, "x": 1})) == 4
    assert len(wrong_settings(SCHEMA, {f"x{n}": 1 for n in range(1000)})) == 20


def test_what_is_wrong_with_the_whole_is_said_of_the_whole() -> None:
    assert wrong_settings({"minProperties": 1}, {}) == [
        WrongSetting((), "The settings: the value has less than 1 property.")
    ]


def test_no_message_tells_a_value() -> None:
    secret = "correcthorse9"  # noqa: S105 - a value to look for
    for key in ("token", "rate", "voice", "bells"):
        found = wrong_settings(SCHEMA, {**GOOD, key: secret})
        assert found
        assert not [one for one in found if secret in one.message]


def test_settings_that_nest_without_end_are_refused() -> None:
    deep: dict[str, Any] = {}
    for _ in range(5_000):
        deep = {"a": deep}
    assert wrong_settings({"type": "object"}, deep) == [WrongSetting((), "The settings are nested too deeply.")]


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "type": st.sampled_from(["object", "string", ["object", "null"]]),
            "properties": st.just({"a": {"type": "integer", "default": 1}}),
            "additionalProperties": st.booleans(),
            "required": st.sampled_from([[], ["a"]]),
            "minProperties": st.integers(0, 1),
            "description": st.just("x"),
            "not": st.sampled_from([{}, {"required": ["a"]}]),
            "$defs": st.just({"x": {"const": 1}}),
        },
    )
)
def test_nothing_that_matters_is_left_unchecked(schema: dict[str, Any]) -> None:
    if not need_checking(schema, {}):
        assert compile_schema(schema).is_valid({})


def test_settings_are_checked_where_there_is_a_schema() -> None:
    assert need_checking(SCHEMA, GOOD)
    assert need_checking(SCHEMA, {})
    assert not need_checking({}, GOOD)
    assert not need_checking({"type": "object", "properties": {"a": {}}, "additionalProperties": False}, {})


# ---- a manifest, whole


def test_a_manifest_in_order_is_what_load_manifest_gives(tmp_path: Path) -> None:
    path = write(tmp_path, '[settings]\nrate = 90\n[config_schema]\nproperties.rate = { type = "integer" }\n')
    assert check_manifest(path) == load_manifest(path)
    assert isinstance(check_manifest(write(tmp_path, "")), Manifest)


def test_a_bad_schema_is_the_manifests_error_with_its_line(tmp_path: Path) -> None:
    text = """
[config_schema]
type = "object"

[config_schema.properties]
rate = { type = "number" }
bell = { type = "bool" }
"""
    path = write(tmp_path, text)
    # It can be read, and it is found when it is looked at.
    schema = load_manifest(path).config_schema
    (problem,) = problems(path)
    assert problem.startswith("15: config_schema is not a valid JSON Schema at 'properties.bell.type': ")
    with pytest.raises(SchemaError) as error:
        compile_schema(schema)
    assert str(schema_error(path, error.value)) == f"{path}:{problem}"
    assert str(schema_error(tmp_path / "gone", error.value)).startswith(f"{tmp_path / 'gone'}:1: config_schema is not")


@pytest.mark.parametrize(
    ("schema", "complaint"),
    [
        ('"$ref" = "https://example.org/schema"', "9: config_schema refers to 'https://example.org/schema'; only"),
        ('properties.a = { pattern = "(" }', "10: config_schema is not a valid JSON Schema at 'properties.a.pattern'"),
        ('"$ref" = "#/$defs/a"\n"$defs".a.items."$ref" = "#/$defs/a"', "9: config_schema refers to itself"),
    ],
)
def test_schemas_are_bounded_like_those_of_ops(tmp_path: Path, schema: str, complaint: str) -> None:
    (problem,) = problems(write(tmp_path, f"[config_schema]\n{schema}\n"))
    assert problem.startswith(complaint)


def test_defaults_have_to_fit_apart_from_what_the_user_adds(tmp_path: Path) -> None:
    schema = """
[config_schema]
additionalProperties = false
required = ["token"]
minProperties = 2
properties.token = { type = "string" }
properties.rate = { type = "integer" }
properties.voice = { type = "object", required = ["name"] }
"""
    path = write(tmp_path, f"{schema}\n[settings]\nrate = 1\n")
    assert check_manifest(path).settings == {"rate": 1}
    assert problems(write(tmp_path, f'{schema}\n[settings]\nrate = "fast"\nraet = 1\nvoice = {{}}\n')) == [
        '19: A default is wrong. The setting rate: the value is not of type "integer".',
        "20: A default is wrong. There is no setting raet. Did you mean rate?",
        "21: A default is wrong. The setting voice.name is missing.",
    ]


def test_everything_else_is_reported_with_it(tmp_path: Path) -> None:
    path = write(tmp_path, 'licence = "MIT"\n[config_schema]\ntype = "objekt"\n')
    found = problems(path)
    assert [problem.partition(":")[0] for problem in found] == ["9", "11"]
    # What is no schema at all, or no settings, is not looked into.
    assert len(problems(write(tmp_path, "config_schema = 3\nsettings = []\n"))) == 2
    assert len(problems(write(tmp_path, "[config_schema]\ndefault = 2020-01-01\n"))) == 1


def test_a_file_that_is_no_manifest_is_refused_as_ever(tmp_path: Path) -> None:
    for check in (check_manifest, load_manifest):
        with pytest.raises(ManifestError, match="No such file"):
            check(tmp_path / "gone.toml")


def test_the_library_is_not_imported_to_read_a_manifest(tmp_path: Path) -> None:
    path = write(tmp_path, '[config_schema]\ntype = "object"\n')
    code = (
        "import sys; from utter_protocol.manifest import load_manifest; import utter_protocol.settings\n"
        f"manifest = load_manifest({str(path)!r})\n"
        "assert not utter_protocol.settings.need_checking(manifest.config_schema, {})\n"
        "print('jsonschema_rs' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "False"
