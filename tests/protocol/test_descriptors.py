"""Which descriptor belongs to which frame, against a model that knows every byte's frame."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from utter_protocol.descriptors import ArrivedDescriptors


def test_they_are_taken_in_the_order_of_their_arrival() -> None:
    arrived = ArrivedDescriptors()
    assert arrived.take() is None
    arrived.arrive([], 5)
    assert arrived.take() is None
    arrived.arrive([7, 8], 10)
    arrived.arrive([9], 30)
    assert len(arrived) == 3
    assert [arrived.take() for _ in range(4)] == [7, 8, 9, None]
    assert len(arrived) == 0


def test_surplus_is_what_is_left_when_everything_it_came_with_is_handled() -> None:
    arrived = ArrivedDescriptors()
    arrived.arrive([7, 8], 10)
    arrived.arrive([9], 30)
    assert arrived.surplus(9) == []
    assert arrived.take() == 7
    assert arrived.surplus(10) == [8]
    assert arrived.surplus(29) == []
    assert arrived.clear() == [9]
    assert arrived.clear() == []
    assert arrived.surplus(99) == []


@given(
    frames=st.lists(st.tuples(st.integers(1, 6), st.booleans(), st.booleans()), max_size=12),
    glue=st.lists(st.integers(1, 9), max_size=40),
)
def test_every_frame_gets_its_own_however_reads_are_cut(frames: list[tuple[int, bool, bool]], glue: list[int]) -> None:
    """As a kernel delivers it: a read ends with the call whose descriptors it brought, and may begin before it."""
    arrived = ArrivedDescriptors()
    sizes = [size for size, _, _ in frames]
    starts = [sum(sizes[:number]) for number in range(len(frames))]
    total, position, handled = sum(sizes), 0, 0
    cuts = iter(glue)
    while position < total:
        end = min(total, position + next(cuts, 3))
        number = next((n for n, start in enumerate(starts) if position <= start < end and frames[n][1]), None)
        if number is not None:
            end = min(end, starts[number] + sizes[number])
            arrived.arrive([number], end)
        position = end
        while handled < len(frames) and starts[handled] + sizes[handled] <= position:
            _, carries, takes = frames[handled]
            got = arrived.take() if takes and carries else None
            assert got == (handled if takes and carries else None)
            assert arrived.surplus(starts[handled] + sizes[handled]) == ([handled] if carries and not takes else [])
            handled += 1
    assert arrived.clear() == []
