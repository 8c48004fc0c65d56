"""Who may use the socket.

Rules here: default-deny once `[socket]` is configured; the peer's uid comes first, then the binary (device and inode of
/proc/PID/exe, held through a pidfd so that a recycled pid opens nothing), else a token compared in constant time: the
configured one, or one that `utter token` made.
"""

from __future__ import annotations

import hmac
import os
from typing import TYPE_CHECKING, NamedTuple

from utter_runner.rpc.credentials import Allowed, Credentials

if TYPE_CHECKING:
    import socket

    from utter_runner.clients.tokens import TokenStore
    from utter_runner.config import SocketConfig
    from utter_runner.config.tokens import StoredToken


class Grant(NamedTuple):
    """What a client was let in for by `runner.auth`: an entry of the file of tokens, or None for the configured one."""

    stored: StoredToken | None = None
    configured: str = ""
    """The configured token itself, as it was then."""


class Admission:
    """Decides about connections.

    Args:
        config: the `[socket]` section, or None when there is none: then the same user is let in.
        tokens: those that `utter token` made; None for none.
    """

    def __init__(self, config: SocketConfig | None, tokens: TokenStore | None = None) -> None:
        self._config = config
        self._tokens = tokens
        self._allowed = Allowed(config.allow_binaries) if config is not None else None

    @property
    def open_to_user(self) -> bool:
        """Whether every program of this user is let in."""
        return self._config is None or self._config.allow_same_uid

    def refuses(self, credentials: Credentials) -> str | None:
        """Return why a connection is closed at once, or None."""
        if credentials.uid != os.getuid():
            return f"uid {credentials.uid} is not the user of this runner"
        return None

    def needs_token(self, connection: socket.socket, credentials: Credentials) -> str | None:
        """Return why the peer is not let in without a token, in one phrase, or None if it is."""
        if self._config is None or self._allowed is None or self._config.allow_same_uid:
            return None
        if not self._config.allow_binaries:
            return "it showed no token"
        return self._allowed.refuses(connection, credentials.pid)

    def token_matches(self, token: str) -> bool:
        """Compare with the configured token, in constant time; without one nothing matches."""
        wanted = self._config.token if self._config is not None else None
        return wanted is not None and hmac.compare_digest(token.encode(), wanted.encode())

    def grant(self, token: str) -> Grant | None:
        """Return what a token opens the socket by, None if it is not right. Every token is compared with all."""
        configured = self.token_matches(token)
        stored = self._tokens.matching(token) if self._tokens is not None else None
        if stored is not None:
            return Grant(stored)
        return Grant(configured=token) if configured else None

    def withdrawn(self, grant: Grant) -> bool:
        """Whether the token that a client was let in for has been revoked since."""
        if grant.stored is None:
            return not self.token_matches(grant.configured)
        return self._tokens is not None and not self._tokens.holds(grant.stored)
