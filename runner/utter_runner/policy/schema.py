"""The JSON Schemas that plugins state for their ops' arguments: what is accepted, and what a violation is called.

Rules here: a schema comes from a plugin and is validated against on the event loop, so its cost is bounded before it is
compiled: local references only, no recursion, a bounded size with all references unfolded, patterns on an engine of
linear time. Nothing is ever fetched. The library is imported by the first schema, not before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import msgspec

if TYPE_CHECKING:
    from jsonschema_rs import ValidationError, Validator

MAX_SCHEMA_BYTES = 64 * 1024
MAX_SUBSCHEMAS = 1_000
MAX_DEPTH = 32
_PATTERN_BYTES = 256 * 1024
_OPEN_REFERENCES = frozenset({"$dynamicRef", "$recursiveRef", "$dynamicAnchor", "$recursiveAnchor"})


def compile_schema(schema: dict[str, Any]) -> Validator:
    """Check and compile a schema.

    Raises:
        ValueError: it is not one that the runner enforces; the message completes "its schema ...".
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
        raise ValueError(f"is not a valid JSON Schema at '{place}': {error.message}") from None
    except (ValueError, jsonschema_rs.ReferencingError) as error:
        raise ValueError(f"is not a valid JSON Schema: {error}") from None


def first_violation(validator: Validator, args: dict[str, Any]) -> tuple[str, str] | None:
    """The first thing wrong with `args`, or None.

    Returns:
        The field ("command", "items[2].name"; empty for the arguments as a whole), and what is wrong, without values.
    """
    if validator.is_valid(args):
        return None
    error = next(iter(validator.iter_errors(args)))
    return _field(error), error.message


def _field(error: ValidationError) -> str:
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in error.instance_path).lstrip(".")
    kind = error.kind
    missing = kind.value if kind.name == "required" else None
    if kind.name == "additionalProperties":
        missing = kind.value[0]
    if isinstance(missing, str):
        return f"{path}.{missing}" if path else missing
    return path


def _check_bounds(schema: dict[str, Any]) -> None:
    try:
        size = len(msgspec.json.encode(schema))
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"is not JSON: {error}") from None
    if size > MAX_SCHEMA_BYTES:
        raise ValueError(f"is longer than {MAX_SCHEMA_BYTES} bytes")
    _Unfolded(schema).count(schema, 0)


class _Unfolded:
    """Counts the subschemas of a schema as if each reference were written out."""

    def __init__(self, root: dict[str, Any]) -> None:
        self._root = root
        self._known: dict[str, int] = {}
        self._open: set[str] = set()

    def count(self, node: Any, depth: int) -> int:
        if depth > MAX_DEPTH:
            raise ValueError(f"is nested more than {MAX_DEPTH} deep")
        if isinstance(node, list):
            return self._bounded(sum(self.count(item, depth + 1) for item in node))
        if not isinstance(node, dict):
            return 0
        if not _OPEN_REFERENCES.isdisjoint(node) or (node is not self._root and isinstance(node.get("$id"), str)):
            raise ValueError("uses $id, $dynamicRef or $recursiveRef inside, which the runner does not follow")
        total = 1 + sum(self.count(child, depth + 1) for child in node.values())
        if isinstance(reference := node.get("$ref"), str):
            total += self._referred(reference, depth)
        return self._bounded(total)

    def _referred(self, reference: str, depth: int) -> int:
        if reference in self._open or reference == "#":
            raise ValueError(f"refers to itself by $ref {reference!r}")
        if reference not in self._known:
            self._open.add(reference)
            self._known[reference] = self.count(self._target(reference), depth + 1)
            self._open.remove(reference)
        return self._known[reference]

    def _target(self, reference: str) -> Any:
        node: Any = self._root
        if not reference.startswith("#/"):
            raise ValueError(f"refers to {reference!r}; only references inside the schema (#/...) are followed")
        for part in unquote(reference[2:]).split("/"):
            key = part.replace("~1", "/").replace("~0", "~")
            if isinstance(node, list) and key.isdecimal() and int(key) < len(node):
                node = node[int(key)]
            elif isinstance(node, dict) and key in node:
                node = node[key]
            else:
                raise ValueError(f"refers to {reference!r}, which is not there")
        return node

    @staticmethod
    def _bounded(total: int) -> int:
        if total > MAX_SUBSCHEMAS:
            raise ValueError(f"has more than {MAX_SUBSCHEMAS} parts, references unfolded")
        return total
