"""Tests of what of a text reaches espeak-ng."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from utter_plugins.espeak.voice import VOICE, clean


@given(st.text() | st.text("[]a \x01"))
def test_nothing_of_a_text_is_a_command(text: str) -> None:
    cleaned = clean(text)
    assert "[[" not in cleaned
    assert cleaned.isprintable()
    assert cleaned == cleaned.strip()
    assert clean(cleaned) == cleaned


@given(st.text(st.characters(categories=["L", "N", "P"])))
def test_words_stay_as_they_are(text: str) -> None:
    assert clean(text).replace(" ", "") == text


@pytest.mark.skipif(shutil.which("espeak-ng") is None, reason="espeak-ng is not installed")
def test_brackets_and_control_characters_do_mean_something_to_it() -> None:
    def phonemes(text: str) -> str:
        command = ["espeak-ng", "--stdin", "-q", "-x", "-b", "1", "-v", "en"]
        return (
            subprocess.run(command, input=text, capture_output=True, text=True, check=True)
            .stdout.replace("'", "")
            .strip()
        )

    assert phonemes("[[h@lou]]") == "h@lou"
    assert phonemes(clean("[[h@lou]]")) != "h@lou"


@pytest.mark.parametrize("voice", ["en", "en-us", "gmw/en-GB", "en+f3", "mb-us1", "en-gb-x-rp"])
def test_voices(voice: str) -> None:
    assert re.search(VOICE, voice)


@pytest.mark.parametrize("voice", ["", "-v", "/etc/passwd", "en\n", "../x", "en/../x", "en x", "en/", "en+", "é"])
def test_no_voices(voice: str) -> None:
    assert not re.search(VOICE, voice)
