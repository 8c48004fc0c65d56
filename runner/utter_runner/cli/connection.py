"""Reaching the runner: which socket, which token.

Rules here: one connection for one command; a token in a file that others can read is no secret and is not used.
"""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING, NamedTuple

from utter_runner.cli.interrupts import command_wake
from utter_sdk.client import Client

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_TOKEN_BYTES = 4096
CALL_TIMEOUT_S = 10.0


class UsageError(Exception):
    """The command line, or a file named on it, is wrong; `str()` is the sentence for the user."""


class Target(NamedTuple):
    """Where the runner is and how to be let in.

    Attributes:
        socket: path of the socket; None: $XDG_RUNTIME_DIR/utter/runner.sock.
        token_file: a file with the token for `runner.auth`; None: as `own_token`.
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
        token = own_token(os.environ) if self.token_file is None else read_token(self.token_file)
        client = Client.connect(self.socket, token)
        if (wake := command_wake()) is not None:
            client.heed(wake)
        return client


def own_token(environ: Mapping[str, str]) -> str | None:
    """The token of this user's `utter`: `UTTER_TOKEN`, else the file `$XDG_CONFIG_HOME/utter/token`; None: neither.

    Without one, the runner accepts this program or this user as it is, or not at all.

    Raises:
        UsageError: the file is there and cannot be used.
    """
    if token := environ.get("UTTER_TOKEN", "").strip():
        return token
    base = environ.get("XDG_CONFIG_HOME") or os.path.join(environ.get("HOME") or "/", ".config")  # noqa: PTH118 - see read_token
    path = os.path.join(base, "utter", "token")  # noqa: PTH118 - see read_token
    return read_token(path) if os.path.lexists(path) else None


def read_token(path: str) -> str:
    """The token in a file, without the white space around it.

    Raises:
        UsageError: the file cannot be read, can be read by others, or holds no token; the sentence names it.
    """
    try:
        with open(path, "rb") as file:  # noqa: PTH123 - pathlib costs `utter ptt` 5 ms
            mode = os.fstat(file.fileno()).st_mode
            data = file.read(MAX_TOKEN_BYTES + 1)
        token = data.decode().strip()
    except OSError as error:
        raise UsageError(f"The token file {path} cannot be read: {os.strerror(error.errno or 0)}.") from None
    except UnicodeDecodeError:
        raise UsageError(f"The token file {path} does not hold text in UTF-8.") from None
    # A pipe, such as a shell's <(pass show utter), has no mode that says anything.
    if stat.S_ISREG(mode) and mode & 0o077:
        raise UsageError(
            f"The token file {path} is open to other users (mode {stat.S_IMODE(mode):04o}). Run: chmod 600 {path}"
        )
    if not token or len(data) > MAX_TOKEN_BYTES:
        raise UsageError(f"The token file {path} must hold a token of 1 to {MAX_TOKEN_BYTES} bytes.")
    return token
