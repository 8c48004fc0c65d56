"""`handle.*` and `fd.pass`, for clients as for plugins (PROTOCOL.md, "Data plane").

Rules here: who asks is known by the connection; a descriptor that rides on a request is taken in the turn in which the
request is handled, and closed whatever comes of it; what fits into a page is answered in that turn, and the rest by a
task. What passes between a plugin and somebody else takes the sender's handles along.
Content is handed out once whoever asked for it is known to have it.
"""

from __future__ import annotations

import base64
import logging
import os
import re
from functools import partial
from typing import TYPE_CHECKING

import trio

from utter_protocol.blobs import (
    HandleCreateParams,
    HandleData,
    HandleGrantParams,
    HandleInfo,
    HandleParams,
    mentioned,
)
from utter_protocol.errors import ErrorCode, RpcError
from utter_runner.dataplane.asked import HANDLE, SHORT, Asked, Caller, check_one_of, content_of
from utter_runner.dataplane.blobfiles import Bytes, Open
from utter_runner.dataplane.handles import PAGE, store_failed
from utter_runner.dataplane.memfd import check_sealed
from utter_runner.dataplane.passing import Passing
from utter_runner.policy.marks import lowest
from utter_runner.rpc.descriptors import MAX_UNREAD_FDS, check_passing
from utter_runner.rpc.interface import bound_error
from utter_runner.rpc.params import decode_params
from utter_runner.rpc.tasks import RequestTasks

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from msgspec import Raw

    from utter_protocol.host import RequestRef
    from utter_protocol.messages import RequestId
    from utter_runner.dataplane.asked import Purpose
    from utter_runner.dataplane.blobfiles import Content
    from utter_runner.dataplane.books import Hold, Quotas, Scope
    from utter_runner.dataplane.handles import HandleStore
    from utter_runner.dataplane.ring import RingWriter
    from utter_runner.dataplane.wakers import RingEnds, RingWakers
    from utter_runner.policy.marks import Mark
    from utter_runner.rpc.peer import Peer

logger = logging.getLogger(__name__)

MAX_CARRIED = 64
"""How many handles one message takes along."""

_find_scheme = re.compile(b"handle://").search


class DataPlane:
    """Answers requests; `run` must be running.

    Args:
        store: the handles.
        ring: the microphone's audio.
        wakers: wakes readers of the ring.
        plugin_known: raises RpcError for an id that is no plugin's.
    """

    def __init__(
        self,
        store: HandleStore,
        *,
        ring: RingWriter,
        wakers: RingWakers,
        plugin_known: Callable[[str], object],
    ) -> None:
        self._store = store
        self._wakers = wakers
        self._plugin_known = plugin_known
        self._tasks = RequestTasks()
        self._clients: dict[Peer, Caller] = {}
        # How many descriptors each peer has handed in that are being copied.
        self._handed_in: dict[Peer, int] = {}
        self._methods: Mapping[str, Callable[[Asked], None]] = {
            "handle.create": self._create,
            "handle.fetch": self._fetch,
            "handle.stat": self._stat,
            "handle.retain": self._retain,
            "handle.release": self._release,
            "handle.grant": self._grant,
            "fd.pass": Passing(store, ring=ring, wakers=wakers, tasks=self._tasks).answer,
        }

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Hold the tasks of requests that wait, and the store."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._store.run)
            await nursery.start(self._tasks.run)
            task_status.started()

    def close(self) -> None:
        """Free everything. Blocks; to be called when the loop has ended, before the ring and the reactor are closed."""
        self._wakers.close()
        self._store.close()

    def reconfigure(self, quotas: Quotas) -> None:
        """Have other bounds, as `Books.reconfigure`."""
        self._store.reconfigure(quotas)

    def forget_plugin(self, plugin_id: str) -> None:
        """A plugin is no longer configured: what it held is let go."""
        self._store.drop_plugin(plugin_id)

    # ---- who asks

    @property
    def methods(self) -> tuple[str, ...]:
        """What `request` answers."""
        return tuple(self._methods)

    def client(self, peer: Peer) -> Caller:
        """The client at the other end of a connection."""
        caller = self._clients.get(peer)
        if caller is None:
            caller = Caller(self._store.connection(), may_hear=True)
            if peer.closed:
                # Nobody would ever drop it.
                caller.scope.gone = True
            else:
                self._clients[peer] = caller
        return caller

    def plugin(self, plugin_id: str, *, may_hear: bool, purpose: Callable[[RequestRef], Purpose]) -> Caller:
        """A plugin; `purpose` as in `Caller`."""
        return Caller(self._store.plugin(plugin_id), may_hear, purpose, unstated="user")

    def open_ring(self) -> RingEnds:
        """Return the ring's descriptors for a process that inherits them. Raises OSError."""
        return self._wakers.open_ring()

    def forget(self, peer: Peer) -> None:
        """A client's connection is gone, and with it what it held."""
        caller = self._clients.pop(peer, None)
        if caller is not None:
            self._store.drop(caller.scope)

    def request(self, caller: Caller, peer: Peer, request_id: RequestId, method: str, params: Raw) -> None:
        """Answer one of `methods`, now or later. Raises RpcError."""
        try:
            self._methods[method](Asked(caller, peer, request_id, params))
        except OSError as error:
            raise store_failed(error) from None

    def carry(self, message: Raw, sender: str | Peer, receiver: str | Peer, mark: Mark) -> Mark:
        """Let the receiver of a message hold the handles in it that its sender holds.

        Returns the lowest mark that one of them has there.

        Handles that are carried stand in the JSON as they are, without escapes, and are not in a part of the sender's
        scope. One that cannot be granted is left out, and logged.

        Args:
            message: params or a result that passes through the runner.
            sender: a plugin's id, or a client's connection.
            receiver: likewise.
            mark: that of what the message belongs to, which is the most that they have at the receiver.
        """
        reached: Mark = "user"
        # Nearly everything that passes has none.
        if _find_scheme(message) is None:
            return reached
        found = mentioned(message, MAX_CARRIED)
        source, target = self._scope_of(sender), self._scope_of(receiver)
        for sha256 in found:
            hold = source.holds.get(sha256)
            if hold is not None:
                try:
                    reached = lowest(reached, self._store.grant(hold, target, mark).mark)
                except RpcError as error:
                    logger.warning("a handle was not passed on: %s", error)
        return reached

    def mark_in(self, message: bytes | Raw, holder: str | Peer) -> Mark:
        """Return the lowest mark that a handle in a piece of JSON has for `holder`, in any part of its scope.

        Handles that it does not hold say nothing: it could not have read them.
        """
        if _find_scheme(message) is None:
            return "user"
        named = frozenset(mentioned(message, len(message)))
        holds = self._scope_of(holder).holds.values()
        return lowest("user", *(hold.mark for hold in holds if hold.sha256 in named))

    def _scope_of(self, party: str | Peer) -> Scope:
        return self._store.plugin(party) if isinstance(party, str) else self.client(party).scope

    # ---- handles

    def _create(self, request: Asked) -> None:
        scope = request.caller.scope
        if len(request.params) > SHORT and not request.peer.descriptors_waiting:
            # Decoding takes the loop's time, too.
            decode = partial(_decoded, request)
            self._later(request, "handle.create", partial(self._store.create_decoded, scope, decode))
            return
        params = _create_params(request.params)
        if params.fd:
            self._create_from_descriptor(request, params)
            return
        content = content_of(params.size, params.data, params.data_b64)
        mark = request.caller.mark_of(params.request, params.provenance)
        if isinstance(content, Bytes) and content.size <= PAGE and self._store.ready:
            request.peer.reply_object(request.id, self._store.create_now(scope, params.scope, content, mark))
        else:
            self._later(request, "handle.create", partial(self._store.create, scope, params.scope, content, mark))

    def _create_from_descriptor(self, request: Asked, params: HandleCreateParams) -> None:
        peer, scope = request.peer, request.caller.scope
        if self._handed_in.get(peer, 0) >= MAX_UNREAD_FDS:
            # The peer closes what rides on a request that is refused for a bound.
            raise bound_error(peer.name, "max_unread_fds", MAX_UNREAD_FDS)
        fd = peer.take_descriptor()
        if fd is None:
            check_passing(peer, "handle.create", 0)
            raise _no_descriptor()

        async def create() -> HandleInfo:
            try:
                return await self._store.create(scope, params.scope, Open(fd, size), mark)
            finally:
                os.close(fd)
                self._handed_in[peer] -= 1
                if not self._handed_in[peer]:
                    del self._handed_in[peer]

        try:
            mark = request.caller.mark_of(params.request, params.provenance)
            size = check_sealed(fd)
            self._later(request, "handle.create", create)
        except BaseException:
            os.close(fd)
            raise
        self._handed_in[peer] = self._handed_in.get(peer, 0) + 1

    def _fetch(self, request: Asked) -> None:
        params = decode_params(request.params, HandleParams)
        purpose = request.caller.purpose(params.request)

        async def fetch() -> HandleData:
            await self._store.wait_ready()
            hold = self._store.find(request.caller.scope, params.scope, params.handle)
            data = await self._store.read(hold)
            purpose.receive(hold.mark, HANDLE)
            return _data(hold, data)

        if self._store.ready:
            hold = self._store.find(request.caller.scope, params.scope, params.handle)
            if hold.size <= PAGE:
                data = self._store.read_now(hold)
                purpose.receive(hold.mark, HANDLE)
                request.peer.reply_object(request.id, _data(hold, data))
                return
        self._later(request, "handle.fetch", fetch)

    def _stat(self, request: Asked) -> None:
        self._with_hold(request, "handle.stat", lambda hold: hold.info)

    def _retain(self, request: Asked) -> None:
        self._with_hold(request, "handle.retain", self._store.retain)

    def _release(self, request: Asked) -> None:
        self._with_hold(request, "handle.release", self._store.release)

    def _with_hold(self, request: Asked, method: str, act: Callable[[Hold], HandleInfo | None]) -> None:
        """Answer what `act` returns, or an empty object."""
        params = decode_params(request.params, HandleParams)
        self._at_once(
            request, method, lambda: act(self._store.find(request.caller.scope, params.scope, params.handle)) or {}
        )

    def _grant(self, request: Asked) -> None:
        params = decode_params(request.params, HandleGrantParams)

        def grant() -> object:
            hold = self._store.find(request.caller.scope, "", params.handle)
            self._plugin_known(params.scope)
            self._store.grant(hold, self._store.plugin(params.scope), request.caller.purpose(params.request).mark)
            return {}

        self._at_once(request, "handle.grant", grant)

    def _at_once(self, request: Asked, method: str, act: Callable[[], object]) -> None:
        """Answer what `act` returns, as soon as the store is open."""

        async def wait() -> object:
            await self._store.wait_ready()
            return act()

        if self._store.ready:
            request.peer.reply_object(request.id, act())
        else:
            self._later(request, method, wait)

    def _later(self, request: Asked, method: str, answer: Callable[[], Awaitable[object]]) -> None:
        self._tasks.start(request.peer, request.id, method, answer)


def _create_params(raw: Raw) -> HandleCreateParams:
    params = decode_params(raw, HandleCreateParams)
    check_one_of(params, "data_b64", "data", "size", "fd")
    return params


def _decoded(request: Asked) -> tuple[str, Content, Callable[[], Mark]]:
    params = _create_params(request.params)
    if params.fd:
        raise _no_descriptor()
    marked = partial(request.caller.mark_of, params.request, params.provenance)
    return params.scope, content_of(params.size, params.data, params.data_b64), marked


def _data(hold: Hold, data: bytes) -> HandleData:
    info = hold.info
    return HandleData(
        handle=info.handle,
        sha256=info.sha256,
        size=info.size,
        data_b64=base64.b64encode(data).decode(),
        provenance=info.provenance,
    )


def _no_descriptor() -> RpcError:
    return RpcError(ErrorCode.INVALID_PARAMS, "no descriptor came with the request", {"field": "fd"})
