"""Asking the systemd user manager, through the one program that always fits it: `systemctl --user`.

Rules here: an interface, the real thing, and a fake. What systemd says is passed on in its own words; nothing is parsed
but `show`, whose output is meant for programs.
"""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING, NamedTuple, Protocol

from utter_runner.operate.errors import OperateError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

TIMEOUT_S = 120.0
"""For starting and stopping, too: the unit's own time-outs are shorter."""


class Answer(NamedTuple):
    """How a call of systemctl ended."""

    code: int
    out: str
    error: str


class Systemctl(Protocol):
    """Calls `systemctl --user`."""

    def __call__(self, *arguments: str) -> Answer:
        """Run it to its end. Raises OperateError when there is none, or it does not end."""


class UserSystemctl:
    """The real one.

    Args:
        environ: how the user manager is found: XDG_RUNTIME_DIR, DBUS_SESSION_BUS_ADDRESS.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        # In words that do not depend on the user's language.
        self._environ = {**environ, "LC_ALL": "C.UTF-8"}

    def __call__(self, *arguments: str) -> Answer:
        """See `Systemctl`."""
        command = ["systemctl", "--user", "--no-pager", "--no-ask-password", *arguments]
        try:
            done = subprocess.run(
                command,
                env=self._environ,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=TIMEOUT_S,
                check=False,
                encoding="utf-8",
                errors="replace",
            )
        except FileNotFoundError:
            raise OperateError(
                "There is no systemctl here: without systemd, start utter-runner with the session yourself."
            ) from None
        except OSError as error:
            raise OperateError(f"systemctl cannot be run: {error.strerror}.") from None
        except subprocess.TimeoutExpired:
            raise OperateError(f"systemctl --user {' '.join(arguments)} did not end within {TIMEOUT_S:g} s.") from None
        return Answer(done.returncode, done.stdout, done.stderr.strip())


class FakeSystemctl:
    """A fake that notes its calls.

    Args:
        answers: what to answer, by the first argument: an answer, or a function of all arguments. Anything else
            succeeds and says nothing.
    """

    def __init__(self, answers: Mapping[str, Answer | Callable[..., Answer]] | None = None) -> None:
        self.calls: list[tuple[str, ...]] = []
        self.answers = dict(answers or {})

    def __call__(self, *arguments: str) -> Answer:
        """See `Systemctl`."""
        self.calls.append(arguments)
        answer = self.answers.get(arguments[0], Answer(0, "", ""))
        return answer if isinstance(answer, Answer) else answer(*arguments)


def properties(text: str) -> dict[str, str]:
    """Return what `systemctl show` or `show-environment` printed: `NAME=VALUE` lines, the value as it stands there."""
    return {name: value for line in text.splitlines() for name, equals, value in [line.partition("=")] if equals}


def manager_problem(systemctl: Systemctl) -> str:
    """Say why the user manager cannot be reached and what to do, or nothing."""
    try:
        answer = systemctl("show", "--property=Version")
    except OperateError as error:
        return str(error)
    if answer.code == 0:
        return ""
    return (
        f"The systemd user manager cannot be reached ({answer.error or f'exit code {answer.code}'}). Log in as this "
        "user, not with su or sudo; over ssh, or before a login, first run: loginctl enable-linger $USER"
    )
