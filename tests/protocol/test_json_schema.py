"""Schemas of plugins: what is enforced, what is refused, and how a violation is named."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from utter_protocol.json_schema import MAX_DEPTH, MAX_SUBSCHEMAS, compile_schema, first_violation

DEFS = {"$defs": {"name": {"type": "string", "maxLength": 3}}}
OBJECT = {"type": "object", "properties": {"a": {"type": "array", "items": {"type": "object", "required": ["n"]}}}}


@pytest.mark.parametrize(
    ("schema", "args", "field"),
    [
        ({"required": ["n"]}, {}, "n"),
        (OBJECT, {"a": [{"n": 1}, {}]}, "a[1].n"),
        (OBJECT, {"a": 1}, "a"),
        ({"properties": {}, "additionalProperties": False}, {"b": 1}, "b"),
        ({**DEFS, "properties": {"x": {"$ref": "#/$defs/name"}}}, {"x": "four"}, "x"),
        ({"properties": {"x": {"pattern": "^a+$"}}}, {"x": "a" * 30 + "b"}, "x"),
        ({"properties": {"x": {"type": "string", "format": "email"}}}, {"x": "no"}, "x"),
        ({"properties": {"n": {"type": "integer"}}}, {"n": 1.5}, "n"),
        ({"properties": {"n": {"type": "integer"}}}, {"n": True}, "n"),
        ({"properties": {"n": {"maximum": 2**53}}}, {"n": 2**53 + 1}, "n"),
        ({"maxProperties": 0}, {"x": 1}, ""),
    ],
)
def test_a_violation_names_its_field(schema: dict[str, Any], args: dict[str, Any], field: str) -> None:
    violation = first_violation(compile_schema(schema), args)
    assert violation is not None
    assert violation[0] == field
    assert violation[1]


@pytest.mark.parametrize(
    ("schema", "args"),
    [
        ({}, {"anything": [1]}),
        ({**DEFS, "properties": {"x": {"$ref": "#/$defs/name"}, "y": {"$ref": "#/$defs/name"}}}, {"x": "abc"}),
        ({"$schema": "http://json-schema.org/draft-07/schema#", "properties": {"x": {"const": 1}}}, {"x": 1}),
        ({"$id": "urn:x", "properties": {"$ref": {"type": "string"}, "$id": {}}}, {"$ref": "x", "$id": 1}),
        ({"$defs": {"a/b": {"const": 1}}, "properties": {"x": {"$ref": "#/$defs/a~1b"}}}, {"x": 1}),
        ({"properties": {"n": {"maximum": 2**64 - 1}}}, {"n": 2**64 - 1}),
    ],
)
def test_what_fits_passes(schema: dict[str, Any], args: dict[str, Any]) -> None:
    assert first_violation(compile_schema(schema), args) is None


def test_a_violation_does_not_tell_the_value() -> None:
    secret = "correct horse"  # noqa: S105 - a value to look for
    for rule in ({"type": "integer"}, {"enum": ["a"]}, {"pattern": "^x$"}, {"maxLength": 1}, {"not": {}}):
        violation = first_violation(compile_schema({"properties": {"x": rule}}), {"x": secret})
        assert violation is not None
        assert secret not in violation[1]


def _deep(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(levels):
        schema = {"not": schema}
    return schema


DOUBLING = {f"d{at}": {"allOf": [{"$ref": f"#/$defs/d{at + 1}"}] * 2} for at in range(9)} | {"d9": {}}


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"type": "strin"}, "is not a valid JSON Schema"),
        ({"properties": 3}, "is not a valid JSON Schema"),
        ({"properties": {"x": {"pattern": "(a"}}}, "is not a valid JSON Schema"),
        ({"properties": {"x": {"pattern": "(?=a)b"}}}, "is not a valid JSON Schema"),
        ({"properties": {"x": {"pattern": "((a{1,99}){1,99}){1,99}"}}}, "is not a valid JSON Schema"),
        ({"$schema": "http://example.org/own"}, "is not a valid JSON Schema"),
        ({"$ref": "#"}, "refers to itself by \\$ref '#'"),
        ({"$defs": {"a": {"items": {"$ref": "#/$defs/a"}}}}, "refers to itself by \\$ref '#/\\$defs/a'"),
        ({"$defs": {"a": {"items": {"$ref": "#/$defs"}}}}, "refers to itself by \\$ref '#/\\$defs'"),
        ({"$ref": "file:///etc/passwd"}, "only references inside the schema"),
        ({"$ref": "#name"}, "only references inside the schema"),
        ({"$ref": "#/$defs/gone"}, "refers to '#/\\$defs/gone', which is not there"),
        ({"$defs": {"a": [1]}, "$ref": "#/$defs/a/1"}, "which is not there"),
        ({"properties": {"x": {"$id": "http://example.org/x"}}}, "uses \\$id"),
        ({"$dynamicRef": "#x"}, "uses \\$id, \\$dynamicRef"),
        ({"properties": {"x": {"$recursiveRef": "#"}}}, "uses \\$id, \\$dynamicRef"),
        (_deep(MAX_DEPTH + 1), f"is nested more than {MAX_DEPTH} deep"),
        (_deep(5000), "is not JSON|is nested more than"),
        ({"$defs": DOUBLING, "$ref": "#/$defs/d0"}, f"has more than {MAX_SUBSCHEMAS} parts"),
        ({"properties": {f"p{at}": {} for at in range(MAX_SUBSCHEMAS)}}, f"has more than {MAX_SUBSCHEMAS} parts"),
        ({"enum": ["x" * 70_000]}, "is longer than 65536 bytes"),
        ({"enum": [object()]}, "is not JSON"),
    ],
)
def test_what_is_not_enforced_is_refused(schema: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        compile_schema(schema)


def test_the_libraries_are_not_imported_before_they_are_needed() -> None:
    code = (
        "import sys, utter_runner.policy as policy\n"
        "policy.OpRegistry().advertise('p', [])\n"
        "print(sorted({'ada_url', 'jsonschema_rs', 'trio', 'socket', 'asyncio', 'subprocess'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"
