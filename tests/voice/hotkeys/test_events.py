from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from utter_runner.voice.hotkeys.events import (
    DOWN,
    EV_KEY,
    EV_SYN,
    EVENT,
    REPEAT,
    SYN_DROPPED,
    SYN_REPORT,
    UP,
    EventDecoder,
    KeyChange,
    Resync,
    encode,
)

EXAMPLES = settings(deadline=None, derandomize=True, database=None, max_examples=200)
EV_REL, EV_MSC = 2, 4
REPORT = encode(EV_SYN, SYN_REPORT, 0)
DROPPED = encode(EV_SYN, SYN_DROPPED, 0)

events = st.one_of(
    st.tuples(st.just(EV_KEY), st.integers(1, 5), st.sampled_from([UP, DOWN, REPEAT])),
    st.tuples(st.just(EV_SYN), st.sampled_from([SYN_REPORT, SYN_DROPPED]), st.just(0)),
    st.tuples(st.sampled_from([EV_REL, EV_MSC]), st.integers(0, 5), st.integers(-3, 3)),
)


def test_keys_go_down_and_up_and_the_rest_is_left_out() -> None:
    decoder = EventDecoder()
    data = encode(EV_MSC, 4, 30) + encode(EV_KEY, 30, DOWN) + REPORT + encode(EV_KEY, 30, REPEAT) + REPORT
    assert decoder.feed(data + encode(EV_KEY, 30, UP) + REPORT) == [KeyChange(30, down=True), KeyChange(30, down=False)]


def test_after_lost_events_nothing_counts_up_to_the_next_report() -> None:
    decoder = EventDecoder()
    data = encode(EV_KEY, 1, DOWN) + DROPPED + encode(EV_KEY, 2, DOWN) + REPORT + encode(EV_KEY, 3, DOWN)
    assert decoder.feed(data) == [KeyChange(1, down=True), Resync(), KeyChange(3, down=True)]


def test_lost_events_are_still_lost_in_the_next_read() -> None:
    decoder = EventDecoder()
    assert decoder.feed(DROPPED) == []
    assert decoder.feed(encode(EV_KEY, 2, DOWN)) == []
    assert decoder.feed(REPORT) == [Resync()]


def test_the_layout_is_that_of_struct_input_event() -> None:
    assert EVENT.size == 24
    assert EVENT.unpack(encode(EV_KEY, 57, DOWN, time=1.5)) == (1, 500_000, EV_KEY, 57, 1)


@EXAMPLES
@given(st.lists(events, max_size=30), st.data())
def test_any_split_of_the_stream_decodes_to_the_same(stream: list[tuple[int, int, int]], data: st.DataObject) -> None:
    whole = b"".join(encode(*event) for event in stream)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=10)))
    decoder, found = EventDecoder(), []
    for start, end in zip([0, *cuts], [*cuts, len(whole)], strict=True):
        found += decoder.feed(whole[start:end])
    assert found == EventDecoder().feed(whole)


@EXAMPLES
@given(st.lists(events, max_size=30))
def test_every_loss_that_was_reported_to_its_end_asks_for_one_resync(stream: list[tuple[int, int, int]]) -> None:
    found = EventDecoder().feed(b"".join(encode(*event) for event in stream))
    expected = dropping = 0
    for kind, code, _ in stream:
        if kind == EV_SYN and code == SYN_DROPPED:
            dropping = 1
        elif kind == EV_SYN and code == SYN_REPORT:
            expected, dropping = expected + dropping, 0
    assert sum(isinstance(each, Resync) for each in found) == expected
