"""The configuration that somebody begins with: the example that is shipped, with what is not installed switched off.

Rules here: what each plugin needs says the package's own metadata, where every extra is listed; nothing is imported but
what only an import can tell about.
"""

from __future__ import annotations

import re
import shutil
from contextlib import suppress
from importlib import import_module, metadata, resources
from typing import TYPE_CHECKING, Any, NamedTuple

from utter_runner.config.edit import set_key

if TYPE_CHECKING:
    from collections.abc import Iterator

DISTRIBUTION = "utter-runner"
EXAMPLE = "config.example.toml"
_NEED = re.compile(r"""(?P<name>[A-Za-z0-9._-]+).*;.*\bextra\s*==\s*["'](?P<extra>[^"']+)["']""")
_PROGRAMS = {"espeak": "espeak-ng"}


class Choice(NamedTuple):
    """One thing that was decided: the key, its value, and why."""

    key: str
    value: Any
    why: str


def example() -> str:
    """Return the text of config.example.toml."""
    return resources.files("utter_runner.config").joinpath(EXAMPLE).read_text("utf-8")


def first_config() -> tuple[str, list[Choice]]:
    """Return the text of a first configuration for this machine, and what was chosen in it."""
    import tomllib  # noqa: PLC0415 - only here

    text = example()
    choices = [_source()]
    text = set_key(text, ("audio", "source"), choices[0].value)
    for at, table in enumerate(tomllib.loads(text)["plugin"]):
        name = table["id"]
        missing = ", ".join(_missing(name))
        choices.append(Choice(f"plugin.{name}.enabled", not missing, missing))
        if missing:
            text = set_key(text, ("plugin", at, "enabled"), value=False)
    return text, choices


def missing_of_extra(extra: str) -> list[str]:
    """Return the packages of an extra that are not installed."""
    try:
        needs = metadata.requires(DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        return []
    found = [match for need in needs if (match := _NEED.fullmatch(need)) and match["extra"] == extra]
    return [match["name"] for match in found if not _installed(match["name"])]


def _installed(distribution: str) -> bool:
    with suppress(metadata.PackageNotFoundError):
        metadata.distribution(distribution)
        return True
    return False


def _missing(plugin: str) -> Iterator[str]:
    """What a plugin that ships needs and does not find, as orders to the user."""
    if missing_of_extra(plugin):
        yield f"pip install '{DISTRIBUTION}[{plugin}]'"
    program = _PROGRAMS.get(plugin)
    if program and not shutil.which(program):
        yield f"install the program {program}"


def _source() -> Choice:
    missing = missing_of_extra("audio")
    if not missing:
        try:
            import_module("sounddevice")
        except (ImportError, OSError) as error:
            # The library that it binds is a package of the distribution.
            missing = [str(error)]
    if not missing:
        return Choice("audio.source", "sounddevice", "")
    why = f"for sounddevice: pip install '{DISTRIBUTION}[audio]', and the system's libportaudio2"
    if shutil.which("pw-record"):
        return Choice("audio.source", "pw-record", why)
    return Choice("audio.source", "none", f"{why}; or install pw-record")
