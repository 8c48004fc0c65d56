"""From a TOML file to a `Config`, or to a list of everything that is wrong with it.

Rules here: every problem of a file is reported at once, each with file and line; nothing is guessed, corrected or
ignored. `load_config`, and `place_in` for a message, read the file, and `load_config` looks at the executables that it
names; everything else is a function of its text.
"""

from __future__ import annotations

import functools
import os
import re
import stat
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import inspect

from utter_protocol.manifest import model_problems
from utter_protocol.toml_lines import line_of

from .binaries import binary_warnings
from .describe import expected, got
from .policy_checks import policy_problems, policy_warnings
from .schema import MIN_TOKEN, Config, OpConfig, OpName, PluginConfig, PolicyConfig
from .secret import SecretError, find_secret, is_reference, secret_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

MAX_BYTES = 2**20
# Whoever has more to mend than this begins with these.
MAX_PROBLEMS = 50

_TOML_PLACE = re.compile(r"\s*\(at (?:line (\d+), column (\d+)|end of document)\)$")
_ITEM = re.compile(r"at `\$\[(\d+)\]")


class ConfigError(Exception):
    """A configuration that cannot be used.

    Attributes:
        problems: every problem, as "FILE:LINE: what and why".
    """

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(self.problems))


def load_config(path: str | Path) -> Config:
    """Read and check a configuration file.

    Raises:
        ConfigError: the file cannot be read, is no TOML, or has keys or values that it may not have.
    """
    path = Path(path)
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError([f"{path}: The configuration cannot be read: {error.strerror}."]) from None
    if len(data) > MAX_BYTES:
        raise ConfigError([f"{path}: The configuration is longer than {MAX_BYTES} bytes."])
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError([f"{path}:{line}: The configuration is not UTF-8."]) from None
    config = parse_config(text, path)
    token = None if config.socket is None else config.socket.token
    if token is not None and not is_reference(token) and mode & (stat.S_IRGRP | stat.S_IROTH):
        warning = f"{path} holds the socket's token and can be read by other users: run chmod 600 {path}"
        config = msgspec.structs.replace(config, warnings=(*config.warnings, warning))
    warnings = [*binary_warnings(config.socket.allow_binaries if config.socket else (), "[socket] allow_binaries")]
    for plugin in config.plugin:
        if not plugin.spawn:
            warnings += binary_warnings(plugin.allow_binaries or (), f'[[plugin]] "{plugin.id}" allow_binaries')
    return msgspec.structs.replace(config, warnings=(*config.warnings, *warnings), digest=digest_of(data))


def digest_of(data: bytes) -> str:
    """Return what `Config.digest` says of a file with this content."""
    import hashlib  # noqa: PLC0415 - not needed to read a text

    return hashlib.sha256(data).hexdigest()


def with_token(config: Config, environ: Mapping[str, str]) -> Config:
    """Return a configuration with the socket's token in place of a reference to it.

    Raises:
        ConfigError: it cannot be had, or is too short.
    """
    if config.socket is None or config.socket.token is None or not is_reference(config.socket.token):
        return config
    base = Path(config.path).absolute().parent
    try:
        token = find_secret(config.socket.token, environ, base)
        problem = "" if len(token) >= MIN_TOKEN else f"It has less than {MIN_TOKEN} characters."
    except SecretError as error:
        token, problem = "", str(error)
    if problem:
        raise ConfigError([f"{place_in(config, ('socket', 'token'))}: [socket] token: {problem}"])
    file = secret_file(config.socket.token, base)
    return msgspec.structs.replace(
        config,
        socket=msgspec.structs.replace(config.socket, token=token),
        secret_files=() if file is None else (str(file),),
    )


def default_config_path(environ: Mapping[str, str]) -> Path:
    """Return `$XDG_CONFIG_HOME/utter/runner.toml`."""
    base = environ.get("XDG_CONFIG_HOME")
    return Path(base or Path(environ.get("HOME", "/"), ".config"), "utter", "runner.toml")


def place_in(config: Config, key: Sequence[str | int]) -> str:
    """`FILE:LINE` of a key, such as `("plugin", 0, "settings", "rate")`, in the file that `config` was read from.

    The file is read again, because only messages need this; when it cannot be, the answer is its name alone.
    """
    try:
        text = Path(config.path).read_text("utf-8-sig")
        tomllib.loads(text)
    except (OSError, ValueError, RecursionError):
        return config.path
    return f"{config.path}:{line_of(text, key)}"


def parse_config(text: str, path: str | Path = "config.toml") -> Config:
    """Check a configuration's text.

    Args:
        text: TOML.
        path: where it came from, for messages; relative paths inside count from its directory.

    Raises:
        ConfigError: as for `load_config`.
    """
    path = Path(path)
    try:
        raw = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError([_syntax_error(str(error), text, path)]) from None
    except RecursionError:
        raise ConfigError([f"{path}: The configuration is nested too deeply."]) from None
    return _Reading(raw, text, path).config()


def _syntax_error(message: str, text: str, path: Path) -> str:
    place = _TOML_PLACE.search(message)
    what = message[: place.start()] if place else message
    if place is None or place[1] is None:
        return f"{path}:{text.count(chr(10)) + 1}: The file ends too early: {what}."
    return f"{path}:{place[1]}: Not TOML at column {place[2]}: {what}."


class _Reading:
    """One text on its way to a Config."""

    def __init__(self, raw: dict[str, Any], text: str, path: Path) -> None:
        self._raw = raw
        self._path = path
        self._base = path.absolute().parent
        self._text = text
        self._problems: list[tuple[tuple[str | int, ...], str]] = []
        self._tables = {name: kind for name, kind in sections().items() if name != "plugin"}

    def config(self) -> Config:
        sections: dict[str, Any] = {}
        for name, value in self._raw.items():
            if name == "plugin":
                sections[name] = self._plugins(value)
            elif name not in self._tables:
                self._unknown((), name)
            elif not isinstance(value, dict):
                self._problem((name,), f"[{name}] must be a table, not {got(value, secret=True)}.")
            elif name == "policy":
                sections[name] = self._policy(value)
            else:
                sections[name] = self._table(self._tables[name], value, (name,), f"[{name}]")
        # What could be read is checked together even if something else could not, so that nothing is found later.
        config = Config(path=str(self._path), **{name: value for name, value in sections.items() if value is not None})
        self._check_together(config)
        if self._problems:
            raise ConfigError(self._placed())
        warnings = tuple(
            f"{self._path}:{line_of(self._text, key)}: {text}" for key, text in policy_warnings(config.policy)
        )
        return msgspec.structs.replace(config, warnings=warnings) if warnings else config

    def _problem(self, where: tuple[str | int, ...], text: str) -> None:
        self._problems.append((where, text))

    def _placed(self) -> list[str]:
        """The problems in the order of their lines, which cost a pass over the text each."""
        placed = sorted((line_of(self._text, where), text) for where, text in self._problems[:MAX_PROBLEMS])
        shown = [f"{self._path}:{line}: {text}" for line, text in placed]
        more = len(self._problems) - len(placed)
        return [*shown, f"{self._path}: There are {more} more problems."] if more else shown

    def _plugins(self, value: Any) -> list[PluginConfig]:
        if not isinstance(value, list) or not all(isinstance(table, dict) for table in value):
            self._problem(("plugin",), "Plugins are written as tables with the header [[plugin]], in two brackets.")
            return []
        seen: dict[str, int] = {}
        plugins: list[PluginConfig] = []
        for at, table in enumerate(value):
            name = table.get("id")
            named = isinstance(name, str)
            plugin = self._table(PluginConfig, table, ("plugin", at), f"[[plugin]] {name!r}" if named else "[[plugin]]")
            if named and seen.setdefault(name, at) != at:
                line = line_of(self._text, ("plugin", seen[name]))
                text = f"[[plugin]] {name!r} is already configured in line {line}; ids are unique."
                self._problem(("plugin", at, "id"), text)
            if plugin is not None:
                plugins.append(plugin)
        return plugins

    def _policy(self, table: dict[str, Any]) -> PolicyConfig | None:
        flat = {key: value for key, value in table.items() if key != "ops"}
        policy: PolicyConfig | None = self._table(PolicyConfig, flat, ("policy",), "[policy]")
        ops = self._ops(table.get("ops", {}))
        return None if policy is None else msgspec.structs.replace(policy, ops=ops)

    def _ops(self, value: Any) -> dict[str, OpConfig]:
        if not isinstance(value, dict):
            self._problem(("policy", "ops"), "[policy] ops must be tables with headers such as [policy.ops.open_url].")
            return {}
        found: dict[str, OpConfig] = {}
        for name, table in value.items():
            where, shown = ("policy", "ops", name), f"[policy.ops.{name}]"
            try:
                msgspec.convert(name, OpName)
            except msgspec.ValidationError:
                self._problem(where, f"[policy.ops] {name!r} must be {expected(inspect.type_info(OpName))}.")
                continue
            if not isinstance(table, dict):
                self._problem(where, f"{shown} must be a table, not {got(table, secret=False)}.")
                continue
            op = self._table(OpConfig, table, where, shown)
            if op is not None:
                found[name] = op
        return found

    def _table(
        self, kind: type[msgspec.Struct], table: dict[str, Any], where: tuple[str | int, ...], shown: str
    ) -> Any:
        """Read one table; None if anything in it is wrong."""
        before = len(self._problems)
        fields = fields_of(kind)
        values: dict[str, Any] = {}
        for key, value in table.items():
            if key not in fields:
                self._unknown(where, key, shown, fields)
                continue
            try:
                values[key] = msgspec.convert(value, fields[key].type)
                if key in _path_keys(kind):
                    values[key] = self._absolute(values[key])
            except msgspec.ValidationError as error:
                self._mistyped((*where, key), shown, value, fields[key].type, str(error))
            except RuntimeError as error:  # from expanduser
                self._problem((*where, key), f"{shown} {key} begins with a ~ that stands for no directory: {error}")
        for key, field in fields.items():
            if field.required and key not in table:
                self._problem(where, f"{shown} needs the key '{key}': {expected(inspect.type_info(field.type))}.")
        return kind(**values) if len(self._problems) == before else None

    def _unknown(
        self, where: tuple[str | int, ...], key: str, shown: str = "", known: Iterable[str] | None = None
    ) -> None:
        from difflib import get_close_matches  # noqa: PLC0415 - only a wrong file needs it

        names = list(known if known is not None else (*self._tables, "plugin"))
        what = f"{shown} has no key {key!r}" if shown else f"There is no section or key {key!r} at the top level"
        near = get_close_matches(key, names, 1)
        homes = [name for name, kind in sections().items() if key in kind.__struct_fields__]
        if homes and (not near or not shown):
            what += f"; it belongs to {_header(homes[0])}."
        elif near:
            what += f"; did you mean {repr(near[0]) if shown else _header(near[0])}?"
        else:
            what += f". Known are: {', '.join(names)}."
        self._problem((*where, key), what)

    def _mistyped(self, where: tuple[str | int, ...], shown: str, value: Any, kind: Any, error: str) -> None:
        key = str(where[-1])
        if key == "models" and isinstance(value, list) and all(isinstance(item, dict) for item in value):
            found_in_models = [*model_problems(value, where)]
            for place, sentence in found_in_models:
                self._problem(place, f"{shown} {sentence}")
            if found_in_models:
                return
        secret = key in {"env", "settings"} or marked(inspect.type_info(kind), "secret")
        item = _ITEM.search(error)
        if item is not None:
            at = int(item[1])
            where = (*where, at)
            found = f", but entry {at + 1} is {got(value[at], secret=secret)}"
        elif key == "env" and isinstance(value, dict):
            found = ", with names of environment variables as keys and texts as values"
        elif key == "secret_env" and isinstance(value, dict):
            found = ', with names of environment variables as keys and texts such as "file:PATH" as values'
        else:
            found = f", not {got(value, secret=secret)}"
        self._problem(where, f"{shown} {key} must be {expected(inspect.type_info(kind))}{found}.")

    def _absolute(self, value: Any) -> Any:
        """Paths count from the file's directory."""
        if isinstance(value, str):
            return str(self._base / Path(value).expanduser())
        return [self._absolute(item) for item in value] if isinstance(value, list) else value

    def _check_together(self, config: Config) -> None:
        """What no single key can be wrong about."""
        runner, keys = config.runner, config.hotkeys
        if runner.max_queued_bytes < runner.max_frame:
            self._problem(
                ("runner", "max_queued_bytes" if "max_queued_bytes" in self._raw["runner"] else "max_frame"),
                f"[runner] max_queued_bytes ({runner.max_queued_bytes}) must not be less than max_frame "
                f"({runner.max_frame}), because the largest frame could never be sent.",
            )
        self._problems += policy_problems(config.policy)
        if config.audio.source == "wav" and config.audio.wav_path is None:
            self._problem(("audio", "source"), "[audio] source = \"wav\" needs the key 'wav_path'.")
        for at, plugin in enumerate(config.plugin):
            for name in sorted(plugin.env.keys() & plugin.secret_env.keys()):
                text = f"[[plugin]] {plugin.id!r} has the variable {name} in env and in secret_env; it can be in one."
                self._problem(("plugin", at, "secret_env"), text)
        chords = [("push_to_talk", keys.push_to_talk), ("toggle", keys.toggle), ("cancel", keys.cancel)]
        for at, (name, chord) in enumerate(chords):
            for other, same in chords[:at]:
                if chord and chord.casefold() == same.casefold():
                    self._problem(("hotkeys", name), f"[hotkeys] {name} and {other} are the same key, {chord!r}.")


def sections() -> dict[str, type[msgspec.Struct]]:
    """Every section's Struct by name."""
    found: dict[str, type[msgspec.Struct]] = {}
    for field in msgspec.structs.fields(Config):
        kind = inspect.type_info(field.type)
        if isinstance(kind, inspect.ListType):
            kind = kind.item_type
        if isinstance(kind, inspect.UnionType):
            kind = next(part for part in kind.types if isinstance(part, inspect.StructType))
        if isinstance(kind, inspect.StructType):
            found[field.name] = kind.cls
    return found


@functools.cache
def fields_of(kind: type[msgspec.Struct]) -> dict[str, msgspec.structs.FieldInfo]:
    """A table's keys. Looking them up evaluates annotations, which for each of many plugins would be felt."""
    return {field.name: field for field in msgspec.structs.fields(kind)}


@functools.cache
def _path_keys(kind: type[msgspec.Struct]) -> frozenset[str]:
    return frozenset(name for name, field in fields_of(kind).items() if marked(inspect.type_info(field.type), "path"))


def marked(kind: inspect.Type, mark: str) -> bool:
    """Whether the `Meta` of a type, or of what it is made of, has a mark."""
    if isinstance(kind, inspect.Metadata):
        return bool((kind.extra or {}).get(mark)) or marked(kind.type, mark)
    if isinstance(kind, inspect.ListType):
        return marked(kind.item_type, mark)
    if isinstance(kind, inspect.DictType):
        return marked(kind.value_type, mark)
    return isinstance(kind, inspect.UnionType) and any(marked(part, mark) for part in kind.types)


def _header(section: str) -> str:
    return "[[plugin]]" if section == "plugin" else f"[{section}]"
