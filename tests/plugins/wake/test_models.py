"""Which wake words there are, and what is said of those that cannot be loaded."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pymicro_wakeword
import pytest

from utter_plugins.wake import models
from utter_plugins.wake.models import Frontend, WordError, find_words, load_words

SHIPPED = Path(pymicro_wakeword.__file__).parent / "models"


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A model of one's own: its description."""
    shutil.copy(SHIPPED / "alexa.tflite", tmp_path / "computer.tflite")
    description = json.loads((SHIPPED / "alexa.json").read_text())
    path = tmp_path / "computer.json"
    path.write_text(json.dumps({**description, "model": "computer.tflite", "wake_word": "Computer"}))
    return path


def test_the_words_that_ship() -> None:
    names = ["alexa", "hey_jarvis", "hey_mycroft", "okay_nabu"]
    loaded = load_words(names, None)
    assert [word.name for word in loaded] == names
    # As the makers of the models say.
    assert [word.cutoff for word in loaded] == [0.9, 0.97, 0.95, 0.85]
    assert {word.span for word in loaded} == {2_400}
    assert load_words(["alexa"], 0.75)[0].cutoff == 0.75


def test_an_unknown_word_is_answered_with_those_that_there_are() -> None:
    for find in (find_words, lambda names: load_words(names, None)):
        with pytest.raises(WordError, match=r"no wake word 'computer'.*alexa, hey_jarvis, hey_mycroft, okay_nabu"):
            find(["okay_nabu", "computer"])


@pytest.mark.parametrize("suffix", [".json", ".tflite"])
def test_a_path_names_a_model_of_ones_own(own: Path, suffix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(own.parent))
    for name in (str(own.with_suffix(suffix)), f"~/computer{suffix}"):
        assert find_words([name]) == [own]
        (word,) = load_words([name], None)
        assert word.name == name
        for features in Frontend().hear(bytes(32_000)):
            assert word.probability(features) < 0.5


def test_a_path_that_leads_nowhere(tmp_path: Path) -> None:
    with pytest.raises(WordError, match=r"names .*nothing\.json, but there is no file"):
        find_words([f"{tmp_path}/nothing.json"])


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"micro": None}, "micro"),
        ({"micro": {"probability_cutoff": 2, "sliding_window_size": 5}}, r"<= 1\.0 - at `\$\.micro\.probability_cut"),
        ({"micro": {"probability_cutoff": 0.5, "sliding_window_size": 0}}, r">= 1 - at `\$\.micro\.sliding_wind"),
        ({"model": "../computer.tflite"}, r"at `\$\.model`"),
        ({"wake_word": ""}, "wake_word"),
    ],
)
def test_a_description_that_lacks_something_is_refused(own: Path, change: dict[str, Any], expected: str) -> None:
    own.write_text(json.dumps({**json.loads(own.read_text()), **change}))
    with pytest.raises(WordError, match=rf"computer\.json does not describe a wake word model: .*{expected}"):
        load_words([str(own)], None)


@pytest.mark.parametrize("junk", [b"", b"{", b"\xff\xfe", b"[" * 100_000])
def test_a_description_that_is_none_is_refused(own: Path, junk: bytes) -> None:
    own.write_bytes(junk)
    with pytest.raises(WordError, match="does not describe a wake word model"):
        load_words([str(own)], None)


def test_a_description_without_its_model_is_refused(own: Path) -> None:
    own.with_suffix(".tflite").unlink()
    with pytest.raises(WordError, match=r"names computer\.tflite, which does not lie beside it"):
        load_words([str(own)], None)


@pytest.mark.parametrize("kind", ["empty", "text", "short", "bent"])
def test_a_file_that_is_no_model_is_refused_and_does_not_end_the_process(own: Path, kind: str) -> None:
    model = own.with_suffix(".tflite")
    whole = model.read_bytes()
    bent = bytearray(whole)
    for at in np.random.default_rng(1).integers(0, 200, 50):
        bent[at] ^= 0xFF
    model.write_bytes({"empty": b"", "text": b"no model", "short": whole[:-5_000], "bent": bytes(bent)}[kind])
    with pytest.raises(WordError, match=r"computer\.tflite cannot be loaded: it is no TensorFlow Lite model"):
        load_words([str(own)], None)


class Odd:
    """A model that is for something else."""

    stride, input_tensor, output_tensor = 3, "in", "out"

    def __init__(self, inputs: int, outputs: int) -> None:
        self.lib = self
        self._sizes = {"in": inputs, "out": outputs}

    def TfLiteTensorByteSize(self, tensor: str) -> int:  # noqa: N802 - the library's name
        return self._sizes[tensor]


@pytest.mark.parametrize(
    ("sizes", "expected"), [((119, 1), "does not take 40 features"), ((120, 2), "does not answer with one probability")]
)
def test_a_model_of_something_else_is_refused(
    sizes: tuple[int, int], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pymicro_wakeword.MicroWakeWord, "from_config", lambda _path: Odd(*sizes))
    with pytest.raises(WordError, match=expected):
        load_words(["alexa"], None)


def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "find_spec", lambda _name: None)
    with pytest.raises(WordError, match=r"Install the extra utter-runner\[wake\] \(pymicro-wakeword, numpy\)"):
        find_words(["okay_nabu"])


def test_a_package_that_cannot_be_imported_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pymicro_wakeword", None)
    monkeypatch.setattr(models, "_directory", lambda: SHIPPED)
    with pytest.raises(WordError, match=r"Install the extra utter-runner\[wake\].*pymicro_wakeword"):
        load_words(["okay_nabu"], None)
    with pytest.raises(WordError, match=r"Install the extra utter-runner\[wake\]"):
        Frontend()


def test_a_word_that_was_fetched_is_known_by_its_name(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = own.parent / "content"
    content.mkdir()
    for file in (own, own.with_suffix(".tflite")):
        file.rename(content / file.name)
        file.symlink_to(f"content/{file.name}")
    monkeypatch.setenv("UTTER_MODELS", str(own.parent))
    assert find_words(["computer", "alexa"]) == [own, SHIPPED / "alexa.json"]
    assert [word.name for word in load_words(["computer"], None)] == ["computer"]
