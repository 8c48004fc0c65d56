"""Following the microphone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from support.microphone import RATE, Overtaken, Reopened, ScriptedMicrophone, Silent, Unplugged
from utter_plugins.wake.detector import Heard
from utter_plugins.wake.listening import ACCOUNT_S, BATCH, CLOSED_S, MAX_BEHIND, PIECE, Listening
from utter_plugins.wake.models import STEP
from utter_protocol.ring import RingError, RingLayout

if TYPE_CHECKING:
    from collections.abc import Iterator


class Ears:
    """Hears a word in every frame that is 1."""

    def __init__(self) -> None:
        self.restarts: list[int] = []
        self.spans: list[tuple[int, int]] = []
        self.position = 0

    def restart(self, position: int) -> None:
        self.restarts.append(position)
        self.position = position

    def take(self, pcm: bytes) -> Iterator[Heard]:
        samples = np.frombuffer(pcm, "<f4")
        assert len(samples) % STEP == 0
        start, self.position = self.position, self.position + len(samples)
        self.spans.append((start, self.position))
        for at in np.nonzero(samples == 1.0)[0]:
            yield Heard("word", 1.0, start + int(at), self.position)


class Bed:
    def __init__(self, *steps: object, **how: Any) -> None:
        self.microphone = ScriptedMicrophone(steps, **how)
        self.ears = Ears()
        self.words: list[int] = []
        self.open: list[bool] = []
        self.log: list[str] = []
        self.listening = Listening(
            self.microphone,
            self.ears,
            on_word=lambda heard: self.words.append(heard.ended),
            on_closed=lambda: self.open.append(False),
            on_open=lambda: self.open.append(True),
            log=self.log.append,
        )

    def run(self) -> Bed:
        with pytest.raises(Unplugged):
            self.listening.run()
        return self

    @property
    def covered(self) -> list[int]:
        return [frame for start, end in self.ears.spans for frame in range(start, end)]


def sound(frames: int, word_at: int | None = None) -> Any:
    samples = np.full(frames, 0.1, "f4")
    if word_at is not None:
        samples[word_at] = 1.0
    return samples


def test_every_frame_is_heard_once_and_in_order() -> None:
    pieces = [320] * 50 + [1, 159, 1_000, 7, 3_333] + [320] * 10
    bed = Bed(*map(sound, pieces), start=777).run()
    assert bed.ears.restarts == [777]
    assert bed.covered == list(range(777, 777 + len(bed.covered)))
    # What is left is less than what is waited for.
    assert 0 <= sum(pieces) - len(bed.covered) < BATCH
    assert all(end - start <= PIECE for start, end in bed.ears.spans)
    assert bed.log == []


def test_what_was_there_before_is_not_heard() -> None:
    bed = Bed(sound(BATCH, word_at=5), start=10_000).run()
    assert bed.words == [10_005]


def test_a_thread_that_is_late_catches_up() -> None:
    bed = Bed(sound(MAX_BEHIND, word_at=3)).run()
    assert bed.words == [3]
    assert len(bed.covered) == MAX_BEHIND
    assert bed.log == []


def test_a_thread_that_is_too_late_goes_on_in_the_present() -> None:
    late = MAX_BEHIND + 160
    bed = Bed(sound(late, word_at=3), sound(BATCH, word_at=7)).run()
    assert bed.words == [late + 7]
    assert bed.ears.restarts == [0, late]
    assert bed.log == ["2.0 s behind the microphone: they are skipped"]


def test_nothing_is_heard_across_an_opening_of_the_microphone() -> None:
    bed = Bed(sound(BATCH), sound(100), Reopened, sound(BATCH, word_at=0), sound(BATCH, word_at=1)).run()
    reopened = 2 * BATCH + 100
    assert bed.ears.restarts == [0, reopened]
    assert bed.words == [reopened + 1]
    assert bed.log == ["the microphone was opened again; listening from here on"]


def test_frames_that_are_lost_are_said_to_be() -> None:
    bed = Bed(sound(BATCH), sound(BATCH - 1), Overtaken, sound(BATCH, word_at=4), sound(BATCH, word_at=5)).run()
    present = 3 * BATCH - 1
    assert bed.ears.restarts == [0, present]
    assert bed.words == [present + 5]
    assert len(bed.log) == 1
    assert bed.log[0].startswith("sound was lost: The audio ring has moved on")


def test_a_closed_microphone_is_noticed_once_and_waited_for_without_end() -> None:
    opened = [sound(RATE) for _ in range(round(CLOSED_S))]
    bed = Bed(Silent, Silent, Silent, *opened, Silent).run()
    assert bed.open == [False, True, False]
    asleep = bed.microphone.waits.index(None)
    assert bed.microphone.waits[:asleep] == [CLOSED_S]
    # As long as it was taken for closed, every wait was one without an end.
    assert set(bed.microphone.waits[asleep : asleep + len(opened)]) == {None}


def test_a_microphone_that_is_open_for_a_moment_is_still_one_that_is_closed() -> None:
    moment = [sound(RATE, word_at=9), sound(RATE)]
    bed = Bed(Silent, Reopened, *moment, Silent, Reopened, *moment, Silent).run()
    assert bed.open == [False]


def test_words_are_heard_while_the_microphone_is_open_for_a_moment() -> None:
    bed = Bed(Silent, sound(RATE, word_at=9), Silent).run()
    assert bed.words == [9]


@pytest.mark.parametrize(("rate", "channels"), [(48_000, 1), (16_000, 2)])
def test_other_audio_is_refused(rate: int, channels: int) -> None:
    with pytest.raises(RingError, match=rf"{channels} channels at {rate} Hz; wake words are found in one at 16000 Hz"):
        Bed(layout=RingLayout(rate=rate, channels=channels, capacity=10))


def test_it_accounts_for_what_it_takes() -> None:
    bed = Bed(*[sound(PIECE)] * 10 * ACCOUNT_S).run()
    told = [line.partition(", with ") for line in bed.log]
    assert [what for what, _, _ in told] == [f"listened to {seconds} s of sound" for seconds in (60, 120, 240, 480)]
    assert all(float(share.removesuffix(" % of a processor")) >= 0 for _, _, share in told)
