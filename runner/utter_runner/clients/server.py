"""Accepting clients and telling the authenticated from the others.

Rules here: an unauthenticated peer gets `runner.auth`, five seconds, five tries and a few messages, and learns nothing
about which methods exist; who was let in for a token goes when the token is revoked; accepting never stops because
descriptors ran out or too many come, it waits; a connection that says nothing is harmless: where all places are taken,
one that has not authenticated yields its place.
"""

from __future__ import annotations

import errno
import logging
from typing import TYPE_CHECKING

import msgspec
import trio

from utter_protocol.errors import ErrorCode, RpcError
from utter_protocol.messages import encode
from utter_protocol.methods import AuthParams, ConfirmElsewhere, ConfirmParams, ConfirmResult
from utter_runner.rpc.complaints import Complaints
from utter_runner.rpc.credentials import Credentials, peer_credentials
from utter_runner.rpc.interface import bound_error
from utter_runner.rpc.peer import Peer
from utter_runner.rpc.rate import Bucket, RateLimit
from utter_runner.rpc.reactor import READABLE
from utter_runner.rpc.requesters import requester_of

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from msgspec import Raw

    from utter_protocol.messages import RequestId
    from utter_runner.clients.api import ClientApi
    from utter_runner.clients.auth import Admission, Grant
    from utter_runner.confirm.surfaces import Surface
    from utter_runner.rpc.deadlines import Deadlines
    from utter_runner.rpc.endpoint import Endpoint
    from utter_runner.rpc.interface import Limits
    from utter_runner.rpc.reactor import Reactor
    from utter_runner.rpc.requesters import Requester

logger = logging.getLogger(__name__)

AUTH_SECONDS = 5.0
AUTH_TRIES = 5
AUTH_MESSAGES = 32
AUTH_BYTES = 64 * 1024
ACCEPTS_PER_S = 1000
REVOKED_SECONDS = 2.0
_RETRY_SECONDS = 0.2
_NO_DESCRIPTORS = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Probation:
    """What a peer may send before it has authenticated (rpc.rate.Meter): little, and then the connection ends."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._messages = 0
        self._bytes = 0

    def spend(self, messages: int, size: int) -> float:
        """Count; nobody waits. Raises RpcError, which names the bound."""
        self._messages += messages
        self._bytes += size
        if self._messages > AUTH_MESSAGES:
            raise bound_error(self._name, "max_unauthenticated_messages", AUTH_MESSAGES)
        if self._bytes > AUTH_BYTES:
            raise bound_error(self._name, "max_unauthenticated_bytes", AUTH_BYTES)
        return 0.0


class ClientConnection:
    """One client: the handler of its peer, and a surface on which a person can be asked.

    Attributes:
        requester: the connection and its process, as whoever asks for an action.
        needs_token: why it may do nothing yet, in one phrase; None when it has been let in.
        grant: what it was let in for by `runner.auth`; None without.
    """

    def __init__(
        self, server: ClientServer, credentials: Credentials, requester: Requester, needs_token: str | None
    ) -> None:
        self.credentials = credentials
        self.requester = requester
        self.needs_token = needs_token
        self.grant: Grant | None = None
        self._server = server
        self._tries = 0
        self._cannot_ask = False
        self.peer: Peer | None = None

    kind = "client"
    """As a surface, in the audit trail."""

    @property
    def trusted(self) -> bool:
        """Whether it has been let in."""
        return self.needs_token is None

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
        peer.complaints.warn(
            logger, "client pid %d sent %d bytes that are no frame to %s", self.credentials.pid, len(junk), peer.name
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
            self.grant = self._server.admission.grant(token)
            if self.grant is None:
                peer.reply_error(request_id, RpcError(ErrorCode.NOT_PERMITTED, "the token is not right"))
                if self._tries >= AUTH_TRIES:
                    self._server.refused(self.credentials, f"too many wrong tokens, and {self.needs_token}")
                    peer.close("too many wrong tokens", flush=True)
                return
            self.needs_token = None
            self._server.let_in(self, peer)
        peer.reply_object(request_id, {"ok": True})

    def attend(self) -> None:
        """The client says that it can ask a person from now on."""
        self._cannot_ask = False

    def withhold(self, params: ConfirmParams) -> None:
        """Tell the client that others are asked about what it asked for (confirm.Surface)."""
        if self.peer is not None:
            elsewhere = ConfirmElsewhere(id=params.id, text=params.text, timeout_ms=params.timeout_ms)
            self.peer.notify("confirm.elsewhere", encode(elsewhere))

    async def ask(self, params: ConfirmParams, abstain: Callable[[], None]) -> ConfirmResult | None:  # noqa: ARG002 - the interface of a surface
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
            return msgspec.json.decode(raw, type=ConfirmResult)
        except (msgspec.MsgspecError, RecursionError):
            self.peer.complaints.warn(
                logger, "client pid %d answered host.confirm with something else", self.credentials.pid
            )
            return None


class ClientServer:
    """Accepts connections on an endpoint.

    Args:
        endpoint: the listening socket; the server does not close it.
        admission: who may connect.
        api: answers the trusted.
        limits: bounds of each client's peer.
        max_clients: how many may be connected.
        max_requests_per_s, max_bytes_per_s: how much one that was let in may send; 0 for no bound.
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
        max_requests_per_s: int = 0,
        max_bytes_per_s: int = 0,
        on_refused: Callable[[str], None],
    ) -> None:
        self.admission = admission
        self.api = api
        self._listener = endpoint.listener
        self._reactor = reactor
        self._deadlines = deadlines
        self._limits = limits
        self._max_clients = max_clients
        self._rates = (max_requests_per_s, max_bytes_per_s)
        self._on_refused = on_refused
        self._watches_tokens = False
        self._connections: dict[ClientConnection, None] = {}
        self._stopped = False
        self._accepted = 0

    @property
    def count(self) -> int:
        """How many clients are connected."""
        return len(self._connections)

    def surfaces(self) -> list[Surface]:
        """Whom a person could be asked through."""
        return [connection for connection in self._connections if connection.trusted]

    def reconfigure(
        self, admission: Admission, limits: Limits, *, max_clients: int, max_requests_per_s: int, max_bytes_per_s: int
    ) -> None:
        """Accept in another way from now on; see the class. `review` is for those who are there already."""
        self.admission, self._limits, self._max_clients = admission, limits, max_clients
        rates = (max_requests_per_s, max_bytes_per_s)
        if rates != self._rates:
            self._rates = rates
            for client in self._connections:
                if client.trusted and client.peer is not None:
                    self._measure(client.peer)

    def review(self) -> None:
        """End the connections of those who would not be let in any more as they were; what is queued is sent."""
        for client in list(self._connections):
            if client.trusted and client.peer is not None and not client.peer.closed:
                why = self._no_longer(client, client.peer)
                if why is not None:
                    self.refused(client.credentials, f"the configuration has changed, and {why}")
                    client.peer.close("the configuration does not let it in any more", flush=True)

    def _no_longer(self, client: ClientConnection, peer: Peer) -> str | None:
        """Return why a client would not be let in now, or None."""
        connection = peer.channel.socket
        if connection is None:
            return "its connection cannot be looked at"
        why = self.admission.needs_token(connection, client.credentials)
        if client.grant is None or why is None:
            return why
        return "its token is not right any more" if self.admission.withdrawn(client.grant) else None

    def start(self) -> None:
        """Begin to accept."""
        now = trio.current_time()
        self._accepts = Bucket(ACCEPTS_PER_S, ACCEPTS_PER_S, now)
        self._refusals = Complaints(trio.current_time)
        self._listen()

    def _listen(self) -> None:
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

    def let_in(self, connection: ClientConnection, peer: Peer) -> None:
        """A connection has authenticated, or need not."""
        self._measure(peer)
        if connection.grant is not None and connection.grant.stored is not None and not self._watches_tokens:
            self._watch_tokens()

    def _measure(self, peer: Peer) -> None:
        peer.meter = RateLimit(*self._rates, trio.current_time) if any(self._rates) else None

    def refused(self, credentials: Credentials, why: str) -> None:
        """Tell that a connection was turned away, unless that was told too often a moment ago."""
        more = self._refusals.heard()
        if more is not None:
            self._on_refused(f"A connection of pid {credentials.pid} was refused: {why}{more}.")

    def _watch_tokens(self) -> None:
        """Look now and then, while somebody is connected for a token, whether it has been revoked."""
        self._watches_tokens = False
        for client in list(self._connections):
            if client.peer is None or client.grant is None or client.grant.stored is None:
                continue
            if self.admission.withdrawn(client.grant):
                client.peer.close("its token was revoked")
            else:
                self._watches_tokens = True
        if self._watches_tokens:
            self._deadlines.add(trio.current_time() + REVOKED_SECONDS, self._watch_tokens)

    def _accept(self, _events: int) -> None:
        try:
            connection, _ = self._listener.accept()
        except BlockingIOError:
            return
        except OSError as error:
            if error.errno in _NO_DESCRIPTORS:
                logger.error("no client can be accepted: %s", error.strerror)  # noqa: TRY400 - the message says all there is
                self._pause(_RETRY_SECONDS)
            return
        self._accepts.credit -= 1
        if pause := self._accepts.wait(trio.current_time()):
            self._pause(pause)
        try:
            self._admit(connection)
        finally:
            connection.close()

    def _pause(self, seconds: float) -> None:
        """Stop accepting for a moment: a listener that stays readable would spin the loop."""
        self._reactor.unregister(self._listener.fileno())

        def resume() -> None:
            if not self._stopped:
                self._listen()

        self._deadlines.add(trio.current_time() + seconds, resume)

    def _admit(self, connection: socket.socket) -> None:
        credentials = peer_credentials(connection)
        refusal = self.admission.refuses(credentials)
        if refusal is None and len(self._connections) >= self._max_clients and not self._make_room():
            refusal = f"max_clients ({self._max_clients}) are connected"
        if refusal is not None:
            self.refused(credentials, refusal)
            return
        self._accepted += 1
        requester = requester_of(connection, self._accepted, credentials.pid)
        client = ClientConnection(self, credentials, requester, self.admission.needs_token(connection, credentials))
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
            self.refused(credentials, f"{error.strerror}")
            return
        self._connections[client] = None
        self.api.welcome(client.peer, client, credentials)
        if client.trusted:
            self.let_in(client, client.peer)
        else:
            client.peer.meter = Probation(client.peer.name)
            self._deadlines.add(trio.current_time() + AUTH_SECONDS, lambda: self._give_up(client))

    def _make_room(self) -> bool:
        """End the oldest connection that has not authenticated; whether there was one."""
        for client in self._connections:
            if not client.trusted and client.peer is not None:
                client.peer.close("its place was needed")
                return True
        return False

    def _give_up(self, client: ClientConnection) -> None:
        if not client.trusted and client.peer is not None and not client.peer.closed:
            self.refused(client.credentials, f"it did not authenticate in time, and {client.needs_token}")
            client.peer.close("it did not authenticate in time")
