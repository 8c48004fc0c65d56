"""Checks: who may ask; and clients that half-close, vanish, or do not read: does nobody else notice?"""

from __future__ import annotations

import stat
import time
from pathlib import Path
from typing import TYPE_CHECKING

from utter_protocol.errors import ErrorCode
from utter_sdk.conformance.lab import refused, result_of
from utter_sdk.conformance.report import CheckFailed, NotApplicable
from utter_sdk.conformance.runner_lab import HARMLESS, Table
from utter_sdk.conformance.wire import frame, request

if TYPE_CHECKING:
    from utter_sdk.conformance.runner_lab import RunnerLab

RUNNER_CONNECTIONS = Table()
_CLIENTS = "The client API"
_AUTH = "runner.auth"
_AUTH_SECONDS = 5.0
_AUTH_TRIES = 5
_QUEUED = 32 * 1024 * 1024


@RUNNER_CONNECTIONS.enter("connect.answers", "It accepts a connection and answers.", _CLIENTS)
def _answers(lab: RunnerLab) -> None:
    if lab.facts.problem:
        raise CheckFailed(lab.facts.problem, expected=f"an answer to {HARMLESS}")


@RUNNER_CONNECTIONS.enter("connect.socket-mode", "The socket has mode 0600.", _CLIENTS)
def _socket_mode(lab: RunnerLab) -> None:
    mode = Path(lab.path).stat().st_mode
    if not stat.S_ISSOCK(mode) or stat.S_IMODE(mode) != 0o600:  # noqa: PLR2004 - the mode that is asked for
        raise CheckFailed(f"its mode is {stat.S_IMODE(mode):04o}", expected="a socket with mode 0600")


@RUNNER_CONNECTIONS.enter("connect.directory-mode", "The socket's directory has mode 0700.", _CLIENTS, level="should")
def _directory_mode(lab: RunnerLab) -> None:
    mode = stat.S_IMODE(Path(lab.path).parent.stat().st_mode)
    if mode & 0o077:
        raise CheckFailed(f"its mode is {mode:04o}", expected="a directory with mode 0700")


@RUNNER_CONNECTIONS.enter("connect.bare", "Clients that connect and say nothing do no harm.", _CLIENTS)
def _bare(lab: RunnerLab) -> None:
    for _ in range(20):
        with lab.bare():
            pass
    with lab.bare(), lab.bare():
        lab.ask(lab.link())
    lab.ask(lab.link())


@RUNNER_CONNECTIONS.enter(
    "connect.half-close", "A client that closes its sending half gets all answers, and then the end.", _CLIENTS
)
def _half_close(lab: RunnerLab) -> None:
    with lab.fresh() as link:
        ids = link.requests([(HARMLESS, {})] * 50, f"50 times {HARMLESS}")
        link.half_close()
        for one in ids:
            lab.settled(link.answer(one, HARMLESS))
        link.wait_closed()


@RUNNER_CONNECTIONS.enter(
    "connect.vanish",
    "A client that goes without reading its answers does no harm, in the middle of a frame too.",
    _CLIENTS,
)
def _vanish(lab: RunnerLab) -> None:
    whole = frame(request(1, HARMLESS, {}))
    for data in (whole * 200, whole[:10], whole[:-10], whole * 3 + whole[:30]):
        with lab.fresh() as link:
            link.flood(data, lab.seconds)
    lab.ask(lab.link())


@RUNNER_CONNECTIONS.enter(
    "connect.slow-reader", "A client that does not read its answers holds up nobody else.", _CLIENTS, needs="access"
)
def _slow_reader(lab: RunnerLab) -> None:
    lab.left_deaf_client = _pile_up(lab)


@RUNNER_CONNECTIONS.enter(
    "connect.slow-reader-left",
    "A client that lets answers pile up beyond max_queued_bytes (32 MiB) is disconnected.",
    "Messages",
    level="should",
    needs="access",
)
def _slow_reader_left(lab: RunnerLab) -> None:
    if lab.left_deaf_client is None:
        raise NotApplicable("The runner did not come so far.")
    if not lab.left_deaf_client:
        raise CheckFailed("it is still connected after 48 MiB of answers", expected="the end of the connection")


def _pile_up(lab: RunnerLab) -> bool:
    """Ask for 48 MiB of answers and read none, while another asks, too; whether the connection was ended."""
    with lab.fresh() as asking, lab.fresh() as deaf:
        before = asking.received
        lab.ask(asking)
        size = asking.received - before
        # The largest answer that there is without side effects is that of the status.
        count = _QUEUED * 3 // 2 // size + 1
        if count > 100_000:  # noqa: PLR2004 - more would say more about the kit than about the runner
            raise NotApplicable("The runner's answers are too small to fill its queue.")
        asked = frame(request("deaf", HARMLESS, {}))
        for _ in range(0, count, 256):
            taken = deaf.flood(asked * 256, lab.seconds)
            lab.ask(asking)
            if not taken:
                return True
        return not deaf.flood(asked, lab.seconds)


# ---- Who may ask


@RUNNER_CONNECTIONS.enter("auth.any-token", "Where no token is needed, any token is right.", _AUTH, needs="no token")
def _any_token(lab: RunnerLab) -> None:
    if result_of(lab.link().call(_AUTH, {"token": "whatever"}), _AUTH) != {"ok": True}:
        raise CheckFailed("it is not answered {ok: true}", expected="the result {ok: true}")


@RUNNER_CONNECTIONS.enter(
    "auth.first", "Before runner.auth every other request is answered -32003.", _CLIENTS, needs="token"
)
def _first(lab: RunnerLab) -> None:
    with lab.bare() as link:
        for method in (HARMLESS, "runner.plugins", "policy.explain", "stream.subscribe", "handle.fetch"):
            refused(link.call(method, {}), f"{method} without authentication", ErrorCode.NOT_PERMITTED)


@RUNNER_CONNECTIONS.enter(
    "auth.nothing-learnt",
    "Before runner.auth the answers do not tell which methods, plugins and params there are.",
    _CLIENTS,
    needs="token",
)
def _nothing_learnt(lab: RunnerLab) -> None:
    with lab.bare() as link:
        errors = [
            link.call(method, params).error
            for method, params in (
                (HARMLESS, {}),
                ("conformance.nothing", {}),
                ("policy.explain", []),
                ("runner.invoke", {"plugin": "conformance-nobody", "method": "plugin.health"}),
                ("stream.subscribe", {"method": "runner.events"}),
            )
        ]
        link.notify("stream.ack", {"stream_id": "none", "seq": 0})
        link.unanswered("a notification", lambda: refused(link.call(HARMLESS, {}), HARMLESS, ErrorCode.NOT_PERMITTED))
    if any(error != errors[0] for error in errors):
        raise CheckFailed("they are not all the same", expected="the same error for every request")


@RUNNER_CONNECTIONS.enter("auth.wrong", "A wrong token is answered -32003.", _CLIENTS, needs="token")
def _wrong(lab: RunnerLab) -> None:
    with lab.bare() as link:
        for params in ({"token": "wrong"}, {"token": ""}, {}):
            refused(link.call(_AUTH, params), "a wrong token", ErrorCode.NOT_PERMITTED)
        refused(link.call(HARMLESS, {}), f"{HARMLESS} after a wrong token", ErrorCode.NOT_PERMITTED)


@RUNNER_CONNECTIONS.enter("auth.tries", "After five wrong tokens the connection is closed.", _CLIENTS, needs="token")
def _tries(lab: RunnerLab) -> None:
    with lab.bare() as link:
        for number in range(_AUTH_TRIES):
            refused(link.call(_AUTH, {"token": f"wrong {number}"}), "a wrong token", ErrorCode.NOT_PERMITTED)
        link.wait_closed()


@RUNNER_CONNECTIONS.enter(
    "auth.time",
    "A client that does not authenticate within 5 s is disconnected, and not before.",
    _CLIENTS,
    needs="token",
)
def _time(lab: RunnerLab) -> None:
    # The runner's time runs from when it accepts the connection.
    begun = time.monotonic()
    with lab.bare() as link:
        link.wait_closed(_AUTH_SECONDS + lab.seconds)
        took = time.monotonic() - begun
    if took < _AUTH_SECONDS - 0.5:
        raise CheckFailed(f"it was disconnected after {took:.1f} s", expected="5 s to authenticate")


@RUNNER_CONNECTIONS.enter("auth.token", "With the token everything is answered.", _AUTH, needs="token")
def _token(lab: RunnerLab) -> None:
    if lab.token is None:
        raise NotApplicable("The runner asks for a token, and none was given.")
    with lab.bare() as link:
        if result_of(link.call(_AUTH, {"token": lab.token}), _AUTH) != {"ok": True}:
            raise CheckFailed("it is not answered {ok: true}", expected="the result {ok: true}")
        result_of(link.call(HARMLESS, {}), HARMLESS)
