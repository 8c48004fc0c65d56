"""Reads phrase files: which sentences mean which steps, the lists that fill their slots, and sites.

Rules here: no hassil; a file is taken whole or refused with file, line and phrase; the sentences that ship with the
plugin are such a file too. What the fields mean is written in README.md beside this file.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

MAX_FILE_BYTES = 4 * 2**20
_SLOT = re.compile(r"\{([^{}|]+)(?:\|([a-z]+))?\}")
_FORMATS = frozenset({"url"})
_AT = re.compile(r"^(?P<why>.*?)(?: - at `\$\.?(?P<path>[^`]*)`)?$", re.DOTALL)
_INDEX = re.compile(r"^(?P<table>\w+)\[(?P<index>\d+)\]\.?(?P<field>.*)$")


class PhraseError(ValueError):
    """A phrase file that cannot be taken. The text says where and why."""


class Step(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A step that a phrase stands for. `{slot}` in a string of `args` is replaced by what was said."""

    op: str
    args: dict[str, Any] = {}
    confirm: bool = False


class PhraseTable(msgspec.Struct, forbid_unknown_fields=True):
    """`[[phrase]]`: either `op` (with `args` and `confirm`) or `steps`."""

    say: str | list[str]
    op: str = ""
    args: dict[str, Any] = {}
    confirm: bool = False
    steps: list[Step] = []


class SiteTable(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """`[[site]]`: `say` are further names."""

    name: str
    url: str
    say: list[str] = []


class ValueTable(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A value of a list that is said in one way and used in another."""

    say: str | list[str]
    value: Any


class SlotTable(msgspec.Struct, forbid_unknown_fields=True, frozen=True, rename={"low": "from", "high": "to"}):
    """A slot that takes whole numbers `{from, to, step}`, or any words `{wildcard = true}`."""

    low: int | None = None
    high: int | None = None
    step: int = 1
    wildcard: bool = False


class PhraseFile(msgspec.Struct, forbid_unknown_fields=True):
    """The whole file."""

    lists: dict[str, list[str | ValueTable] | SlotTable] = {}
    phrase: list[PhraseTable] = []
    site: list[SiteTable] = []


@dataclass(frozen=True)
class TextList:
    """A slot's values: what is said, and what it stands for."""

    values: tuple[tuple[str, Any], ...]


@dataclass(frozen=True)
class NumberList:
    """A slot that takes whole numbers from `low` to `high`."""

    low: int
    high: int
    step: int = 1


@dataclass(frozen=True)
class AnyWords:
    """A slot that takes any words."""


@dataclass(frozen=True)
class WebAddress:
    """A slot that takes an address, written or spoken ("example dot org")."""


SlotList = TextList | NumberList | AnyWords | WebAddress


@dataclass(frozen=True)
class Phrase:
    """Sentences that mean the same.

    Attributes:
        say: sentence templates.
        steps: what they mean.
        where: file and line, for messages.
        own: taught by the user, so that it goes before what ships with the plugin.
    """

    say: tuple[str, ...]
    steps: tuple[Step, ...]
    where: str
    own: bool = True


@dataclass(frozen=True)
class Language:
    """What one file teaches."""

    phrases: tuple[Phrase, ...] = ()
    lists: Mapping[str, SlotList] = field(default_factory=dict)
    sites: tuple[SiteTable, ...] = ()


def read_file(path: Path, *, own: bool = True) -> Language:
    """Read a phrase file.

    Args:
        path: a TOML file.
        own: it is the user's.

    Raises:
        PhraseError: it cannot be read, or something in it is wrong.
    """
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise PhraseError(f"{path} cannot be read: {error.strerror}.") from error
    if len(data) > MAX_FILE_BYTES:
        raise PhraseError(f"{path} is larger than {MAX_FILE_BYTES} bytes, the bound for a phrase file.")
    try:
        text = data.decode()
        table = tomllib.loads(text)
    except UnicodeDecodeError as error:
        raise PhraseError(f"{path} is not UTF-8: {error.reason} at byte {error.start}.") from error
    except tomllib.TOMLDecodeError as error:
        raise PhraseError(f"{path} is not TOML: {error}.") from error
    return _take(table, str(path), _Lines(text), own=own)


def read_table(table: Mapping[str, Any], name: str) -> Language:
    """Take phrases that are given inline.

    Args:
        table: what a phrase file holds: `lists`, `phrase`, `site`.
        name: how messages call it.

    Raises:
        PhraseError: something in it is wrong.
    """
    return _take(table, name, None, own=True)


def fill(value: Any, slots: Mapping[str, Any]) -> Any:
    """Replace `{slot}` and `{slot|url}` in the strings of `value` by what was said.

    A string that is nothing but a slot becomes the slot's value as it is, a number for example. A table entry whose
    slot was not said is left out.
    """
    if isinstance(value, str):
        whole = _SLOT.fullmatch(value)
        if whole and not whole[2]:
            return slots.get(whole[1])
        return _SLOT.sub(lambda match: _formatted(slots.get(match[1], ""), match[2]), value)
    if isinstance(value, dict):
        filled = {key: fill(inner, slots) for key, inner in value.items()}
        return {key: inner for key, inner in filled.items() if inner is not None}
    if isinstance(value, list):
        return [fill(inner, slots) for inner in value]
    return value


def _formatted(value: Any, form: str | None) -> str:
    if form is None:
        return str(value)
    from urllib.parse import quote  # noqa: PLC0415 - few phrases format anything

    return quote(str(value), safe="")


class _Lines:
    """Finds the line of a table, for messages: TOML parsers do not tell."""

    def __init__(self, text: str) -> None:
        self._lines = text.splitlines()

    def of(self, table: str, index: int, sentence: str = "") -> int:
        header = re.compile(rf"\s*\[\[\s*{table}\s*\]\]")
        starts = [number for number, line in enumerate(self._lines) if header.match(line)]
        if index >= len(starts):
            return 1
        end = starts[index + 1] if index + 1 < len(starts) else len(self._lines)
        if sentence:
            for number in range(starts[index], end):
                if sentence in self._lines[number]:
                    return number + 1
        return starts[index] + 1


def _take(table: Mapping[str, Any], name: str, lines: _Lines | None, *, own: bool) -> Language:
    def where(kind: str, index: int, sentence: str = "") -> str:
        return f"{name}, line {lines.of(kind, index, sentence)}" if lines else f"{name}, {kind} {index + 1}"

    try:
        parsed = msgspec.convert(dict(table), PhraseFile)
    except msgspec.ValidationError as error:
        raise PhraseError(_explain(str(error), name, table, where)) from error
    phrases = tuple(_phrase(item, where, index, own=own) for index, item in enumerate(parsed.phrase))
    for index, site in enumerate(parsed.site):
        if not site.name.strip() or not site.url.strip():
            raise PhraseError(f"{where('site', index)}: a site needs a name and a url.")
    lists = {key: _list(key, value, name) for key, value in parsed.lists.items()}
    return Language(phrases, lists, tuple(parsed.site))


def _explain(message: str, name: str, table: Mapping[str, Any], where: Any) -> str:
    found = _AT.match(message)
    path = found["path"] if found and found["path"] else ""
    why = found["why"] if found else message
    inside = _INDEX.match(path)
    if not inside:
        return f"{name}{': ' + path if path else ''}: {why}."
    kind, index = inside["table"], int(inside["index"])
    items = table.get(kind)
    said = items[index].get("say", "") if isinstance(items, list) and isinstance(items[index], dict) else ""
    first = said[0] if isinstance(said, list) and said else said
    phrase = f" (phrase {first!r})" if first and isinstance(first, str) else ""
    field = f", field {inside['field']}" if inside["field"] else ""
    return f"{where(kind, index, first if phrase else '')}{phrase}{field}: {why}."


def _phrase(item: PhraseTable, where: Any, index: int, *, own: bool) -> Phrase:
    say = (item.say,) if isinstance(item.say, str) else tuple(item.say)
    shown = f"{where('phrase', index, say[0])} (phrase {say[0]!r})" if say else ""
    if not say or not all(sentence.strip() for sentence in say):
        raise PhraseError(f"{where('phrase', index)}: field say needs at least one sentence, and no empty one.")
    if bool(item.op) == bool(item.steps):
        raise PhraseError(f"{shown}: give either op (with args) or steps.")
    if item.steps and (item.args or item.confirm):
        raise PhraseError(f"{shown}: args and confirm belong into each of the steps.")
    steps = tuple(item.steps) or (Step(item.op, item.args, item.confirm),)
    for step in steps:
        if not step.op.strip():
            raise PhraseError(f"{shown}: a step needs an op.")
        for slot, form in _slots(step.args):
            if not any(_mentions(sentence, slot) for sentence in say):
                raise PhraseError(f"{shown}: args use the slot {{{slot}}}, but no sentence of say has it.")
            if form and form not in _FORMATS:
                raise PhraseError(f"{shown}: {{{slot}|{form}}} is no format; there is {', '.join(sorted(_FORMATS))}.")
    return Phrase(say, steps, where("phrase", index, say[0]), own)


def _slots(value: Any) -> list[tuple[str, str]]:
    if isinstance(value, str):
        return [(match[1], match[2] or "") for match in _SLOT.finditer(value)]
    inner: Sequence[Any] = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [slot for item in inner for slot in _slots(item)]


def _mentions(sentence: str, slot: str) -> bool:
    return re.search(rf"\{{(?:[^{{}}:]*:)?{re.escape(slot)}\}}", sentence) is not None


def _list(key: str, value: list[str | ValueTable] | SlotTable, name: str) -> SlotList:
    if isinstance(value, SlotTable):
        if value.wildcard:
            return AnyWords()
        if value.low is None or value.high is None or value.low > value.high or value.step < 1:
            raise PhraseError(f"{name}, list {key}: give wildcard = true, or from and to (from <= to), and step >= 1.")
        return NumberList(value.low, value.high, value.step)
    values: list[tuple[str, Any]] = []
    for item in value:
        if isinstance(item, str):
            values.append((item, item))
        else:
            values.extend((said, item.value) for said in ([item.say] if isinstance(item.say, str) else item.say))
    if not values or not all(said.strip() for said, _ in values):
        raise PhraseError(f"{name}, list {key}: it needs at least one value, and no empty one.")
    return TextList(tuple(values))
