"""Where the checks of a plugin run: links to it, what is known of it, and the table that checks are entered in.

Rules here: a lab is used by one thread; checks that need nothing special share one process until one of them fails or
spoils it; what a check sent and got is cut out of the transcripts of the links that it used.
"""

from __future__ import annotations

import re
import time
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import msgspec

from utter_protocol import ABI, PROTOCOL
from utter_sdk.conformance.launch import LaunchError
from utter_sdk.conformance.link import Link
from utter_sdk.conformance.report import Check, CheckFailed, NotApplicable, Outcome
from utter_sdk.conformance.wire import MISSING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from utter_sdk.conformance.channel import Limits
    from utter_sdk.conformance.launch import Subject
    from utter_sdk.conformance.report import Level
    from utter_sdk.conformance.talk import Talk
    from utter_sdk.conformance.wire import Fault, Message

RUNNER = "utter conformance"
_ENTRIES = 12
_STANDARD_ERRORS = range(-32700, -32599)


@dataclass
class Facts:
    """What a first, friendly talk has shown of the plugin.

    Attributes:
        problem: why the handshake came to nothing; empty when it did not.
        hello: the result of `protocol.hello`, whatever it is.
        description: the result of `plugin.describe`, whatever it is.
    """

    problem: str = ""
    hello: Any = None
    description: Any = None

    @property
    def methods(self) -> tuple[str, ...]:
        """The methods that `plugin.describe` lists."""
        return _texts(self.description, "methods")

    @property
    def streams(self) -> tuple[str, ...]:
        """The streams that `plugin.describe` lists."""
        return _texts(self.description, "streams")

    @property
    def provides(self) -> tuple[str, ...]:
        """The capabilities that it provides."""
        return _texts(self.hello, "provides")

    @property
    def permissions(self) -> tuple[str, ...]:
        """The permissions that it asks for."""
        return _texts(self.hello, "permissions")


def _texts(value: Any, name: str) -> tuple[str, ...]:
    """The strings of a list that may not be there, or be none."""
    found = value.get(name) if isinstance(value, dict) else None
    return tuple(one for one in found if isinstance(one, str)) if isinstance(found, list) else ()


@dataclass(frozen=True)
class Entry:
    """A check with its function, which raises `CheckFailed` or `NotApplicable`, or returns.

    Attributes:
        alone: whether it must not share a process, or a moment, with others.
    """

    check: Check
    function: Callable[[Lab], None]
    alone: bool


class Table:
    """The checks of one area, in the order in which they are entered. It is filled while its module is imported."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []

    def enter(
        self, check_id: str, title: str, section: str, *, level: Level = "must", alone: bool = False
    ) -> Callable[[Callable[[Lab], None]], Callable[[Lab], None]]:
        """Enter the decorated function."""

        def add(function: Callable[[Lab], None]) -> Callable[[Lab], None]:
            self.entries.append(Entry(Check(check_id, title, section, level), function, alone))
            return function

        return add


class Lab:
    """What a check's function gets.

    Args:
        subject: the plugin.
        limits: how long to wait.
        facts: what is known of it.
        loud: whether to ask for things that can be seen, heard or felt.

    Attributes:
        found: every fault of every link, with the id of the check that was running.
        heard: what the plugin sent by itself on every link, with the same id.
    """

    def __init__(self, subject: Subject, limits: Limits, facts: Facts, *, loud: bool = False) -> None:
        self.subject = subject
        self.limits = limits
        self.facts = facts
        self.loud = loud
        self.found: list[tuple[str, Fault]] = []
        self.heard: list[tuple[str, Message]] = []
        self._shared: Link | None = None
        self._watched: list[tuple[Link, int]] = []
        self._running = ""

    # ---- For checks

    @contextmanager
    def start(self) -> Iterator[Link]:
        """A new process that has not been greeted."""
        with Link(self.subject, self.limits) as link:
            self._watched.append((link, 0))
            yield link

    @contextmanager
    def fresh(self) -> Iterator[Link]:
        """A new process after the handshake."""
        with self.start() as link:
            self.greet(link)
            yield link

    def link(self) -> Link:
        """The process that this check shares with those before and after it, after the handshake."""
        link = self._shared
        if link is not None and (link.tainted or not link.alive):
            self._put_away()
            link = None
        if link is None:
            link = self._shared = Link(self.subject, self.limits)
            self._watched.append((link, 0))
            self.greet(link)
        elif all(link is not one for one, _ in self._watched):
            self._watched.append((link, len(link.transcript)))
        return link

    def hello(self, **members: Any) -> dict[str, Any]:
        """The params of `protocol.hello`, with other members than the usual ones; `MISSING` leaves one out."""
        usual = {
            "protocol": PROTOCOL,
            "abi": ABI,
            "runner": RUNNER,
            "epoch": 1,
            "settings": dict(self.subject.settings),
        }
        return {name: value for name, value in {**usual, **members}.items() if value is not MISSING}

    def greet(self, link: Link) -> tuple[Any, Any]:
        """Shake hands as the runner does; return the results of `protocol.hello` and `plugin.describe`.

        Raises:
            CheckFailed: one of the three is not answered with a result.
        """
        hello = result_of(self.say_hello(link), "protocol.hello")
        ids = link.requests([("plugin.describe", {}), ("plugin.health", {})])
        answers = [link.answer(one, "the handshake", self.limits.handshake) for one in ids]
        described = result_of(answers[0], "plugin.describe")
        result_of(answers[1], "plugin.health")
        return hello, described

    def say_hello(self, link: Link, **members: Any) -> Message:
        """Send `protocol.hello` with other members than the usual ones, and return the answer.

        Raises:
            CheckFailed: it is not answered.
        """
        return link.answer(link.hello(self.hello(**members)), "protocol.hello", self.limits.handshake)

    def lists(self, method: str) -> bool:
        """Whether `plugin.describe` lists a method."""
        return method in self.facts.methods

    def need(self, *methods: str) -> None:
        """Go on only if the plugin lists all of them.

        Raises:
            NotApplicable: it does not.
        """
        if not all(map(self.lists, methods)):
            raise NotApplicable("It does not list what is asked for.")

    # ---- For those who run checks

    def run(self, entry: Entry) -> Outcome:
        """Run a check and return what came of it."""
        self._running = entry.check.id
        self._watched.clear()
        begun = time.monotonic()
        outcome = Outcome(entry.check, "holds")
        try:
            entry.function(self)
        except NotApplicable as reason:
            outcome = Outcome(entry.check, "skipped", str(reason))
        except (CheckFailed, LaunchError) as why:
            outcome = self._failed(entry.check, why)
            if self._shared is not None:
                # What it has left behind is nobody else's business.
                self._shared.tainted = True
        self._collect(*(link for link, _ in self._watched))
        return replace(outcome, seconds=time.monotonic() - begun)

    def learn(self) -> None:
        """Shake hands once and enter what comes into `facts`."""
        self._running = "hello.answered"
        try:
            with self.start() as link:
                self.facts.hello, self.facts.description = self.greet(link)
        except (CheckFailed, LaunchError) as why:
            self.facts.problem = str(why)
        self._collect(*(link for link, _ in self._watched))

    def close(self) -> None:
        """End the shared process."""
        self._put_away()

    def _put_away(self) -> None:
        link, self._shared = self._shared, None
        if link is not None:
            link.close()
            self._collect(link)

    def _collect(self, *links: Link) -> None:
        for link in links:
            self.found += ((self._running, fault) for fault in link.take_faults())
            self.heard += ((self._running, message) for message in link.take_heard())

    def _failed(self, check: Check, why: CheckFailed | LaunchError) -> Outcome:
        if isinstance(why, LaunchError):
            return Outcome(check, "fails", _sentence(f"It cannot be started: {why}"))
        return failed(check, why, self._watched)


def failed(check: Check, why: CheckFailed, used: Sequence[tuple[Talk, int]]) -> Outcome:
    """What comes of a check that failed, with what it has said and got.

    Args:
        check: which.
        why: what it has raised.
        used: the connections that it has used, and how long their transcripts were before.
    """
    lines = [line for link, start in used for line in link.transcript[start:]]
    sent = [text if how == ">" else f"({text})" for how, text in lines if how != "<"]
    got = [text for how, text in lines if how == "<"]
    return Outcome(
        check,
        "fails",
        _sentence(why.detail),
        sent=why.sent or _last(sent),
        expected=why.expected,
        got=why.got or _last(got),
    )


def _last(lines: Sequence[str]) -> tuple[str, ...]:
    if len(lines) <= _ENTRIES:
        return tuple(lines)
    return (f"({len(lines) - _ENTRIES} before these)", *lines[-_ENTRIES:])


def _sentence(text: str) -> str:
    if re.match("[a-z]+[ ']", text):
        # Not the name of a method.
        text = text[:1].upper() + text[1:]
    return text if text.endswith((".", "!", "?")) else f"{text}."


def result_of(message: Message, what: str) -> Any:
    """The result of an answer.

    Raises:
        CheckFailed: it is an error.
    """
    if message.code is not None:
        error = f"{message.code}, {message.error['message']!r}"
        raise CheckFailed(f"{what} was answered with the error {error}", expected=f"a result of {what}")
    return message.result


def refused(message: Message, what: str, *codes: int) -> None:
    """Go on only if an answer is an error with one of the codes.

    Raises:
        CheckFailed: it is a result, or another error.
    """
    wanted = " or ".join(map(str, codes))
    if message.code is None:
        raise CheckFailed(f"{what} was answered with a result", expected=f"the error {wanted}")
    if message.code not in codes:
        raise CheckFailed(f"{what} was answered with the error {message.code}", expected=f"the error {wanted}")


def decoded(value: Any, wanted: Any, what: str) -> Any:
    """A value as the type that the protocol gives it.

    Raises:
        CheckFailed: it does not fit.
    """
    try:
        return msgspec.convert(value, wanted)
    except msgspec.ValidationError as error:
        name = getattr(wanted, "__name__", "an object")
        raise CheckFailed(f"{what} does not fit: {error}", expected=f"{name} as the section describes it") from None


def worked(message: Message, what: str) -> Any:
    """The result of a request whose work depends on what the plugin has around it, such as a model or a server.

    Raises:
        NotApplicable: it said that it cannot, with a code that is meant for that.
        CheckFailed: it answered one of the errors that say that the request or the plugin is wrong.
    """
    if message.code is None or message.code in _STANDARD_ERRORS:
        return result_of(message, what)
    raise NotApplicable(f"It could not do it here: {message.error['message']} ({message.code})")
