"""The books of the handle store: who holds what, how much that is, and until when.

Rules here: no file is touched; whoever changes the books sees to the files. What a scope made and what it was given are
counted apart, so that nobody's gifts keep it from making its own. A timer runs only while something can expire.
"""

from __future__ import annotations

from collections import OrderedDict
from itertools import islice
from math import inf
from typing import TYPE_CHECKING

import msgspec
import trio

from utter_protocol.blobs import HandleInfo, handle_of
from utter_protocol.errors import ErrorCode, RpcError
from utter_runner.dataplane.blobfiles import file_of
from utter_runner.policy.marks import Mark, below, provenance_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from utter_runner.rpc.deadlines import Deadline, Deadlines

SWEEP_AT_ONCE = 64
"""How many expired handles are let go in one go."""
# Seconds until the next go, in which the loop does what else there is.
_SWEEP_PAUSE = 0.001


class Quotas(msgspec.Struct, frozen=True, kw_only=True):
    """How much may be held, and for how long; the keys of the configuration are `handle_` and these names."""

    scope_bytes: int = 256 * 2**20
    scope_count: int = 4096
    total_bytes: int = 2**30
    ttl: float = 3600.0
    """Seconds after its last use that a handle lives."""


class Hold:
    """One scope's hold on one blob.

    Args:
        scope: whose it is.
        name: the blob's name in its scope, which begins with the SHA-256.
        size: of the blob, in bytes.
        mark: where its content came from, as far as this scope is concerned; it only goes down.
        granted: whether somebody else gave it to the scope.
        verified: whether this runner has seen that the file's content is what its name says.
    """

    __slots__ = ("expires", "granted", "mark", "name", "refs", "scope", "sha256", "size", "verified")

    def __init__(self, scope: Scope, name: str, size: int, *, mark: Mark, granted: bool, verified: bool) -> None:
        self.scope = scope
        self.name = name
        self.sha256 = name[:64]
        self.size = size
        self.mark: Mark = mark
        self.refs = 1
        self.granted = granted
        self.verified = verified
        self.expires = 0.0

    @property
    def info(self) -> HandleInfo:
        """What is told of it."""
        return HandleInfo(
            handle=handle_of(self.sha256), sha256=self.sha256, size=self.size, provenance=provenance_of(self.mark)
        )

    @property
    def path(self) -> Path:
        """Its file."""
        return self.scope.directory / file_of(self.name, self.mark)

    @property
    def paths(self) -> list[Path]:
        """Its file, and what that may be called in a moment: for threads, beside which its mark goes down."""
        return [self.scope.directory / file_of(self.name, mark) for mark in below(self.mark)]


class Scope:
    """What one plugin or one connection holds, by name.

    Attributes:
        directory: where its files are.
        gone: whether its connection has ended.
    """

    __slots__ = ("bytes", "counts", "directory", "gone", "holds")

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.holds: dict[str, Hold] = {}
        self.gone = False
        # By `granted`; what is being written counts already.
        self.bytes = {False: 0, True: 0}
        self.counts = {False: 0, True: 0}


class Books:
    """All holds.

    Args:
        quotas: the bounds.
        deadlines: the heap for the sweep.
        discard: called with each hold that has expired; it must strike it out.
    """

    def __init__(self, quotas: Quotas, deadlines: Deadlines, discard: Callable[[Hold], None]) -> None:
        self.quotas = quotas
        self._deadlines = deadlines
        self._discard = discard
        # In the order of their last use, which with one life for all is the order in which they expire.
        self._by_age: OrderedDict[Hold, None] = OrderedDict()
        self._blobs: dict[str, dict[Hold, None]] = {}
        self._total = 0
        self._sweep: Deadline | None = None

    def reconfigure(self, quotas: Quotas) -> None:
        """Have other bounds. What is held stays, with the new life counted from its last use; the next is judged."""
        longer = quotas.ttl - self.quotas.ttl
        self.quotas = quotas
        if longer:
            for hold in self._by_age:
                hold.expires += longer
            if self._sweep is not None:
                self._sweep.cancel()
                self._arm()

    @property
    def total(self) -> int:
        """Bytes of all blobs, each counted once, and of those that are being written."""
        return self._total

    def check(self, scope: Scope, size: int, *, granted: bool) -> None:
        """Say whether a scope may hold `size` bytes more. Raises RpcError: -32600, a quota."""
        quotas = self.quotas
        if scope.counts[granted] >= quotas.scope_count:
            raise quota_reached("handle_scope_count", quotas.scope_count)
        if scope.bytes[granted] + size > quotas.scope_bytes:
            raise quota_reached("handle_scope_bytes", quotas.scope_bytes)
        if not granted and self._total + size > quotas.total_bytes:
            raise quota_reached("handle_total_bytes", quotas.total_bytes)

    def reserve(self, scope: Scope, size: int) -> None:
        """Count a blob that is about to be written. Raises as `check`."""
        self.check(scope, size, granted=False)
        self._count(scope, size, 1, granted=False)
        self._total += size

    def unreserve(self, scope: Scope, size: int) -> None:
        """It is written, or never will be."""
        self._total -= size
        self._count(scope, -size, -1, granted=False)

    def enter(self, hold: Hold) -> None:
        """A scope holds something more."""
        hold.scope.holds[hold.name] = hold
        self._count(hold.scope, hold.size, 1, granted=hold.granted)
        self._by_age[hold] = None
        holders = self._blobs.setdefault(hold.sha256, {})
        if not holders:
            self._total += hold.size
        holders[hold] = None

    def strike(self, hold: Hold) -> bool:
        """A scope does not hold something any more; whether it did."""
        if hold.scope.holds.get(hold.name) is not hold:
            return False
        del hold.scope.holds[hold.name]
        self._count(hold.scope, -hold.size, -1, granted=hold.granted)
        del self._by_age[hold]
        holders = self._blobs[hold.sha256]
        del holders[hold]
        if not holders:
            del self._blobs[hold.sha256]
            self._total -= hold.size
        if not self._by_age and self._sweep is not None:
            self._sweep.cancel()
            self._sweep = None
        return True

    def make_own(self, hold: Hold) -> None:
        """A scope has made itself what it had been given."""
        if hold.granted:
            hold.granted = False
            self._count(hold.scope, -hold.size, -1, granted=True)
            self._count(hold.scope, hold.size, 1, granted=False)

    @staticmethod
    def _count(scope: Scope, size: int, number: int, *, granted: bool) -> None:
        scope.bytes[granted] += size
        scope.counts[granted] += number

    def verified(self, sha256: str) -> Hold | None:
        """Somebody's hold on a blob whose file has the right content."""
        return next((hold for hold in self._blobs.get(sha256, ()) if hold.verified), None)

    # ---- life

    def touch(self, hold: Hold) -> None:
        """It was used: its life begins anew. Nothing happens to one that has been struck out."""
        if hold.scope.holds.get(hold.name) is hold:
            hold.expires = trio.current_time() + self.quotas.ttl
            self._by_age.move_to_end(hold)
            if self._sweep is None:
                self._arm()

    def age(self, left: dict[Hold, float]) -> None:
        """Set how many seconds holds have left that were entered before any other."""
        now = trio.current_time()
        for hold in sorted(left, key=lambda hold: left[hold]):
            hold.expires = now + left[hold]
            self._by_age.move_to_end(hold)
        self._arm()

    def _arm(self, earliest: float = -inf) -> None:
        if self._by_age:
            at = max(next(iter(self._by_age)).expires, earliest)
            self._sweep = self._deadlines.add(at, self._on_sweep)

    def _on_sweep(self) -> None:
        self._sweep = None
        now = trio.current_time()
        for hold in list(islice(self._by_age, SWEEP_AT_ONCE)):
            if hold.expires > now:
                break
            self._discard(hold)
        self._arm(now + _SWEEP_PAUSE)


def quota_reached(bound: str, limit: int) -> RpcError:
    """Return -32600 for a bound of the handle store."""
    return RpcError(
        ErrorCode.INVALID_REQUEST, f"the bound {bound} ({limit}) is reached", {"bound": bound, "limit": limit}
    )
