"""What a subscriber gets, what is dropped, and what it costs nobody else."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from utter_runner.dataplane.streams import RELIABLE_HOLD, Stream

MODEL = settings(derandomize=True, database=None, deadline=None, max_examples=300)


class Wire:
    """The other side: what was sent, and how much more is taken."""

    def __init__(self, mode: Any, *, queue: int = 3, window: int = 4, room: int | None = None) -> None:
        self.sent: list[tuple[int, bytes]] = []
        self.room = room
        self.overruns: list[str] = []
        self.stream = Stream(
            "id",
            mode,
            send=self._send,
            writable=lambda: self.room is None or self.room > 0,
            on_overrun=self.overruns.append,
            queue=queue,
            window=window,
        )

    def _send(self, seq: int, item: bytes) -> None:
        assert self.room is None or self.room > 0, "sent though nothing more is taken"
        if self.room is not None:
            self.room -= 1
        self.sent.append((seq, item))

    def offer(self, *items: int) -> None:
        for item in items:
            self.stream.offer(b"%d" % item)

    @property
    def seqs(self) -> list[int]:
        return [seq for seq, _ in self.sent]

    def free(self, room: int | None) -> None:
        self.room = room
        self.stream.pump()


def items(*numbers: int) -> list[tuple[int, bytes]]:
    return [(number, b"%d" % number) for number in numbers]


def test_a_fast_subscriber_gets_everything_at_once() -> None:
    wire = Wire("lossy")
    for number in range(1000):
        wire.offer(number)
        assert wire.seqs[-1] == number
    assert wire.sent == items(*range(1000))
    assert wire.stream.dropped == 0


def test_a_lossy_stream_drops_the_oldest_and_the_gap_says_how_many() -> None:
    wire = Wire("lossy", queue=3, room=2)
    wire.offer(*range(10))
    assert wire.sent == items(0, 1)
    assert wire.stream.dropped == 5
    wire.free(None)
    assert wire.sent == items(0, 1, 7, 8, 9)
    wire.offer(10)
    assert wire.sent[-1] == (10, b"10")
    gaps = sum(after - before - 1 for before, after in zip(wire.seqs, wire.seqs[1:], strict=False))
    assert gaps == wire.stream.dropped == 5


def test_a_lossy_stream_needs_no_acknowledgement() -> None:
    wire = Wire("lossy", window=1)
    wire.offer(*range(100))
    assert len(wire.sent) == 100


def test_a_reliable_stream_sends_a_window_ahead_and_an_acknowledgement_reopens_it() -> None:
    wire = Wire("reliable", window=4)
    wire.offer(*range(10))
    assert wire.sent == items(0, 1, 2, 3)
    wire.stream.acknowledge(0)
    assert wire.sent == items(0, 1, 2, 3, 4)
    # One for several, and again: as many follow as it acknowledges.
    wire.stream.acknowledge(4)
    assert wire.seqs == list(range(9))
    wire.stream.acknowledge(4)
    assert wire.seqs == list(range(9))
    wire.stream.acknowledge(8)
    assert wire.seqs == list(range(10))
    wire.offer(10)
    assert wire.seqs == list(range(11))


@pytest.mark.parametrize("seq", [4, 100, 2**63, -1, -(2**63)])
def test_an_acknowledgement_of_what_was_never_sent_opens_nothing(seq: int) -> None:
    wire = Wire("reliable", window=4)
    wire.offer(*range(20))
    wire.stream.acknowledge(seq)
    assert wire.seqs == [0, 1, 2, 3]
    wire.stream.acknowledge(3)
    assert wire.seqs == list(range(8))


def test_an_acknowledgement_goes_up_only() -> None:
    wire = Wire("reliable", window=2)
    wire.offer(*range(10))
    wire.stream.acknowledge(1)
    wire.stream.acknowledge(0)
    wire.stream.acknowledge(-5)
    assert wire.seqs == [0, 1, 2, 3]


def test_a_reliable_stream_that_is_never_acknowledged_is_given_up_once_and_freed() -> None:
    wire = Wire("reliable", window=4)
    wire.offer(*range(4 + RELIABLE_HOLD))
    assert (wire.overruns, wire.stream.closed) == ([], False)
    wire.offer(0, 1, 2)
    assert wire.overruns == [f"the subscriber acknowledged nothing while {RELIABLE_HOLD} items waited"]
    assert wire.stream.closed
    assert not wire.stream._held
    wire.stream.acknowledge(3)
    wire.free(None)
    assert wire.seqs == [0, 1, 2, 3]


def test_a_reliable_stream_waits_for_the_wire_as_well() -> None:
    wire = Wire("reliable", window=4, room=1)
    wire.offer(*range(6))
    assert wire.seqs == [0]
    wire.free(1)
    assert wire.seqs == [0, 1]
    wire.free(None)
    assert wire.seqs == [0, 1, 2, 3]


def test_closing_is_idempotent_and_frees_what_is_held() -> None:
    wire = Wire("lossy", room=0)
    wire.offer(1, 2)
    for _ in range(2):
        wire.stream.close()
        assert not wire.stream._held
    wire.offer(3)
    wire.stream.acknowledge(0)
    wire.free(None)
    assert (wire.sent, wire.overruns) == ([], [])


@pytest.mark.parametrize("mode", ["lossy", "reliable"])
def test_nothing_overtakes_what_is_held(mode: str) -> None:
    wire = Wire(mode, room=0)
    wire.offer(0, 1)
    # The wire takes more before anybody has said so.
    wire.room = None
    wire.offer(2)
    wire.stream.pump()
    assert wire.sent == items(0, 1, 2)


def test_what_is_offered_while_an_item_is_sent_comes_after_it() -> None:
    wire = Wire("lossy")
    plain = wire._send

    def sends_and_offers(seq: int, item: bytes) -> None:
        plain(seq, item)
        if seq == 0:
            wire.stream.offer(b"inner")

    wire.stream._send = sends_and_offers
    wire.stream.offer(b"outer")
    assert wire.sent == [(0, b"outer"), (1, b"inner")]


operations = st.lists(
    st.one_of(
        st.tuples(st.just("offer"), st.integers(1, 6)),
        st.tuples(st.just("room"), st.integers(0, 5)),
        st.tuples(st.just("ack"), st.integers(-2, 40)),
        st.tuples(st.just("pump"), st.just(0)),
    ),
    max_size=40,
)


@MODEL
@given(operations=operations, queue=st.integers(1, 5))
def test_a_lossy_stream_against_a_list(operations: list[tuple[str, int]], queue: int) -> None:
    wire = Wire("lossy", queue=queue, room=0)
    offered = 0
    waiting: list[int] = []
    expected: list[int] = []

    def drain() -> None:
        while waiting and room[0]:
            room[0] -= 1
            expected.append(waiting.pop(0))

    room = [0]
    for what, number in operations:
        if what == "offer":
            for _ in range(number):
                wire.offer(offered)
                waiting.append(offered)
                drain()
                del waiting[:-queue]
                offered += 1
        elif what == "room":
            room[0] = number
            wire.free(number)
            drain()
        elif what == "ack":
            wire.stream.acknowledge(number)
        else:
            wire.stream.pump()
            drain()
        assert wire.seqs == expected
        assert wire.stream.dropped == offered - len(expected) - len(waiting)
    assert wire.sent == items(*expected)
    assert wire.overruns == []


@MODEL
@given(operations=operations, window=st.integers(1, 5))
def test_a_reliable_stream_against_a_list(operations: list[tuple[str, int]], window: int) -> None:
    wire = Wire("reliable", window=window, room=0)
    offered = acknowledged = 0
    room = 0
    for what, number in operations:
        before = len(wire.sent)
        if what == "offer":
            wire.offer(*range(offered, offered + number))
            offered += number
        elif what == "room":
            room = number
            wire.free(number)
        elif what == "ack":
            wire.stream.acknowledge(number)
            if number < before:
                acknowledged = max(acknowledged, number + 1)
        else:
            wire.stream.pump()
        room -= len(wire.sent) - before
        # Nothing is lost or out of order, and as much was sent as may be: no less and no more.
        assert wire.seqs == list(range(len(wire.sent)))
        assert len(wire.sent) <= min(offered, acknowledged + window)
        assert len(wire.sent) == min(offered, acknowledged + window) or room == 0
    assert wire.stream.dropped == 0
