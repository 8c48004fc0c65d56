"""The handle store beside a plain dictionary that knows who holds what, until when, how much, and from where."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from support.handles import StoreInThread
from utter_protocol.blobs import handle_of
from utter_protocol.errors import ErrorCode, RpcError
from utter_runner.dataplane.blobfiles import Bytes, file_of, name_of
from utter_runner.dataplane.books import Quotas, Scope
from utter_runner.dataplane.handles import PAGE
from utter_runner.policy.marks import Mark, lowest

if TYPE_CHECKING:
    from utter_runner.dataplane.books import Hold

QUOTAS = Quotas(scope_bytes=20_000, scope_count=5, total_bytes=35_000, ttl=100.0)
CONTENTS = [b"", b"a", b"b" * 100, b"c" * PAGE, b"d" * (PAGE + 1), b"e" * 12_000, b"f" * 19_000, b"g" * 20_001]
PLUGINS = ["lamp", "router"]
PARTS = ["", "mine", "../../etc"]


@dataclass
class Held:
    data: bytes
    expires: float
    mark: Mark
    refs: int = 1
    granted: bool = False
    # Whether the store has seen the file's content since it was started.
    seen: bool = True


@dataclass
class Owner:
    scope: Scope
    held: dict[tuple[str, bytes], Held] = field(default_factory=dict)

    def bytes(self, *, granted: bool) -> int:
        return sum(len(one.data) for one in self.held.values() if one.granted is granted)

    def count(self, *, granted: bool) -> int:
        return sum(one.granted is granted for one in self.held.values())


def refused(code: int, field_or_bound: str) -> tuple[int, str]:
    return code, field_or_bound


GONE = refused(ErrorCode.INVALID_PARAMS, "handle")


class StoreAgainstDictionary(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp())
        self.now = 0.0
        self.plugins: dict[str, Owner] = {}
        self.clients: list[Owner] = []
        # By owner and blob, as it was after the last step.
        self.marks: dict[tuple[Any, str], Mark] = {}

    @initialize()
    def start(self) -> None:
        self.running = StoreInThread(self.root / "handles", QUOTAS)
        self.now = 0.0
        store = self.running.store
        self.plugins = {name: Owner(store.plugin(name)) for name in PLUGINS}
        self.clients = []

    def teardown(self) -> None:
        if hasattr(self, "running"):
            self.running.stop()
        shutil.rmtree(self.root)

    @property
    def owners(self) -> list[Owner]:
        return [*self.plugins.values(), *self.clients]

    def total(self) -> int:
        return sum(map(len, {one.data for owner in self.owners for one in owner.held.values()}))

    def over(self, owner: Owner, size: int, *, granted: bool) -> tuple[int, str] | None:
        """What a quota makes of so much more."""
        if owner.count(granted=granted) >= QUOTAS.scope_count:
            return refused(ErrorCode.INVALID_REQUEST, "handle_scope_count")
        if owner.bytes(granted=granted) + size > QUOTAS.scope_bytes:
            return refused(ErrorCode.INVALID_REQUEST, "handle_scope_bytes")
        if not granted and self.total() + size > QUOTAS.total_bytes:
            return refused(ErrorCode.INVALID_REQUEST, "handle_total_bytes")
        return None

    def outcome(self, work: Any) -> Any:
        """What an async function returns, or code and field or bound of its error."""
        try:
            return self.running.call(work)
        except RpcError as error:
            data = error.data or {}
            return error.code, data.get("bound", data.get("field"))

    def hold(self, owner: Owner, part: str, data: bytes) -> Hold:
        return self.running.store.find(owner.scope, part, handle_of(hashlib.sha256(data).hexdigest()))

    def pick(self, number: int) -> Owner:
        return self.owners[number % len(self.owners)]

    # ---- what can happen

    owner = st.integers(0, 5)
    part = st.sampled_from(PARTS)
    data = st.sampled_from(CONTENTS)
    mark = st.sampled_from(["user", "llm", "screen"])

    @precondition(lambda self: len(self.clients) < 3)
    @rule()
    def connect(self) -> None:
        self.clients.append(Owner(self.running.store.connection()))

    @precondition(lambda self: self.clients)
    @rule(number=st.integers(0, 2))
    def disconnect(self, number: int) -> None:
        owner = self.clients.pop(number % len(self.clients))

        async def drop() -> None:
            self.running.store.drop(owner.scope)

        self.running.call(drop)

    @rule(number=owner, part=part, data=data, mark=mark)
    def create(self, number: int, part: str, data: bytes, mark: Mark) -> None:
        owner, store = self.pick(number), self.running.store
        known = owner.held.get((part, data))
        small = len(data) <= PAGE

        async def create() -> int:
            if small:
                return store.create_now(owner.scope, part, Bytes(data), mark).size
            return (await store.create(owner.scope, part, Bytes(data), mark)).size

        expected: Any = None
        if not (small and known is not None and known.seen and not known.granted):
            expected = self.over(owner, len(data), granted=False)
        if expected is None:
            expected = len(data)
            if known is None:
                known = owner.held[part, data] = Held(data, 0.0, mark, refs=0)
            known.mark = lowest(known.mark, mark)
            known.refs += 1
            known.granted = False
            known.seen = True
            known.expires = self.now + QUOTAS.ttl
        assert self.outcome(create) == expected

    @rule(number=owner, part=part, data=data)
    def fetch(self, number: int, part: str, data: bytes) -> None:
        owner, store = self.pick(number), self.running.store

        async def fetch() -> bytes:
            hold = self.hold(owner, part, data)
            return store.read_now(hold) if len(data) <= PAGE else await store.read(hold)

        assert self.outcome(fetch) == (self.use(owner, part, data) or data)

    def use(self, owner: Owner, part: str, data: bytes) -> tuple[int, str] | None:
        """Use what is held; GONE if it is not."""
        known = owner.held.get((part, data))
        if known is None:
            return GONE
        known.expires = self.now + QUOTAS.ttl
        known.seen = True
        return None

    @rule(number=owner, part=part, data=data, more=st.booleans())
    def retain_or_release(self, number: int, part: str, data: bytes, *, more: bool) -> None:
        owner, store = self.pick(number), self.running.store

        async def change() -> None:
            (store.retain if more else store.release)(self.hold(owner, part, data))

        known = owner.held.get((part, data))
        expected = GONE if known is None else None
        if known is not None:
            known.refs += 1 if more else -1
            if more:
                known.expires = self.now + QUOTAS.ttl
            elif not known.refs:
                del owner.held[part, data]
        assert self.outcome(change) == expected

    @rule(number=owner, other=owner, data=data, mark=mark)
    def grant(self, number: int, other: int, data: bytes, mark: Mark) -> None:
        owner, target, store = self.pick(number), self.pick(other), self.running.store

        async def grant() -> None:
            store.grant(self.hold(owner, "", data), target.scope, mark)

        known = owner.held.get(("", data))
        if known is None:
            expected: Any = GONE
        elif ("", data) in target.held:
            expected = None
        else:
            expected = self.over(target, len(data), granted=True)
            if expected is None:
                target.held["", data] = Held(data, 0.0, mark, granted=True, seen=known.seen)
        if known is not None and expected is None:
            there = target.held["", data]
            there.mark = lowest(there.mark, known.mark, mark)
            for one in (known, target.held["", data]):
                one.expires = self.now + QUOTAS.ttl
        assert self.outcome(grant) == expected

    @rule(seconds=st.sampled_from([1, 35, 70, 101]))
    def time_passes(self, seconds: int) -> None:
        self.now += seconds
        self.running.pass_time(seconds)
        for owner in self.owners:
            owner.held = {key: one for key, one in owner.held.items() if one.expires > self.now}

    @rule(killed=st.booleans())
    def restart(self, *, killed: bool) -> None:
        self.running.stop(killed=killed)
        held = {name: owner.held for name, owner in self.plugins.items()}
        self.start()
        everything = [data for one in held.values() for _, data in one]
        for name, owner in self.plugins.items():
            kept = owner.scope.holds
            for part, data in held[name]:
                file = name_of(hashlib.sha256(data).hexdigest(), part)
                if file in kept:
                    # What was given to it is its own now, and its life is counted by the clock on the wall.
                    mark = held[name][part, data].mark
                    owner.held[part, data] = Held(data, self.now + QUOTAS.ttl, mark, seen=False)
                    assert self.now + QUOTAS.ttl - 60 < kept[file].expires <= self.now + QUOTAS.ttl
            assert len(kept) == len(owner.held)
            size = sum(len(data) for _, data in held[name])
            if (
                len(held[name]) <= QUOTAS.scope_count
                and size <= QUOTAS.scope_bytes
                and sum(map(len, everything)) <= QUOTAS.total_bytes
            ):
                assert owner.held.keys() == held[name].keys()

    # ---- what always holds

    @invariant()
    def the_books_are_right(self) -> None:
        if not hasattr(self, "running"):
            return
        for owner in self.owners:
            assert owner.scope.bytes == {granted: owner.bytes(granted=granted) for granted in (False, True)}
            assert owner.scope.counts == {granted: owner.count(granted=granted) for granted in (False, True)}
            assert owner.count(granted=False) <= QUOTAS.scope_count
            refs = {name: hold.refs for name, hold in owner.scope.holds.items()}
            marks = {name: hold.mark for name, hold in owner.scope.holds.items()}
            names = {name_of(hashlib.sha256(data).hexdigest(), part): one for (part, data), one in owner.held.items()}
            assert refs == {name: one.refs for name, one in names.items()}
            assert marks == {name: one.mark for name, one in names.items()}
        books = self.running.store._books
        assert books.total == self.total()
        # A timer only while something can expire.
        assert len(self.running.deadlines) == (1 if any(owner.held for owner in self.owners) else 0)

    @invariant()
    def no_mark_was_raised(self) -> None:
        if not hasattr(self, "running"):
            return
        now = {
            (name, blob): hold.mark
            for name, owner in [*self.plugins.items(), *((id(one), one) for one in self.clients)]
            for blob, hold in owner.scope.holds.items()
        }
        for blob, mark in now.items():
            assert mark == lowest(mark, self.marks.get(blob, "user"))
        self.marks = now

    @invariant()
    def the_directory_is_what_the_books_say(self) -> None:
        if not hasattr(self, "running"):
            return
        root = self.running.files.root
        # What is in tmp/ is out of everybody's sight, and being deleted.
        kept = (path for name in ("plugins", "clients") for path in (root / name).rglob("*"))
        found = {path for path in kept if path.is_file()}
        expected = {
            owner.scope.directory / file_of(name_of(hashlib.sha256(data).hexdigest(), part), one.mark): data
            for owner in self.owners
            for (part, data), one in owner.held.items()
        }
        assert found == expected.keys()
        for path, data in expected.items():
            assert path.stat().st_size == len(data)


TestStoreAgainstDictionary = StoreAgainstDictionary.TestCase
TestStoreAgainstDictionary.settings = settings(deadline=None, max_examples=12, stateful_step_count=30)
