"""Capability strings and the registry that gives them meaning (PROTOCOL.md, "Capabilities").

Rules here: `capabilities.json` is the only list of capabilities, and nothing is known that is not in it; a registry is
immutable; declared strings come from other people's programs, so a malformed one is a finding and not a crash.
"""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from utter_protocol import PROTOCOL
from utter_protocol.versions import WINDOW, parse_protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from utter_protocol.versions import ProtocolVersion

RUNNER_BUILTIN = frozenset({"host.audio.ringbuffer@1", "host.fd.pass@1", "fs.tmp@1"})
"""What the runner itself provides to every plugin."""

MAX_LENGTH = 128
"""The longest capability string, in characters."""

MAX_DECLARED = 256
"""How many capabilities a plugin may declare in one list."""

_SEGMENT = r"[a-z0-9][a-z0-9_-]*"
_NAME = rf"{_SEGMENT}(?:\.{_SEGMENT})*"
_EXPERIMENTAL = r"experimental/[A-Za-z0-9][A-Za-z0-9._-]*"
_VERSION = r"[1-9][0-9]{0,5}"
CAPABILITY_PATTERN = rf"(?:{_NAME}|{_EXPERIMENTAL})@{_VERSION}"
"""A capability string as a regular expression without anchors."""

_is_name = re.compile(_NAME).fullmatch
_is_experimental = re.compile(_EXPERIMENTAL).fullmatch
_is_version = re.compile(_VERSION).fullmatch
_SHOWN = 60
_FAMILY = ".*"


class CapabilityError(ValueError):
    """A capability string that is not of the form `name@N`; the message shows it and says what is wrong."""


class RegistryError(ValueError):
    """A registry that contradicts itself; the message names the entry."""


class Capability(NamedTuple):
    """A parsed capability string."""

    name: str
    version: int

    def __str__(self) -> str:
        return f"{self.name}@{self.version}"

    @property
    def experimental(self) -> bool:
        """Whether it lies in the name space that promises nothing and is never unknown."""
        return self.name.startswith("experimental/")


def parse_capability(text: str) -> Capability:
    """The name and version in `text`: `name@N`, or `experimental/<Name>@N`.

    Raises:
        CapabilityError: `text` has another form.
    """
    problem = _problem(text)
    if problem:
        shown = text if len(text) <= _SHOWN else text[:_SHOWN] + "..."
        raise CapabilityError(f"The capability {shown!r} is malformed: {problem}")
    name, _, version = text.partition("@")
    return Capability(name, int(version))


def _problem(text: str) -> str:
    name, at, version = text.partition("@")
    experimental = name.startswith("experimental/")
    problem = ""
    if len(text) > MAX_LENGTH:
        problem = f"it has {len(text)} characters, and at most {MAX_LENGTH} are allowed."
    elif not at:
        problem = 'the version is missing. Write it as "name@N", for example "router.plan@1".'
    elif not _is_version(version):
        problem = f"the version {version!r} is not a whole number from 1 to 999999 without leading zeros."
    elif experimental and not _is_experimental(name):
        problem = "after experimental/ come letters, digits, '.', '_' and '-', the first a letter or digit."
    elif not experimental and "*" in name:
        problem = "a wildcard stands for a family in the registry only. Declare each member by its name."
    elif not experimental and not _is_name(name):
        problem = (
            f"the name {name!r} is not made of parts joined by single dots. "
            "A part has lower-case letters, digits, '_' and '-', the first a letter or digit."
        )
    return problem


class Deprecation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Since which protocol version a capability is deprecated, what replaces it, and from which version it is gone."""

    since: str
    replacement: str
    removed: str = ""


class Entry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One entry of the registry.

    A name that ends in `.*` is a family: each capability below it is known. `satisfied_by` lists other capabilities
    whose provider also serves those who require this one.
    """

    name: str
    version: int
    summary: str
    satisfied_by: tuple[str, ...] = ()
    deprecated: Deprecation | None = None

    def __str__(self) -> str:
        return f"{self.name}@{self.version}"


class _File(msgspec.Struct, forbid_unknown_fields=True):
    protocols: tuple[str, ...]
    capabilities: tuple[Entry, ...]


class Findings(msgspec.Struct, frozen=True, kw_only=True):
    """What the registry says about declared capabilities; `warnings` has a sentence per string not in order."""

    known: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    deprecated: tuple[str, ...] = ()
    malformed: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


class Registry:
    """The known capabilities. `protocols` are the protocol versions that were published, oldest first."""

    def __init__(self, entries: Iterable[Entry], protocols: Sequence[str] = (PROTOCOL,)) -> None:
        self.protocols = tuple(protocols)
        self._entries: dict[Capability, Entry] = {}
        self._families: dict[Capability, Entry] = {}
        for entry in entries:
            key = Capability(entry.name, entry.version)
            if key in self._entries or key in self._families:
                raise RegistryError(f"The capability registry lists {entry} twice.")
            target = self._families if entry.name.endswith(_FAMILY) else self._entries
            target[key] = entry
        for entry in self.entries:
            self._check(entry)

    @classmethod
    def from_json(cls, data: bytes) -> Registry:
        """The registry in a file of the form of `capabilities.json`.

        Raises:
            RegistryError: the file has another form, or contradicts itself.
        """
        try:
            file = msgspec.json.decode(data, type=_File)
        except msgspec.DecodeError as error:
            raise RegistryError(f"The capability registry cannot be read: {error}.") from None
        return cls(file.capabilities, file.protocols)

    @property
    def entries(self) -> tuple[Entry, ...]:
        """Every entry, families last."""
        return (*self._entries.values(), *self._families.values())

    def _check(self, entry: Entry) -> None:
        try:
            parse_capability(str(entry).replace(_FAMILY + "@", ".member@"))
            for other in entry.satisfied_by:
                parse_capability(other)
            if entry.deprecated:
                parse_capability(entry.deprecated.replacement)
        except CapabilityError as error:
            raise RegistryError(f"The registry's entry {entry} is wrong: {error}") from None
        if entry.deprecated:
            self._check_deprecation(entry, entry.deprecated)

    def _check_deprecation(self, entry: Entry, deprecated: Deprecation) -> None:
        for field in ("since", "removed"):
            version = getattr(deprecated, field)
            if version and version not in self.protocols:
                published = ", ".join(self.protocols)
                raise RegistryError(
                    f"The registry's entry {entry} has deprecated.{field} {version!r}, "
                    f"which is not one of the published protocol versions: {published}."
                )
        if self.find(deprecated.replacement) is None:
            raise RegistryError(
                f"The registry's entry {entry} names the replacement {deprecated.replacement}, which it lacks."
            )
        if deprecated.removed and not self.removal_allowed(deprecated.since, deprecated.removed):
            raise RegistryError(
                f"The registry's entry {entry} is deprecated since {deprecated.since} and removed in "
                f"{deprecated.removed}: it must be kept for {WINDOW} protocol versions after {deprecated.since}."
            )

    def removal_allowed(self, since: str, version: str) -> bool:
        """Whether what is deprecated since protocol `since` may be absent from protocol `version` (both published)."""
        return self.protocols.index(version) - self.protocols.index(since) >= WINDOW

    def find(self, text: str) -> Entry | None:
        """The entry (or the family's entry) for the capability `text`, or None when it is unknown or malformed."""
        try:
            capability = parse_capability(text)
        except CapabilityError:
            return None
        return self._find(capability)

    def deprecation(self, text: str) -> Deprecation | None:
        """What the registry says about the end of the capability `text`, or None when it is not to end."""
        entry = self.find(text)
        return None if entry is None else entry.deprecated

    def _find(self, capability: Capability) -> Entry | None:
        entry = self._entries.get(capability)
        if entry is None and "." in capability.name:
            family = capability.name.partition(".")[0] + _FAMILY
            entry = self._families.get(Capability(family, capability.version))
        return entry

    def classify(self, declared: Iterable[str], protocol: str = PROTOCOL) -> Findings:
        """What is to be said about the capabilities that a plugin declares, to a runner of version `protocol`.

        Experimental capabilities are known. A removed capability is unknown, and its warning names the replacement.
        What exceeds `MAX_DECLARED` is left out, with one warning.
        """
        now = parse_protocol(protocol)
        distinct = list(dict.fromkeys(declared))
        found: dict[str, list[str]] = {"known": [], "unknown": [], "deprecated": [], "malformed": [], "warnings": []}
        for text in distinct[:MAX_DECLARED]:
            group, warning = self._judge(text, now)
            found[group].append(text)
            if warning:
                found["warnings"].append(warning)
        if len(distinct) > MAX_DECLARED:
            found["warnings"].append(
                f"The plugin declares {len(distinct)} capabilities: those after the first {MAX_DECLARED} are ignored."
            )
        return Findings(**{name: tuple(values) for name, values in found.items()})

    def _judge(self, text: str, now: ProtocolVersion) -> tuple[str, str]:
        try:
            capability = parse_capability(text)
        except CapabilityError as error:
            return "malformed", str(error)
        entry = self._find(capability)
        old = entry.deprecated if entry else None
        if old and old.removed and parse_protocol(old.removed) <= now:
            return "unknown", f"The capability {text} was removed in protocol {old.removed}: use {old.replacement}."
        if old and parse_protocol(old.since) <= now:
            return "deprecated", (
                f"The capability {text} is deprecated since protocol {old.since} and goes away no earlier than "
                f"{WINDOW} protocol versions later: use {old.replacement}."
            )
        if entry or capability.experimental:
            return "known", ""
        return "unknown", f"The capability {text} is unknown and is ignored.{self._nearest(capability)}"

    def _nearest(self, capability: Capability) -> str:
        import difflib  # noqa: PLC0415 - only on the way to a message, and start-up counts

        names = [known.name for known in self._entries]
        near = difflib.get_close_matches(capability.name, names, n=1, cutoff=0.8)
        if not near:
            return ""
        versions = " or ".join(str(known) for known in self._entries if known.name == near[0])
        return f" The nearest known one is {versions}."

    def satisfying(self, required: str) -> frozenset[str]:
        """Every capability whose provider serves one who requires `required`; empty when that is malformed.

        An unknown or experimental capability is served by itself alone, another name or version of a known one only
        when its entry lists it.
        """
        if _problem(required):
            return frozenset()
        entry = self.find(required)
        return frozenset((required, *(entry.satisfied_by if entry else ())))

    def satisfies(self, provided: str, required: str) -> bool:
        """Whether a provider of `provided` serves one who requires `required`."""
        return provided in self.satisfying(required)

    def missing(
        self,
        requires: Iterable[str],
        own_provides: Iterable[str],
        admitted_provides: Iterable[str],
        runner_builtin: Iterable[str] = RUNNER_BUILTIN,
    ) -> list[str]:
        """The capabilities of `requires` that nobody covers, each once and in order; none when all are covered."""
        provided = {*own_provides, *admitted_provides, *runner_builtin}
        return [one for one in dict.fromkeys(requires) if self.satisfying(one).isdisjoint(provided)]

    def providers(self, required: str, provides: Mapping[str, Iterable[str]]) -> list[str]:
        """Which plugins of `provides` (plugin id -> what it provides) would serve one who requires `required`."""
        wanted = self.satisfying(required)
        return [plugin for plugin, offered in provides.items() if not wanted.isdisjoint(offered)]


@functools.cache
def load_registry() -> Registry:
    """The registry that ships with this package."""
    return Registry.from_json(Path(__file__).with_name("capabilities.json").read_bytes())
