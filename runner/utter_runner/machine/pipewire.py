"""The microphones and outputs that PipeWire has, as `pw-dump` prints them.

Rules here: pure; what is printed is read as what it is, another program's text, of which parts may be missing or of
another type. Names are those by which WirePlumber finds a node: a capture stream that names an output, to hear what it
plays, is given the default microphone instead, so outputs are no microphones here.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

_SOURCES = frozenset({"Audio/Source", "Audio/Source/Virtual", "Audio/Duplex"})
_SINKS = frozenset({"Audio/Sink", "Audio/Sink/Virtual", "Audio/Duplex"})


class Node(NamedTuple):
    """A microphone or an output.

    Args:
        name: by which it is found.
        description: what a person calls it.
        serial: the number by which it is found as well, until it is unplugged.
    """

    name: str
    description: str
    serial: str


class Nodes(NamedTuple):
    """What there is, and the names of the defaults, which are empty if there are none."""

    sources: list[Node]
    sinks: list[Node]
    default_source: str
    default_sink: str


class NodesUnknown(Exception):
    """PipeWire cannot be asked; `str()` says why in a sentence."""


def parse_nodes(dump: bytes) -> Nodes:
    """Read what `pw-dump` prints.

    Raises:
        NodesUnknown: it is something else.
    """
    try:
        objects = _objects(dump)
    except (ValueError, RecursionError) as error:
        raise NodesUnknown(f"pw-dump has printed something else than lists of objects: {error}.") from error
    sources: dict[str, Node] = {}
    sinks: dict[str, Node] = {}
    defaults: dict[str, str] = {}
    for one in map(_table, objects):
        properties = _table(_table(one.get("info")).get("props"))
        node = _node(properties)
        kind = properties.get("media.class")
        for found, kinds in ((sources, _SOURCES), (sinks, _SINKS)):
            # Of two nodes of one name the first is what a stream gets.
            if node is not None and isinstance(kind, str) and kind in kinds:
                found.setdefault(node.name, node)
        if _table(one.get("props")).get("metadata.name") == "default":
            defaults |= _defaults(one.get("metadata"))
    default_source, default_sink = (defaults.get(f"default.audio.{what}", "") for what in ("source", "sink"))
    return Nodes([*sources.values()], [*sinks.values()], default_source, default_sink)


def _objects(dump: bytes) -> list[Any]:
    """What changes while pw-dump works, it prints in further lists; of an object that is gone nothing but its id."""
    text, decoder = dump.decode(errors="replace").strip(), json.JSONDecoder()
    found: dict[Any, Any] = {}
    while True:
        some, end = decoder.raw_decode(text)
        if not isinstance(some, list):
            raise ValueError(f"{type(some).__name__} in place of a list")  # noqa: TRY004 - of what was printed
        found |= {str(_table(one).get("id")): one for one in some}
        text = text[end:].lstrip()
        if not text:
            return [*found.values()]


def _node(properties: dict[str, Any]) -> Node | None:
    name = properties.get("node.name")
    if not isinstance(name, str) or not name:
        return None
    described = (properties.get(key) for key in ("node.description", "node.nick"))
    description = next((text for text in described if isinstance(text, str) and text), "")
    return Node(name, description, str(properties.get("object.serial", "")))


def _defaults(entries: Any) -> dict[str, str]:
    found = {}
    for entry in map(_table, entries if isinstance(entries, list) else ()):
        key, name = entry.get("key"), _table(entry.get("value")).get("name")
        if isinstance(key, str) and isinstance(name, str):
            found[key] = name
    return found


def _table(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
