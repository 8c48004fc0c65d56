"""Who may use the socket.

Rules here: default-deny once `[socket]` is configured; the peer's uid comes first, then the binary (device and inode of
/proc/PID/exe, held through a pidfd so that a recycled pid opens nothing), else a token compared in constant time.
"""

from __future__ import annotations

import hmac
import os
from typing import TYPE_CHECKING

from utter_runner.rpc.credentials import Credentials, runs_one_of

if TYPE_CHECKING:
    import socket

    from utter_runner.config import SocketConfig


class Admission:
    """Decides about connections.

    Args:
        config: the `[socket]` section, or None when there is none: then the same user is let in.
    """

    def __init__(self, config: SocketConfig | None) -> None:
        self._config = config

    @property
    def open_to_user(self) -> bool:
        """Whether every program of this user is let in."""
        return self._config is None or self._config.allow_same_uid

    def refuses(self, credentials: Credentials) -> str | None:
        """Return why a connection is closed at once, or None."""
        if credentials.uid != os.getuid():
            return f"uid {credentials.uid} is not the user of this runner"
        return None

    def admits_at_once(self, connection: socket.socket, credentials: Credentials) -> bool:
        """Whether the peer needs no token."""
        if self._config is None or self._config.allow_same_uid:
            return True
        return self._is_allowed_binary(connection, credentials)

    def token_matches(self, token: str) -> bool:
        """Compare a token in constant time; without a configured one nothing matches."""
        wanted = self._config.token if self._config is not None else None
        return wanted is not None and hmac.compare_digest(token.encode(), wanted.encode())

    def _is_allowed_binary(self, connection: socket.socket, credentials: Credentials) -> bool:
        if self._config is None or not self._config.allow_binaries:
            return False
        return runs_one_of(connection, credentials.pid, self._config.allow_binaries)
