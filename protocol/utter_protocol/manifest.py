"""The manifest that a plugin ships as `utter-plugin.toml` (PROTOCOL.md, "Manifest").

Rules here: `Manifest` is the one definition, and `plugin.schema.json` is generated from it; a field's description says
what the value must be, because error messages quote it; reading finds every problem at once and names file and line;
nothing but `load_manifest` touches a file.
"""

from __future__ import annotations

import math
import os
import re
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NamedTuple, get_args

import msgspec
from msgspec import Meta

from utter_protocol.capabilities import CAPABILITY_PATTERN, MAX_DECLARED, MAX_LENGTH, CapabilityError, parse_capability
from utter_protocol.methods import PluginKind
from utter_protocol.models import MAX_MODEL_NAME, MODEL_NAME, model_name_problems
from utter_protocol.toml_lines import Key, line_of, shown_key
from utter_protocol.versions import PROTOCOL_PATTERN, oldest_accepted, parse_protocol

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

MAX_FILE: Final = 64 * 1024
"""The largest manifest, in bytes."""
MAX_MODEL: Final = 2**40
"""The largest model, in bytes."""
MAX_MODELS: Final = 64
"""How many models one plugin may have."""

PERMISSIONS: Final = {
    "network": "reach other machines",
    "files.read": "read the user's files",
    "files.write": "change the user's files",
    "process.spawn": "start programs that outlive it",
    "session.bus": "talk to other programs over the session bus",
    "microphone": "hear the microphone",
    "screen": "see the screen",
    "input.inject": "type and click in the user's place",
    "gpu": "use the graphics processor",
}
"""The permissions that this version knows, and what each lets a plugin do."""

_SHOWN = 60

# `$` also matches before a final newline in Python's regular expressions; the look-ahead takes that back.
_END = r"$(?!\n)"
ID_PATTERN: Final = "[a-z0-9][a-z0-9._-]{1,63}"
_NUMBER = "(?:0|[1-9][0-9]{0,8})"
_PRERELEASE = "(?:0|[1-9][0-9]*|[0-9]*[A-Za-z-][0-9A-Za-z-]*)"
_SEMVER = (
    rf"^{_NUMBER}\.{_NUMBER}\.{_NUMBER}(?:-{_PRERELEASE}(?:\.{_PRERELEASE})*)?"
    rf"(?:\+[0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*)?{_END}"
)
_PROTOCOL = f"^{PROTOCOL_PATTERN}{_END}"

_Capability = Annotated[str, Meta(pattern=f"^{CAPABILITY_PATTERN}{_END}", max_length=MAX_LENGTH)]
_Permission = Annotated[str, Meta(pattern=rf"^[a-z][a-z0-9_]*(?:\.[a-z][a-z0-9_]*)*{_END}", max_length=64)]
_Platform = Annotated[str, Meta(pattern=f"^[a-z0-9_]+(?:-[a-z0-9_]+)?{_END}", max_length=64)]
_Argument = Annotated[str, Meta(pattern=r"^[^\x00]+$", max_length=4096)]
_Line = Annotated[str, Meta(pattern=rf"^[^\x00-\x1f\x7f]*{_END}", max_length=500)]


class Model(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A file that the plugin needs and does not ship, for example a speech model."""

    name: Annotated[
        str,
        Meta(
            pattern=f"^{MODEL_NAME}{_END}",
            max_length=MAX_MODEL_NAME,
            description=f"a relative path of 1 to 8 parts of letters, digits and . _ -, each of which begins with a "
            f"letter or digit, and of at most {MAX_MODEL_NAME} characters",
        ),
    ]
    url: Annotated[
        str,
        Meta(
            pattern=r"^https://[!-~]+$(?!\n)",
            max_length=2048,
            description="an https address of at most 2048 characters",
        ),
    ]
    sha256: Annotated[str, Meta(pattern=rf"^[0-9a-f]{{64}}{_END}", description="64 lower-case hexadecimal digits")]
    size: Annotated[int, Meta(gt=0, le=MAX_MODEL, description=f"a number of bytes from 1 to {MAX_MODEL}")]


class Manifest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a plugin is, how it is started, and what it offers and needs."""

    name: Annotated[
        str,
        Meta(
            pattern=f"^{ID_PATTERN}{_END}",
            description="the plugin's id: 2 to 64 lower-case letters, digits, dots, underscores and hyphens, "
            "the first a letter or digit",
        ),
    ]
    version: Annotated[
        str, Meta(pattern=_SEMVER, max_length=64, description='the plugin\'s own semantic version, such as "0.1.0"')
    ]
    kind: Annotated[PluginKind, Meta(description="one of " + ", ".join(get_args(PluginKind)))]
    protocol: Annotated[
        str, Meta(pattern=_PROTOCOL, description='the protocol version that the plugin speaks, such as "1.0"')
    ]
    abi: Annotated[int, Meta(ge=1, description="the ABI that the plugin speaks, a whole number from 1 on")]
    runtime: Annotated[Literal["subprocess", "wasm", "native"], Meta(description="one of subprocess, wasm, native")]
    transport: Annotated[Literal["stdio", "connect", "listen"], Meta(description="one of stdio, connect, listen")]
    entrypoint: Annotated[
        list[_Argument],
        Meta(
            min_length=1,
            max_length=256,
            description="the program and its arguments: a list of 1 to 256 strings, none empty. ${PYTHON} stands for "
            "the runner's Python interpreter",
        ),
    ]
    description: Annotated[_Line, Meta(description="one line of at most 500 characters")] = ""
    homepage: Annotated[_Line, Meta(description="one line of at most 500 characters")] = ""
    license: Annotated[_Line, Meta(description="one line of at most 500 characters")] = ""
    min_runner: Annotated[
        str,
        Meta(
            pattern=rf"^(?:{_NUMBER}\.{_NUMBER}(?:\.{_NUMBER})?)?{_END}",
            description='the oldest runner that will do, such as "0.1.0"',
        ),
    ] = ""
    max_protocol: Annotated[
        str,
        Meta(
            pattern=f"^(?:{PROTOCOL_PATTERN})?{_END}",
            description='the newest protocol version that the plugin was made for, such as "1.2"',
        ),
    ] = ""
    provides: Annotated[
        list[_Capability], Meta(max_length=MAX_DECLARED, description="a list of at most 256 capabilities name@N")
    ] = []
    requires: Annotated[
        list[_Capability], Meta(max_length=MAX_DECLARED, description="a list of at most 256 capabilities name@N")
    ] = []
    permissions: Annotated[
        list[_Permission],
        Meta(max_length=64, description="a list of at most 64 permissions, such as " + ", ".join(PERMISSIONS)),
    ] = []
    platforms: Annotated[
        list[_Platform],
        Meta(max_length=64, description='a list of systems, such as "linux" or "linux-x86_64"; empty means all'),
    ] = []
    config_schema: Annotated[
        dict[str, Any], Meta(description="a table that is a JSON Schema for the plugin's settings")
    ] = {}
    settings: Annotated[dict[str, Any], Meta(description="a table with the settings that the user has not set")] = {}
    models: Annotated[
        list[Model],
        Meta(max_length=MAX_MODELS, description="a list of at most 64 tables [[models]] with name, url, sha256, size"),
    ] = []


class Problem(NamedTuple):
    """One thing that is wrong with a manifest: where (line from 1; field, empty for the file itself) and what."""

    line: int
    field: str
    message: str


class ManifestError(ValueError):
    """A manifest that cannot be used. `problems` has every finding; the text has one `file:line: sentence` for each."""

    def __init__(self, path: Path, problems: list[Problem]) -> None:
        super().__init__("\n".join(f"{path}:{problem.line}: {problem.message}" for problem in problems))
        self.path = path
        self.problems = problems


def load_manifest(path: str | os.PathLike[str]) -> Manifest:
    """The manifest in the TOML file `path`.

    What needs a library that is slow to import is left to `settings.check_manifest`.

    Raises:
        ManifestError: the file cannot be read, is not TOML, or breaks a rule of `Manifest`; or its runtime is `native`.
    """
    return load_with_text(Path(path))[0]


def load_with_text(file: Path) -> tuple[Manifest, str]:
    """As `load_manifest`, with the text that it was read from, for whoever wants to know that it is still the same."""
    document, text = read_manifest(file)
    if problems := manifest_problems(document, text):
        raise ManifestError(file, problems)
    return msgspec.convert(document, Manifest), text


def read_manifest(file: Path) -> tuple[dict[str, Any], str]:
    """What stands in the TOML file, not checked any further, and its text.

    Raises:
        ManifestError: it cannot be read, is too large, is not TOML or nests too deeply.
    """
    try:
        with file.open("rb") as stream:
            data = stream.read(MAX_FILE + 1)
    except OSError as error:
        raise ManifestError(file, [Problem(1, "", f"The manifest cannot be read: {error.strerror}.")]) from None
    if len(data) > MAX_FILE:
        message = f"The manifest is larger than {MAX_FILE} bytes, which is the limit."
        raise ManifestError(file, [Problem(1, "", message)])
    try:
        text = data.decode()
        return tomllib.loads(text), text
    except UnicodeDecodeError as error:
        problem = Problem(data.count(b"\n", 0, error.start) + 1, "", "The manifest is not UTF-8 text.")
    except tomllib.TOMLDecodeError as error:
        found = re.search(r"at line ([0-9]+)", str(error))
        line = int(found[1]) if found else text.count("\n") + 1
        problem = Problem(line, "", f"The manifest is not valid TOML: {error}.")
    except RecursionError:
        problem = _TOO_DEEP
    raise ManifestError(file, [problem])


_Found = tuple[Key, str]
_TOO_DEEP = Problem(1, "", "The manifest nests its values too deeply.")


def manifest_problems(document: dict[str, Any], text: str) -> list[Problem]:
    """Every rule of `Manifest` that `document`, which is what `text` says, breaks; in the order of the lines."""
    try:
        found = list(_struct_problems(Manifest, document, ()))
        found = found or list(_joint_problems(msgspec.convert(document, Manifest)))
    except RecursionError:
        return [_TOO_DEEP]
    return sorted(Problem(line_of(text, key), shown_key(key), message) for key, message in found)


def _struct_problems(struct: type[msgspec.Struct], table: dict[str, Any], within: Key) -> Iterator[_Found]:
    import difflib  # noqa: PLC0415 - only on the way to a message, and start-up counts

    fields = {field.name: field for field in msgspec.structs.fields(struct)}
    for name in table.keys() - fields.keys():
        near = difflib.get_close_matches(name, fields, n=1)
        hint = f"Did you mean {near[0]}?" if near else f"The known fields are {', '.join(fields)}."
        yield (*within, name), f"There is no field {shown_key((*within, name))}. {hint}"
    for name, field in fields.items():
        key = (*within, name)
        if name in table:
            yield from _value_problems(key, table[name], field.type)
        elif field.required:
            yield key, f"The field {shown_key(key)} is missing. It must be {_description(field.type)}."


def model_problems(tables: list[dict[str, Any]], within: Key) -> Iterator[_Found]:
    """What is wrong with tables that should be models, below the key `within`: each with its key and a sentence."""
    for position, item in enumerate(tables):
        yield from _struct_problems(Model, item, (*within, position))


def _value_problems(key: Key, value: Any, expected: Any) -> Iterator[_Found]:
    try:
        msgspec.convert(value, expected)
    except msgspec.ValidationError as error:
        inner_key, inner = _locate(value, str(error))
        where = (*key, *inner_key)
        if key == ("models",) and isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
            yield from model_problems(value, key)
            return
        subject = f", and {shown_key(key)}" if inner_key else ", and it"
        message = f"{shown_key(where)} is {_shown_value(inner)}{subject} must be {_description(expected)}."
        if key in {("provides",), ("requires",)} and inner_key and isinstance(inner, str):
            message = f"{shown_key(where)}: {_capability_problem(inner)}"
        yield where, message
    else:
        yield from not_json(key, value)


def _capability_problem(text: str) -> str:
    try:
        parse_capability(text)
    except CapabilityError as error:
        return str(error)
    raise AssertionError(f"the manifest's pattern refuses {text!r}, which is a capability")


def not_json(key: Key, value: Any) -> Iterator[_Found]:
    """What TOML can say and JSON cannot, below `key`: the values travel to the plugin as JSON."""
    if isinstance(value, dict):
        for name, child in value.items():
            yield from not_json((*key, name), child)
    elif isinstance(value, list):
        for position, child in enumerate(value):
            yield from not_json((*key, position), child)
    elif not isinstance(value, str | int | float) or (isinstance(value, float) and not math.isfinite(value)):
        yield key, f"{shown_key(key)} is {_shown_value(value)}, which JSON cannot express. Write it as a string."


def _joint_problems(manifest: Manifest) -> Iterator[_Found]:
    if manifest.runtime == "native":
        yield (
            ("runtime",),
            (
                "The runtime native is refused: code inside the runner would share its memory and all of its rights, "
                "so one fault would end every plugin and no permission would hold. Use subprocess."
            ),
        )
    if manifest.runtime == "wasm" and manifest.transport != "stdio":
        yield (
            ("transport",),
            f"The transport is {manifest.transport}, and a module of the runtime wasm has no sockets: it speaks stdio.",
        )
    for at, message in model_name_problems(manifest.models):
        yield ("models", at, "name"), message
    if manifest.max_protocol and parse_protocol(manifest.max_protocol) < parse_protocol(manifest.protocol):
        yield (
            ("max_protocol",),
            (f"max_protocol is {manifest.max_protocol}, which is older than protocol, {manifest.protocol}."),
        )


def _locate(value: Any, error: str) -> tuple[tuple[int, ...], Any]:
    """The position inside a list that a msgspec error names (empty for the value itself), and what is there."""
    found = re.search(r" - at `\$\[([0-9]+)\]", error)
    if found is None:
        return (), value
    position = int(found[1])
    return (position,), value[position]


def _description(expected: Any) -> str:
    return next(str(meta.description) for meta in expected.__metadata__ if meta.description)


def _shown_value(value: Any) -> str:
    shown: str
    if isinstance(value, str):
        shown = f'"{value}"' if len(value) <= _SHOWN else f'"{value[:_SHOWN]}..." ({len(value)} characters)'
        shown = shown if shown.isprintable() else repr(value[:_SHOWN])
        shown = shown if value else "an empty string"
    elif isinstance(value, list):
        shown = f"a list of {len(value)} items" if value else "an empty list"
    elif isinstance(value, dict):
        shown = "a table"
    elif isinstance(value, bool | int | float):
        shown = str(value).lower()
    else:
        shown = f"a {type(value).__name__}"
    return shown


def expand_entrypoint(
    manifest: Manifest, python: str, directory: str | os.PathLike[str], module_options: Sequence[str] = ()
) -> list[str]:
    """The argument list that starts the plugin.

    `${PYTHON}` becomes `python`, wherever it occurs. A program that is given as a relative path (it has a slash) is
    looked for in `directory`, where the manifest lies; one without a slash is left to the search path. A module always
    lies in `directory`, and what is started is its host, with `module_options`.
    """
    program, *arguments = [argument.replace("${PYTHON}", python) for argument in manifest.entrypoint]
    if "/" in program or manifest.runtime == "wasm":
        program = str(Path(directory).absolute() / program)
    argv = [program, *arguments]
    return module_command(python, argv, module_options) if manifest.runtime == "wasm" else argv


def module_command(python: str, module: Sequence[str], options: Sequence[str] = ()) -> list[str]:
    """What starts the host of a module, given by its path and its arguments, in a process of its own."""
    return [python, "-P", "-m", "utter_runner.wasm", *options, "--", *module]


def permission_sentence(name: str) -> str:
    """What a permission lets a plugin do, as a sentence for people."""
    known = PERMISSIONS.get(name)
    return f"It may {known}." if known else "This version does not know it, and it has no effect."


def unknown_permissions(permissions: list[str]) -> list[str]:
    """One warning for each permission that this version does not know: it is neither granted nor enforced."""
    known = ", ".join(PERMISSIONS)
    return [
        f"The permission {name!r} is unknown and has no effect. Known are {known}."
        for name in dict.fromkeys(permissions)
        if name not in PERMISSIONS
    ]


def current_platform() -> str:
    """This machine as `platforms` names it, for example `linux-x86_64`."""
    return f"{sys.platform}-{os.uname().machine}".lower()


def unmet_conditions(manifest: Manifest, *, runner: str, protocol: str, platform: str) -> list[str]:
    """Why this runner cannot start the plugin, one sentence for each reason; none when it can.

    Args:
        manifest: the plugin's manifest.
        runner: the runner's own version, such as "0.1.0"; anything after the numbers is left out of account.
        protocol: the runner's protocol version.
        platform: this machine, from `current_platform`.
    """
    checks = (
        platform_condition(manifest, platform),
        runner_condition(manifest, runner),
        protocol_condition(manifest, protocol),
    )
    return [reason for reason in checks if reason]


def platform_condition(manifest: Manifest, platform: str) -> str:
    """Why the manifest's `platforms` leave out `platform`, or an empty string."""
    if not manifest.platforms or {platform, platform.partition("-")[0]} & set(manifest.platforms):
        return ""
    return f"The plugin runs on {', '.join(manifest.platforms)}, and this machine is {platform}."


def runner_condition(manifest: Manifest, runner: str) -> str:
    """Why a runner of version `runner` is too old for the manifest's `min_runner`, or an empty string."""
    if not manifest.min_runner or _release(runner) >= _release(manifest.min_runner):
        return ""
    return f"The plugin needs utter-runner {manifest.min_runner} or newer, and this one is {runner}: update the runner."


def protocol_condition(manifest: Manifest, protocol: str) -> str:
    """Why a runner that speaks `protocol` is too new for the manifest's `max_protocol`, or an empty string."""
    if not manifest.max_protocol:
        return ""
    oldest = oldest_accepted(parse_protocol(protocol))
    if parse_protocol(manifest.max_protocol) >= oldest:
        return ""
    return (
        f"The plugin was made for protocol {manifest.max_protocol} at most, and this runner speaks {oldest} to "
        f"{protocol}: update the plugin."
    )


def _release(version: str) -> tuple[int, int, int]:
    """The first three numbers of a version; missing ones are 0."""
    found = re.match(r"([0-9]+)(?:\.([0-9]+))?(?:\.([0-9]+))?", version)
    if found is None:
        raise ValueError(f"{version!r} does not start with a version number.")
    return int(found[1]), int(found[2] or 0), int(found[3] or 0)
