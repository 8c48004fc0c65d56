"""Settings of plugins against the `config_schema` of their manifest (PROTOCOL.md, "Settings").

Rules here: pure, but for `check_manifest`, which reads its file; messages name keys and never values, because settings
hold secrets; the library for schemas is imported when there is something to check, and not before.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from utter_protocol.json_schema import MAX_DEPTH, SchemaError, compile_schema, referred, violations
from utter_protocol.manifest import Manifest, ManifestError, Problem, manifest_problems, not_json, read_manifest
from utter_protocol.toml_lines import Key, line_of, shown_key

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator

    from utter_protocol.json_schema import Violation

# With nothing but these at its top a schema takes the empty table.
_TAKES_NOTHING: Final = frozenset(
    {
        "$schema", "$id", "$comment", "$defs", "definitions", "title", "description", "default", "examples", "type",
        "properties", "patternProperties", "additionalProperties", "propertyNames", "unevaluatedProperties",
    }
)  # fmt: skip
_NO_SUCH: Final = frozenset({"additionalProperties", "unevaluatedProperties"})


class WrongSetting(NamedTuple):
    """One thing that is wrong with settings: the key (empty for the whole of them), and a sentence."""

    key: Key
    message: str


def need_checking(schema: dict[str, Any], settings: dict[str, Any]) -> bool:
    """Whether `settings` could break `schema`: not if there are none, and the schema plainly does not ask for any."""
    if settings:
        return bool(schema)
    return not (schema.keys() <= _TAKES_NOTHING and schema.get("type", "object") == "object")


def wrong_settings(schema: dict[str, Any], settings: dict[str, Any]) -> list[WrongSetting]:
    """What is wrong with `settings`; the first 20 findings.

    Raises:
        SchemaError: the runner does not enforce this schema.
    """
    validator = compile_schema(schema)
    try:
        odd = [WrongSetting(key, f"The setting {message}") for key, message in not_json((), settings)]
    except RecursionError:
        return [WrongSetting((), "The settings are nested too deeply.")]
    return odd or [WrongSetting(one.key, _sentence(one, schema)) for one in violations(validator, settings)]


def secret_settings(schema: dict[str, Any], settings: dict[str, Any]) -> list[Key]:
    """The places in `settings` of texts that the schema marks as secret, with `writeOnly = true`.

    What `properties`, `additionalProperties`, `items` and a `$ref` in them say counts; other keywords do not mark.
    """
    try:
        return [*_secrets(schema, schema, settings, ())]
    except SchemaError:
        # A reference to nothing: the schema is refused when it is checked, and the plugin is not run.
        return []


def _secrets(schema: dict[str, Any], node: Any, value: Any, key: Key) -> Iterator[Key]:
    # A chain of references that goes round is refused with the schema; here it must only end.
    for _ in range(MAX_DEPTH):
        if not isinstance(node, dict) or not isinstance(node.get("$ref"), str) or node.get("writeOnly") is True:
            break
        node = referred(schema, node["$ref"])
    if not isinstance(node, dict) or len(key) > MAX_DEPTH:
        return
    if isinstance(value, str):
        if node.get("writeOnly") is True:
            yield key
    elif isinstance(value, dict):
        named = node.get("properties", {})
        for name, child in value.items():
            below = named.get(name, node.get("additionalProperties")) if isinstance(named, dict) else None
            yield from _secrets(schema, below, child, (*key, name))
    elif isinstance(value, list):
        for at, child in enumerate(value):
            yield from _secrets(schema, node.get("items"), child, (*key, at))


def _sentence(violation: Violation, schema: dict[str, Any]) -> str:
    *within, name = violation.key or ("",)
    if violation.keyword == "required":
        return f"The setting {shown_key(violation.key)} is missing."
    if violation.keyword in _NO_SUCH:
        return f"There is no setting {shown_key(violation.key)}.{_hint(str(name), _known(schema, within))}"
    subject = f"The setting {shown_key(violation.key)}" if violation.key else "The settings"
    return f"{subject}: {violation.message}."


def _known(schema: dict[str, Any], path: list[str | int]) -> list[str]:
    """The names that the schema gives below a path, as far as `properties`, `items` and `$ref` tell."""
    node: Any = schema
    for part in (*path, None):
        while isinstance(node, dict) and isinstance(node.get("$ref"), str):
            node = referred(schema, node["$ref"])
        below = "properties" if not isinstance(part, int) else "items"
        node = node.get(below, {}) if isinstance(node, dict) else {}
        if isinstance(part, str):
            node = node.get(part, {}) if isinstance(node, dict) else {}
    return list(node) if isinstance(node, dict) else []


def _hint(name: str, known: list[str]) -> str:
    import difflib  # noqa: PLC0415 - only on the way to a message

    near = difflib.get_close_matches(name, known, n=1)
    if near:
        return f" Did you mean {near[0]}?"
    return f" The known ones are {', '.join(known)}." if known else ""


def check_manifest(path: str | os.PathLike[str]) -> Manifest:
    """The manifest in the TOML file `path`, checked whole: by the rules of `load_manifest`, and with its schema.

    Raises:
        ManifestError: as for `load_manifest`; or its `config_schema` is none that the runner enforces; or its own
            `settings` do not fit it, apart from what the user has to add.
    """
    file = Path(path)
    document, text = read_manifest(file)
    problems = manifest_problems(document, text)
    if not any(problem.field.startswith(("config_schema", "settings")) for problem in problems):
        problems = sorted([*problems, *_schema_problems(document, text)])
    if problems:
        raise ManifestError(file, problems)
    return msgspec.convert(document, Manifest)


def _schema_problems(document: dict[str, Any], text: str) -> Iterator[Problem]:
    schema, settings = document.get("config_schema"), document.get("settings", {})
    if not schema:
        return
    try:
        found = wrong_settings(schema, settings)
    except SchemaError as error:
        yield _schema_problem(error, text)
        return
    for wrong in found:
        # What is wrong with the whole of them, such as a missing one, is the user's to complete.
        if wrong.key and wrong.key[0] in settings:
            key = ("settings", *wrong.key)
            yield Problem(line_of(text, key), shown_key(key), f"A default is wrong. {wrong.message}")


def schema_error(file: Path, error: SchemaError) -> ManifestError:
    """What is wrong with the `config_schema` of the manifest `file`, with its line there."""
    try:
        text = file.read_text()
    except (OSError, UnicodeDecodeError):
        text = ""
    return ManifestError(file, [_schema_problem(error, text)])


def _schema_problem(error: SchemaError, text: str) -> Problem:
    key: Key = ("config_schema", *error.key)
    return Problem(line_of(text, key), shown_key(key), f"config_schema {error}.")
