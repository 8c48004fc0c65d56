"""Every check can fail: a plugin with one defect is caught by the checks that are about it, and by no others."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import pytest

from support.conformance import BAD_PLUGIN, argv, broken, check
from utter_sdk.conformance.plugin import CHECKS, TABLES, Limits, Subject, check_plugin

if TYPE_CHECKING:
    from pathlib import Path

# What each defect breaks. Beside these checks those of the same areas are run that share a process, and hold.
DEFECTS: dict[str, set[str]] = {
    # ---- The handshake
    "dies": {"hello.answered"},
    "no-abi": {"hello.shape"},
    "version-two": {"hello.versions"},
    "bad-name": {"hello.identity"},
    "bad-kind": {"hello.identity"},
    "bad-version": {"hello.identity"},
    "bad-capability": {"hello.capabilities"},
    "unknown-capability": {"hello.known"},
    "unknown-permission": {"hello.known"},
    "wrong-transport": {"hello.transport"},
    "speaks-first": {"hello.alone"},
    "eager": {"hello.first"},
    "hello-once": {"hello.again"},
    "strict-fields": {"hello.unknown-fields", "messages.unknown-fields"},
    "strict-settings": {"hello.settings-absent"},
    "dies-of-settings": {"hello.settings-unknown"},
    "epochs": {"hello.epoch"},
    "dies-of-versions": {"hello.newer-minor", "hello.other-major"},
    "refuses-minor": {"hello.newer-minor"},
    "dies-of-major": {"hello.other-major"},
    "boasts": {"describe.shape"},
    "no-handshake": {"describe.handshake"},
    "modest": {"describe.unlisted", "describe.provided"},
    "wants-op": {"describe.ops"},
    # ---- Framing
    "spaces": {"framing.header-spaces"},
    "no-type": {"framing.content-type"},
    "strict-headers": {"framing.other-headers"},
    "once": {"framing.repeated-length"},
    "strict-junk": {"framing.junk"},
    "impatient": {"framing.byte-by-byte", "framing.split"},
    "whole-only": {
        "framing.byte-by-byte", "framing.split", "framing.large", "framing.largest", "framing.truncated"
    },
    "quits-empty": {"framing.empty-body"},
    "guess": {"framing.error.missing_length", "framing.error.bad_length", "framing.error.conflicting_length"},
    "no-bounds": {"framing.error.header_too_large", "framing.error.junk_too_large"},
    "lenient": {"framing.error.malformed_header", "framing.error.bad_content_type", "framing.error.bom"},
    "silent-framing": {"framing.error-answer"},
    "bye": {"framing.truncated", "process.quiet-end", "sent.answers"},
    # ---- Messages
    "float-ids": {"messages.ids-64bit"},
    "ids-once": {"messages.id-again"},
    "any-id": {"messages.id-null", "messages.long-id"},
    "needs-params": {"messages.params-absent"},
    "any-params": {"messages.params-array", "messages.params-no-object"},
    "no-missing": {"messages.params-missing"},
    "unknown-is-null": {"messages.unknown-method"},
    "answers-notifications": {"messages.notifications", "cancel.unknown"},
    "quits-notifications": {"messages.notifications"},
    "answers-answers": {"messages.unknown-answers"},
    "crashes": {
        "messages.goes-on", "messages.not-json", "messages.trailing", "messages.not-utf8", "messages.bom",
        "messages.nan", "messages.deep",
    },
    "silent-parse": {
        "messages.not-json", "messages.trailing", "messages.not-utf8", "messages.bom", "messages.nan", "messages.deep"
    },
    "nan": {"messages.nan"},
    "batches": {"messages.batch"},
    "any-version": {"messages.no-version"},
    "one-code": {
        "messages.id-null", "messages.batch", "messages.no-object", "messages.no-version", "messages.method-number",
        "messages.neither", "messages.long-id",
    },
    "cancel-answers": {"cancel.unknown", "cancel.running"},
    "cancel-crashes": {"cancel.unknown"},
    # ---- Methods
    "hides": {"describe.listed", "method.router.hints"},
    "bad-plan": {"method.router.plan"},
    "bad-score": {"method.router.plan"},
    "bad-hints": {"method.router.hints"},
    "bad-catalog": {"method.knowledge.catalog"},
    "bad-schema": {"method.action.capabilities"},
    "bad-op": {"method.action.capabilities"},
    "any-op": {"method.action.invoke"},
    "bad-speech": {"method.tts.speak"},
    "bad-finish": {"method.llm.complete"},
    "bad-choice": {"method.llm.choose", "method.llm.choose-none"},
    "chatty": {"method.context.snapshot"},
    "secretive": {"method.context.snapshot-all"},
    "bad-handle": {"method.perception.screenshot"},
    "bad-tree": {"method.perception.tree"},
    "bad-box": {"method.perception.text"},
    "bad-tab": {"method.perception.tabs"},
    "any-keys": {"method.input.inject"},
    "bad-render": {"method.ui.render"},
    "resumes-strangers": {"method.media.release"},
    "any-hold": {"method.media.hold"},
    "any-session": {"method.stt.session", "method.stt.unknown", "method.stt.cancel"},
    "bad-start": {"method.stt.start"},
    "boasts-of-ring": {"method.stt.start"},
    "ring-only": {"method.stt.session"},
    "keeps-sessions": {"method.stt.session"},
    "bad-confidence": {"method.stt.session"},
    "strict-cancel": {"method.stt.unknown"},
    "no-cancel": {"method.stt.cancel"},
    "bad-health": {"health.shape"},
    # ---- Streams
    "no-stop": {"stream.methods"},
    "any-stream": {"stream.unknown"},
    "strict-stop": {"stream.unknown-id", "stream.stop"},
    "only-lossy": {"stream.subscribe", "stream.items", "stream.window", "stream.credit"},
    "items-first": {"stream.items"},
    "bad-item": {"stream.items"},
    "from-one": {"stream.items"},
    "overruns": {"stream.window", "stream.credit"},
    "never-stops": {"stream.stop"},
    "same-seq": {"stream.lossy"},
    # ---- The process
    "bad-exit": {"process.end", "process.end-at-once", "process.end-busy"},
    # ---- The microphone
    "overrun-crashes": {"ring.overrun"},
    # ---- Everything that it writes
    "prints": {"sent.frames-only"},
    "writes-lf": {"sent.headers"},
    "odd-notification": {"sent.messages"},
    "twice": {"sent.answers"},
    "bad-announcement": {"sent.announcements"},
    "bad-request": {"sent.requests"},
}  # fmt: skip


class Wait(NamedTuple):
    """Defects that show in something that does not come: only what is about them is run, with little patience."""

    broken: set[str]
    answer: float = 60.0
    health: float = 60.0
    end: float = 30.0
    handshake: float = 60.0


WAITS: dict[str, Wait] = {
    "huge": Wait({"framing.error.frame_too_large", "framing.huge"}, answer=1),
    "case": Wait({"framing.header-case"}, answer=1),
    # What it did send has to be seen before the time is up, in this one and in the last.
    "characters": Wait({"framing.bytes", "sent.frames-only", "sent.json"}, answer=10),
    "crlf": Wait({"framing.bare-lf"}, answer=1),
    "few-per-read": Wait({"framing.many"}, answer=1),
    "compact": Wait({"messages.whitespace"}, answer=1),
    "no-zero": Wait({"messages.ids"}, answer=1),
    "drops-duplicates": Wait({"messages.id-in-flight"}, answer=1),
    "shallow": Wait({"messages.depth"}, answer=1),
    "first-key": Wait({"messages.duplicate-keys"}, answer=1),
    "tires": Wait({"messages.burst"}, answer=1),
    "busy": Wait({"health.busy"}, health=0.4),
    "no-credit": Wait({"stream.credit"}, answer=1),
    "one-id": Wait({"stream.subscribe"}, answer=1),
    # The end of the input before the handshake is given as long as a handshake.
    "ignores-eof": Wait({"process.end", "process.end-at-once", "process.end-busy"}, end=1, handshake=10),
    "needs-kill": Wait({"process.sigterm"}, end=1),
    "leaves": Wait({"process.descendants"}, end=1),
    "hears-on": Wait({"ring.end"}, end=1),
    "loses": Wait({"process.slow-reader"}, answer=1),
    "string-ids": Wait({"hello.answered"}, handshake=1),
    "both": Wait({"hello.answered"}, handshake=1),
    "no-version": Wait({"hello.answered"}, handshake=1),
    "one-per-read": Wait({"hello.answered"}, handshake=1),
    "bom-out": Wait({"hello.answered", "sent.json"}, handshake=5),
}


# Defects that are let loose on the whole kit, to see that nothing else falls.
WHOLE = ("spaces", "modest", "twice")


def around(ids: set[str]) -> tuple[str, ...]:
    """Some checks, and those of the same areas that share a process."""
    areas = tuple({f"{one.partition('.')[0]}." for one in ids})
    shared = (entry.check.id for table in TABLES for entry in table.entries if not entry.alone)
    return (*ids, *(one for one in shared if one.startswith(areas)))


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_defect_is_caught_by_what_is_about_it(defect: str) -> None:
    expected = DEFECTS[defect]
    report = check(defect, only=() if defect in WHOLE else around(expected))
    assert broken(report) == expected, report.text()
    told = report.text()
    assert all(one in told for one in expected)


@pytest.mark.parametrize("defect", WAITS)
def test_what_does_not_come_is_not_waited_for_ever(defect: str) -> None:
    wait = WAITS[defect]
    limits = {name: value for name, value in wait._asdict().items() if name != "broken"}
    report = check(defect, only=tuple(wait.broken), **limits)
    assert broken(report) == wait.broken, report.text()


@pytest.mark.parametrize("transport", ["stdio", "connect", "listen"])
def test_a_plugin_without_defects_has_none(transport: str) -> None:
    report = check(transport=transport)
    assert broken(report) == set(), report.text()
    assert report.counts["holds"] > 120


def test_what_is_asked_while_a_frame_is_half_written_is_answered_behind_it() -> None:
    report = check("asks-inside-frames", only=("framing.byte-by-byte", "framing.split"), answer=20)
    assert broken(report) == set(), report.text()
    holds = {one.check.id for one in report.outcomes if one.verdict == "holds"}
    assert holds >= {"framing.byte-by-byte", "framing.split"}


def test_what_was_not_there_to_be_judged_is_judged_where_it_is() -> None:
    report = check("announces", "asks", only=("sent.",))
    assert report.ok, report.text()
    skipped = {one.check.id for one in report.outcomes if one.verdict == "skipped"}
    assert skipped == set()


def test_a_socket_that_is_open_to_others(tmp_path: Path) -> None:
    report = check("socket-mode", transport="listen", only=("transport.",))
    assert broken(report) == {"transport.socket-mode"}


@pytest.mark.parametrize("transport", ["connect", "listen"])
def test_a_plugin_that_does_not_come_to_its_socket(transport: str) -> None:
    subject = Subject(argv=argv(), transport="connect" if transport == "connect" else "listen")
    report = check_plugin(subject, Limits(handshake=0.5, answer=0.5))
    assert broken(report) == {"hello.answered"}
    outcome = next(one for one in report.outcomes if one.check.id == "hello.answered")
    assert ("did not dial" if transport == "connect" else "did not listen") in outcome.detail


MANIFEST = """
name = "{name}"
version = "1.0.0"
kind = "bundle"
protocol = "1.0"
abi = 1
runtime = "subprocess"
transport = "stdio"
entrypoint = ["${{PYTHON}}", "-I", "-S", "{plugin}"]
provides = {provides}
"""


def test_a_manifest_that_says_something_else(tmp_path: Path) -> None:
    path = tmp_path / "utter-plugin.toml"
    path.write_text(MANIFEST.format(name="another", plugin=BAD_PLUGIN, provides=["router.plan@1"]))
    report = check_plugin(Subject.from_manifest(path), only=("manifest.",))
    assert broken(report) == {"manifest.identity", "manifest.lists"}
    assert [one.check.id for one in report.broken("should")] == ["manifest.lists"]
    assert "The manifest says name 'another', and the handshake 'conformance'." in report.text()
    assert report.subject == f"{path} (stdio)"


def test_every_check_can_fail() -> None:
    caught = {one for expected in DEFECTS.values() for one in expected}
    caught |= {one for wait in WAITS.values() for one in wait.broken}
    # By the tests above.
    caught |= {"manifest.identity", "manifest.lists", "transport.socket-mode"}
    assert caught == {check.id for check in CHECKS}
