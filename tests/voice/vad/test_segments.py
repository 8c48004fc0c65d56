from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from utter_runner.voice.collaborators import Chunk
from utter_runner.voice.fakes import numbered
from utter_runner.voice.vad.segments import DOUBT, SILENCE, SPEECH, Lengths, Segmenter, Trimmer

WINDOW = 512
LENGTHS = Lengths(window=WINDOW, padding=4_800, silence=19_200, no_speech=96_000)
LOUD, QUIET, BETWEEN, DOUBTFUL = SPEECH, DOUBT / 2, (SPEECH + SILENCE) / 2, (SILENCE + DOUBT) / 2

probabilities = st.lists(
    st.one_of(st.sampled_from([LOUD, QUIET, BETWEEN, DOUBTFUL]), st.floats(0, 1)), min_size=1, max_size=300
)


def followed(windows: list[float], lead: int = 0, foreign: int | None = None) -> Segmenter:
    segmenter = Segmenter(LENGTHS, lead=lead, foreign=lead if foreign is None else foreign)
    for probability in windows:
        segmenter.add(probability)
    return segmenter


@given(probabilities, st.integers(0, 32_000))
def test_what_may_be_speech_is_kept_with_its_padding(windows: list[float], lead: int) -> None:
    segmenter = followed(windows, lead)
    segmenter.finish()
    doubtful = [
        index
        for index, probability in enumerate(windows)
        if probability >= DOUBT
        and (index in {0, len(windows) - 1} or max(windows[index - 1], windows[index + 1]) >= DOUBT)
    ]
    if segmenter.heard:
        first, last = segmenter.kept
        for index in doubtful:
            assert first <= max(index * WINDOW - LENGTHS.padding, 0)
            assert last >= (index + 1) * WINDOW + LENGTHS.padding
        # What is heard for certain is kept even if it falls to pieces.
        assert any(first <= index * WINDOW < last for index, value in enumerate(windows) if value >= SPEECH)
    else:
        assert segmenter.kept == (0, 0)


@given(probabilities)
def test_what_is_kept_does_not_shrink(windows: list[float]) -> None:
    steps = [followed(windows[:count]) for count in range(1, len(windows) + 1)]
    for before, after in pairwise(steps):
        assert after.heard >= before.heard
        if before.heard:
            assert after.kept[0] == before.kept[0]
            assert after.kept[1] >= before.kept[1]


@given(probabilities, st.integers(0, 32_000))
def test_an_utterance_is_not_over_while_somebody_speaks_or_has_just_spoken(windows: list[float], lead: int) -> None:
    segmenter = followed(windows, lead)
    since = len(windows) * WINDOW - lead
    if segmenter.over:
        assert since >= LENGTHS.silence
        quiet = LENGTHS.silence // WINDOW
        recent = windows[-quiet:]
        # A single window is no speech yet.
        assert not any(a >= SPEECH and b >= SPEECH for a, b in pairwise(recent[1:])) or not segmenter.heard


@given(st.lists(st.floats(0, SPEECH, exclude_max=True), max_size=300))
def test_without_speech_nothing_is_heard(windows: list[float]) -> None:
    segmenter = followed(windows)
    assert not segmenter.heard
    assert segmenter.over == (len(windows) * WINDOW >= LENGTHS.no_speech)


def test_a_single_window_is_no_speech() -> None:
    assert not followed([LOUD, QUIET, QUIET, QUIET] * 20).heard
    assert followed([LOUD, LOUD]).heard


def test_silence_far_from_speech_is_not_kept_because_of_a_crackle() -> None:
    quiet = [QUIET] * 50
    segmenter = followed([*quiet, DOUBTFUL, *quiet, LOUD, QUIET, LOUD, *quiet, DOUBTFUL, *quiet])
    segmenter.finish()
    first, last = segmenter.kept
    assert 100 * WINDOW - LENGTHS.padding < first <= 102 * WINDOW
    assert 104 * WINDOW <= last <= 104 * WINDOW + LENGTHS.padding
    segmenter.add(DOUBTFUL)
    segmenter.finish()
    assert segmenter.kept[1] > 200 * WINDOW


def test_speech_goes_on_through_what_is_in_between_and_does_not_begin_with_it() -> None:
    assert not followed([BETWEEN] * 50).heard
    assert followed([LOUD, BETWEEN]).heard
    over_after = LENGTHS.silence // WINDOW + 1
    assert not followed([LOUD, *[BETWEEN] * 100]).over
    assert followed([LOUD, LOUD, *[DOUBTFUL] * over_after]).over


def test_a_pause_between_words_ends_nothing() -> None:
    pause = [QUIET] * (LENGTHS.silence // WINDOW)
    assert not followed([LOUD] * 5 + pause).over
    assert not followed([LOUD] * 5 + pause + [LOUD] * 5 + pause).over
    assert followed([LOUD] * 5 + [*pause, QUIET]).over


def test_speech_from_before_the_key_is_kept_and_waited_after_like_none() -> None:
    lead = 10 * WINDOW
    windows = [LOUD] * 10 + [QUIET] * (LENGTHS.silence // WINDOW + 20)
    assert followed(windows, lead).heard
    assert not followed(windows, lead).over
    assert followed(windows).over
    # Unless it was said to the runner, right after a wake word.
    assert followed(windows, lead, foreign=0).over
    assert not followed([QUIET] * (LENGTHS.no_speech // WINDOW), lead, foreign=0).over
    # What still sounds when the key goes down is the same.
    assert not followed([LOUD] * 11 + windows[11:], lead).over
    assert followed([LOUD] * 12 + windows[12:], lead).over
    assert followed([QUIET] * 10 + [QUIET] * (LENGTHS.no_speech // WINDOW + 1), lead).over


@given(st.lists(st.integers(1, 900), max_size=20), st.lists(st.integers(0, 12_000), max_size=20), st.data())
def test_the_trimmer_passes_each_frame_on_once_at_its_place(
    sizes: list[int], cuts: list[int], data: st.DataObject
) -> None:
    trimmer, at = Trimmer(), 1_000
    for size in sizes:
        trimmer.add(Chunk(numbered(at, size), at))
        at += size
    position = taken = 0
    for cut in sorted(cuts):
        end = max(position, min(cut, at - 1_000))
        if data.draw(st.booleans()):
            trimmer.drop(cut)
        else:
            chunks = list(trimmer.take(cut))
            assert b"".join(chunk.data for chunk in chunks) == numbered(1_000 + position, end - position)
            for chunk in chunks:
                assert chunk.start is not None
                assert chunk.data == numbered(chunk.start, chunk.frames)
            taken += len(chunks)
        position = end
    rest = list(trimmer.take())
    assert sum(chunk.frames for chunk in rest) == at - 1_000 - position
    # Chunks are not made smaller than they must be.
    assert taken + len(rest) <= len(sizes) + len(cuts)


@pytest.mark.parametrize("start", [None, 77])
def test_a_cut_chunk_knows_its_place_if_it_had_one(start: int | None) -> None:
    first, rest = Chunk(numbered(0, 10), start).cut(4)
    assert (first.data, rest.data) == (numbered(0, 4), numbered(4, 6))
    assert (first.start, rest.start) == ((None, None) if start is None else (77, 81))
