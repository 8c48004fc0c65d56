"""`fd.pass`: descriptors of blobs, of memory and of the audio ring (PROTOCOL.md, "fd.pass").

Rules here: a descriptor that was made rides on an answer or is closed; each is an open file of its own, so that what
its receiver does to position and flags is nobody else's business.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import trio

from utter_protocol.blobs import (
    FdHandleMeta,
    FdMemfdMeta,
    FdMemfdResult,
    FdPassParams,
    FdRingMeta,
    FdRingResult,
)
from utter_protocol.errors import ErrorCode, RpcError
from utter_protocol.messages import encode
from utter_protocol.ring import HEADER_SIZE
from utter_runner.dataplane.asked import HANDLE, SHORT, Asked, check_one_of, content_of
from utter_runner.dataplane.blobfiles import Zeros
from utter_runner.dataplane.handles import store_failed
from utter_runner.dataplane.memfd import sealed_memfd, zeroed_memfd
from utter_runner.rpc.descriptors import check_passing, close_all
from utter_runner.rpc.params import decode_params

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from msgspec import Raw

    from utter_runner.dataplane.handles import HandleStore
    from utter_runner.dataplane.ring import RingWriter
    from utter_runner.dataplane.wakers import RingWakers
    from utter_runner.rpc.tasks import RequestTasks


class Passing:
    """Answers `fd.pass`.

    Args:
        store: the handles.
        ring: the microphone's audio.
        wakers: wakes readers of the ring.
        tasks: holds those that wait.
    """

    def __init__(self, store: HandleStore, *, ring: RingWriter, wakers: RingWakers, tasks: RequestTasks) -> None:
        self._store = store
        self._ring = ring
        self._wakers = wakers
        self._tasks = tasks
        self._kinds: Mapping[str, Callable[[Asked, FdPassParams], None]] = {
            "handle": self._pass_handle,
            "memfd": self._pass_memfd,
            "memfd.ring": self._pass_ring,
        }

    def answer(self, request: Asked) -> None:
        """Answer a request, now or later. Raises RpcError, or OSError: no descriptors."""
        params = decode_params(request.params, FdPassParams)
        check_passing(request.peer, "fd.pass", 1)
        self._kinds[params.kind](request, params)

    def _pass_handle(self, request: Asked, asked: FdPassParams) -> None:
        params = decode_params(asked.meta, FdHandleMeta)
        purpose = request.caller.purpose(asked.request)

        async def open_blob() -> tuple[object, list[int]]:
            await self._store.wait_ready()
            hold = self._store.find(request.caller.scope, params.scope, params.handle)
            fd = await self._store.open(hold)
            purpose.receive(hold.mark, HANDLE)
            return {}, [fd]

        if self._store.ready:
            hold = self._store.find(request.caller.scope, params.scope, params.handle)
            if hold.verified:
                fd = self._store.open_now(hold)
                purpose.receive(hold.mark, HANDLE)
                request.peer.reply_with(request.id, b"{}", [fd])
                return
        self._later(request, open_blob)

    def _pass_memfd(self, request: Asked, asked: FdPassParams) -> None:
        meta = asked.meta
        if len(meta) > SHORT:
            self._later(request, partial(trio.to_thread.run_sync, partial(self._filled_memfd, meta)))
            return
        result, fds = self._filled_memfd(meta)
        request.peer.reply_with(request.id, encode(result), fds)

    def _filled_memfd(self, meta: Raw) -> tuple[FdMemfdResult, list[int]]:
        params = decode_params(meta, FdMemfdMeta)
        check_one_of(params, "size", "data", "data_b64")
        content = content_of(params.size, params.data, params.data_b64)
        self._store.check_size(content.size)
        fd = zeroed_memfd(content.size) if isinstance(content, Zeros) else sealed_memfd(content.chunks())
        return FdMemfdResult(size=content.size), [fd]

    def _pass_ring(self, request: Asked, asked: FdPassParams) -> None:
        params = decode_params(asked.meta, FdRingMeta)
        check_passing(request.peer, "fd.pass", 2 if params.wake else 1)
        if not request.caller.may_hear:
            raise RpcError(
                ErrorCode.NOT_PERMITTED,
                'the audio ring is for plugins with the permission "microphone"',
                {"field": "permissions", "method": "fd.pass"},
            )
        layout = self._ring.layout
        result = FdRingResult(
            rate=layout.rate, channels=layout.channels, capacity=layout.capacity, header_size=HEADER_SIZE
        )
        fds = [self._ring.open_again()]
        try:
            if params.wake:
                fds.append(self._wakers.open())
        except BaseException:
            close_all(fds)
            raise
        request.peer.reply_with(request.id, encode(result), fds)

    def _later(self, request: Asked, make: Callable[[], Awaitable[tuple[object, list[int]]]]) -> None:
        """Answer with the descriptors that `make` returns, in a task."""

        async def answer() -> None:
            try:
                result, fds = await make()
            except OSError as error:
                raise store_failed(error) from None
            try:
                check_passing(request.peer, "fd.pass", len(fds))
            except RpcError:
                close_all(fds)
                raise
            request.peer.reply_with(request.id, encode(result), fds)

        self._tasks.start(request.peer, request.id, "fd.pass", answer)
