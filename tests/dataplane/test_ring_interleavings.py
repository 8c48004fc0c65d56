"""Every interleaving of the audio ring's writer and a reader, for small rings, against a plain list.

The real `RingPen` writes and the real `RingView` reads; only the memory between them is replaced. The pen's stores are
recorded, one for each counter and each frame. Whenever the view loads something, it may find any of the values that can
be there: all choices are gone through, one after the other (`Explorer`).

Memory is taken as weakly ordered as the fences allow: stores between two fences become visible in any order, and loads
between two fences happen in any order. A store that changes nothing that is loaded makes no difference, so a load has a
choice among the stores to its own place only. Readers store nothing: what holds for one holds for any number of them.
"""

from __future__ import annotations

import array
import itertools
import mmap
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal, NamedTuple

import pytest

from utter_protocol.ring import (
    CLAIMED,
    HEADER_SIZE,
    POSITION,
    SAMPLE_SIZE,
    Overrun,
    RingLayout,
    RingPen,
    RingView,
    pack_header,
)

Place = tuple[Literal["counter", "frame"], int]
"""A counter's index, or the offset of a frame slot."""
Write = int | Literal["reopen"]
"""So many frames, or the source is opened again."""

EMPTY = bytes(SAMPLE_SIZE)
_FEW = 3
REOPEN: Literal["reopen"] = "reopen"


class Store(NamedTuple):
    place: Place
    value: Any


def numbers(start: int, count: int) -> bytes:
    """Frames whose sample is one more than their own number, so that none looks like an empty slot."""
    return array.array("f", range(start + 1, start + count + 1)).tobytes()


def empty_ring(capacity: int) -> mmap.mmap:
    layout = RingLayout(rate=1, channels=1, capacity=capacity)
    memory = mmap.mmap(-1, layout.size)
    memory[:HEADER_SIZE] = pack_header(layout)
    return memory


# ---- the writer's stores


class Recorder:
    """Stands for the pen's memory and its fence, and keeps its stores in groups that fences part."""

    def __init__(self) -> None:
        self.groups: list[list[Store]] = [[]]

    def fence(self) -> None:
        self.groups.append([])

    def store(self, place: Place, value: Any) -> None:
        self.groups[-1].append(Store(place, value))


class RecordedCounters:
    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def __setitem__(self, index: int, value: int) -> None:
        self._recorder.store(("counter", index), value)

    def release(self) -> None:
        pass


class RecordedBytes(RecordedCounters):
    def __setitem__(self, where: Any, data: memoryview) -> None:
        assert where.stop - where.start == len(data)
        for at in range(0, len(data), SAMPLE_SIZE):
            self._recorder.store(("frame", where.start + at), bytes(data[at : at + SAMPLE_SIZE]))


def recorded(capacity: int, writes: Iterable[Write], pen_type: type[RingPen] = RingPen) -> list[list[Store]]:
    """What a pen stores, between its fences."""
    recorder = Recorder()
    pen = pen_type(empty_ring(capacity))
    try:
        replaced: Any = pen
        replaced._counters, replaced._bytes = RecordedCounters(recorder), RecordedBytes(recorder)
        replaced._fence = recorder.fence
        for write in writes:
            if write == REOPEN:
                pen.new_generation()
            else:
                assert pen.write(numbers(pen.position, write)) == write
    finally:
        pen._memory.close()
    return recorder.groups


def orders(groups: Sequence[Sequence[Store]]) -> Iterator[list[Store]]:
    """The orders in which the stores can become visible; stores to one place keep theirs.

    Of many frames at once, forwards and backwards stand for all: no fence of a reader tells the others apart.
    """
    possible: list[list[Sequence[Store]]] = []
    for group in groups:
        if len(group) > _FEW and all(store.place[0] == "frame" for store in group):
            possible.append([group, group[::-1]])
        else:
            possible.append([one for one in itertools.permutations(group) if _keeps_places(group, one)])
    for choice in itertools.product(*possible):
        yield [store for group in choice for store in group]


def _keeps_places(given: Sequence[Store], order: Sequence[Store]) -> bool:
    places = {store.place for store in given}
    return all(
        [id(store) for store in given if store.place == place] == [id(store) for store in order if store.place == place]
        for place in places
    )


# ---- the reader's loads


class Explorer:
    """The memory that a view sees. `explore` runs a reader once for each way in which its loads can come out."""

    def __init__(self, stores: Sequence[Store]) -> None:
        self.runs = 0
        self.loaded: dict[Place, list[Any]] = {}
        self._stores = stores
        self._tape: list[tuple[int, int]] = []
        self._at = 0
        # How many stores are visible: for sure since the last fence, at most since then, and by place.
        self._floor = self._high = 0
        self._seen: dict[Place, int] = {}
        self._by_place: dict[Place, list[int]] = {}
        for number, store in enumerate(stores, 1):
            self._by_place.setdefault(store.place, []).append(number)

    def explore(self, reader: Callable[[], None]) -> int:
        """Run a reader in every way; return how many there are."""
        while True:
            self._at = self._floor = self._high = 0
            self._seen, self.loaded = {}, {}
            reader()
            self.runs += 1
            assert self._at == len(self._tape)
            while self._tape and self._tape[-1][0] == self._tape[-1][1] - 1:
                self._tape.pop()
            if not self._tape:
                return self.runs
            choice, options = self._tape[-1]
            self._tape[-1] = choice + 1, options

    def fence(self) -> None:
        """What was visible before stays visible."""
        self._floor = self._high

    def finish(self) -> None:
        """All that was stored is visible from now on."""
        self._floor = self._high = len(self._stores)

    def load(self, place: Place) -> Any:
        """What a load finds: the last store to the place that is visible for sure, or any later one."""
        least = max(self._floor, self._seen.get(place, 0))
        stores = self._by_place.get(place, [])
        later = [number for number in stores if number > least]
        visible = (max((number for number in stores if number <= least), default=0), *later)
        found = visible[self._choose(len(visible))]
        self._seen[place] = max(least, found)
        self._high = max(self._high, found)
        value = self._stores[found - 1].value if found else (0 if place[0] == "counter" else EMPTY)
        self.loaded.setdefault(place, []).append(value)
        return value

    def _choose(self, options: int) -> int:
        if self._at == len(self._tape):
            self._tape.append((0, options))
        choice, known = self._tape[self._at]
        assert known == options, "a reader must do the same when it finds the same"
        self._at += 1
        return choice


class ExploredCounters:
    def __init__(self, explorer: Explorer) -> None:
        self._explorer = explorer

    def __getitem__(self, index: int) -> int:
        return int(self._explorer.load(("counter", index)))

    def release(self) -> None:
        pass


class ExploredBytes(ExploredCounters):
    def __getitem__(self, where: Any) -> Any:
        return b"".join(
            self._explorer.load(("frame", offset)) for offset in range(where.start, where.stop, SAMPLE_SIZE)
        )


def view_of(explorer: Explorer, capacity: int, view_type: type[RingView] = RingView) -> RingView:
    """The real view over the explored memory."""
    view = view_type(empty_ring(capacity))
    replaced: Any = view
    view._counters.release()
    view._bytes.release()
    replaced._counters, replaced._bytes = ExploredCounters(explorer), ExploredBytes(explorer)
    replaced._fence = explorer.fence
    return view


# ---- what must hold


class Outcomes:
    """What was seen, to know that the enumeration went everywhere."""

    def __init__(self) -> None:
        self.runs = 0
        self.kinds: set[str] = set()

    def add(self, kind: str, *, right: bool) -> None:
        """Take note of an outcome, which must be right."""
        assert right, kind
        self.kinds.add(kind)


def read_every_way(
    capacity: int,
    writes: Sequence[Write],
    seen: Outcomes,
    *,
    pen_type: type[RingPen] = RingPen,
    view_type: type[RingView] = RingView,
) -> None:
    """One read of every range, whenever the writer does whatever it does."""
    total = sum(write for write in writes if isinstance(write, int))
    for stores in orders(recorded(capacity, writes, pen_type)):
        for start in range(total + 1):
            for count in range(min(capacity, total - start) + 1):
                explorer = Explorer(stores)
                view = view_of(explorer, capacity, view_type)

                def read(
                    view: RingView = view, explorer: Explorer = explorer, start: int = start, count: int = count
                ) -> None:
                    try:
                        data = view.read(start, count)
                    except Overrun as overrun:
                        claimed = explorer.loaded["counter", CLAIMED]
                        right = start < overrun.oldest == claimed[-1] - capacity <= total - capacity
                        seen.add(f"overrun at check {len(claimed)}", right=right)
                    except ValueError:
                        right = explorer.loaded["counter", POSITION][-1] < start + count
                        seen.add("not yet written", right=right)
                    else:
                        seen.add("read", right=data == numbers(start, count))

                seen.runs += explorer.explore(read)
                view._memory.close()


def follow_every_way(capacity: int, writes: Sequence[Write], most: int, reads: int, seen: Outcomes) -> None:
    """A reader that goes on where it was, and re-syncs after an overrun, whenever the writer does whatever it does."""
    total = sum(write for write in writes if isinstance(write, int))
    generations = list(generations_of(writes))
    for stores in orders(recorded(capacity, writes)):
        explorer = Explorer(stores)
        view = view_of(explorer, capacity)

        def follow(view: RingView = view, explorer: Explorer = explorer) -> None:
            got: list[tuple[int, bytes]] = []
            at = position = oldest = generation = 0
            for turn in itertools.count():
                if turn == reads:
                    explorer.finish()
                last = position, oldest, generation
                position, oldest, generation = view.position, view.oldest, view.generation
                assert position >= last[0]
                assert oldest >= last[1]
                assert generation >= last[2]
                # After an overrun the writer may not have come as far as the oldest frame that will be left.
                count = min(position - at, most)
                if count <= 0:
                    if turn >= reads:
                        break
                    continue
                try:
                    data = view.read(at, count)
                except Overrun as overrun:
                    seen.add("overrun", right=at < overrun.oldest <= total - capacity)
                    at = overrun.oldest
                else:
                    assert view.generation >= generations[at + count - 1]
                    got.append((at, data))
                    at += count
            assert at == total
            # In the end it has whole, right frames in order, and of the last ones in the ring it has lost none.
            ends = [0, *(start + len(data) // SAMPLE_SIZE for start, data in got)]
            assert all(end <= start for end, (start, _) in zip(ends, got, strict=False))
            assert all(data == numbers(start, len(data) // SAMPLE_SIZE) for start, data in got)
            whole = sum(len(data) for _, data in got) == total * SAMPLE_SIZE
            seen.add("complete" if whole else "lossy", right=True)

        seen.runs += explorer.explore(follow)
        view._memory.close()


def generations_of(writes: Iterable[Write]) -> Iterator[int]:
    """The generation of each frame."""
    generation = 0
    for write in writes:
        if write == REOPEN:
            generation += 1
        else:
            yield from itertools.repeat(generation, write)


def ways_to_write(capacity: int, writes: int) -> Iterator[tuple[Write, ...]]:
    """All sequences of so many writes, the longest a frame longer than the ring."""
    yield from itertools.product(range(1, capacity + 2), repeat=writes)


def read_all(size: tuple[int, int], **types: Any) -> Outcomes:
    """Everything that can happen to a read in a ring of a capacity, while so many writes go on."""
    capacity, writes = size
    seen = Outcomes()
    for way in ways_to_write(capacity, writes):
        read_every_way(capacity, way, seen, **types)
    return seen


MANY = 1000
SEEN_BY_READS = {"read", "not yet written", "overrun at check 1", "overrun at check 2"}


@pytest.mark.parametrize(("capacity", "writes"), [(1, 3), (1, 4), (2, 2), (2, 3), (3, 2), (4, 2)])
def test_a_read_gives_the_right_frames_or_an_overrun(capacity: int, writes: int) -> None:
    seen = read_all((capacity, writes))
    assert seen.kinds == SEEN_BY_READS
    assert seen.runs > MANY


def test_a_read_is_right_across_reopenings() -> None:
    seen = Outcomes()
    for way in itertools.product((REOPEN, 1, 3), repeat=3):
        read_every_way(2, way, seen)
    assert seen.kinds == SEEN_BY_READS


@pytest.mark.parametrize(
    ("capacity", "writes", "most", "reads"), [(1, 3, 1, 2), (2, 2, 2, 2), (2, 2, 1, 3), (3, 2, 2, 1)]
)
def test_a_reader_goes_on_at_the_right_place(capacity: int, writes: int, most: int, reads: int) -> None:
    seen = Outcomes()
    for way in ways_to_write(capacity, writes):
        follow_every_way(capacity, way, most, reads, seen)
    assert seen.kinds == {"overrun", "complete", "lossy"}
    assert seen.runs > MANY


def test_a_reader_learns_of_a_reopening_no_later_than_of_what_follows() -> None:
    seen = Outcomes()
    for way in itertools.product((REOPEN, 1, 3), repeat=3):
        follow_every_way(2, way, 2, 1, seen)
    assert seen.kinds == {"overrun", "complete", "lossy"}


# ---- that the enumeration finds what is wrong


class NoSecondCheck(RingView):
    """A reader that does not look again after the copy."""

    def read(self, start: int, count: int) -> bytes:
        if start + count > self.position:
            raise ValueError("not written yet")
        self._fence()
        self._check(start)
        return self._copy(start, count)


class NoFenceBeforeTheSecondCheck(RingView):
    """A reader whose second look may happen before the copy."""

    def read(self, start: int, count: int) -> bytes:
        if start + count > self.position:
            raise ValueError("not written yet")
        self._fence()
        data = self._copy(start, count)
        self._check(start)
        return data


class NoFenceBeforeTheCopy(RingView):
    """A reader that may copy before it has looked at the position."""

    def read(self, start: int, count: int) -> bytes:
        if start + count > self.position:
            raise ValueError("not written yet")
        data = self._copy(start, count)
        self._fence()
        self._check(start)
        return data


class ClaimsLate(RingPen):
    """A writer that says what it overwrites when it has."""

    def write(self, data: bytes | bytearray | memoryview) -> int:
        count = len(data) // SAMPLE_SIZE
        kept = min(count, self.layout.capacity)
        self._copy(memoryview(data)[len(data) - kept * SAMPLE_SIZE :], self.position + count - kept, kept)
        self.position += count
        self._fence()
        self._counters[CLAIMED] = self.position
        self._fence()
        self._counters[POSITION] = self.position
        return count


class NoFence(RingPen):
    """A writer whose stores become visible in any order."""

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, (lambda: None) if name == "_fence" else value)


class PromisesEarly(RingPen):
    """A writer that moves the position before the frames are there."""

    def write(self, data: bytes | bytearray | memoryview) -> int:
        count = len(data) // SAMPLE_SIZE
        self.position += count
        for counter in (CLAIMED, POSITION):
            self._counters[counter] = self.position
        self._fence()
        kept = min(count, self.layout.capacity)
        self._copy(memoryview(data)[len(data) - kept * SAMPLE_SIZE :], self.position - kept, kept)
        self._fence()
        return count


@pytest.mark.parametrize("view_type", [NoSecondCheck, NoFenceBeforeTheSecondCheck, NoFenceBeforeTheCopy])
def test_a_reader_that_leaves_out_a_step_is_found_out(view_type: type[RingView]) -> None:
    with pytest.raises(AssertionError, match="read"):
        read_all((2, 2), view_type=view_type)


@pytest.mark.parametrize("pen_type", [ClaimsLate, NoFence, PromisesEarly])
def test_a_writer_that_does_not_keep_the_order_is_found_out(pen_type: type[RingPen]) -> None:
    with pytest.raises(AssertionError, match="read"):
        read_all((2, 2), pen_type=pen_type)
