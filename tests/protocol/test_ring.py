from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from utter_protocol.ring import (
    HEADER_SIZE,
    MAX_CHANNELS,
    MAX_RATE,
    RingError,
    RingLayout,
    oldest_frame,
    pack_header,
    parse_header,
    spans,
)

layouts = st.builds(
    RingLayout,
    rate=st.integers(1, MAX_RATE),
    channels=st.integers(1, MAX_CHANNELS),
    capacity=st.integers(1, 10_000),
)


@given(layout=layouts, spare=st.integers(0, 4096))
def test_a_header_is_read_as_it_was_packed(layout: RingLayout, spare: int) -> None:
    header = pack_header(layout)
    assert len(header) == HEADER_SIZE
    assert parse_header(header, layout.size + spare) == layout


def test_the_header_is_laid_out_as_documented() -> None:
    header = pack_header(RingLayout(rate=16_000, channels=2, capacity=48_000))
    assert header[:8] == b"UTTRRING"
    assert struct.unpack("<6I", header[8:32]) == (1, 128, 1, 16_000, 2, 8)
    assert struct.unpack("<Q", header[32:40]) == (48_000,)
    assert header[40:] == bytes(88)


@pytest.mark.parametrize(
    ("offset", "packed", "message"),
    [
        (0, b"RIFFWAVE", "magic is b'RIFFWAVE'"),
        (8, struct.pack("<I", 2), "version is 2"),
        (12, struct.pack("<I", 64), "header_size is 64"),
        (16, struct.pack("<I", 7), "format is 7"),
        (20, struct.pack("<I", 0), "rate is 0"),
        (20, struct.pack("<I", MAX_RATE + 1), "rate is 768001"),
        (24, struct.pack("<I", 0), "channels is 0"),
        (24, struct.pack("<I", 33), "channels is 33"),
        (28, struct.pack("<I", 2), "frame_size is 2"),
        (32, struct.pack("<Q", 0), "capacity is 0"),
        (32, struct.pack("<Q", 101), "capacity is 101 frames"),
        (32, struct.pack("<Q", 2**64 - 1), "capacity is 18446744073709551615"),
    ],
)
def test_a_wrong_field_is_named(offset: int, packed: bytes, message: str) -> None:
    layout = RingLayout(rate=16_000, channels=1, capacity=100)
    header = bytearray(pack_header(layout))
    header[offset : offset + len(packed)] = packed
    with pytest.raises(RingError) as caught:
        parse_header(bytes(header), layout.size)
    assert message in str(caught.value)


@pytest.mark.parametrize("length", [0, 127])
def test_a_short_header_is_refused(length: int) -> None:
    with pytest.raises(RingError, match=f"has {length} bytes; it needs 128"):
        parse_header(pack_header(RingLayout(rate=1, channels=1, capacity=1))[:length], 10_000)


@given(layout=layouts, start=st.integers(0, 2**63), data=st.data())
def test_spans_cover_exactly_the_slots_of_the_frames_in_order(
    layout: RingLayout, start: int, data: st.DataObject
) -> None:
    count = data.draw(st.integers(0, min(layout.capacity, 50)))
    covered = [
        byte
        for offset, length in spans(layout, start, count)
        for byte in range(offset, offset + length, layout.frame_size)
    ]
    expected = [HEADER_SIZE + (start + n) % layout.capacity * layout.frame_size for n in range(count)]
    assert covered == expected
    assert len(spans(layout, start, count)) <= 2


@pytest.mark.parametrize(("start", "count"), [(-1, 1), (0, -1), (0, 11)])
def test_spans_refuse_what_is_no_range(start: int, count: int) -> None:
    with pytest.raises(ValueError, match="are no range"):
        spans(RingLayout(rate=1, channels=1, capacity=10), start, count)


def test_the_oldest_frame_follows_what_was_claimed() -> None:
    assert [oldest_frame(claimed, 10) for claimed in (0, 9, 10, 11, 25)] == [0, 0, 0, 1, 15]
