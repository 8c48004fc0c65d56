"""The models of wake words: which there are, where they lie, and loading them.

Rules here: no other module knows the package pymicro_wakeword. Whether a word is there is found out without importing
it. What is missing or broken is a `WordError` whose text says what to do: the package itself would end the process on a
file that is no model.
"""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from utter_protocol.models import MODELS_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy as np
    import numpy.typing as npt

    Features = npt.NDArray[np.float64]

PACKAGE = "pymicro_wakeword"
NEEDED = "Install the extra utter-runner[wake] (pymicro-wakeword, numpy) for the runner's Python"
RATE = 16_000
STEP = 160
"""Frames of audio behind each row of features."""
_FEATURES = 40


class WordError(Exception):
    """A word cannot be listened for. The text is a sentence for the user."""


class _Micro(msgspec.Struct):
    probability_cutoff: Annotated[float, msgspec.Meta(ge=0, le=1)]
    sliding_window_size: Annotated[int, msgspec.Meta(ge=1, le=100)]


class _Description(msgspec.Struct):
    """What a model's .json must say; it may say more."""

    wake_word: Annotated[str, msgspec.Meta(min_length=1)]
    model: Annotated[str, msgspec.Meta(pattern=r"^[^/]+\.tflite\Z")]
    micro: _Micro


class Word:
    """A wake word, ready to be listened for.

    Args:
        model: as the package loads it.
        name: what the user calls it.
        cutoff: the least probability at which it counts as said; None takes the model's own.

    Attributes:
        name: what the user calls it.
        cutoff: see above.
        span: over how many frames its probability is averaged: it is high that much after the word was said.
    """

    def __init__(self, model: Any, name: str, cutoff: float | None) -> None:
        self._model = model
        self.name = name
        self.cutoff: float = model.probability_cutoff if cutoff is None else cutoff
        self.span: int = model.sliding_window_size * model.stride * STEP

    def probability(self, features: Features) -> float:
        """How likely it is that the word was said, once these features have been heard after those before."""
        return float(self._model.process_streaming_prob(features))

    def reset(self) -> None:
        """Forget what was heard."""
        self._model.reset()


class Frontend:
    """Turns sound into what the models hear.

    Raises:
        WordError: the package is missing.
    """

    def __init__(self) -> None:
        self._features = _package().MicroWakeWordFeatures()

    def hear(self, samples: bytes) -> Iterable[Features]:
        """The features that are complete with these 16-bit samples."""
        rows: Iterable[Features] = self._features.process_streaming(samples)
        return rows

    def reset(self) -> None:
        """Forget what was heard."""
        self._features.reset()


def find_words(names: Sequence[str]) -> list[Path]:
    """The descriptions (.json) of words' models: by the names of those that ship or were fetched, or by path.

    Raises:
        WordError: there is no such word or file, or the package is missing.
    """
    models = _directory()
    return [_by_path(name) if _is_path(name) else _by_name(name, models) for name in names]


def load_words(names: Sequence[str], cutoff: float | None) -> list[Word]:
    """Load the models of some words.

    Raises:
        WordError: one is missing or no model, or the package is.
    """
    return [_load(name, path, cutoff) for name, path in zip(names, find_words(names), strict=True)]


def _is_path(name: str) -> bool:
    return "/" in name or name.startswith("~")


def _by_name(name: str, models: Path) -> Path:
    # Those that were fetched for the plugin, besides the ones in its package.
    fetched = os.environ.get(MODELS_VARIABLE, "")
    if fetched and Path(fetched, f"{name}.json").is_file():
        return Path(fetched, f"{name}.json")
    path = models / f"{name}.json"
    if not path.is_file():
        known = ", ".join(sorted(file.stem for file in models.glob("*.json")))
        raise WordError(f"There is no wake word {name!r}. There are {known}; or write the path of a model's .json.")
    return path


def _by_path(name: str) -> Path:
    path = Path(name).expanduser()
    if path.suffix == ".tflite":
        path = path.with_suffix(".json")
    if not path.is_file():
        raise WordError(f"The setting words names {name}, but there is no file {path}.")
    return path


def _load(name: str, path: Path, cutoff: float | None) -> Word:
    try:
        description = msgspec.json.decode(path.read_bytes(), type=_Description)
    except OSError as error:
        raise WordError(f"The wake word model {path} cannot be read: {error.strerror}.") from error
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise WordError(f"{path} does not describe a wake word model: {error}.") from error
    file = path.parent / description.model
    if not file.is_file():
        raise WordError(f"The wake word model {path} names {file.name}, which does not lie beside it.")
    package = _package()
    try:
        _check(package, file)
        model = package.MicroWakeWord.from_config(path)
    except (OSError, RuntimeError, ValueError) as error:
        raise WordError(f"The wake word model {file} cannot be loaded: {error}") from error
    if model.lib.TfLiteTensorByteSize(model.input_tensor) != model.stride * _FEATURES:
        raise WordError(f"{file} is no wake word model: it does not take {_FEATURES} features at a time.")
    if model.lib.TfLiteTensorByteSize(model.output_tensor) != 1:
        raise WordError(f"{file} is no wake word model: it does not answer with one probability.")
    return Word(model, name, cutoff)


def _check(package: Any, file: Path) -> None:
    """Have the library look at a file before it is loaded; a file that it refuses would end the process then.

    Raises:
        ValueError: it is no model.
    """
    if file.parent == _directory():
        return
    library = package.MicroWakeWord.from_builtin(next(iter(package.Model))).lib
    model = library.TfLiteModelCreateFromFile(str(file.resolve()).encode())
    if not model:
        raise ValueError("it is no TensorFlow Lite model.")
    library.TfLiteModelDelete(model)


def _directory() -> Path:
    # The spec tells where the package is; importing it would load all of it.
    spec = find_spec(PACKAGE)
    places = spec.submodule_search_locations if spec else None
    if not places:
        raise WordError(f"{NEEDED}.")
    return Path(places[0], "models")


def _package() -> Any:
    try:
        import pymicro_wakeword  # noqa: PLC0415 - numpy and a library of 5 MB, after the handshake
    except (ImportError, OSError) as error:
        raise WordError(f"{NEEDED}: {error}.") from error
    return pymicro_wakeword
