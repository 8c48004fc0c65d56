"""Accepting clients and telling the authenticated from the others.

Rules here: an unauthenticated peer gets `runner.auth`, five seconds and five tries, and learns nothing about which
methods exist; accepting never stops because descriptors ran out, it waits; a connection that says nothing is harmless:
where all places are taken, one that has not authenticated yields its place.
"""

from __future__ import annotations

import errno
import logging
from typing import TYPE_CHECKING

import msgspec
import trio

from utter_protocol.errors import ErrorCode, RpcError
from utter_protocol.methods import AuthParams, ConfirmParams, ConfirmResult
from utter_runner.rpc.credentials import Credentials, peer_credentials
from utter_runner.rpc.peer import Peer
from utter_runner.rpc.reactor import READABLE

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from msgspec import Raw

    from utter_protocol.messages import RequestId
    from utter_runner.clients.api import ClientApi
    from utter_runner.clients.auth import Admission
    from utter_runner.confirm.confirmer import Surface
    from utter_runner.rpc.deadlines import Deadlines
    from utter_runner.rpc.endpoint import Endpoint
    from utter_runner.rpc.interface import Limits
    from utter_runner.rpc.reactor import Reactor

logger = logging.getLogger(__name__)

AUTH_SECONDS = 5.0
AUTH_TRIES = 5
_RETRY_SECONDS = 0.2
_NO_DESCRIPTORS = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class ClientConnection:
    """One client: the handler of its peer, and a surface on which a person can be asked."""

    def __init__(self, server: ClientServer, credentials: Credentials, *, trusted: bool) -> None:
        self.credentials = credentials
        self.trusted = trusted
        self._server = server
        self._tries = 0
        self._cannot_ask = False
        self.peer: Peer | None = None

    kind = "client"
    """As a surface, in the audit trail."""

    def on_request(self, peer: Peer, request_id: RequestId, method: str, params: Raw) -> None:
        """Answer `runner.auth` here, and everything else only to those who are trusted."""
        if method == "runner.auth":
            self._authenticate(peer, request_id, params)
        elif not self.trusted:
            raise RpcError(ErrorCode.NOT_PERMITTED, "runner.auth comes first", {"method": "runner.auth"})
        else:
            self._server.api.on_request(peer, request_id, method, params)

    def on_notification(self, peer: Peer, method: str, params: Raw) -> None:
        """The only notification of clients is `stream.ack`; others are ignored."""
        if self.trusted and method == "stream.ack":
            self._server.api.acknowledge(peer, params)

    def on_junk(self, peer: Peer, junk: bytes) -> None:
        """Junk is skipped; a log line says so."""
        logger.warning(
            "client pid %d sent %d bytes that are no frame to %s", self.credentials.pid, len(junk), peer.name
        )

    def on_closed(self, peer: Peer, reason: str) -> None:
        """Forget the client."""
        logger.debug("client pid %d is gone: %s", self.credentials.pid, reason)
        self._server.forget(self)
        self._server.api.forget(peer)

    def _authenticate(self, peer: Peer, request_id: RequestId, params: Raw) -> None:
        if not self.trusted:
            self._tries += 1
            try:
                token = msgspec.json.decode(params, type=AuthParams).token
            except (msgspec.MsgspecError, RecursionError):
                token = ""
            if not self._server.admission.token_matches(token):
                peer.reply_error(request_id, RpcError(ErrorCode.NOT_PERMITTED, "the token is not right"))
                if self._tries >= AUTH_TRIES:
                    peer.close("too many wrong tokens", flush=True)
                return
            self.trusted = True
        peer.reply_object(request_id, {"ok": True})

    async def ask(self, params: ConfirmParams) -> bool | None:
        """Ask the person behind this client (confirm.Surface). Raises RpcError."""
        if self.peer is None or self._cannot_ask or not self.trusted:
            return None
        try:
            raw = await self.peer.call("host.confirm", params, timeout=params.timeout_ms / 1000)
        except RpcError as error:
            # A client that knows no host.confirm will not learn it.
            self._cannot_ask = error.code == ErrorCode.METHOD_NOT_FOUND
            return None
        try:
            return msgspec.json.decode(raw, type=ConfirmResult).approved
        except (msgspec.MsgspecError, RecursionError):
            logger.warning("client pid %d answered host.confirm with something else", self.credentials.pid)
            return False


class ClientServer:
    """Accepts connections on an endpoint.

    Args:
        endpoint: the listening socket; the server does not close it.
        admission: who may connect.
        api: answers the trusted.
        limits: bounds of each client's peer.
        max_clients: how many may be connected.
        on_refused: told in one sentence when a connection was turned away.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        reactor: Reactor,
        deadlines: Deadlines,
        admission: Admission,
        api: ClientApi,
        limits: Limits,
        max_clients: int,
        on_refused: Callable[[str], None],
    ) -> None:
        self.admission = admission
        self.api = api
        self._listener = endpoint.listener
        self._reactor = reactor
        self._deadlines = deadlines
        self._limits = limits
        self._max_clients = max_clients
        self._on_refused = on_refused
        self._connections: dict[ClientConnection, None] = {}
        self._stopped = False

    @property
    def count(self) -> int:
        """How many clients are connected."""
        return len(self._connections)

    def surfaces(self) -> list[Surface]:
        """Whom a person could be asked through."""
        return [connection for connection in self._connections if connection.trusted]

    def start(self) -> None:
        """Begin to accept."""
        self._reactor.register(self._listener.fileno(), READABLE, self._accept)

    def stop(self) -> None:
        """Accept nobody any more, and end all connections once they have got what is queued for them."""
        self._stopped = True
        self._reactor.unregister(self._listener.fileno())
        for connection in list(self._connections):
            if connection.peer is not None:
                connection.peer.close("the runner stops", flush=True)

    def forget(self, connection: ClientConnection) -> None:
        """A connection is closed."""
        self._connections.pop(connection, None)

    def _accept(self, _events: int) -> None:
        try:
            connection, _ = self._listener.accept()
        except BlockingIOError:
            return
        except OSError as error:
            if error.errno in _NO_DESCRIPTORS:
                self._pause(error)
            return
        try:
            self._admit(connection)
        finally:
            connection.close()

    def _pause(self, error: OSError) -> None:
        """Stop accepting for a moment: a listener that stays readable would spin the loop."""
        logger.error("no client can be accepted: %s", error.strerror)
        self._reactor.unregister(self._listener.fileno())

        def resume() -> None:
            if not self._stopped:
                self.start()

        self._deadlines.add(trio.current_time() + _RETRY_SECONDS, resume)

    def _admit(self, connection: socket.socket) -> None:
        credentials = peer_credentials(connection)
        refusal = self.admission.refuses(credentials)
        if refusal is None and len(self._connections) >= self._max_clients and not self._make_room():
            refusal = f"max_clients ({self._max_clients}) are connected"
        if refusal is not None:
            self._on_refused(f"A connection of pid {credentials.pid} was refused: {refusal}.")
            return
        trusted = self.admission.admits_at_once(connection, credentials)
        client = ClientConnection(self, credentials, trusted=trusted)
        fd = connection.detach()
        try:
            client.peer = Peer(
                self._reactor,
                self._deadlines,
                fd,
                fd,
                client,
                name=f"client {credentials.pid}",
                limits=self._limits,
            )
        except OSError as error:
            self._on_refused(f"A connection of pid {credentials.pid} was refused: {error.strerror}.")
            return
        self.api.welcome(client.peer, credentials)
        self._connections[client] = None
        if not trusted:
            self._deadlines.add(trio.current_time() + AUTH_SECONDS, lambda: self._give_up(client))

    def _make_room(self) -> bool:
        """End the oldest connection that has not authenticated; whether there was one."""
        for client in self._connections:
            if not client.trusted and client.peer is not None:
                client.peer.close("its place was needed")
                return True
        return False

    @staticmethod
    def _give_up(client: ClientConnection) -> None:
        if not client.trusted and client.peer is not None:
            client.peer.close("it did not authenticate in time")
