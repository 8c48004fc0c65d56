"""How an epoch ended, and whether another follows: every case."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from utter_protocol.errors import ErrorCode, RpcError
from utter_runner.supervision.ending import describe_end, why_final
from utter_runner.supervision.spec import PluginSpec, Timing

TIMING = Timing(restarts_in_window=3)
MISSING = RpcError(ErrorCode.CAPABILITY_MISSING, "nobody provides it")
OLD = RpcError(ErrorCode.INCOMPATIBLE, "too old")
SLOW = RpcError(ErrorCode.TIMED_OUT, "too slow")


@pytest.mark.parametrize(
    ("exit_code", "reason", "last_words", "said"),
    [
        (0, "end of file", "", "exited with code 0"),
        (3, "", "cannot open it", "exited with code 3; its last line on stderr: cannot open it"),
        (-signal.SIGKILL, "end of file", "", "killed by SIGKILL"),
        (-63, "", "", "killed by signal 63"),
        (1, "it hangs", "", "it hangs; exited with code 1"),
        (None, "end of file", "", "the connection ended"),
        (None, "", "", "the connection ended"),
        (None, "it hangs", "", "it hangs"),
        (1, "", "x" * 1000, "exited with code 1; its last line on stderr: " + "x" * 300),
    ],
)
def test_what_is_said_of_an_end(exit_code: int | None, reason: str, last_words: str, said: str) -> None:
    assert describe_end(exit_code, reason, last_words) == said


def final(restart: str = "always", *, spawn: bool = True, **changes: Any) -> str | None:
    spec = PluginSpec(id="p", argv=("p",), restart=restart, spawn=spawn)  # type: ignore[arg-type]  # one of the three
    facts = {"exit_code": 1, "refused": None, "unwell": False, "recent": 0, **changes}
    return why_final("it ended", spec, TIMING, **facts)


@pytest.mark.parametrize(
    ("restart", "facts", "said"),
    [
        ("always", {}, None),
        ("always", {"exit_code": 0}, None),
        ("always", {"recent": 2}, None),
        ("always", {"refused": SLOW}, None),
        ("always", {"recent": 3}, "it ended; 3 restarts within 60 s are the limit"),
        ("always", {"exit_code": 125}, "it ended; exit code 125 asks not to be restarted"),
        ("always", {"refused": OLD}, "too old"),
        ("always", {"refused": MISSING}, "nobody provides it"),
        ("never", {}, 'it ended; restart = "never"'),
        ("on-failure", {"exit_code": 0}, 'it ended; restart = "on-failure"'),
        ("on-failure", {"exit_code": 0, "unwell": True}, None),
        ("on-failure", {"exit_code": 1}, None),
        ("on-failure", {"exit_code": -9}, None),
    ],
)
def test_whether_another_follows(restart: str, facts: dict[str, Any], said: str | None) -> None:
    assert final(restart, **facts) == said


def test_what_somebody_else_starts_is_given_up_only_until_what_it_requires_is_there() -> None:
    for facts in ({"recent": 99}, {"refused": OLD}, {"refused": SLOW}, {}):
        assert final("never", spawn=False, **{"exit_code": None, **facts}) is None
    assert final(spawn=False, exit_code=None, refused=MISSING) == "nobody provides it"
