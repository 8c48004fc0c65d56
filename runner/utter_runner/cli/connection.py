"""Reaching the runner: which socket, which token.

Rules here: one connection for one command.
"""

from __future__ import annotations

import os
from typing import NamedTuple

from utter_sdk.client import Client

MAX_TOKEN_BYTES = 4096
CALL_TIMEOUT_S = 10.0


class UsageError(Exception):
    """The command line, or a file named on it, is wrong; `str()` is the sentence for the user."""


class Target(NamedTuple):
    """Where the runner is and how to be let in.

    Attributes:
        socket: path of the socket; None: $XDG_RUNTIME_DIR/utter/runner.sock.
        token_file: a file with the token for `runner.auth`; None: the runner accepts this program or user as it is.
    """

    socket: str | None = None
    token_file: str | None = None

    def connect(self) -> Client:
        """Connect and authenticate.

        Raises:
            UsageError: the token file cannot be used.
            RunnerUnavailable: the runner cannot be reached.
            RpcError: the token was refused.
        """
        return Client.connect(self.socket, None if self.token_file is None else read_token(self.token_file))


def read_token(path: str) -> str:
    """The token in a file, without the white space around it.

    Raises:
        UsageError: the file cannot be read, or holds no token; the sentence names it.
    """
    try:
        with open(path, "rb") as file:  # noqa: PTH123 - pathlib costs `utter ptt` 5 ms
            data = file.read(MAX_TOKEN_BYTES + 1)
        token = data.decode().strip()
    except OSError as error:
        raise UsageError(f"The token file {path} cannot be read: {os.strerror(error.errno or 0)}.") from None
    except UnicodeDecodeError:
        raise UsageError(f"The token file {path} does not hold text in UTF-8.") from None
    if not token or len(data) > MAX_TOKEN_BYTES:
        raise UsageError(f"The token file {path} must hold a token of 1 to {MAX_TOKEN_BYTES} bytes.")
    return token
