"""The JSON Schemas that plugins state for arguments and settings: what is accepted, and what a violation is called.

Rules here: a schema comes from a plugin and is validated against on the event loop, so its cost is bounded before it is
compiled: local references only, no recursion, a bounded size with all references unfolded, patterns on an engine of
linear time. Nothing is ever fetched. The library is imported by the first schema, not before.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote

import msgspec

from utter_protocol.toml_lines import shown_key

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jsonschema_rs import ValidationError, Validator

    from utter_protocol.toml_lines import Key

MAX_SCHEMA_BYTES = 64 * 1024
MAX_SUBSCHEMAS = 1_000
MAX_DEPTH = 32
_PATTERN_BYTES = 256 * 1024
_OPEN_REFERENCES = frozenset({"$dynamicRef", "$recursiveRef", "$dynamicAnchor", "$recursiveAnchor"})


class SchemaError(ValueError):
    """A schema that the runner does not enforce; the message completes "its schema ...", `key` is where in it."""

    def __init__(self, message: str, key: Key = ()) -> None:
        super().__init__(message)
        self.key = key


class Violation(NamedTuple):
    """One thing wrong with a value: where in it (empty for the whole), by which keyword, and what, without values.

    For `required` and `additionalProperties`, `key` ends with the name that is missing or not allowed.
    """

    key: Key
    keyword: str
    message: str


def compile_schema(schema: dict[str, Any]) -> Validator:
    """Check and compile a schema.

    Raises:
        SchemaError: it is not one that the runner enforces.
    """
    import jsonschema_rs  # noqa: PLC0415 - only plugins that state schemas need the library

    _check_bounds(schema)
    try:
        return jsonschema_rs.validator_for(
            schema,
            offline=True,
            validate_formats=True,
            mask="the value",
            pattern_options=jsonschema_rs.RegexOptions(size_limit=_PATTERN_BYTES, dfa_size_limit=_PATTERN_BYTES),
        )
    except jsonschema_rs.ValidationError as error:
        place = ".".join(map(str, error.instance_path)) or "$schema"
        message = f"is not a valid JSON Schema at '{place}': {error.message}"
        raise SchemaError(message, tuple(error.instance_path)) from None
    except (ValueError, jsonschema_rs.ReferencingError) as error:
        raise SchemaError(f"is not a valid JSON Schema: {error}") from None


def first_violation(validator: Validator, args: dict[str, Any]) -> tuple[str, str] | None:
    """The first thing wrong with `args`, or None.

    Returns:
        The field ("command", "items[2].name"; empty for the arguments as a whole), and what is wrong, without values.
    """
    if validator.is_valid(args):
        return None
    key, _, message = next(violations(validator, args))
    return shown_key(key), message


def violations(validator: Validator, value: Any, limit: int = 20) -> Iterator[Violation]:
    """What is wrong with `value`, the first `limit` findings."""
    found = (one for error in validator.iter_errors(value) for one in _violations(error))
    return itertools.islice(found, limit)


def _violations(error: ValidationError) -> Iterator[Violation]:
    path, kind = tuple(error.instance_path), error.kind
    names: list[Any] = []
    if kind.name == "required":
        names = [kind.value]
    elif kind.name in {"additionalProperties", "unevaluatedProperties"}:
        names = list(kind.value)
    if not names:
        yield Violation(path, kind.name, error.message)
    for name in names:
        yield Violation((*path, name), kind.name, error.message)


def _check_bounds(schema: dict[str, Any]) -> None:
    try:
        size = len(msgspec.json.encode(schema))
    except (TypeError, ValueError, RecursionError) as error:
        raise SchemaError(f"is not JSON: {error}") from None
    if size > MAX_SCHEMA_BYTES:
        raise SchemaError(f"is longer than {MAX_SCHEMA_BYTES} bytes")
    _Unfolded(schema).count(schema, 0)


def referred(root: dict[str, Any], reference: str) -> Any:
    """What a `$ref` inside of the schema `root` refers to.

    Raises:
        SchemaError: it leads outside, or to nothing.
    """
    node: Any = root
    if not reference.startswith("#/"):
        raise SchemaError(f"refers to {reference!r}; only references inside the schema (#/...) are followed")
    for part in unquote(reference[2:]).split("/"):
        key = part.replace("~1", "/").replace("~0", "~")
        if isinstance(node, list) and key.isdecimal() and int(key) < len(node):
            node = node[int(key)]
        elif isinstance(node, dict) and key in node:
            node = node[key]
        else:
            raise SchemaError(f"refers to {reference!r}, which is not there")
    return node


class _Unfolded:
    """Counts the subschemas of a schema as if each reference were written out."""

    def __init__(self, root: dict[str, Any]) -> None:
        self._root = root
        self._known: dict[str, int] = {}
        self._open: set[str] = set()

    def count(self, node: Any, depth: int) -> int:
        if depth > MAX_DEPTH:
            raise SchemaError(f"is nested more than {MAX_DEPTH} deep")
        if isinstance(node, list):
            return self._bounded(sum(self.count(item, depth + 1) for item in node))
        if not isinstance(node, dict):
            return 0
        if not _OPEN_REFERENCES.isdisjoint(node) or (node is not self._root and isinstance(node.get("$id"), str)):
            raise SchemaError("uses $id, $dynamicRef or $recursiveRef inside, which the runner does not follow")
        total = 1 + sum(self.count(child, depth + 1) for child in node.values())
        if isinstance(reference := node.get("$ref"), str):
            total += self._referred(reference, depth)
        return self._bounded(total)

    def _referred(self, reference: str, depth: int) -> int:
        if reference in self._open or reference == "#":
            raise SchemaError(f"refers to itself by $ref {reference!r}")
        if reference not in self._known:
            self._open.add(reference)
            self._known[reference] = self.count(referred(self._root, reference), depth + 1)
            self._open.remove(reference)
        return self._known[reference]

    @staticmethod
    def _bounded(total: int) -> int:
        if total > MAX_SUBSCHEMAS:
            raise SchemaError(f"has more than {MAX_SUBSCHEMAS} parts, references unfolded")
        return total
