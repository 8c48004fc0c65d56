"""Where the checks of a runner run: connections to it, what is known of it, and the table that checks are entered in.

Rules here: nothing is asked that changes the desktop, is heard, or ends what the user is doing; a connection that
needs a token is given up and made anew for each check, because it has a few seconds only; what a check sent and got is
cut out of the transcripts of the connections that it used.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Literal

from utter_protocol.errors import ErrorCode
from utter_sdk.conformance.lab import failed, refused, result_of
from utter_sdk.conformance.report import Check, CheckFailed, NotApplicable, Outcome
from utter_sdk.conformance.runner_link import RunnerLink

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from utter_sdk.conformance.report import Level
    from utter_sdk.conformance.wire import Message

Needs = Literal["nothing", "access", "token", "no token"]
"""What a check is about: every runner; one that answers us; one that asks for a token; one that asks for none."""

HARMLESS: Final = "runner.status"


@dataclass
class Facts:
    """What a first, friendly talk has shown of the runner.

    Attributes:
        problem: why nothing can be said; empty when something can.
        needs_token: whether it answers others than us only with a token.
        access: whether it answers us, with the token that was given if it needs one.
        status: the result of `runner.status`, whatever it is.
        plugins: the entries of `runner.plugins` that are objects.
    """

    problem: str = ""
    needs_token: bool = False
    access: bool = False
    status: Any = None
    plugins: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True)
class Entry:
    """A check with its function, which raises `CheckFailed` or `NotApplicable`, or returns."""

    check: Check
    function: Callable[[RunnerLab], None]
    needs: Needs


class Table:
    """The checks of one area, in the order in which they are entered. It is filled while its module is imported."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []

    def enter(
        self, check_id: str, title: str, section: str, *, level: Level = "must", needs: Needs = "nothing"
    ) -> Callable[[Callable[[RunnerLab], None]], Callable[[RunnerLab], None]]:
        """Enter the decorated function."""

        def add(function: Callable[[RunnerLab], None]) -> Callable[[RunnerLab], None]:
            self.entries.append(Entry(Check(check_id, title, section, level), function, needs))
            return function

        return add


class RunnerLab:
    """What a check's function gets.

    Args:
        path: the runner's socket.
        token: what it asks for, if it was given.
        seconds: how long to wait for an answer.
    """

    def __init__(self, path: str, token: str | None, seconds: float) -> None:
        self.path = path
        self.token = token
        self.seconds = seconds
        self.facts = Facts()
        self.left_deaf_client: bool | None = None
        """Whether the runner disconnected a client that did not read; None until that was tried."""
        self._shared: RunnerLink | None = None
        self._used: list[tuple[RunnerLink, int]] = []

    # ---- For checks

    @contextmanager
    def bare(self) -> Iterator[RunnerLink]:
        """A new connection that has not authenticated."""
        with RunnerLink(self.path, self.seconds) as link:
            self._used.append((link, 0))
            yield link

    @contextmanager
    def fresh(self) -> Iterator[RunnerLink]:
        """A new connection that may do whatever we may."""
        with self.bare() as link:
            self._authenticate(link)
            yield link

    def link(self) -> RunnerLink:
        """The connection that this check shares with those before and after it."""
        link = self._shared
        if link is not None:
            link.pump(lambda: False, 0)
            if link.tainted or link.ended or not self.facts.access:
                link.close()
                link = None
        if link is None:
            link = self._shared = RunnerLink(self.path, self.seconds)
            self._used.append((link, 0))
            self._authenticate(link)
        elif all(link is not one for one, _ in self._used):
            self._used.append((link, len(link.transcript)))
        return link

    def settled(self, message: Message) -> None:
        """Go on only if this is how the runner answers the harmless request to us.

        Raises:
            CheckFailed: it is not.
        """
        if self.facts.access:
            result_of(message, HARMLESS)
        else:
            refused(message, HARMLESS, ErrorCode.NOT_PERMITTED)

    def ask(self, link: RunnerLink) -> None:
        """Send a harmless request and wait for its answer.

        Raises:
            CheckFailed: it is not answered as it must be.
        """
        self.settled(link.call(HARMLESS, {}))

    def running_plugin(self) -> str:
        """The id of a plugin that answers requests.

        Raises:
            NotApplicable: there is none.
        """
        for plugin in self.facts.plugins:
            if plugin.get("status") in ("ready", "degraded") and isinstance(plugin.get("id"), str):
                return str(plugin["id"])
        raise NotApplicable("No plugin runs.")

    # ---- For those who run checks

    def learn(self) -> None:
        """Talk to the runner once, and enter what comes into `facts`."""
        try:
            with self.bare() as link:
                first = link.call(HARMLESS, {})
                self.facts.needs_token = first.code == ErrorCode.NOT_PERMITTED
                if not self.facts.needs_token:
                    result_of(first, HARMLESS)
                self.facts.access = not self.facts.needs_token or self.token is not None
                if self.facts.access:
                    self._authenticate(link)
                    self.facts.status = result_of(link.call(HARMLESS, {}), HARMLESS)
                    plugins = result_of(link.call("runner.plugins", {}), "runner.plugins")
                    found = plugins.get("plugins") if isinstance(plugins, dict) else None
                    self.facts.plugins = [one for one in found or () if isinstance(one, dict)]
        except CheckFailed as why:
            self.facts.problem = why.detail

    def run(self, entry: Entry) -> Outcome:
        """Run a check and return what came of it."""
        self._used.clear()
        begun = time.monotonic()
        outcome = Outcome(entry.check, "holds")
        try:
            self._apply(entry.needs)
            entry.function(self)
        except NotApplicable as reason:
            outcome = Outcome(entry.check, "skipped", str(reason))
        except CheckFailed as why:
            outcome = failed(entry.check, why, self._used)
            if self._shared is not None:
                # What it has left behind is nobody else's business.
                self._shared.tainted = True
        return replace(outcome, seconds=time.monotonic() - begun)

    def close(self) -> None:
        """Close the shared connection."""
        if self._shared is not None:
            self._shared.close()
            self._shared = None

    def _authenticate(self, link: RunnerLink) -> None:
        if self.facts.needs_token and self.token is not None:
            result_of(link.call("runner.auth", {"token": self.token}), "runner.auth")

    def _apply(self, needs: Needs) -> None:
        if needs == "access" and not self.facts.access:
            raise NotApplicable("The runner asks for a token, and none was given.")
        if needs == "token" and not self.facts.needs_token:
            raise NotApplicable("The runner asks us for no token.")
        if needs == "no token" and self.facts.needs_token:
            raise NotApplicable("The runner asks us for a token.")
