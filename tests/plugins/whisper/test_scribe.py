"""What is transcribed when, with a model that says what it was given."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from utter_plugins.whisper.bias import Hints
from utter_plugins.whisper.loudness import LONGEST, RATE, TAIL, Loudness
from utter_plugins.whisper.scribe import NEW_AUDIO, SLOW_STALL_S, STALL_S, GivenUp, Heard, Look, Scribe
from utter_plugins.whisper.sessions import Session

if TYPE_CHECKING:
    from collections.abc import Callable

SPEECH, ROOM = 0.2, 0.001


class EchoModel:
    """Hears how many frames there are, and asks twice whether to give up.

    Attributes:
        asked: what was to be transcribed, by kind and number of frames.
        enter, leave: a transcription sets the first and waits for the second.
        glance_s: how long it says that a glance takes.
    """

    def __init__(self) -> None:
        self.asked: list[tuple[str, int]] = []
        self.enter, self.leave = threading.Event(), threading.Event()
        self.leave.set()
        self.glance_s = 0.0
        self.error: Exception | None = None

    def transcribe(self, pcm: bytes, hints: Hints, language: str, give_up: Callable[[], bool]) -> Heard:
        return Heard(f"{language}: {self._work('whole', pcm, give_up)} frames and {len(hints)} hints", 0.5)

    def glance_seconds(self, _frames: int) -> float:
        return self.glance_s

    def glance(self, pcm: bytes, language: str, give_up: Callable[[], bool]) -> str:
        return f"{language}: about {self._work('glance', pcm, give_up)} frames"

    def _work(self, kind: str, pcm: bytes, give_up: Callable[[], bool]) -> int:
        self.asked.append((kind, len(pcm) // 4))
        if self.error is not None:
            raise self.error
        self.enter.set()
        assert self.leave.wait(30)
        if give_up():
            raise GivenUp
        return len(pcm) // 4


class Bench:
    """A scribe with one session, and a clock that stands still."""

    def __init__(self, *, partials: bool = True) -> None:
        self.model = EchoModel()
        self.told: list[tuple[str, str]] = []
        self.logged: list[str] = []
        self.now = 0.0
        self.session = Session(Hints(["open it"]), "en")
        self.scribe = Scribe(self.model, self.tell, log=self.logged.append, partials=partials, clock=lambda: self.now)

    def tell(self, session: str, text: str) -> None:
        self.told.append((session, text))

    def hear(self, level: float, frames: int) -> None:
        wave = level * np.tile([1.0, -1.0], (frames + 1) // 2)[:frames]
        self.session.pcm += wave.astype("<f4").tobytes()
        self.now += frames / RATE
        self.session.touched = self.now
        self.scribe.fed("s", self.session)

    def due(self) -> Look | None:
        return self.scribe.due()[0]

    def look(self) -> tuple[str, int]:
        look = self.due()
        assert look is not None
        self.scribe.look(look)
        return look.kind, look.frames

    def finish(self) -> Heard:
        return self.scribe.finish("s", self.session)


def run(*functions: Callable[[], object]) -> list[threading.Thread]:
    threads = [threading.Thread(target=function) for function in functions]
    for thread in threads:
        thread.start()
    return threads


def join(threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()


def test_a_pause_is_transcribed_and_nothing_is_left_to_do_at_the_end() -> None:
    bench = Bench()
    bench.hear(ROOM, RATE // 4)
    assert bench.due() is None
    bench.hear(SPEECH, RATE // 2)
    assert bench.due() is None
    bench.hear(ROOM, TAIL)
    frames = 3 * RATE // 4 + TAIL
    assert bench.look() == ("whole", frames)
    text = f"en: {frames} frames and 1 hints"
    assert bench.told == [("s", text)]
    bench.hear(ROOM, RATE)
    # It is known already.
    assert bench.due() is None
    assert bench.finish() == Heard(text, 0.5)
    assert bench.model.asked == [("whole", frames)]


def test_what_is_said_after_a_pause_is_transcribed_with_all_the_rest() -> None:
    bench = Bench()
    bench.hear(ROOM, RATE)
    bench.hear(SPEECH, RATE // 2)
    bench.hear(ROOM, TAIL)
    bench.look()
    bench.hear(SPEECH, RATE // 4)
    bench.hear(ROOM, TAIL // 2)
    assert bench.finish().text == f"en: {3 * RATE // 2 + TAIL + RATE // 4 + TAIL // 2} frames and 1 hints"


def test_while_somebody_speaks_there_is_a_glance_for_each_second() -> None:
    bench = Bench()
    bench.hear(ROOM, RATE // 2)
    bench.hear(SPEECH, NEW_AUDIO - RATE // 2 - 1)
    assert bench.due() is None
    bench.hear(SPEECH, 1)
    assert bench.look() == ("glance", NEW_AUDIO)
    assert bench.told == [("s", f"en: about {NEW_AUDIO} frames")]
    bench.hear(SPEECH, NEW_AUDIO - 1)
    assert bench.due() is None
    bench.hear(SPEECH, 1)
    assert bench.look() == ("glance", 2 * NEW_AUDIO)
    # A glance is never the answer.
    assert bench.finish() == Heard(f"en: {2 * NEW_AUDIO} frames and 1 hints", 0.5)


def test_on_a_machine_on_which_a_glance_takes_long_only_pauses_are_transcribed() -> None:
    bench = Bench()
    bench.model.glance_s = 0.16
    bench.hear(ROOM, RATE)
    bench.hear(SPEECH, 2 * RATE)
    assert bench.due() is None
    # Nothing comes, which for a while may be the machine's fault.
    bench.now += 2 * STALL_S
    assert bench.scribe.due() == (None, pytest.approx(SLOW_STALL_S - 2 * STALL_S))
    bench.hear(ROOM, TAIL)
    assert bench.look() == ("whole", 3 * RATE + TAIL)


def test_when_nothing_comes_the_speaker_pauses() -> None:
    bench = Bench()
    bench.hear(SPEECH, RATE // 2)
    assert bench.due() is None
    bench.now += 2 * STALL_S
    assert bench.look() == ("whole", RATE // 2)
    assert bench.due() is None
    assert bench.finish().text == f"en: {RATE // 2} frames and 1 hints"
    assert len(bench.model.asked) == 1


def test_of_a_long_utterance_nothing_is_transcribed_before_its_end() -> None:
    bench = Bench()
    bench.hear(ROOM, RATE)
    bench.hear(SPEECH, LONGEST)
    bench.hear(ROOM, TAIL)
    bench.now += 2 * STALL_S
    assert bench.due() is None
    assert bench.finish().text == f"en: {LONGEST + RATE + TAIL} frames and 1 hints"


def test_on_a_slow_machine_it_takes_longer_until_nothing_means_a_pause() -> None:
    bench = Bench()
    bench.model.glance_s = 0.16
    bench.hear(SPEECH, RATE // 2)
    bench.now += SLOW_STALL_S - 0.1
    assert bench.due() is None
    bench.now += 0.2
    assert bench.look() == ("whole", RATE // 2)


def test_it_says_when_to_ask_again() -> None:
    bench = Bench()
    assert bench.scribe.due() == (None, None)
    bench.hear(SPEECH, RATE // 2)
    bench.now += 0.1
    assert bench.scribe.due() == (None, pytest.approx(STALL_S - 0.1))


def test_what_is_being_transcribed_when_it_is_asked_for_is_waited_for() -> None:
    bench = Bench()
    bench.hear(SPEECH, RATE)
    bench.hear(ROOM, TAIL)
    bench.model.leave.clear()
    answers: list[Heard] = []
    threads = run(bench.look)
    assert bench.model.enter.wait(30)
    bench.hear(ROOM, TAIL)
    threads += run(lambda: answers.append(bench.finish()))
    # The end of the speech is where it was.
    bench.model.leave.set()
    join(threads)
    assert [one.text for one in answers] == [f"en: {RATE + TAIL} frames and 1 hints"]
    assert len(bench.model.asked) == 1


@pytest.mark.parametrize("kind", ["whole", "glance"])
def test_what_is_of_no_use_any_more_is_given_up(kind: str) -> None:
    bench = Bench()
    bench.hear(ROOM, RATE)
    bench.hear(SPEECH, RATE)
    if kind == "whole":
        bench.hear(ROOM, TAIL)
    bench.model.leave.clear()
    look = bench.due()
    assert look is not None
    assert look.kind == kind
    threads = run(lambda: bench.scribe.look(look))
    assert bench.model.enter.wait(30)
    bench.hear(SPEECH, RATE // 4)
    answers: list[Heard] = []
    if kind == "glance":
        # It goes on until somebody waits.
        done = threading.Event()
        threads += run(lambda: (answers.append(bench.finish()), done.set()))
        while bench.scribe.due() != (None, None):
            pass
    bench.model.leave.set()
    join(threads)
    assert bench.told == []
    bench.finish()
    assert [kind for kind, _ in bench.model.asked][:2] == [kind, "whole"]


def test_nothing_is_said_of_a_session_that_nobody_wants() -> None:
    bench = Bench()
    bench.hear(SPEECH, RATE)
    bench.hear(ROOM, TAIL)
    look = bench.due()
    assert look is not None
    bench.scribe.drop("s")
    bench.scribe.look(look)
    assert (bench.told, bench.model.asked, bench.due()) == ([], [], None)
    bench.scribe.drop("s")


def test_the_same_text_is_said_once() -> None:
    bench = Bench()
    bench.hear(SPEECH, RATE)
    bench.hear(ROOM, TAIL)
    look = bench.due()
    assert look is not None
    bench.scribe.look(look)
    bench.scribe.look(look)
    assert len(bench.told) == 1


def test_without_partials_the_answer_is_the_same() -> None:
    bench = Bench(partials=False)
    bench.hear(SPEECH, RATE)
    bench.hear(ROOM, 2 * TAIL)
    assert bench.due() is None
    assert bench.finish().text == f"en: {RATE + TAIL} frames and 1 hints"


def test_a_model_that_fails_is_left_alone_until_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    bench.model.error = RuntimeError("out of memory")
    bench.hear(SPEECH, RATE)
    bench.hear(ROOM, TAIL)

    class Enough(BaseException):
        pass

    def stop(_seconds: float | None) -> None:
        raise Enough

    monkeypatch.setattr(bench.scribe._changed, "wait", stop)
    with pytest.raises(Enough):
        bench.scribe.run()
    assert bench.logged == ["session s: no text before its end: out of memory"]
    with pytest.raises(RuntimeError):
        bench.finish()


@settings(deadline=None)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.sampled_from([SPEECH, ROOM, 0.0]), st.integers(1, 20_000)),
            st.just("look"),
            st.just("wait"),
        ),
        max_size=30,
    )
)
def test_whatever_was_transcribed_before_the_answer_is_that_of_the_whole(steps: list[tuple[float, int] | str]) -> None:
    bench = Bench()
    for step in steps:
        if step == "wait":
            bench.now += 2 * STALL_S
        elif isinstance(step, tuple):
            bench.hear(*step)
        elif (look := bench.due()) is not None:
            bench.scribe.look(look)
    loudness = Loudness()
    loudness.update(bench.session.pcm)
    assert bench.finish().text == f"en: {loudness.end} frames and 1 hints"
    assert bench.due() is None
