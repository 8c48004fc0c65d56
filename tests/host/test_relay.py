"""Streams of plugins: what a plugin is asked, what it is held to, and what becomes of its streams."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw

from support.streams import Bed, Sink, source
from utter_protocol.errors import ErrorCode, RpcError
from utter_runner.host.upstream import MAX_STREAM_ID
from utter_runner.supervision.fake import FakeInstance

MODEL = settings(derandomize=True, database=None, deadline=None, max_examples=300)


# ---- who offers a stream


def found(bed: Bed, method: str, *arguments: Any, **options: Any) -> str:
    return str(bed.relay.find(method, *arguments, **options).id)


def refused(bed: Bed, method: str, *arguments: Any, **options: Any) -> RpcError:
    with pytest.raises(RpcError) as error:
        bed.relay.find(method, *arguments, **options)
    return error.value


def test_the_first_running_plugin_that_lists_a_stream_is_asked() -> None:
    first, second, third = source("first", "a", "b"), source("second", "b"), source("third", "b", "c")
    bed = Bed(first, second, third)
    assert found(bed, "b") == "first"
    assert found(bed, "c") == "third"
    assert found(bed, "b", "third") == "third"
    assert found(bed, "b", besides="first") == "second"
    first.die()
    assert found(bed, "b") == "second"


def test_a_stream_that_nobody_lists_does_not_exist() -> None:
    bed = Bed(source("first", "a"), FakeInstance("plain"))
    error = refused(bed, "b")
    assert (error.code, error.data) == (ErrorCode.METHOD_NOT_FOUND, {"method": "b"})
    error = refused(bed, "b", "first")
    assert (error.code, error.data) == (ErrorCode.METHOD_NOT_FOUND, {"method": "b", "plugin": "first"})
    assert refused(bed, "a", besides="first").code == ErrorCode.METHOD_NOT_FOUND
    assert refused(bed, "a", "nobody").code == ErrorCode.CAPABILITY_MISSING


def test_a_stream_whose_plugins_are_down_is_minus_32000() -> None:
    bed = Bed(source("first", "a"))
    bed.die("killed")
    for arguments in ((), ("first",)):
        error = refused(bed, "a", *arguments)
        assert error.code == ErrorCode.PLUGIN_FAILED
        assert error.message == "first is backoff: killed"
    # While it starts again nothing is known of it but what it said the last time.
    bed.plugin.status, bed.plugin.handshake = "starting", None
    assert refused(bed, "a").message.startswith("first is starting")
    assert refused(bed, "never.named", "first").code == ErrorCode.PLUGIN_FAILED


def test_announcements_are_no_streams_although_describe_lists_them() -> None:
    bed = Bed(source("ear", "stt.partial", "plugin.health_changed", "tick"))
    for method in ("stt.partial", "plugin.health_changed"):
        assert refused(bed, method).code == ErrorCode.METHOD_NOT_FOUND
    assert found(bed, "tick") == "ear"


# ---- asking a plugin


@pytest.mark.parametrize(
    ("method", "mode", "asked"),
    [
        ("tick", None, None),
        ("tick", "lossy", "lossy"),
        ("tick", "reliable", "reliable"),
        ("llm.delta", None, "lossy"),
        ("ui.event", None, "reliable"),
        ("ui.event", "lossy", "lossy"),
    ],
)
def test_the_plugin_gets_params_mode_and_window(method: str, mode: Any, asked: str | None) -> None:
    bed = Bed(source("p", method), window=32)
    bed.ask(method, mode, b'{"n":[1.5,{"x":null}],"big":123456789012345678901234567890}')
    (request,) = bed.plugin.received
    assert request.method == "stream.subscribe"
    params = dict(request.params)
    assert params.pop("mode", None) == asked
    assert params == {
        "method": method,
        "params": {"n": [1.5, {"x": None}], "big": 123456789012345678901234567890},
        "window": 32,
    }


@pytest.mark.parametrize(
    ("wanted", "answered", "holds"),
    [
        (None, None, "lossy"),
        (None, "reliable", "reliable"),
        ("reliable", None, "reliable"),
        ("reliable", "lossy", "lossy"),
        ("lossy", "reliable", "reliable"),
    ],
)
def test_the_mode_is_what_the_plugin_answers(wanted: Any, answered: Any, holds: str) -> None:
    bed = Bed()
    sink = bed.ask(mode=wanted)
    answer = {"stream_id": "x"} | ({"mode": answered} if answered else {})
    bed.plugin.answer(bed.plugin.received[-1], answer)
    assert sink.upstream is not None
    assert sink.upstream.mode == holds


@pytest.mark.parametrize(
    "answer",
    [
        {},
        [],
        None,
        {"stream_id": 7},
        {"stream_id": ""},
        {"stream_id": "x" * (MAX_STREAM_ID + 1)},
        {"stream_id": "x", "mode": "best"},
    ],
)
def test_an_answer_that_is_none_is_the_plugins_failure(answer: Any) -> None:
    bed = Bed()
    sink = bed.ask()
    bed.plugin.answer(bed.plugin.received[-1], answer)
    assert sink.error is not None
    assert sink.error.code == ErrorCode.PLUGIN_FAILED
    assert sink.error.data == {"plugin": "source", "method": "stream.subscribe"}


def test_a_stream_id_that_is_in_use_is_refused_and_the_first_stream_goes_on() -> None:
    bed = Bed()
    first = bed.open(stream_id="same")
    second = bed.open(stream_id="same")
    assert second.error is not None
    assert second.error.code == ErrorCode.PLUGIN_FAILED
    bed.send("same", 0)
    assert first.seqs == [0]
    assert bed.stopped() == []


def test_an_error_of_the_plugin_is_passed_on() -> None:
    bed = Bed()
    sink = bed.ask()
    bed.plugin.answer(bed.plugin.received[-1], RpcError(ErrorCode.INVALID_PARAMS, "no such voice", {"field": "voice"}))
    assert sink.error is not None
    assert (sink.error.code, sink.error.data) == (ErrorCode.INVALID_PARAMS, {"field": "voice"})


def test_a_plugin_that_is_down_cannot_be_asked() -> None:
    bed = Bed()
    bed.plugin.die()
    assert bed.ask().error is not None


# ---- items


@pytest.mark.parametrize("mode", ["lossy", "reliable"])
def test_items_arrive_with_the_numbers_of_the_plugin(mode: str) -> None:
    bed = Bed()
    one, other = bed.open(mode=mode), bed.open(mode=mode)
    bed.send("s1", 0, 1, 2)
    bed.send("s2", 0)
    assert one.items == [(0, 0), (1, 1), (2, 2)]
    assert other.items == [(0, 0)]


def test_what_a_lossy_plugin_drops_stays_a_gap() -> None:
    bed = Bed()
    sink = bed.open(mode="lossy")
    bed.send("s1", 3, 4, 9)
    assert sink.seqs == [3, 4, 9]
    assert sink.ends == []


def test_items_that_come_with_the_answer_are_delivered() -> None:
    bed = Bed()
    sink = bed.ask(mode="reliable")
    bed.plugin.answer(bed.plugin.received[-1], {"stream_id": "x", "mode": "reliable"})
    bed.send("x", 0, 1)
    bed.close("x")
    assert (sink.seqs, sink.ends) == ([0, 1], ["end"])


def test_data_passes_through_unparsed() -> None:
    bed = Bed()
    got: list[bytes] = []
    sink = bed.open(mode="lossy")
    sink.put = lambda _seq, item: got.append(bytes(item))
    text = b'{ "a" : 1e400, "a":"\\u0041" , "n":123456789012345678901234567890 }'
    bed.relay.on_notification(bed.plugin, "tick", Raw(b'{"seq":0,"extra":[1],"data":%b ,"stream_id":"s1"}' % text))
    assert [one.strip() for one in got] == [text]


@pytest.mark.parametrize(("first", "second"), [(0, 0), (5, 5), (5, 4)])
def test_a_number_that_does_not_increase_closes_a_lossy_stream(first: int, second: int) -> None:
    bed = Bed()
    sink, other = bed.open(), bed.open()
    bed.send("s1", first, second, second + 7)
    assert sink.seqs == [first]
    assert sink.ends == [f"source broke the stream's rules: item {second} came after item {first}"]
    assert bed.stopped() == ["s1"]
    bed.send("s2", 0)
    assert other.seqs == [0]


@pytest.mark.parametrize("seqs", [(1,), (0, 2), (0, 1, 1), (0, 1, 0)])
def test_disorder_closes_a_reliable_stream(seqs: tuple[int, ...]) -> None:
    bed = Bed()
    sink = bed.open(mode="reliable")
    bed.send("s1", *seqs)
    *good, bad = seqs
    assert sink.seqs == good
    assert sink.ends == [f"source broke the stream's rules: item {bad} came where item {len(good)} was due"]
    assert bed.stopped() == ["s1"]


def test_more_than_the_credit_closes_a_reliable_stream() -> None:
    bed = Bed(window=4)
    sink = bed.open(mode="reliable")
    bed.send("s1", 0, 1, 2, 3)
    assert sink.ends == []
    bed.send("s1", 4)
    assert sink.seqs == [0, 1, 2, 3]
    assert sink.ends == ["source broke the stream's rules: it sent item 4 with credit up to item 3"]
    assert bed.stopped() == ["s1"]


@pytest.mark.parametrize(
    "params",
    [
        {"stream_id": "s1", "data": 0},
        {"stream_id": "s1", "seq": 0},
        {"stream_id": "s1", "seq": -1, "data": 0},
        {"stream_id": "s1", "seq": "0", "data": 0},
        {"stream_id": "s1", "seq": 2**64, "data": 0},
        {"stream_id": "s1", "seq": 0.5, "data": 0},
    ],
)
def test_an_item_that_is_none_closes_the_stream_that_it_names(params: Any) -> None:
    bed = Bed()
    sink = bed.open()
    bed.raw(params)
    assert (len(sink.ends), bed.stopped()) == (1, ["s1"])


def test_an_item_of_another_method_closes_the_stream() -> None:
    bed = Bed()
    sink = bed.open()
    bed.send("s1", 0, method="tock")
    assert sink.ends == ["source broke the stream's rules: it sent an item of 'tock' on a stream of 'tick'"]


@pytest.mark.parametrize("params", [[], {}, {"session": "x", "text": "y"}, {"stream_id": 7}])
def test_a_notification_that_is_no_item_is_ignored(params: Any) -> None:
    bed = Bed()
    sink = bed.open()
    bed.raw(params, method="some.thing")
    bed.send("s1", 0)
    assert (sink.seqs, bed.stopped()) == ([0], [])


def test_the_stream_of_another_plugin_is_like_one_that_does_not_exist() -> None:
    bed = Bed(source("source"), source("other"))
    sink = bed.open()
    bed.send("s1", 0, plugin=bed.plugins[1])
    assert sink.items == []
    assert bed.stopped(bed.plugins[1]) == ["s1"]
    bed.relay.on_closed(bed.plugins[1], Raw(b'{"stream_id":"s1","reason":"gotcha"}'))
    assert sink.ends == []


# ---- credit


def test_credit_is_passed_on_in_quarters_of_the_window() -> None:
    bed = Bed(window=8)
    sink = bed.open(mode="reliable")
    bed.send("s1", 0, 1, 2)
    sink.ack(0)
    assert bed.acks() == []
    sink.ack(1)
    assert bed.acks() == [1]
    sink.ack(2)
    assert bed.acks() == [1]
    bed.send("s1", *range(3, 8))
    sink.ack(7)
    assert bed.acks() == [1, 7]


def test_credit_is_passed_on_at_once_when_the_plugin_waits_for_it() -> None:
    bed = Bed(window=16)
    sink = bed.open(mode="reliable")
    bed.send("s1", *range(16))
    # A quarter would be four, but the plugin is paused.
    sink.ack(0)
    assert bed.acks() == [0]
    bed.send("s1", 16)
    sink.ack(1)
    assert bed.acks() == [0, 1]


def test_credit_that_was_kept_back_is_passed_on_when_the_plugin_runs_out() -> None:
    bed = Bed(window=8)
    sink = bed.open(mode="reliable")
    bed.send("s1", 0)
    sink.ack(0)
    assert bed.acks() == []
    bed.send("s1", *range(1, 8))
    assert bed.acks() == [0]


def test_one_acknowledgement_reopens_a_paused_stream() -> None:
    bed = Bed(window=4)
    sink = bed.open(mode="reliable")
    bed.send("s1", 0, 1, 2, 3)
    sink.ack(3)
    assert bed.acks() == [3]
    bed.send("s1", 4, 5, 6, 7)
    assert (sink.seqs, sink.ends) == (list(range(8)), [])


def test_credit_that_could_not_be_sent_goes_with_the_next() -> None:
    bed = Bed(window=4)
    sink = bed.open(mode="reliable")
    bed.send("s1", 0, 1)
    bed.plugin.takes_notifications = False
    sink.ack(0)
    bed.plugin.takes_notifications = True
    sink.ack(1)
    assert bed.acks() == [1]


def test_a_lossy_stream_needs_no_credit() -> None:
    bed = Bed(window=2)
    sink = bed.open(mode="lossy")
    bed.send("s1", *range(20))
    sink.ack(10)
    assert (len(sink.items), bed.acks()) == (20, [])


@MODEL
@given(
    steps=st.lists(
        st.one_of(st.tuples(st.just("send"), st.integers(1, 9)), st.tuples(st.just("ack"), st.integers(0, 9)))
    ),
    window=st.integers(1, 12),
)
def test_a_plugin_that_keeps_to_its_credit_is_never_stuck_and_never_closed(
    steps: list[tuple[str, int]], window: int
) -> None:
    bed = Bed(window=window)
    sink = bed.open(mode="reliable")
    sent = acknowledged = 0

    def credit() -> int:
        return window - (sent - 1 - (bed.acks() or [-1])[-1])

    for what, number in steps:
        if what == "send":
            for _ in range(min(number, credit())):
                bed.send("s1", sent)
                sent += 1
        else:
            acknowledged = min(sent, acknowledged + number)
            sink.ack(acknowledged - 1)
        # Never more than the window ahead of what the subscriber has, and nothing lost.
        assert sink.seqs == list(range(sent))
        assert sent - acknowledged <= window
        assert credit() >= 0
        # Whoever has acknowledged everything gets more.
        assert credit() > 0 or acknowledged < sent
    assert sink.ends == []
    # Credit goes up only, and each time by at least one.
    assert all(before < after for before, after in pairwise(bed.acks()))


# ---- the end


def test_stopping_tells_the_plugin_once() -> None:
    bed = Bed()
    sink = bed.open()
    sink.stop()
    sink.stop()
    assert bed.stopped() == ["s1"]
    # What was under way is dropped without another word.
    bed.send("s1", 0, 1)
    bed.close("s1")
    assert (sink.items, sink.ends, bed.stopped()) == ([], [], ["s1"])


@pytest.mark.parametrize(("reason", "told"), [("end", "end"), ("the model crashed", "the model crashed"), ("", "end")])
def test_a_plugin_that_is_done_says_why(reason: str, told: str) -> None:
    bed = Bed()
    sink = bed.open()
    bed.close("s1", reason)
    bed.close("s1", "again")
    assert sink.ends == [told]
    # It has ended by itself: nobody stops it.
    sink.stop()
    assert bed.stopped() == []


def test_a_long_reason_is_cut() -> None:
    bed = Bed()
    sink = bed.open()
    bed.close("s1", "x" * 10_000)
    assert sink.ends == ["x" * 300]


def test_stream_closed_that_is_nonsense_is_an_error_that_names_the_plugin() -> None:
    bed = Bed()
    with pytest.raises(RpcError, match=r"source answered stream\.closed"):
        bed.relay.on_closed(bed.plugin, Raw(b"[]"))


def test_an_epoch_that_ends_closes_its_streams_with_a_reason() -> None:
    bed = Bed()
    one, other = bed.open(), bed.open(mode="reliable")
    bed.die("killed by SIGKILL")
    assert one.ends == other.ends == ["source went away: killed by SIGKILL"]
    one.stop()
    other.ack(0)
    bed.start()
    assert bed.stopped() == []
    assert bed.plugin.notified == []


def test_what_an_earlier_epoch_opened_is_unknown_in_the_next() -> None:
    bed = Bed()
    old = bed.open(stream_id="x")
    bed.die()
    bed.start()
    new = bed.open(stream_id="x")
    bed.send("x", 0)
    old.stop()
    assert (old.items, new.seqs, bed.stopped()) == ([], [0], [])


def test_a_subscription_under_way_ends_with_the_epoch() -> None:
    bed = Bed()
    sink = bed.ask()
    bed.die()
    assert sink.error is not None
    assert sink.error.code == ErrorCode.PLUGIN_FAILED
    bed.start()
    sink.cancel()
    bed.send("anything", 0)
    assert bed.stopped() == ["anything"]


# ---- what nobody wants


def test_a_subscription_that_is_answered_in_the_last_words_is_none() -> None:
    """The status is another already while what the plugin sent before its end is still read."""
    bed = Bed()
    sink = bed.ask()
    bed.plugin.status, bed.plugin.detail = "backoff", "killed"
    bed.relay.plugin_changed(bed.plugin)
    bed.plugin.answer(bed.plugin.received[-1], {"stream_id": "x", "mode": "lossy"})
    bed.send("x", 0)
    assert sink.upstream is None
    assert sink.error is not None
    assert (sink.error.code, sink.error.message) == (ErrorCode.PLUGIN_FAILED, "source is backoff: killed")


def test_an_unknown_id_is_stopped_once() -> None:
    bed = Bed()
    bed.send("left open", 0, 1, 2)
    bed.send("another", 5)
    bed.send("left open", 3)
    assert bed.stopped() == ["left open", "another"]


def test_a_subscribe_whose_caller_went_away_is_stopped() -> None:
    bed = Bed()
    sink = bed.ask()
    sink.cancel()
    assert bed.asked("stream.subscribe")[0].cancelled
    assert sink.error is not None
    assert sink.error.code == ErrorCode.CANCELLED
    # The plugin had opened it all the same.
    bed.send("x", 0, 1)
    assert bed.stopped() == ["x"]


def test_nothing_is_stopped_while_an_answer_may_name_it() -> None:
    bed = Bed()
    sink = bed.ask(mode="lossy")
    # A plugin that begins too early loses what it sent, and nothing else.
    bed.send("x", 0, 1)
    assert bed.stopped() == []
    bed.plugin.answer(bed.plugin.received[-1], {"stream_id": "x", "mode": "lossy"})
    bed.send("x", 2)
    assert (sink.seqs, bed.stopped()) == ([2], [])


def test_a_stop_that_the_plugin_never_heard_is_said_again() -> None:
    bed = Bed()
    bed.send("x", 0)
    (request,) = bed.asked("stream.stop")
    bed.plugin.answer(request, RpcError(ErrorCode.TIMED_OUT, "it did not answer"))
    bed.send("x", 1, 2)
    assert bed.stopped() == ["x", "x"]
    bed.plugin.answer(bed.asked("stream.stop")[-1], RpcError(ErrorCode.METHOD_NOT_FOUND, "what?"))
    bed.send("x", 3)
    assert bed.stopped() == ["x", "x"]


def test_a_flood_of_unknown_ids_is_remembered_up_to_a_bound() -> None:
    bed = Bed()
    for number in range(5000):
        bed.send(f"x{number}", 0)
    assert len(bed.relay._epochs[bed.plugin].told) == 256
    bed.send("x" * (MAX_STREAM_ID + 1), 0)
    assert len(bed.stopped()) == 5000


# ---- streams that are fed by host.emit


def emit(bed: Bed, data: Any = 1, method: str = "tick") -> int:
    return bed.relay.emit(bed.plugin, method, Raw(b"%d" % data))


def fed(bed: Bed, mode: Any = None, method: str = "tick") -> Sink:
    sink = bed.ask(method, mode)
    assert sink.upstream is not None
    return sink


def test_everybody_gets_what_is_emitted_and_each_counts_for_itself() -> None:
    bed = Bed(source("source", asked=False))
    assert emit(bed) == 0
    one = fed(bed)
    assert emit(bed, 5) == 1
    other = fed(bed, "reliable")
    assert emit(bed, 6) == 2
    assert (one.items, other.items) == ([(0, 5), (1, 6)], [(0, 6)])
    assert [one.upstream.mode, other.upstream.mode] == ["lossy", "reliable"]
    one.stop()
    one.stop()
    assert emit(bed, 7) == 1
    assert bed.plugin.received == []


def test_what_is_not_listed_cannot_be_emitted() -> None:
    bed = Bed(source("source", "tick", "stt.partial", asked=False))
    for method in ("tock", "runner.events", "stt.partial"):
        with pytest.raises(RpcError) as error:
            emit(bed, method=method)
        assert (error.value.code, error.value.data) == (ErrorCode.INVALID_PARAMS, {"field": "method"})


def test_a_plugin_that_is_asked_reaches_nobody_by_emitting() -> None:
    bed = Bed()
    sink = bed.open()
    assert emit(bed) == 0
    assert sink.items == []


def test_emitted_streams_end_with_the_epoch() -> None:
    bed = Bed(source("source", asked=False))
    sink = fed(bed)
    bed.die("gone")
    assert sink.ends == ["source went away: gone"]
    bed.start()
    assert emit(bed) == 0
    sink.stop()
    again = fed(bed)
    assert emit(bed, 3) == 1
    assert (sink.items, again.items) == ([], [(0, 3)])


def test_a_subscriber_may_leave_while_an_item_is_handed_out() -> None:
    bed = Bed(source("source", asked=False))
    one, other = fed(bed), fed(bed)
    plain = one.put

    def put(seq: int, item: Any) -> None:
        plain(seq, item)
        other.stop()
        one.stop()

    one.put = put
    assert emit(bed) == 2
    assert emit(bed) == 0
    assert one.seqs == [0]
