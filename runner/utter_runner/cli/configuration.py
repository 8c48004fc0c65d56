"""`utter config`: the runner's configuration file.

Rules here: no runner is needed, though one that runs is asked whether it has read the file as it is now; a secret is
neither taken from the command line nor shown.
"""

from __future__ import annotations

import os
import sys
import tomllib
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from utter_protocol.errors import RpcError
from utter_runner.cli.connection import Target, UsageError
from utter_runner.cli.exits import Exit
from utter_runner.cli.guard import say
from utter_runner.cli.options import Json, Socket, TokenFile, fetch, guarded
from utter_runner.cli.text import document, harmless
from utter_sdk.client import RunnerUnavailable

if TYPE_CHECKING:
    from utter_runner.config.effective import Effective, Name, Setting
    from utter_runner.operate.configuring import ConfigFile

group = typer.Typer(
    help="Write, check, show and change the runner's configuration.", no_args_is_help=True, rich_markup_mode=None
)

ConfigPath = Annotated[
    str | None, typer.Option("--config", metavar="FILE", help="The runner's configuration, if not the usual one.")
]
Key = Annotated[str, typer.Argument(metavar="KEY", help="Such as voice.silence_ms or plugin.whisper.settings.model.")]
_MAX_SECRET = 4096


def _path(said: str | None) -> Path:
    from utter_runner.config import default_config_path  # noqa: PLC0415 - every command here comes by

    return default_config_path(os.environ) if said is None else Path(said)


@group.command()
@guarded
def path(config: ConfigPath = None, as_json: Json = False) -> Exit:
    """Print where the configuration is. Exit code 1: there is no file yet."""
    found = _path(config)
    exists = found.exists()
    print(document({"path": str(found), "exists": exists}) if as_json else harmless(found))
    return Exit.DONE if exists else Exit.FAILED


@group.command()
@guarded
def init(config: ConfigPath = None, as_json: Json = False) -> Exit:
    """Write a first configuration: every key with its default and what it means. A file that is there is left alone.

    Plugins that ship, and for which something is not installed, are switched off in it.
    """
    from utter_runner.operate.configuring import write_new  # noqa: PLC0415 - only this command needs it
    from utter_runner.operate.first_config import first_config  # noqa: PLC0415 - see above

    place = _path(config)
    text, choices = first_config()
    write_new(place, text)
    if as_json:
        print(document({"path": str(place), "choices": [one._asdict() for one in choices]}))
        return Exit.DONE
    print(harmless(f"Wrote {place}"))
    for one in choices:
        print(harmless(f"{one.key} = {_written(one.value)}" + (f"  ({one.why})" if one.why else "")))
    print("Look at it, then start the runner: utter service install, or utter-runner. utter config check checks it.")
    return Exit.DONE


@group.command()
@guarded
def check(
    file: Annotated[str | None, typer.Argument(metavar="[PATH]", help="The file, if not the usual one.")] = None,
    as_json: Json = False,
) -> Exit:
    """Check the configuration: every problem with file and line, as utter-runner --check prints them.

    Exit codes: 0 in order, 1 there are problems, 2 the runner does not start with it.
    """
    from utter_runner.operate.configuring import check_file  # noqa: PLC0415 - only this command needs it

    place = _path(file)
    verdict = check_file(place)
    if as_json:
        print(document({"path": str(place), "ok": not verdict.code, "problems": verdict.problems}))
        return Exit(verdict.code)
    for problem in verdict.problems:
        print(harmless(problem), file=sys.stderr)
    if verdict.summary:
        print(harmless(verdict.summary))
    return Exit(verdict.code)


@group.command()
@guarded
def show(
    origin: Annotated[bool, typer.Option("--origin", help="Say of each whether it is the default.")] = False,
    *,
    config: ConfigPath = None,
    as_json: Json = False,
    socket: Socket = None,
    token_file: TokenFile = None,
) -> Exit:
    """Print every key with the value that is in force; what may be secret is shown as "...".

    Exit code 2: the file has keys that the runner does not know. `utter config check` finds everything else.
    """
    file = _read(config)
    found = _effective(file)
    running = _running(file, Target(socket, token_file))
    if as_json:
        values = [_shown(one) for one in found.settings]
        unknown = [{"key": _dotted(name), "line": line} for name, line in found.unknown]
        print(document({"path": str(file.path), "values": values, "unknown": unknown, "running": running}))
    else:
        _print(found.settings, file, origin=origin)
        for name, line in found.unknown:
            say(f"{file.path}:{line}: The runner knows no key {_dotted(name)}.")
        if running is not None and not running["same"]:
            say(_not_the_same(running, file))
    return Exit.USAGE if found.unknown else Exit.DONE


@group.command()
@guarded
def get(key: Key, *, config: ConfigPath = None, as_json: Json = False) -> Exit:
    """Print the value of a key that is in force, or of every key of a table. Exit code 1: it has none."""
    file = _read(config)
    name = _name(key)
    found = _effective(file)
    exact = [one for one in found.settings if one.name == name]
    below = [one for one in found.settings if one.name[: len(name)] == name]
    if not below:
        raise UsageError(_unknown(name, found))
    if not exact:
        if as_json:
            print(document([_shown(one) for one in below]))
        else:
            _print(below, file, origin=False)
        return Exit.DONE
    (one,) = exact
    if as_json:
        print(document(_shown(one)))
    elif one.value is None:
        say(f"{_dotted(name)} is not set, and has no default.")
    else:
        print(harmless(one.shown if isinstance(one.shown, str) else _written(one.shown)))
    return Exit.FAILED if one.value is None else Exit.DONE


@group.command("set")
@guarded
def set_value(
    key: Key,
    value: Annotated[
        str | None,
        typer.Argument(metavar="[VALUE]", help="A text as it is; anything else as TOML writes it.", show_default=False),
    ] = None,
    *,
    config: ConfigPath = None,
    as_json: Json = False,
) -> Exit:
    """Set a key in the file, and leave everything else in it as it is.

    The result is checked before it takes the place of the file; what the runner would refuse changes nothing. A secret
    is asked for, or read from stdin; on the command line only where it is: file:PATH, env:NAME, secret:ATTRIBUTE=VALUE.
    """
    from utter_runner.config.edit import set_key  # noqa: PLC0415 - only this command needs it
    from utter_runner.config.effective import path_of  # noqa: PLC0415 - see above

    name = _name(key)

    def edit(file: ConfigFile) -> str:
        wanted = _value(name, value, file)
        at = path_of(file.document, name)
        text = file.text
        if name[0] == "plugin" and at[1] == len(file.document.get("plugin", [])) and name[2:] != ("id",):
            text = set_key(text, (*at[:2], "id"), name[1])
        if name[0] == "socket" and "socket" not in file.document:
            say("There was no [socket] section; with one, only programs that it names may use the runner.")
        return set_key(text, at, wanted)

    return _change(config, name, edit, as_json=as_json)


@group.command()
@guarded
def unset(key: Key, *, config: ConfigPath = None, as_json: Json = False) -> Exit:
    """Take a key, or a table such as plugin.llm, out of the file, so that its default holds."""
    from utter_runner.config.edit import unset_key  # noqa: PLC0415 - only this command needs it
    from utter_runner.config.effective import path_of  # noqa: PLC0415 - see above

    name = _name(key)
    return _change(config, name, lambda file: unset_key(file.text, path_of(file.document, name)), as_json=as_json)


def _change(config: str | None, name: Name, edit: Any, *, as_json: bool) -> Exit:
    from utter_runner.config.effective import BadKey  # noqa: PLC0415 - only commands that write need it
    from utter_runner.operate.configuring import change_file  # noqa: PLC0415 - see above

    place = _path(config)
    try:
        made = change_file(place, edit)
    except BadKey as error:
        raise UsageError(str(error)) from None
    if as_json:
        print(document({"path": str(place), "key": _dotted(name), **made._asdict()}))
        return Exit.DONE
    for warning in made.warnings:
        say(f"Warning: {warning}")
    if made.changed:
        print(harmless(f"{place} is changed. A runner that runs takes it over with: utter reload"))
    else:
        say("It says that already.")
    return Exit.DONE


def _read(config: str | None) -> ConfigFile:
    from utter_runner.operate.configuring import read_file  # noqa: PLC0415 - not every command needs it

    return read_file(_path(config))


def _effective(file: ConfigFile) -> Effective:
    from utter_runner.config.effective import effective  # noqa: PLC0415 - see `_read`
    from utter_runner.operate.configuring import schema_of  # noqa: PLC0415 - see `_read`

    return effective(file.document, file.text, lambda table: schema_of(table, file, os.environ))


def _name(key: str) -> Name:
    from utter_runner.config.effective import BadKey, parse_name  # noqa: PLC0415 - see `_read`

    try:
        return parse_name(key)
    except BadKey as error:
        raise UsageError(str(error)) from None


def _unknown(name: Name, found: Effective) -> str:
    from difflib import get_close_matches  # noqa: PLC0415 - only on the way to a message

    known = {_dotted(one.name[:n]) for one in found.settings for n in range(1, len(one.name) + 1)}
    near = get_close_matches(_dotted(name), sorted(known), 3)
    return f"There is no key {_dotted(name)}." + (f" Did you mean {' or '.join(near)}?" if near else "")


def _value(name: Name, said: str | None, file: ConfigFile) -> Any:
    """The value that was said for a key; what it means depends on what the key holds. Raises UsageError."""
    from utter_runner.config.effective import is_secret, kind_of, path_of, takes_text  # noqa: PLC0415 - see `_read`
    from utter_runner.config.secret import is_reference  # noqa: PLC0415 - see `_read`
    from utter_runner.operate.configuring import schema_of  # noqa: PLC0415 - see `_read`

    schema = {}
    if name[0] == "plugin":
        at = path_of(file.document, name)[1]
        tables = file.document.get("plugin", [])
        table = tables[at] if isinstance(at, int) and at < len(tables) else {"id": name[1]}
        schema = schema_of(table, file, os.environ)
    if is_secret(name, schema):
        if said is None:
            return _secret(name)
        if not is_reference(said):
            raise UsageError(
                f"{_dotted(name)} is a secret, and would stay in the shell's history. Leave the value away to be asked "
                "for it, or pipe it in; or say where it is: file:PATH, env:NAME or secret:ATTRIBUTE=VALUE."
            )
    if said is None:
        raise UsageError(f"Say what {_dotted(name)} shall be: utter config set {_dotted(name)} VALUE")
    return said if takes_text(kind_of(name, schema)) else _literal(said)


def _literal(text: str) -> Any:
    """What TOML reads out of a text; the text itself if that is no value, so that the check says what is wanted."""
    try:
        found = tomllib.loads(f"value = {text}\n")
    except (tomllib.TOMLDecodeError, RecursionError):
        return text
    return found["value"] if found.keys() == {"value"} else text


def _secret(name: Name) -> str:
    if sys.stdin.isatty():
        from getpass import getpass  # noqa: PLC0415 - only here

        text = getpass(f"{_dotted(name)}: ")
    else:
        text = sys.stdin.read(_MAX_SECRET + 2)
        text = text.removesuffix("\n").removesuffix("\r")
    if not text or len(text.encode()) > _MAX_SECRET or not text.isprintable():
        raise UsageError(f"A secret is one printable line of 1 to {_MAX_SECRET} bytes.")
    return text


def _running(file: ConfigFile, target: Target) -> dict[str, Any] | None:
    """What a runner that runs says of its configuration; None: none answers, or it does not say."""
    from utter_runner.config.load import digest_of  # noqa: PLC0415 - see `_read`

    try:
        told = fetch("runner.status", target).get("config")
    except (RunnerUnavailable, RpcError, TimeoutError, UsageError):
        return None
    if not isinstance(told, dict):
        return None
    same_file = False
    with suppress(OSError):
        same_file = Path(str(told.get("path"))).samefile(file.path)
    return {"path": told.get("path"), "same": same_file and told.get("digest") == digest_of(file.data)}


def _not_the_same(running: dict[str, Any], file: ConfigFile) -> str:
    with suppress(OSError):
        if Path(str(running["path"])).samefile(file.path):
            return "The runner has read an older version of this file. utter reload takes this one over."
    return f"The runner that runs has read another file, {running['path']}."


def _dotted(name: Name) -> str:
    from utter_runner.config.edit import quoted  # noqa: PLC0415 - tomlkit is wanted by these commands alone

    return ".".join(part if part.replace("_", "").replace("-", "").isalnum() else quoted(part) for part in name)


def _written(value: Any) -> str:
    from utter_runner.config.edit import literal  # noqa: PLC0415 - see `_dotted`

    return literal(value)


def _shown(one: Setting) -> dict[str, Any]:
    return {
        "key": _dotted(one.name),
        "value": one.shown,
        "origin": "default" if one.line is None else "file",
        "line": one.line,
        "secret": one.secret,
    }


def _print(settings: list[Setting], file: ConfigFile, *, origin: bool) -> None:
    for one in settings:
        line = (
            f"{_dotted(one.name)} is not set" if one.value is None else f"{_dotted(one.name)} = {_written(one.shown)}"
        )
        if origin:
            line += "  # default" if one.line is None else f"  # {file.path}:{one.line}"
        print(harmless(line))
