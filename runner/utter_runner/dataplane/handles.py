"""Handles: blobs by their content, each seen only by whoever holds it (PROTOCOL.md, "Handles").

Rules here: a scope is what one plugin or one connection holds, and sees nothing of the others; whatever keeps somebody
from a blob, the error is the same. The books are changed on the loop only, together with the names of files; reading,
writing, hashing and deleting more than a page happens on a thread. A mark belongs to one scope's hold, and whatever
comes together in one hold leaves it with the lowest (PROTOCOL.md, "Provenance").
"""

from __future__ import annotations

import logging
import os
from hashlib import sha256 as hash_of
from typing import TYPE_CHECKING, TypeVar

import trio

from utter_protocol.blobs import MAX_INLINE, HandleInfo, sha256_of
from utter_protocol.errors import ErrorCode, RpcError
from utter_runner.dataplane.blobfiles import Found, Open, StoreError, digest_of, file_of, name_of
from utter_runner.dataplane.books import Books, Hold, Quotas, Scope, quota_reached
from utter_runner.policy.marks import lowest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from utter_runner.dataplane.blobfiles import BlobFiles, Bytes, Content
    from utter_runner.policy.marks import Mark
    from utter_runner.rpc.deadlines import Deadlines

logger = logging.getLogger(__name__)

T = TypeVar("T")

PAGE = 4096
"""What is read, written or hashed without a thread, in bytes."""
_THREADS = 4


class HandleStore:
    """All handles; `run` must be running.

    Args:
        files: the directory; `run` opens it and `close` closes it.
        quotas: the bounds.
        deadlines: the heap for the sweep.
        on_broken: told in a sentence why there are no handles: the directory cannot be opened.
    """

    def __init__(
        self, files: BlobFiles, *, quotas: Quotas, deadlines: Deadlines, on_broken: Callable[[str], None]
    ) -> None:
        self._files = files
        self._on_broken = on_broken
        self._books = Books(quotas, deadlines, self._discard)
        self._scopes: dict[str, Scope] = {}
        self._connections = 0
        self._opened = trio.Event()
        self._broken = ""
        self._rubbish: list[Path] = []
        self._litter = trio.Event()
        self._limiter = trio.CapacityLimiter(_THREADS)

    # ---- running

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Open the directory, and delete what has been let go, until cancelled."""
        task_status.started()
        try:
            found = await trio.to_thread.run_sync(self._files.open)
        except StoreError as error:
            self._broken = str(error)
            self._on_broken(f"{error} There are no handles until the runner is started again.")
        else:
            self._adopt(found)
        self._opened.set()
        while True:
            await self._litter.wait()
            self._litter = trio.Event()
            rubbish, self._rubbish = self._rubbish, []
            await trio.to_thread.run_sync(self._files.delete, rubbish)

    def close(self) -> None:
        """Delete what connections held, and let the directory go. Blocks; to be called when the loop has ended."""
        self._files.close()

    @property
    def ready(self) -> bool:
        """Whether the directory is open; until it is, or if it cannot be opened, requests go through `wait_ready`."""
        return self._opened.is_set() and not self._broken

    async def wait_ready(self) -> None:
        """Wait until the directory is open. Raises RpcError: -32000, it cannot be opened."""
        await self._opened.wait()
        if self._broken:
            raise RpcError(ErrorCode.PLUGIN_FAILED, self._broken, {"reason": self._broken})

    def _adopt(self, found: list[Found]) -> None:
        """Take over what plugins held in a former runner, the youngest first, as far as the quotas allow it."""
        left: dict[Hold, float] = {}
        for blob in sorted(found, key=lambda blob: blob.age):
            scope = self._scope_in(self._files.plugins / blob.directory)
            hold = Hold(scope, blob.name, blob.size, mark=blob.mark, granted=False, verified=False)
            left[hold] = self._books.quotas.ttl - blob.age
            try:
                if left[hold] <= 0:
                    raise _no_such_handle()
                self._books.check(scope, blob.size, granted=False)
            except RpcError:
                del left[hold]
                self._throw_away(hold)
            else:
                self._books.enter(hold)
        self._books.age(left)

    def reconfigure(self, quotas: Quotas) -> None:
        """Have other bounds, as `Books.reconfigure`."""
        self._books.reconfigure(quotas)

    # ---- scopes

    def plugin(self, plugin_id: str) -> Scope:
        """The scope of a plugin; it outlives the plugin's epochs and the runner."""
        return self._scope_in(self._files.plugins / hash_of(plugin_id.encode()).hexdigest())

    def _scope_in(self, directory: Path) -> Scope:
        scope = self._scopes.get(directory.name)
        if scope is None:
            scope = self._scopes[directory.name] = Scope(directory)
        return scope

    def connection(self) -> Scope:
        """A new scope, for a connection; `drop` it with the connection."""
        self._connections += 1
        return Scope(self._files.clients / str(self._connections))

    def drop(self, scope: Scope) -> None:
        """Let go of everything that a connection held."""
        scope.gone = True
        if scope.holds:
            for hold in list(scope.holds.values()):
                self._books.strike(hold)
            self._throw(scope.directory)

    def drop_plugin(self, plugin_id: str) -> None:
        """Let go of everything that a plugin held, which is no longer configured. If it comes back, it begins anew."""
        scope = self.plugin(plugin_id)
        del self._scopes[scope.directory.name]
        self.drop(scope)

    # ---- making

    def check_size(self, size: int) -> None:
        """Say whether a scope could ever hold so many bytes. Raises RpcError: -32600."""
        if size > self._books.quotas.scope_bytes:
            raise quota_reached("handle_scope_bytes", self._books.quotas.scope_bytes)

    async def create(self, scope: Scope, part: str, content: Content, mark: Mark) -> HandleInfo:
        """Store content that came from where `mark` says, on a thread.

        Raises:
            RpcError: -32600, a quota; -32000, it cannot be written.
        """
        await self.wait_ready()
        self._books.reserve(scope, content.size)
        try:
            temporary, sha256 = await self._in_thread(
                lambda: self._files.write(content, trio.from_thread.check_cancelled)
            )
        finally:
            self._books.unreserve(scope, content.size)
        return self._commit(scope, name_of(sha256, part), content.size, temporary, mark)

    async def create_decoded(
        self, scope: Scope, decode: Callable[[], tuple[str, Content, Callable[[], Mark]]]
    ) -> HandleInfo:
        """Store what came in a message, on a thread. Raises as `create`.

        A message is bounded, so that the quotas are looked at when its content is known.

        Args:
            scope: who makes it.
            decode: called on the thread; returns the part, the content, and what says on the loop where it came from.
        """
        await self.wait_ready()

        def write() -> tuple[str, int, Path, Callable[[], Mark]]:
            part, content, marked = decode()
            self.check_size(content.size)
            temporary, sha256 = self._files.write(content, trio.from_thread.check_cancelled)
            return name_of(sha256, part), content.size, temporary, marked

        name, size, temporary, marked = await self._in_thread(write)
        try:
            self._books.check(scope, size, granted=False)
            mark = marked()
        except RpcError:
            temporary.unlink(missing_ok=True)
            raise
        return self._commit(scope, name, size, temporary, mark)

    def create_now(self, scope: Scope, part: str, content: Bytes, mark: Mark) -> HandleInfo:
        """Store at most a page; the store must be `ready`. Raises as `create`."""
        name = name_of(digest_of(content), part)
        known = scope.holds.get(name)
        if known is not None and known.verified and not known.granted:
            self._lower(known, mark)
            known.refs += 1
            self._books.touch(known)
            return known.info
        self._books.check(scope, content.size, granted=False)
        temporary, _ = _at_once(lambda: self._files.write(content))
        return self._commit(scope, name, content.size, temporary, mark)

    def _commit(self, scope: Scope, name: str, size: int, temporary: Path, mark: Mark) -> HandleInfo:
        """Enter what has been written. What somebody holds already is not kept twice."""
        known, placed = scope.holds.get(name), False
        try:
            if scope.gone:
                raise RpcError(ErrorCode.CANCELLED, "the connection is gone")
            if known is not None:
                self._lower(known, mark)
            if known is None or not known.verified:
                path = scope.directory / file_of(name, mark) if known is None else known.path
                twin = self._books.verified(name[:64])
                if twin is None or not self._link(twin, path):
                    self._files.place(temporary, path)
                    placed = True
        except OSError as error:
            raise store_failed(error) from None
        finally:
            if not placed:
                temporary.unlink(missing_ok=True)
        if known is None:
            known = Hold(scope, name, size, mark=mark, granted=False, verified=True)
            self._books.enter(known)
        else:
            known.verified = True
            known.refs += 1
            self._books.make_own(known)
        self._books.touch(known)
        return known.info

    def _lower(self, hold: Hold, mark: Mark) -> None:
        """Take note that a blob may also have come from where `mark` says.

        Raises:
            RpcError: -32000, its file cannot be renamed; it is let go then, because the next runner would trust it.
        """
        mark = lowest(hold.mark, mark)
        if mark == hold.mark:
            return
        try:
            self._files.rename(hold.path, hold.scope.directory / file_of(hold.name, mark))
        except OSError as error:
            self._discard(hold)
            raise store_failed(error) from None
        hold.mark = mark

    def _link(self, source: Hold, target: Path) -> bool:
        """Give a blob another name; whether its file was still there. Raises OSError."""
        try:
            self._files.link(source.path, target)
        except FileNotFoundError:
            self._books.strike(source)
            return False
        return True

    # ---- using

    def find(self, scope: Scope, part: str, handle: str) -> Hold:
        """The scope's hold on a blob.

        Raises:
            RpcError: -32602, it has none, or `handle` is none.
        """
        sha256 = sha256_of(handle)
        hold = None if sha256 is None else scope.holds.get(name_of(sha256, part))
        if hold is None:
            raise _no_such_handle()
        return hold

    async def read(self, hold: Hold) -> bytes:
        """Return a blob's content, of at most `MAX_INLINE` bytes.

        Raises:
            RpcError: -32602, it is gone; -32007, it is too large; -32000, it cannot be read.
        """
        if hold.size > MAX_INLINE:
            raise _too_large(hold.size)
        return self._used(hold, await self._in_thread(lambda: _load(hold)))

    def read_now(self, hold: Hold) -> bytes:
        """Return a blob's content, of at most a page. Raises as `read`."""
        return self._used(hold, _at_once(lambda: _load(hold)))

    async def open(self, hold: Hold) -> int:
        """Return a read-only descriptor of a blob, the caller's; what a former runner wrote is checked first.

        Raises:
            RpcError: -32602, it is gone; -32000, it cannot be opened.
        """
        if hold.verified:
            return self.open_now(hold)
        return self._used(hold, await self._in_thread(lambda: _open_checked(hold, trio.from_thread.check_cancelled)))

    def open_now(self, hold: Hold) -> int:
        """As `open`, of a blob that is verified."""
        return self._used(hold, _at_once(lambda: _open(hold)))

    def _used(self, hold: Hold, found: T | None) -> T:
        """Take note of a use. Raises RpcError: -32602, the file is not there any more, or not what its name says."""
        if found is None:
            logger.warning("the handle store drops %s: its file is not what its name says", hold.path)
            self._discard(hold)
            raise _no_such_handle()
        hold.verified = True
        self._books.touch(hold)
        return found

    def retain(self, hold: Hold) -> None:
        """Hold it once more."""
        hold.refs += 1
        self._books.touch(hold)

    def release(self, hold: Hold) -> None:
        """Hold it once less; the last time lets it go."""
        hold.refs -= 1
        if not hold.refs:
            self._discard(hold)

    def grant(self, hold: Hold, scope: Scope, mark: Mark) -> Hold:
        """Let another scope hold the blob, too; a second time only renews its life there. Returns that hold.

        Its mark there is at most `mark`, that of what the blob is given for, and that which it has here.

        Raises:
            RpcError: -32600, a quota of the other scope; -32602, the blob or the other's connection is gone; -32000, it
                cannot be linked.
        """
        mark = lowest(hold.mark, mark)
        known = scope.holds.get(hold.sha256)
        if known is not None:
            self._lower(known, mark)
        else:
            self._books.check(scope, hold.size, granted=True)
            try:
                if scope.gone or not self._link(hold, scope.directory / file_of(hold.sha256, mark)):
                    raise _no_such_handle()
            except OSError as error:
                raise store_failed(error) from None
            known = Hold(scope, hold.sha256, hold.size, mark=mark, granted=True, verified=hold.verified)
            self._books.enter(known)
        self._books.touch(known)
        self._books.touch(hold)
        return known

    # ---- letting go

    def _discard(self, hold: Hold) -> None:
        if self._books.strike(hold):
            self._throw_away(hold)

    def _throw_away(self, hold: Hold) -> None:
        if hold.size > PAGE:
            self._throw(hold.path)
            return
        try:
            hold.path.unlink(missing_ok=True)
        except OSError as error:
            logger.warning("the handle store cannot delete %s: %s", hold.path, error.strerror)

    def _throw(self, path: Path) -> None:
        """Have something deleted on a thread. Its name is free at once."""
        rubbish = self._files.retire(path)
        if rubbish is not None:
            self._rubbish.append(rubbish)
            self._litter.set()

    async def _in_thread(self, work: Callable[[], T]) -> T:
        try:
            return await trio.to_thread.run_sync(work, limiter=self._limiter)
        except OSError as error:
            raise store_failed(error) from None


def _open(hold: Hold) -> int | None:
    """Return a descriptor of a blob's file; None if it is not there, or not as large as it was. Raises OSError."""
    for path in hold.paths:
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            break
        except FileNotFoundError:
            continue
    else:
        return None
    if os.fstat(fd).st_size != hold.size:
        os.close(fd)
        return None
    return fd


def _open_checked(hold: Hold, check: Callable[[], None]) -> int | None:
    """As `_open`; None as well if the content is another one."""
    fd = _open(hold)
    if fd is None:
        return None
    try:
        right = digest_of(Open(fd, hold.size), check) == hold.sha256
    except BaseException:
        os.close(fd)
        raise
    if right:
        return fd
    os.close(fd)
    return None


def _load(hold: Hold) -> bytes | None:
    """Return a blob's content, if it is what its name says."""
    fd = _open(hold)
    if fd is None:
        return None
    try:
        data = os.pread(fd, hold.size, 0)
    finally:
        os.close(fd)
    return data if hash_of(data).hexdigest() == hold.sha256 else None


def _at_once(work: Callable[[], T]) -> T:
    try:
        return work()
    except OSError as error:
        raise store_failed(error) from None


def _no_such_handle() -> RpcError:
    return RpcError(ErrorCode.INVALID_PARAMS, "no such handle", {"field": "handle"})


def _too_large(size: int) -> RpcError:
    return RpcError(
        ErrorCode.TOO_LARGE_INLINE,
        f"the blob has {size} bytes; at most {MAX_INLINE} travel inline, the rest by fd.pass",
        {"bound": "max_inline", "limit": MAX_INLINE},
    )


def store_failed(error: OSError) -> RpcError:
    """Return -32000 for what the system refused."""
    reason = error.strerror or str(error)
    return RpcError(ErrorCode.PLUGIN_FAILED, f"the runner cannot do this: {reason}", {"reason": reason})
