"""Asking the runner how it is, without ever waiting for one that hangs.

Rules here: each of the two functions has one deadline for all that it does, and raises nothing: what goes wrong is what
it answers. A connection is made, used and closed.
"""

from __future__ import annotations

import errno
import math
import socket
import struct
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import msgspec

from utter_protocol.errors import ErrorCode, RpcError
from utter_sdk.client import Client, RunnerUnavailable
from utter_sdk.streams import StreamClosed

if TYPE_CHECKING:
    from utter_runner.operate.doctor.model import RunnerState

ANSWER_S: Final = 3.0
"""Seconds that the runner has to accept a connection and to say how it is."""
DETAILS_S: Final = 1.5
"""Seconds more for what it knows of each plugin."""
OPEN_S: Final = 4.0
"""Seconds that the microphone may take to open; after that there has to be time left to find out why it has not."""
LISTEN_S: Final = 1.0
"""Seconds that are listened for anything but silence."""
SILENCE_DB: Final = -120.0
"""What `audio.level` says of zeros."""

_UCRED = struct.Struct("iii")
_STATES: Final[dict[int, RunnerState]] = {
    errno.ENOENT: "down",
    errno.ENOTDIR: "down",
    errno.ECONNREFUSED: "stale",
    errno.EACCES: "refused",
    errno.EPERM: "refused",
    errno.EAGAIN: "wedged",
    errno.EINPROGRESS: "wedged",
}


class Contact(msgspec.Struct, frozen=True, kw_only=True):
    """What came of asking the runner.

    Attributes:
        state: `up` if it has answered; `down` if there is no socket; `stale` if nobody listens on it; `wedged` if it
            accepts, or somebody should, and no answer comes; `refused` if it does not want us; else `unreachable`.
        reason: why, in words, unless it is up.
        pid: who listens, if that is known.
        status: what `runner.status` answers.
        validations: what `runner.validate_plugin` answers, by the plugin's id.
    """

    state: RunnerState
    reason: str = ""
    pid: int | None = None
    status: dict[str, Any] = {}
    validations: dict[str, dict[str, Any]] = {}


class Heard(msgspec.Struct, frozen=True, kw_only=True):
    """What came of listening: the loudest peak in dB of full scale, None if no level came; `problem` says why."""

    peak_db: float | None = None
    device: str = ""
    problem: str = ""


def reach(path: str, token: str | None, pace: float = 1.0) -> Contact:
    """Ask the runner how it and its plugins are.

    Args:
        path: its socket.
        token: for `runner.auth`.
        pace: how many times as long as usual it may take.
    """
    patience = ANSWER_S * pace
    deadline = time.monotonic() + patience
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # While its queue is full a connection waits for as long as SO_SNDTIMEO says (unix(7), socket(7)).
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("@ll", math.ceil(patience), 0))
        connection.connect(path)
    except OSError as error:
        connection.close()
        return Contact(state=_STATES.get(error.errno or 0, "unreachable"), reason=error.strerror or str(error))
    connection.settimeout(patience)
    pid = _listener(connection)
    with Client(connection, path) as client:
        try:
            if token is not None:
                client.call("runner.auth", {"token": token}, _left(deadline))
            status = dict(client.call("runner.status", {}, _left(deadline)))
        except TimeoutError:
            return Contact(state="wedged", reason=f"it has not answered within {patience:g} s", pid=pid)
        except RpcError as error:
            refused = error.code in (ErrorCode.NOT_PERMITTED, ErrorCode.UNTRUSTED_PROVENANCE)
            return Contact(state="refused" if refused else "unreachable", reason=error.message, pid=pid)
        except (RunnerUnavailable, ValueError, TypeError) as error:
            # What answers nonsense is no runner, or none that could be talked to.
            return Contact(state="unreachable", reason=str(error), pid=pid)
        return Contact(state="up", pid=pid, status=status, validations=_validations(client, status, pace))


def _left(deadline: float) -> float:
    return max(deadline - time.monotonic(), 0.01)


def _listener(connection: socket.socket) -> int | None:
    """The process that made the socket: the runner, or the service manager that hands it on."""
    with suppress(OSError, struct.error):
        pid, _, _ = _UCRED.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
        return int(pid) or None
    return None


def _validations(client: Client, status: dict[str, Any], pace: float) -> dict[str, dict[str, Any]]:
    """What it says of each plugin, as far as there is time."""
    deadline = time.monotonic() + DETAILS_S * pace
    found: dict[str, dict[str, Any]] = {}
    with suppress(TimeoutError, RunnerUnavailable, KeyError, TypeError):
        for plugin in status.get("plugins", ()):
            with suppress(RpcError):
                answer = client.call("runner.validate_plugin", {"plugin": plugin["id"]}, _left(deadline))
                found[plugin["id"]] = dict(answer)
    return found


def hear(path: str, token: str | None, pace: float = 1.0) -> Heard:
    """Open the runner's microphone for a moment, until something is heard or time is over; arguments as for `reach`."""
    patience = OPEN_S * pace
    try:
        with Client.connect(path, token, timeout=ANSWER_S * pace) as client:
            device = str(client.call("audio.open", {}, patience).get("device", ""))
            return Heard(device=device, peak_db=_peak(client, LISTEN_S * pace))
    except TimeoutError:
        return Heard(problem=f"The microphone has not opened within {patience:g} s.")
    except RpcError as error:
        return Heard(problem=error.message)
    except (RunnerUnavailable, StreamClosed) as error:
        return Heard(problem=str(error))


def _peak(client: Client, seconds: float) -> float | None:
    loudest: float | None = None
    deadline = time.monotonic() + seconds
    with client.subscribe("audio.level") as levels, suppress(TimeoutError):
        while time.monotonic() < deadline:
            peak = float(levels.get(_left(deadline))["peak_db"])
            loudest = peak if loudest is None else max(loudest, peak)
            if loudest > SILENCE_DB:
                break
    return loudest
