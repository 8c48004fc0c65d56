"""Every key of the configuration: its name as people write it, its value, and where that comes from.

Rules here: functions of what was read; a key is a path from the top, in which a plugin stands by its id:
`plugin.whisper.settings.model`. Which values may be secrets is known here, and whoever shows one takes `shown`. A file
that has mistakes is described as it stands.
"""

from __future__ import annotations

import re
import tomllib
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from msgspec import NODEFAULT, inspect

from utter_protocol.settings import secret_settings
from utter_protocol.toml_lines import key_lines

from .load import fields_of, marked, sections
from .schema import OpConfig, PluginConfig
from .secret import is_reference

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from utter_protocol.toml_lines import Key

    Name = tuple[str, ...]
    SchemaOf = Callable[[dict[str, Any]], dict[str, Any]]

MASK = "..."
"""What is shown in place of what may be a secret."""
_PART = r"""(?:[A-Za-z0-9_-]+|"(?:[^"\\\n]|\\.)*"|'[^'\n]*')"""
_KEY = re.compile(rf"{_PART}(?:\.{_PART})*")
# Tables of a plugin whose keys are not the runner's.
_FREE = frozenset({"env", "secret_env", "settings"})


class BadKey(Exception):
    """What was written is no key; the sentence says why."""


class Setting(NamedTuple):
    """One key.

    Attributes:
        name: such as `("plugin", "whisper", "settings", "model")`.
        value: what is in force, as the file writes it; None: nothing is.
        line: where the file sets it; None: it is the default.
        secret: whether the value may be one.
    """

    name: Name
    value: Any
    line: int | None = None
    secret: bool = False

    @property
    def shown(self) -> Any:
        """The value, or `MASK`."""
        return MASK if self.secret and self.value is not None else self.value


class Effective(NamedTuple):
    """A whole configuration.

    Attributes:
        settings: every key.
        unknown: those of the file that the runner does not know, with their lines.
    """

    settings: list[Setting]
    unknown: list[tuple[Name, int]]


def parse_name(text: str) -> Name:
    """Read a dotted key, with the quotes of TOML around a part that needs them.

    Raises:
        BadKey: it is none.
    """
    parts: list[str] = []
    if _KEY.fullmatch(text):
        try:
            node: Any = tomllib.loads(f"{text} = 0")
        except tomllib.TOMLDecodeError:
            node = 0
        while isinstance(node, dict):
            ((part, node),) = node.items()
            parts.append(part)
    if not parts:
        raise BadKey(
            f'{text!r} is no key. Write SECTION.KEY or plugin.ID.KEY, such as audio.device or plugin."a.b".env.'
        )
    return tuple(parts)


def path_of(document: dict[str, Any], name: Name) -> Key:
    """Return where in a document a key stands; of a plugin that is not there, where it would.

    Raises:
        BadKey: it names no plugin, or all of them.
    """
    if name[0] != "plugin":
        return name
    if len(name) == 1:
        raise BadKey("plugin is followed by the plugin's id, such as plugin.whisper.")
    tables = document.get("plugin", [])
    if not isinstance(tables, list):
        raise BadKey("Plugins are written as tables with the header [[plugin]], in two brackets.")
    at = next((at for at, table in enumerate(tables) if _id(table) == name[1]), len(tables))
    return ("plugin", at, *name[2:])


def kind_of(name: Name, schema: dict[str, Any] | None = None) -> inspect.Type | None:
    """Return the type of a key's value; None for one that there is not, or whose type nobody says.

    Args:
        name: of the key.
        schema: the JSON Schema of the plugin's settings, if it has one.
    """
    kinds = sections()
    struct = kinds.get(name[0])
    if struct is None:
        return None
    rest = name[2:] if struct is PluginConfig else name[1:]
    if name[:2] == ("policy", "ops") and len(name) > 3:  # noqa: PLR2004 - policy.ops.NAME.KEY
        struct, rest = OpConfig, name[3:]
    field = fields_of(struct).get(rest[0]) if rest else None
    if field is None:
        return None
    kind = inspect.type_info(field.type)
    if len(rest) == 1:
        return kind
    if isinstance(kind, inspect.DictType) and len(rest) == 2:  # noqa: PLR2004 - TABLE.KEY
        if rest[0] != "settings":
            return kind.value_type
        described = ((schema or {}).get("properties") or {}).get(rest[1], {})
        return inspect.StrType() if isinstance(described, dict) and described.get("type") == "string" else None
    return None


def takes_text(kind: inspect.Type | None) -> bool:
    """Whether a value of a type is a text and nothing else, so that it is written without quotes."""
    match kind:
        case inspect.Metadata():
            return takes_text(kind.type)
        case inspect.UnionType():
            return all(takes_text(part) for part in kind.types if not isinstance(part, inspect.NoneType))
        case inspect.LiteralType():
            return all(isinstance(value, str) for value in kind.values)
        case inspect.StrType():
            return True
    return False


def is_secret(name: Name, schema: dict[str, Any] | None = None) -> bool:
    """Whether a key holds a secret by what the runner or the plugin's manifest says."""
    kind = kind_of(name)
    if kind is not None and marked(kind, "secret"):
        return True
    if name[0] != "plugin" or name[2:3] != ("settings",):
        return False
    rest = name[3:]
    nested: Any = ""
    for part in reversed(rest):
        nested = {part: nested}
    return bool(rest and schema and secret_settings(schema, nested))


def effective(document: dict[str, Any], text: str, schema_of: SchemaOf) -> Effective:
    """Describe a configuration.

    Args:
        document: what the text says.
        text: for the lines.
        schema_of: returns the schema of the settings of a plugin, given its table; an empty one if there is none.
    """
    lines = key_lines(text)
    settings: list[Setting] = []
    unknown: list[tuple[Name, int]] = [((key,), lines.get((key,), 1)) for key in document if key not in sections()]
    for section, struct in sections().items():
        if struct is PluginConfig:
            tables = document.get(section, [])
            for at, table in enumerate(tables if isinstance(tables, list) else []):
                if isinstance(table, dict):
                    place = _Place((section, _id(table)), (section, at), lines)
                    settings += _described(struct, table, place, schema_of(table), unknown)
        else:
            table = document.get(section, {})
            if isinstance(table, dict):
                settings += _described(struct, table, _Place((section,), (section,), lines), {}, unknown)
    return Effective(settings, unknown)


class _Place(NamedTuple):
    """A table: its name for people, its path in the document, and the lines of all paths."""

    name: Name
    path: Key
    lines: dict[Key, int]

    def below(self, part: str) -> _Place:
        return _Place((*self.name, part), (*self.path, part), self.lines)

    @property
    def line(self) -> int:
        return self.lines.get(self.path, 1)


def _described(
    struct: type[msgspec.Struct],
    table: dict[str, Any],
    place: _Place,
    schema: dict[str, Any],
    unknown: list[tuple[Name, int]],
) -> Iterator[Setting]:
    fields = fields_of(struct)
    unknown += [(place.below(key).name, place.below(key).line) for key in table if key not in fields]
    for key, field in fields.items():
        here = place.below(key)
        if key not in table:
            yield Setting(here.name, _default(field))
            continue
        value = table[key]
        if key == "ops" and isinstance(value, dict):
            for name, op in value.items():
                if isinstance(op, dict):
                    yield from _described(OpConfig, op, here.below(name), {}, unknown)
        elif key in _FREE and isinstance(value, dict) and value:
            for name, child in value.items():
                below = here.below(name)
                yield Setting(below.name, child, below.line, _may_be_secret(below.name, child, schema))
        else:
            yield Setting(here.name, value, here.line, _may_be_secret(here.name, value, schema))


def _default(field: msgspec.structs.FieldInfo) -> Any:
    if field.default is not NODEFAULT:
        return field.default
    return None if field.default_factory is NODEFAULT else field.default_factory()


def _may_be_secret(name: Name, value: Any, schema: dict[str, Any]) -> bool:
    """Whether a value must not be shown: what is marked, variables, and settings of which nobody says that they may."""
    if isinstance(value, str) and is_reference(value):
        return False
    if is_secret(name, schema):
        return True
    if name[2:3] == ("env",):
        return True
    if name[2:3] != ("settings",):
        return False
    if not isinstance(value, str):
        return isinstance(value, dict | list) and bool(value)
    return len(name) < 4 or name[3] not in ((schema or {}).get("properties") or {})  # noqa: PLR2004 - plugin.ID.settings.KEY


def _id(table: Any) -> str:
    found = table.get("id", "") if isinstance(table, dict) else ""
    return found if isinstance(found, str) else ""
