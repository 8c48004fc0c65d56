"""Lines of the audit trail, and what is noticed of a trail that somebody has worked on."""

from __future__ import annotations

import hashlib
import json

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from utter_protocol.audit import (
    NOTHING_BEFORE,
    AuditEntry,
    AuditLineError,
    AuditResult,
    AuditSource,
    Chain,
    Finding,
    canonical_json,
    rotated,
    rotated_name,
    seal,
    unseal,
)

ENTRY = AuditEntry(
    time="2026-01-31T09:00:00.000Z",
    session="s1",
    op="open_url",
    args_sha256="ab",
    provenance="user",
    source=AuditSource(kind="client", pid=7, program="/usr/bin/python3"),
    decision="allow",
    rule="allowed",
    result=AuditResult(status="ok"),
    plugin="desktop",
    epoch=1,
    duration_ms=1.5,
)
entries = st.builds(
    AuditEntry,
    time=st.text(max_size=30),
    session=st.text(max_size=20),
    op=st.text(max_size=20),
    args_sha256=st.text(max_size=64),
    args=st.none() | st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=3),
    provenance=st.sampled_from(["user", "screen"]),
    tainted=st.lists(st.text(max_size=5), max_size=3),
    source=st.builds(AuditSource, kind=st.sampled_from(["voice", "client", "plugin"]), program=st.text(max_size=9)),
    decision=st.sampled_from(["allow", "confirm", "deny"]),
    rule=st.text(max_size=10),
    result=st.builds(AuditResult, status=st.sampled_from(["ok", "denied"]), code=st.none() | st.integers(-9, 9)),
    duration_ms=st.floats(0, 1e6),
)


def trail(count: int, *, first: int = 1) -> list[bytes]:
    """That many lines of a trail."""
    lines, prev = [], NOTHING_BEFORE
    for seq in range(1, first + count):
        line, prev = seal(msgspec.structs.replace(ENTRY, seq=seq, prev=prev))
        lines.append(line)
    return lines[first - 1 :]


def check(lines: list[bytes], *, whole: bool = True) -> list[Finding]:
    chain = Chain()
    return [*(finding for line in lines for finding in chain.take(line)[1]), *chain.end(whole=whole)]


def bad(lines: list[bytes], *, whole: bool = True) -> list[str]:
    return [one.text for one in check(lines, whole=whole) if one.bad]


@given(entry=entries)
def test_a_line_is_read_as_it_was_written_and_is_one_line(entry: AuditEntry) -> None:
    line, digest = seal(entry)
    assert b"\n" not in line
    assert unseal(line) == (entry, digest, True)
    document = json.loads(line)
    assert list(document)[-1] == "hash"
    assert document["hash"] == hashlib.sha256(line[: line.rindex(b',"hash"')] + b"}").hexdigest()


def test_a_whole_trail_holds_together() -> None:
    assert check(trail(5)) == []
    assert check([]) == []


def test_a_trail_whose_old_files_are_gone_says_where_it_begins() -> None:
    (only,) = check(trail(3, first=7))
    assert only == Finding(bad=False, text="The trail begins with line 7; older ones were rotated away.")


@settings(max_examples=300)
@given(data=st.data())
def test_every_changed_byte_is_noticed(data: st.DataObject) -> None:
    lines = trail(4)
    at = data.draw(st.integers(0, len(lines) - 1))
    place = data.draw(st.integers(0, len(lines[at]) - 1))
    byte = data.draw(st.integers(0, 255).filter(lambda byte: byte not in {lines[at][place], 10}))
    lines[at] = lines[at][:place] + bytes([byte]) + lines[at][place + 1 :]
    assert bad(lines)


@given(data=st.data())
def test_every_line_that_is_removed_from_the_middle_is_noticed(data: st.DataObject) -> None:
    lines = trail(6)
    begin = data.draw(st.integers(1, 4))
    end = data.draw(st.integers(begin + 1, 5))
    assert bad(lines[:begin] + lines[end:]) == [f"Lines {begin + 1} to {end} are missing."]


@given(order=st.permutations(range(5)).filter(lambda order: list(order) != sorted(order)))
def test_lines_in_another_order_are_noticed(order: list[int]) -> None:
    lines = trail(5)
    assert bad([lines[at] for at in order])


def test_a_line_that_is_made_anew_with_a_hash_of_its_own_does_not_fit_the_next() -> None:
    lines = trail(3)
    entry, _, _ = unseal(lines[1])
    lines[1], _ = seal(msgspec.structs.replace(entry, decision="deny"))
    assert bad(lines) == ["Line 3 does not follow line 2: that one was changed."]


def test_a_line_that_is_put_in_is_noticed() -> None:
    lines = trail(3)
    assert bad([lines[0], lines[0], *lines[1:]]) == ["Line 1 stands behind line 1."]
    assert bad([lines[0], b"not a line", *lines[1:]]) == ["Before line 2 stands what is no line of the trail."]
    assert bad([*lines, b"{}"]) == ["Behind line 3 stands what is no line of the trail."]


@given(cut=st.integers(1, 200))
def test_a_line_that_a_crash_cut_off_is_no_problem_and_is_told(cut: int) -> None:
    first, second = trail(2)
    entry, _, _ = unseal(second)
    after, _ = seal(msgspec.structs.replace(entry, after_cut=True, lost=1))
    found = check([first, second[:cut], after])
    assert found == [
        Finding(bad=False, text="The line before line 2 was cut off."),
        Finding(bad=False, text="Before line 2, 1 could not be written."),
    ]
    assert check([first, second[:cut]], whole=False) == [Finding(bad=False, text="The last line was cut off.")]


@pytest.mark.parametrize(
    "line", [b"", b"{}", b"\xff", b'{"a":1,"hash":"' + b"0" * 64 + b'"}', b'["hash"]', b"[" * 5000]
)
def test_what_is_no_line_is_said_so(line: bytes) -> None:
    with pytest.raises(AuditLineError):
        unseal(line)


def test_canonical_json_does_not_depend_on_the_order() -> None:
    assert canonical_json({"b": {"d": 1, "c": 2}, "a": "é"}) == '{"a":"é","b":{"c":2,"d":1}}'.encode()


def test_older_files_are_told_from_others() -> None:
    names = ["audit.jsonl", "audit.10.jsonl", "audit.2.jsonl", "audit.0.jsonl", "audit.x.jsonl", "audit.2.jsonl.gz"]
    assert rotated(names) == [2, 10]
    assert rotated_name(10) == "audit.10.jsonl"
