"""Waiting for a reply that comes by callback.

Rules here: whoever waits gets the one reply, or withdraws what was asked by being cancelled.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import trio

if TYPE_CHECKING:
    from collections.abc import Callable

    from msgspec import Raw

    from utter_protocol.errors import RpcError
    from utter_runner.rpc.interface import OnReply


async def wait_reply(start: Callable[[OnReply], Callable[[], object]]) -> Raw:
    """Ask, and wait for the reply.

    Args:
        start: asks; given the callback for the reply, it returns what withdraws the question. It is not called when
            the caller is cancelled already.

    Raises:
        RpcError: the reply is an error.
    """
    await trio.lowlevel.checkpoint_if_cancelled()
    done = trio.Event()
    replies: list[tuple[Raw | None, RpcError | None]] = []

    def on_reply(result: Raw | None, error: RpcError | None) -> None:
        replies.append((result, error))
        done.set()

    withdraw = start(on_reply)
    try:
        await done.wait()
    except trio.Cancelled:
        if not replies:
            withdraw()
        raise
    result, error = replies[0]
    if error is not None:
        raise error
    return result if result is not None else msgspec.Raw(b"null")
