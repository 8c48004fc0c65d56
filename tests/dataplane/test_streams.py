"""What a subscriber gets, what is dropped, how a stream ends, and what it costs nobody else."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from utter_runner.dataplane.streams import RELIABLE_HOLD, TRANSITIONS, Stream, diagram

MODEL = settings(derandomize=True, database=None, deadline=None, max_examples=300)


class Wire:
    """The other side: what was sent, and how much more is taken."""

    def __init__(
        self, mode: Any, *, queue: int = 3, window: int = 4, room: int | None = None, max_held: int = 1 << 30
    ) -> None:
        self.sent: list[tuple[int, bytes]] = []
        self.room = room
        self.held = 0
        self.max_held = max_held
        self.largest = 1 << 30
        self.ends: list[str | None] = []
        self.acks: list[int] = []
        self.left = 0
        self._waits = False
        self.stream = Stream("id", "some.stream", mode, self, queue=queue, window=window)
        self.stream.on_ack = self.acks.append
        self.stream.on_over = self._leave

    def _leave(self) -> None:
        self.left += 1

    # What `Stream` asks of a wire.

    def ready(self) -> bool:
        return self.room is None or self.room > 0

    def send(self, stream: Stream, seq: int, item: Any) -> Any:
        assert stream is self.stream
        if not self.ready():
            return "later"
        if len(item) > self.largest:
            return "too large"
        if self.room is not None:
            self.room -= 1
        self.sent.append((seq, bytes(item)))
        return "sent"

    def wait(self, stream: Stream) -> None:
        assert stream is self.stream
        self._waits = True

    def over(self, stream: Stream, reason: str | None) -> None:
        assert stream is self.stream
        assert stream.state == "closed"
        self.ends.append(reason)

    # What the test does.

    def pump(self) -> None:
        while self._waits and self.ready():
            self._waits = self.stream.send_next()

    def offer(self, *items: int) -> None:
        for item in items:
            self.stream.offer(b"%d" % item)

    def ack(self, seq: int) -> None:
        self.stream.acknowledge(seq)
        self.pump()

    @property
    def seqs(self) -> list[int]:
        return [seq for seq, _ in self.sent]

    def free(self, room: int | None) -> None:
        self.room = room
        self.pump()


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
    gaps = sum(after - before - 1 for before, after in pairwise(wire.seqs))
    assert gaps == wire.stream.dropped == 5


def test_a_lossy_stream_needs_no_acknowledgement() -> None:
    wire = Wire("lossy", window=1)
    wire.offer(*range(100))
    assert len(wire.sent) == 100


def test_numbers_are_those_of_the_source() -> None:
    wire = Wire("lossy", queue=2, room=1)
    for seq in (3, 4, 7, 8, 20):
        wire.stream.put(seq, b"%d" % seq)
    wire.free(None)
    # 4 and 7 were dropped here, the others never came.
    assert wire.sent == items(3, 8, 20)
    wire.stream.put(21, b"21")
    assert wire.sent[-1] == (21, b"21")


def test_a_reliable_stream_sends_a_window_ahead_and_an_acknowledgement_reopens_it() -> None:
    wire = Wire("reliable", window=4)
    wire.offer(*range(10))
    assert wire.sent == items(0, 1, 2, 3)
    wire.ack(0)
    assert wire.sent == items(0, 1, 2, 3, 4)
    # One for several, and again: as many follow as it acknowledges.
    wire.ack(4)
    assert wire.seqs == list(range(9))
    wire.ack(4)
    assert wire.seqs == list(range(9))
    wire.ack(8)
    assert wire.seqs == list(range(10))
    wire.offer(10)
    assert wire.seqs == list(range(11))
    assert wire.acks == [0, 4, 8]


@pytest.mark.parametrize("seq", [4, 100, 2**63, -1, -(2**63)])
def test_an_acknowledgement_of_what_was_never_sent_opens_nothing(seq: int) -> None:
    wire = Wire("reliable", window=4)
    wire.offer(*range(20))
    wire.ack(seq)
    assert wire.seqs == [0, 1, 2, 3]
    wire.ack(3)
    assert wire.seqs == list(range(8))
    assert wire.acks == [3]


def test_an_acknowledgement_goes_up_only() -> None:
    wire = Wire("reliable", window=2)
    wire.offer(*range(10))
    wire.ack(1)
    wire.ack(0)
    wire.ack(-5)
    assert wire.seqs == [0, 1, 2, 3]
    assert wire.acks == [1]


def test_a_reliable_stream_that_is_never_acknowledged_is_given_up_once_and_freed() -> None:
    wire = Wire("reliable", window=4)
    wire.offer(*range(4 + RELIABLE_HOLD))
    assert (wire.ends, wire.stream.state) == ([], "open")
    wire.offer(0, 1, 2)
    assert wire.ends == [f"the subscriber acknowledged nothing while {RELIABLE_HOLD} items waited"]
    assert wire.stream.state == "closed"
    assert (wire.stream.held, wire.held, wire.left) == (0, 0, 1)
    wire.ack(3)
    wire.free(None)
    assert wire.seqs == [0, 1, 2, 3]
    assert wire.acks == []


def test_a_reliable_stream_waits_for_the_wire_as_well() -> None:
    wire = Wire("reliable", window=4, room=1)
    wire.offer(*range(6))
    assert wire.seqs == [0]
    wire.free(1)
    assert wire.seqs == [0, 1]
    wire.free(None)
    assert wire.seqs == [0, 1, 2, 3]


@pytest.mark.parametrize("mode", ["lossy", "reliable"])
def test_stopping_is_idempotent_and_frees_what_is_held(mode: str) -> None:
    wire = Wire(mode, room=0)
    wire.offer(1, 2)
    for _ in range(2):
        wire.stream.stop()
        assert (wire.stream.held, wire.held) == (0, 0)
    wire.offer(3)
    wire.stream.finish("late")
    wire.stream.give_up("later")
    wire.ack(0)
    wire.free(None)
    assert (wire.sent, wire.ends, wire.left) == ([], [None], 1)


@pytest.mark.parametrize("mode", ["lossy", "reliable"])
def test_nothing_overtakes_what_is_held(mode: str) -> None:
    wire = Wire(mode, room=0)
    wire.offer(0, 1)
    # The wire takes more before anybody has said so.
    wire.room = None
    wire.offer(2)
    wire.pump()
    assert wire.sent == items(0, 1, 2)


def test_what_is_offered_while_an_item_is_sent_comes_after_it() -> None:
    wire = Wire("lossy")
    plain = wire.send

    def sends_and_offers(stream: Stream, seq: int, item: bytes) -> Any:
        plain(stream, seq, item)
        if seq == 0:
            stream.offer(b"inner")
        return "sent"

    wire.send = sends_and_offers
    wire.stream.offer(b"outer")
    assert wire.sent == [(0, b"outer"), (1, b"inner")]


@pytest.mark.parametrize("mode", ["lossy", "reliable"])
def test_a_connection_that_breaks_while_a_held_item_is_sent_ends_the_stream_once(mode: str) -> None:
    wire = Wire(mode, room=0)
    wire.offer(0, 1, 2)
    plain = wire.send

    def breaks(stream: Stream, seq: int, item: bytes) -> Any:
        plain(stream, seq, item)
        stream.stop()
        return "sent"

    wire.send = breaks
    wire.free(None)
    assert (wire.seqs, wire.held, wire.stream.held, wire.ends, wire.left) == ([0], 0, 0, [None], 1)


def test_a_wire_that_takes_nothing_after_all_keeps_the_item_in_its_place() -> None:
    wire = Wire("reliable", room=0, window=4)
    wire.offer(0, 1)
    held = wire.held
    assert wire.stream.send_next()
    assert (wire.seqs, wire.held, wire.stream.held) == ([], held, 2)
    wire.free(None)
    assert wire.seqs == [0, 1]


# ---- the end


@pytest.mark.parametrize("mode", ["lossy", "reliable"])
def test_the_end_is_said_once_and_after_everything_that_is_held(mode: str) -> None:
    wire = Wire(mode, queue=4, window=4, room=1)
    wire.offer(0, 1, 2)
    wire.stream.finish("end")
    wire.stream.finish("again")
    wire.offer(3)
    assert (wire.seqs, wire.ends, wire.left, wire.stream.state) == ([0], [], 0, "ending")
    wire.free(1)
    assert (wire.seqs, wire.ends) == ([0, 1], [])
    wire.free(None)
    assert (wire.seqs, wire.ends, wire.left, wire.stream.state) == ([0, 1, 2], ["end"], 1, "closed")


def test_a_reliable_stream_that_ends_still_waits_for_credit() -> None:
    wire = Wire("reliable", window=2)
    wire.offer(*range(5))
    wire.stream.finish("end")
    assert wire.seqs == [0, 1]
    wire.ack(1)
    assert (wire.seqs, wire.ends) == ([0, 1, 2, 3], [])
    wire.ack(3)
    assert (wire.seqs, wire.ends) == ([0, 1, 2, 3, 4], ["end"])


def test_an_end_with_nothing_held_is_said_at_once() -> None:
    wire = Wire("reliable", window=1)
    wire.offer(0)
    wire.stream.finish("end")
    assert (wire.seqs, wire.ends, wire.left) == ([0], ["end"], 1)


def test_an_item_that_is_too_large_is_a_gap_or_the_end() -> None:
    lossy, reliable = Wire("lossy"), Wire("reliable")
    for wire in (lossy, reliable):
        wire.largest = 10
        wire.stream.offer(b"0")
        wire.stream.offer(b"x" * 11)
        wire.stream.offer(b"2")
    assert (lossy.sent, lossy.stream.dropped) == (items(0, 2), 1)
    assert (reliable.sent, reliable.ends) == (
        items(0),
        ["an item of 11 bytes is more than max_frame lets through"],
    )


def test_bytes_are_bounded_for_the_whole_connection() -> None:
    wire = Wire("lossy", queue=100, room=0, max_held=1000)
    for number in range(50):
        wire.stream.offer(b"%03d" % number + b"x" * 97)
    assert (wire.stream.held, wire.held, wire.stream.dropped) == (10, 1000, 40)
    # Others of the connection hold all there is.
    wire.held += 1000
    wire.stream.offer(b"y")
    assert (wire.stream.held, wire.held) == (0, 1000)
    reliable = Wire("reliable", window=100, room=0, max_held=1000)
    for _ in range(11):
        reliable.stream.offer(b"x" * 100)
    assert reliable.ends == ["more than max_queued_bytes (1000) waited for the subscriber"]
    assert reliable.held == 0


def test_what_is_held_is_a_copy_of_the_item_alone() -> None:
    from msgspec import Raw  # noqa: PLC0415 - only here

    wire = Wire("lossy", room=0)
    wire.stream.offer(Raw(b"1"))
    assert [type(item) for _, item in wire.stream._held] == [bytes]


def test_the_table_knows_every_event_in_every_state() -> None:
    states = {state for state, _ in TRANSITIONS} | {*TRANSITIONS.values()}
    assert states == {"open", "ending", "closed"}
    for event in ("finish", "give_up", "stop"):
        assert {state for state, one in TRANSITIONS if one == event} == states
    assert "open --> ending: finish" in diagram()


# ---- against a plain list

operations = st.lists(
    st.one_of(
        st.tuples(st.just("offer"), st.integers(1, 6)),
        st.tuples(st.just("skip"), st.integers(1, 3)),
        st.tuples(st.just("room"), st.integers(0, 5)),
        st.tuples(st.just("ack"), st.integers(-2, 40)),
        st.tuples(st.just("finish"), st.just(0)),
    ),
    max_size=40,
)


@MODEL
@given(operations=operations, queue=st.integers(1, 5))
def test_a_lossy_stream_against_a_list(operations: list[tuple[str, int]], queue: int) -> None:
    wire = Wire("lossy", queue=queue, room=0)
    seq = offered = room = 0
    finished = False
    waiting: list[int] = []
    expected: list[int] = []

    def drain() -> None:
        nonlocal room
        while waiting and room:
            room -= 1
            expected.append(waiting.pop(0))

    for what, number in operations:
        if what == "offer":
            for _ in range(number):
                wire.stream.put(seq, b"%d" % seq)
                if not finished:
                    waiting.append(seq)
                    offered += 1
                    drain()
                    del waiting[:-queue]
                seq += 1
        elif what == "skip":
            # The source dropped some itself.
            seq += number
        elif what == "room":
            room = number
            wire.free(number)
            drain()
        elif what == "ack":
            wire.ack(number)
        else:
            finished = True
            wire.stream.finish("end")
        assert wire.seqs == expected
        assert wire.stream.held == len(waiting) <= queue
        assert wire.held == sum(len(b"%d" % one) for one in waiting)
        assert wire.stream.dropped == offered - len(expected) - len(waiting)
        assert wire.ends == (["end"] if finished and not waiting else [])
    assert wire.sent == items(*expected)


@MODEL
@given(operations=operations, window=st.integers(1, 5))
def test_a_reliable_stream_against_a_list(operations: list[tuple[str, int]], window: int) -> None:
    wire = Wire("reliable", window=window, room=0)
    offered = acknowledged = 0
    room = 0
    finished = False
    for what, number in operations:
        before = len(wire.sent)
        if what == "offer":
            wire.offer(*range(offered, offered + number))
            offered += 0 if finished else number
        elif what == "room":
            room = number
            wire.free(number)
        elif what == "ack":
            wire.ack(number)
            if number < before:
                acknowledged = max(acknowledged, number + 1)
        elif what == "finish":
            finished = True
            wire.stream.finish("end")
        room -= len(wire.sent) - before
        # Nothing is lost or out of order, and as much was sent as may be: no less and no more.
        assert wire.seqs == list(range(len(wire.sent)))
        assert len(wire.sent) <= min(offered, acknowledged + window)
        assert len(wire.sent) == min(offered, acknowledged + window) or room == 0
        assert wire.stream.held == offered - len(wire.sent)
        assert wire.ends == (["end"] if finished and len(wire.sent) == offered else [])
    assert wire.stream.dropped == 0
