"""Clients that have the microphone open: `audio.open`, `audio.close` (PROTOCOL.md, "The client API").

Rules here: a connection holds the microphone once or not at all, however often it asks; what it holds is given back
when it says so or ends, also while it is still being opened. The last word of a client counts: `audio.close` ends an
`audio.open` that is not answered yet.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import trio

from utter_protocol.errors import ErrorCode, RpcError
from utter_protocol.methods import AudioOpened
from utter_runner.voice.collaborators import AudioUnavailable

if TYPE_CHECKING:
    from utter_runner.rpc.peer import Peer


class Microphone(Protocol):
    """What is needed of the microphone; see `voice.capture.capture.Capture`."""

    @property
    def status(self) -> dict[str, Any]:
        """The `audio` of `runner.status`."""

    async def acquire(self) -> None:
        """Have it open until `release`. Raises AudioUnavailable, and then nothing is held."""

    def release(self) -> None:
        """Give one `acquire` back."""


class Listeners:
    """Which connections hold the microphone.

    Args:
        microphone: what they hold.
    """

    def __init__(self, microphone: Microphone) -> None:
        self._microphone = microphone
        self._holding: set[Peer] = set()
        self._opening: dict[Peer, set[trio.CancelScope]] = {}

    async def open(self, peer: Peer) -> AudioOpened:
        """Open the microphone for a connection, and return when audio arrives.

        Raises:
            RpcError: -32000, it cannot be opened; -32002, the connection has given it up meanwhile.
        """
        scope = trio.CancelScope()
        self._opening.setdefault(peer, set()).add(scope)
        try:
            with scope:
                await self._microphone.acquire()
                # From here to the end nothing waits: what was acquired is either entered or given back.
                if scope.cancel_called or peer in self._holding:
                    self._microphone.release()
                else:
                    self._holding.add(peer)
        except AudioUnavailable as error:
            raise RpcError(ErrorCode.PLUGIN_FAILED, error.reason, {"method": "audio.open"}) from None
        finally:
            self._forget_opening(peer, scope)
        if scope.cancel_called:
            raise RpcError(ErrorCode.CANCELLED, "audio.close came before the microphone was open")
        return AudioOpened(device=str(self._microphone.status["device"]))

    def close(self, peer: Peer) -> None:
        """Give back what a connection holds or is about to hold. Idempotent."""
        for scope in self._opening.get(peer, ()):
            scope.cancel()
        if peer in self._holding:
            self._holding.discard(peer)
            self._microphone.release()

    def _forget_opening(self, peer: Peer, scope: trio.CancelScope) -> None:
        opening = self._opening[peer]
        opening.discard(scope)
        if not opening:
            del self._opening[peer]
