"""Where the files of plugins' models lie, and which are there (PROTOCOL.md, "Models").

Rules here: nothing is opened, written or downloaded. A name becomes a path only here, and only as `MODEL_NAME` lets it.
A file counts by the digest that it is named by and by its size; whoever puts it there has looked at its content.
"""

from __future__ import annotations

import re
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from utter_protocol.manifest import Model

MODELS_VARIABLE: Final = "UTTER_MODELS"
"""The variable in which a plugin finds the directory of its models."""
MODEL_NAME: Final = r"[A-Za-z0-9][A-Za-z0-9._-]*(?:/[A-Za-z0-9][A-Za-z0-9._-]*){0,7}"
"""Up to 8 parts with slashes between; none can be hidden, empty, or lead upwards."""
MAX_MODEL_NAME: Final = 200
"""The longest name of a model, in characters."""
State = Literal["present", "partial", "missing", "damaged"]


class Found(NamedTuple):
    """What is there of a model: `have` bytes of it. A `damaged` one has another size than it should, or content."""

    state: State
    have: int


def models_directory(environ: Mapping[str, str]) -> Path:
    """The store: `utter/models` below $XDG_DATA_HOME."""
    home = environ.get("XDG_DATA_HOME", "")
    base = Path(home) if home.startswith("/") else Path(environ.get("HOME") or "/", ".local", "share")
    return base / "utter" / "models"


def plugin_models(store: Path, plugin: str) -> Path:
    """The directory in which a plugin has its models under their names; each is a link to its content."""
    return store / "plugins" / plugin


def content_path(store: Path, sha256: str) -> Path:
    """Where the content with this digest lies once it is complete."""
    return store / "sha256" / sha256


def part_path(store: Path, sha256: str) -> Path:
    """Where what has come of it lies until then."""
    return store / "parts" / sha256


def link_path(store: Path, plugin: str, name: str) -> Path:
    """Where a plugin has one of its models.

    Raises:
        ValueError: `name` is no name of a model.
    """
    if not (re.fullmatch(MODEL_NAME, name) and len(name) <= MAX_MODEL_NAME):
        raise ValueError(f"{name[:60]!r} is no name of a model")
    return plugin_models(store, plugin) / name


def link_target(name: str, sha256: str) -> str:
    """What the link of a model of this name says: relative, so that the store can be moved as a whole."""
    return "../" * (name.count("/") + 2) + f"sha256/{sha256}"


def found_model(store: Path, plugin: str, model: Model) -> Found:
    """What is there of a plugin's model, by name and size."""
    content = _size(content_path(store, model.sha256))
    if content is None:
        part = _size(part_path(store, model.sha256))
        return Found("partial", part) if part else Found("missing", 0)
    if content != model.size:
        return Found("damaged", content)
    try:
        linked = str(link_path(store, plugin, model.name).readlink()) == link_target(model.name, model.sha256)
    except OSError:
        linked = False
    # The content may have come for another plugin; then nothing but the name is missing.
    return Found("present", content) if linked else Found("partial", content)


def missing_models(store: Path, plugin: str, models: Iterable[Model]) -> str:
    """A sentence about those that a plugin does not find, with the command that fetches them; empty if it has all."""
    names = [one.name for one in models if found_model(store, plugin, one).state != "present"]
    if not names:
        return ""
    listed = names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
    return f"{'The model' if len(names) == 1 else 'The models'} {listed} must be fetched: utter models pull {plugin}"


def united(first: Iterable[Model], second: Iterable[Model]) -> list[Model]:
    """The models of a manifest and those of the configuration, which win where the names are the same."""
    return [*{one.name: one for one in (*first, *second)}.values()]


def model_name_problems(models: Iterable[Model]) -> list[tuple[int, str]]:
    """The models, by position, whose names another one's is in the way of, each with a sentence."""
    seen: dict[str, str] = {}
    problems = []
    for at, one in enumerate(models):
        # Some file systems take names for the same that differ in case only.
        key = one.name.casefold()
        others = (
            seen[known] for known in seen if f"{known}/".startswith(f"{key}/") or f"{key}/".startswith(f"{known}/")
        )
        other = next(others, None)
        if other is not None:
            problems.append((at, f"The model {one.name!r} cannot have this name beside {other!r}: give it another."))
        seen.setdefault(key, one.name)
    return problems


def _size(path: Path) -> int | None:
    """The size of a file; None if there is none."""
    try:
        found = path.lstat()
    except OSError:
        return None
    return found.st_size if stat.S_ISREG(found.st_mode) else None
