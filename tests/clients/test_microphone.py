"""`audio.devices`, `audio.open` and `audio.close`: a connection holds the microphone once, and gives it back."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import hypothesis.strategies as st
import pytest
import trio
import trio.testing
from hypothesis import given, settings

from support.clients import house, settle
from utter_protocol.errors import ErrorCode, RpcError
from utter_runner.clients.microphone import Listeners
from utter_runner.voice.fakes import FakeFeed

if TYPE_CHECKING:
    from pathlib import Path

    from trio.testing import MockClock

    from utter_runner.rpc.peer import Peer


async def test_the_devices_are_what_the_voice_room_lists(tmp_path: Path) -> None:
    async with house(tmp_path) as made:
        client = await made.client()
        vmic = {"name": "vmic", "description": "", "default": False, "chosen": True}
        assert await client.call("audio.devices") == {
            "source": "pw-record",
            "inputs": [vmic],
            "outputs": [],
            "detail": "",
        }


async def test_open_is_answered_when_audio_arrives_and_holds_once(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with house(tmp_path) as made:
        client, other = await made.client(), await made.client()
        begun = trio.current_time()
        for _ in range(3):
            assert await client.call("audio.open") == {"open": True, "device": "the fake microphone"}
            assert made.microphone.holders == 1
        assert trio.current_time() - begun >= made.microphone.opening_s
        await other.call("audio.open")
        assert made.microphone.holders == 2
        for _ in range(3):
            assert await client.call("audio.close") == {}
            assert made.microphone.holders == 1


async def test_several_opens_at_once_are_all_answered_and_hold_once(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with house(tmp_path) as made:
        client = await made.client()
        requests = [await client.send("audio.open") for _ in range(5)]
        for request in requests:
            assert (await client.result(request))["open"] is True
        assert made.microphone.holders == 1


async def test_what_cannot_be_opened_is_told_in_words(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with house(tmp_path) as made:
        client = await made.client()
        made.microphone.fail("The device is in use.")
        error = await client.error("audio.open")
        assert (error.code, error.message) == (ErrorCode.PLUGIN_FAILED, "The device is in use.")
        assert error.data == {"method": "audio.open"}
        assert made.microphone.holders == 0
        made.microphone.repair()
        await client.call("audio.open")
        assert made.microphone.holders == 1


async def test_the_end_of_the_connection_gives_it_back(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with house(tmp_path) as made:
        client, opening = await made.client(), await made.client()
        await client.call("audio.open")
        made.microphone.opening_s = 0.0
        await client.stream.aclose()
        await settle()
        assert made.microphone.holders == 0
        made.microphone.opening_s = 5.0
        await opening.send("audio.open")
        await settle()
        await opening.stream.aclose()
        await trio.sleep(10)
        assert made.microphone.holders == 0


async def test_the_last_word_counts_also_while_it_is_being_opened(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with house(tmp_path) as made:
        client = await made.client()
        request = await client.send("audio.open")
        assert await client.call("audio.close") == {}
        with pytest.raises(RpcError, match=r"audio\.close came before") as error:
            await client.result(request)
        assert error.value.code == ErrorCode.CANCELLED
        await trio.sleep(10)
        assert made.microphone.holders == 0


async def test_a_cancelled_open_holds_nothing(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with house(tmp_path) as made:
        client = await made.client()
        request = await client.send("audio.open")
        await client.notify("$/cancel", {"id": request})
        with pytest.raises(RpcError) as error:
            await client.result(request)
        assert error.value.code == ErrorCode.CANCELLED
        await trio.sleep(10)
        assert made.microphone.holders == 0


Step = tuple[str, int, float]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(["open", "close", "fail", "repair"]), st.integers(0, 2), st.sampled_from([0.0, 0.3])),
        max_size=20,
    )
)
def test_whatever_is_asked_in_whatever_order_nothing_stays_held(steps: list[Step]) -> None:
    """A connection holds the microphone exactly if an open was answered well after its last close."""

    async def main() -> None:
        feed = FakeFeed(opening_s=0.5)
        listeners = Listeners(feed)
        peers = [_peer() for _ in range(3)]
        last: dict[Peer, str] = {}
        marks = itertools.count()

        async def open_(peer: Peer) -> None:
            mark = f"open {next(marks)}"
            last[peer] = mark
            try:
                await listeners.open(peer)
            except RpcError:
                return
            answered.add(mark)

        answered: set[str] = set()
        async with trio.open_nursery() as nursery:
            for what, number, pause in steps:
                peer = peers[number]
                if what == "open":
                    nursery.start_soon(open_, peer)
                    await trio.testing.wait_all_tasks_blocked()
                elif what == "close":
                    listeners.close(peer)
                    last[peer] = "close"
                elif what == "fail":
                    feed.fail("It is broken.")
                else:
                    feed.repair()
                await trio.sleep(pause)
        held = {peer for peer in peers if last.get(peer, "close") in answered}
        assert listeners._holding >= held
        assert feed.holders == len(listeners._holding)
        assert all(last[peer] != "close" for peer in listeners._holding)
        for peer in peers:
            listeners.close(peer)
        assert (feed.holders, listeners._holding, listeners._opening) == (0, set(), {})

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def _peer() -> Peer:
    """Stands for a connection, which is only a key here."""
    return object()  # type: ignore[return-value] # as said
