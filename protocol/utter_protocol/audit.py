"""The lines of the audit trail, and the chain that they form (PROTOCOL.md, "The audit trail").

Rules here: pure. A line is one JSON object that ends with the SHA-256 of its own bytes up to there, and names the hash
of the line before it, so that a line that was changed, removed or put in is noticed. Whoever can write the files can
also write a chain anew from some line on: that is not prevented here.
"""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import msgspec

from utter_protocol.methods import Provenance  # noqa: TC001 - msgspec resolves the annotations at run time

if TYPE_CHECKING:
    from collections.abc import Iterable

AUDIT_NAME: Final = "audit.jsonl"
"""The file that is written; older ones are `audit.1.jsonl` and so on, the higher the older."""
NOTHING_BEFORE: Final = "0" * 64
"""`prev` of the first line there ever was."""
MAX_LINE: Final = 64 * 1024
"""The longest line, in bytes."""
MAX_ARGS: Final = 8 * 1024
"""The longest arguments that stand in a line, in bytes of JSON; of longer ones only the hash does."""

_ROTATED = re.compile(r"audit\.([1-9][0-9]{0,5})\.jsonl\Z")
_SEAL = re.compile(rb',"hash":"([0-9a-f]{64})"}\Z')
_ENCODER = msgspec.json.Encoder(order="sorted")


class AuditSource(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """Who asked for a step.

    Attributes:
        kind: "voice" is a spoken session, however it was begun.
        pid: of a client.
        program: path of a client's executable file; empty if it was not found out.
        plugin: the plugin's id.
    """

    kind: Literal["voice", "client", "plugin", "runner"]
    pid: int = 0
    program: str = ""
    plugin: str = ""


class AuditConfirmation(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """How a question to a person ended, and on which kind of surface; "withdrawn" is one that nobody waited for."""

    state: Literal["approved", "denied", "timed_out", "withdrawn"]
    surface: str = ""


class AuditResult(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """What became of a step.

    Attributes:
        status: "ok" and "failed" are the plugin's own words; "denied" never reached it; "late" is one that did not
            answer in time, so that nobody knows whether it was done; "error" is any other.
        code: of the error that the asker got.
    """

    status: Literal["ok", "failed", "denied", "cancelled", "late", "error"]
    code: int | None = None


class AuditEntry(msgspec.Struct, kw_only=True, frozen=True):
    """One step that reached the gate, written when it is over.

    Attributes:
        seq: counts the lines, from 1.
        time: when it was judged, RFC 3339 in UTC with milliseconds.
        session: the session or command that it belongs to; empty for none.
        args_sha256: SHA-256 over the canonical JSON (sorted keys, no whitespace) of the arguments: those that were sent
            to the plugin, or of a step that was denied those that were proposed. Empty if these were too large.
        args: the arguments themselves, only with `[log] content`.
        provenance: the lowest grade in the step; `tainted` names the arguments that were not the user's.
        confirmation: None if nobody was asked.
        plugin: who was to do it, in which `epoch`; empty and 0 if it came to nobody.
        duration_ms: from the judgement to the end, with the time that a person took to answer.
        lost: how many lines before this one could not be written.
        after_cut: whether the line before this one was cut off, by a crash or a full disk.
        prev: the hash of the last whole line before this one.
    """

    seq: int = 0
    time: str
    session: str
    op: str
    args_sha256: str
    args: dict[str, Any] | None = None
    provenance: Provenance
    tainted: list[str] = []
    source: AuditSource
    decision: Literal["allow", "confirm", "deny"]
    rule: str
    confirmation: AuditConfirmation | None = None
    result: AuditResult
    plugin: str = ""
    epoch: int = 0
    duration_ms: float
    lost: int = 0
    after_cut: bool = False
    prev: str = NOTHING_BEFORE


class AuditLineError(ValueError):
    """Bytes that are no whole line of an audit trail; the message completes "this line ..."."""


class Finding(NamedTuple):
    """Something about a chain: whether it is a reason to worry, and what, as a sentence."""

    bad: bool
    text: str


def canonical_json(args: dict[str, Any]) -> bytes:
    """Return arguments as JSON with sorted keys and without whitespace."""
    return _ENCODER.encode(args)


def seal(entry: AuditEntry) -> tuple[bytes, str]:
    """Return an entry as a line without its end, and the hash that the next one has to name."""
    body = msgspec.json.encode(entry)
    digest = hashlib.sha256(body).hexdigest()
    return b'%s,"hash":"%s"}' % (body[:-1], digest.encode()), digest


def unseal(line: bytes) -> tuple[AuditEntry, str, bool]:
    """Read a line.

    Returns:
        The entry, the hash that the line states, and whether that is its hash.

    Raises:
        AuditLineError: it is no whole line.
    """
    found = _SEAL.search(line)
    if found is None:
        raise AuditLineError("is not whole")
    body = line[: found.start()] + b"}"
    try:
        entry = msgspec.json.decode(body, type=AuditEntry)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise AuditLineError("is no entry of an audit trail") from None
    stated = found[1].decode()
    return entry, stated, hashlib.sha256(body).hexdigest() == stated


class Chain:
    """Follows a trail from its oldest line on, and notices where it does not hold together."""

    def __init__(self) -> None:
        self.entries = 0
        """How many whole lines there were."""
        self._prev: str | None = None
        self._seq = 0
        self._broken = 0

    def take(self, line: bytes) -> tuple[AuditEntry | None, list[Finding]]:
        """Look at the next line, without its end; return its entry, if it has one, and what is to say about it."""
        try:
            entry, stated, true = unseal(line)
        except AuditLineError:
            # Whether it was cut off or spoilt is said by the line after it.
            self._broken += 1
            return None, []
        findings = [*self._about_broken(entry)]
        if not true:
            findings.append(Finding(bad=True, text=f"Line {entry.seq} was changed: its hash is not its own."))
        if self._prev is None:
            if entry.seq > 1:
                findings.append(
                    Finding(bad=False, text=f"The trail begins with line {entry.seq}; older ones were rotated away.")
                )
        elif entry.seq > self._seq + 1:
            findings.append(Finding(bad=True, text=f"Lines {self._seq + 1} to {entry.seq - 1} are missing."))
        elif entry.seq <= self._seq:
            findings.append(Finding(bad=True, text=f"Line {entry.seq} stands behind line {self._seq}."))
        elif entry.prev != self._prev:
            findings.append(
                Finding(bad=True, text=f"Line {entry.seq} does not follow line {self._seq}: that one was changed.")
            )
        if entry.lost:
            findings.append(Finding(bad=False, text=f"Before line {entry.seq}, {entry.lost} could not be written."))
        self.entries += 1
        self._prev, self._seq = stated, entry.seq
        return entry, findings

    def end(self, *, whole: bool) -> list[Finding]:
        """Say what is left at the end of the trail; `whole` is whether its last line has an end."""
        findings = []
        if self._broken and not whole:
            self._broken -= 1
            findings.append(Finding(bad=False, text="The last line was cut off."))
        if self._broken:
            findings.append(Finding(bad=True, text=f"Behind line {self._seq} stands what is no line of the trail."))
            self._broken = 0
        return findings

    def _about_broken(self, entry: AuditEntry) -> Iterable[Finding]:
        broken, self._broken = self._broken, 0
        if broken and entry.after_cut:
            broken -= 1
            yield Finding(bad=False, text=f"The line before line {entry.seq} was cut off.")
        if broken:
            yield Finding(bad=True, text=f"Before line {entry.seq} stands what is no line of the trail.")


def rotated_name(number: int) -> str:
    """The name of an older file; 1 is the youngest of them."""
    return f"audit.{number}.jsonl"


def rotated(names: Iterable[str]) -> list[int]:
    """The numbers of the older files among names of files, the youngest first."""
    return sorted(int(found[1]) for name in names if (found := _ROTATED.match(name)))
