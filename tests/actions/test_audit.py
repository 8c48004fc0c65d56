"""What the gate tells of each step, and that the trail on disk survives what may happen to it."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from support.policy import PROPERTY, SCREEN, SESSION, USER, origins, rule_sets, step, steps
from support.stage import SILENT, Desk, Ending, Person, Stage
from utter_protocol.audit import AuditEntry, AuditResult, AuditSource, Chain, Finding, canonical_json, rotated
from utter_protocol.errors import ErrorCode, RpcError
from utter_protocol.methods import PlannedStep
from utter_runner.actions import audit as module
from utter_runner.actions.audit import MAX_WAITING, AuditTrail, MemoryAudit, Record
from utter_runner.actions.audit_file import FILES, AuditFile
from utter_runner.policy import Deny, Origin, PolicyRules
from utter_runner.supervision.fake import FakeInstance
from utter_runner.supervision.work import Work

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from trio.testing import MockClock

MIB = 2**20
WIPE = step("wipe", {"disk": "sda"})
OPEN = step("open_url", {"url": "HTTP://Example.com:80/a/../b"})
CLIENT = AuditSource(kind="client", pid=7, program="/usr/bin/python3")


def sha(args: dict[str, Any]) -> str:
    return hashlib.sha256(canonical_json(args)).hexdigest()


def only(audit: MemoryAudit) -> AuditEntry:
    (entry,) = audit.entries
    return entry


# ---- what the gate tells


async def test_a_step_that_was_done_is_told_with_the_hash_of_what_was_sent() -> None:
    stage = Stage()
    await stage.submit(OPEN).wait()
    entry = only(stage.audit)
    assert (entry.op, entry.decision, entry.rule, entry.session) == ("open_url", "allow", "allowed", SESSION)
    assert entry.args_sha256 == sha({"url": "http://example.com/b"})
    assert entry.args is None
    assert (entry.plugin, entry.epoch) == ("desktop", stage.plugin.epoch)
    assert (entry.result, entry.confirmation) == (AuditResult(status="ok"), None)
    assert (entry.provenance, entry.tainted) == ("user", [])
    assert "example" not in str(entry)


async def test_a_denied_step_is_told_with_the_hash_of_what_was_proposed() -> None:
    stage = Stage()
    url = {"url": "javascript:alert(1)"}
    await stage.submit(step("open_url", url)).wait()
    entry = only(stage.audit)
    assert (entry.decision, entry.rule, entry.args_sha256) == ("deny", "url", sha(url))
    assert entry.result == AuditResult(status="denied", code=ErrorCode.NOT_PERMITTED)
    assert (entry.plugin, entry.epoch) == ("", 0)


async def test_arguments_that_pass_every_bound_are_told_without_a_hash() -> None:
    stage = Stage()
    await stage.submit(step("open_url", {"url": "x" * 100_000})).wait()
    assert only(stage.audit).args_sha256 == ""


async def test_tainted_arguments_are_named() -> None:
    stage = Stage()
    await stage.submit(step("open_url", {"url": "https://evil.example/"}), SCREEN).wait()
    assert (only(stage.audit).provenance, only(stage.audit).tainted) == ("screen", ["url"])


@pytest.mark.parametrize(("answer", "state"), [(True, "approved"), (False, "denied")])
async def test_a_confirmation_is_told_with_its_surface(answer: bool, state: str) -> None:
    stage = Stage(Person(answer))
    async with stage.running():
        await stage.submit(WIPE).wait()
    entry = only(stage.audit)
    assert entry.confirmation is not None
    assert (entry.confirmation.state, entry.confirmation.surface) == (state, "person")
    assert entry.result.status == ("ok" if answer else "denied")
    assert entry.decision == "confirm"


async def test_a_confirmation_that_nobody_answers_is_told(autojump_clock: MockClock) -> None:
    stage = Stage(Person(), confirm_timeout=12.0)
    async with stage.running():
        await stage.submit(WIPE).wait()
    entry = only(stage.audit)
    assert entry.confirmation is not None
    assert (entry.confirmation.state, entry.confirmation.surface) == ("timed_out", "")
    assert (entry.result.status, entry.duration_ms) == ("denied", 12_000.0)


async def test_a_question_that_is_withdrawn_is_told() -> None:
    stage = Stage(Person())
    async with stage.running():
        ending = stage.submit(WIPE)
        await trio.testing.wait_all_tasks_blocked()
        assert ending.submission is not None
        ending.submission.cancel()
        await ending.wait()
    entry = only(stage.audit)
    assert entry.confirmation is not None
    assert entry.confirmation.state == "withdrawn"
    assert entry.result == AuditResult(status="cancelled", code=ErrorCode.CANCELLED)


@pytest.mark.parametrize(
    ("answer", "result"),
    [
        ({"ok": False, "detail": "No."}, AuditResult(status="failed")),
        (["nonsense"], AuditResult(status="failed")),
        (RpcError(ErrorCode.PLUGIN_FAILED, "broken"), AuditResult(status="error", code=ErrorCode.PLUGIN_FAILED)),
    ],
)
async def test_what_a_plugin_made_of_it_is_told(answer: Any, result: AuditResult) -> None:
    stage = Stage(invoke=answer)
    await stage.submit(OPEN).wait()
    assert only(stage.audit).result == result


async def test_a_plugin_that_is_late_is_told(autojump_clock: MockClock) -> None:
    stage = Stage(invoke=SILENT)
    async with stage.running():
        await stage.submit(OPEN, timeout=3.0).wait()
    entry = only(stage.audit)
    assert entry.result == AuditResult(status="late", code=ErrorCode.TIMED_OUT)
    assert (entry.epoch, entry.duration_ms) == (stage.plugin.epoch, 3_000.0)


async def test_who_asked_is_told() -> None:
    stage = Stage()
    ending = Ending()
    stage.gate.submit(OPEN, USER, ending.on_reply, timeout=1.0, source=CLIENT)
    work = Work("user").below("router", "router.plan")
    stage.gate.submit(OPEN, USER, Ending().on_reply, timeout=1.0, work=work)
    stage.gate.submit(OPEN, USER, Ending().on_reply, timeout=1.0)
    await trio.testing.wait_all_tasks_blocked()
    assert [entry.source for entry in stage.audit.entries] == [
        CLIENT,
        AuditSource(kind="plugin", plugin="router"),
        AuditSource(kind="runner"),
    ]


async def test_the_steps_of_a_spoken_command_are_told_as_such() -> None:
    desk = Desk(plan={"steps": [{"op": "mute", "provenance": "user"}, {"op": "media", "provenance": "user"}]})
    async with desk.running():
        await desk.commands.command("mute it", session=SESSION, provenance="user")
    assert [(entry.op, entry.source.kind) for entry in desk.audit.entries] == [("mute", "voice"), ("media", "voice")]


async def test_a_trail_that_must_be_kept_and_is_not_denies() -> None:
    person = Person(answer=True)
    stage = Stage(person)
    stage.audit.why = "Nothing is done while the audit trail is not kept."
    async with stage.running():
        for one in (OPEN, WIPE):
            ending = stage.submit(one)
            await ending.wait()
            assert ending.error.code == ErrorCode.NOT_PERMITTED
            assert ending.error.data == {"rule": "audit", "op": one.op}
            assert ending.error.message == stage.audit.why
        # It is a rule like any other: whoever asks what would be decided is told the same.
        assert stage.gate.explain(OPEN, USER).rule == "audit"
    assert (stage.plugin.received, person.asked) == ([], [])
    assert [entry.rule for entry in stage.audit.entries] == ["audit", "audit"]


async def test_a_trail_that_fails_during_a_question_denies_after_all() -> None:
    person = Person()
    stage = Stage(person)
    async with stage.running():
        ending = stage.submit(WIPE)
        await person.wait_asked()
        stage.audit.why = "The disk is full."
        person.say(answer=True)
        await ending.wait()
    assert ending.error.data == {"rule": "audit", "op": "wipe"}
    assert stage.plugin.received == []
    assert only(stage.audit).result.status == "denied"


@PROPERTY
@given(proposed=steps(), origin=origins, rules=rule_sets, yes=st.booleans())
def test_every_step_is_told_exactly_once_as_it_was_decided(
    proposed: PlannedStep, origin: Origin, rules: PolicyRules, yes: bool
) -> None:
    async def submit() -> tuple[Stage, Ending]:
        stage = Stage(Person(yes), rules=rules, others=(FakeInstance("other", {"action.invoke": {"ok": True}}),))
        async with stage.running():
            ending = stage.submit(proposed, origin)
            await ending.wait()
        return stage, ending

    stage, ending = trio.run(submit)
    entry = only(stage.audit)
    (decision,) = ending.decisions
    assert (entry.op, entry.rule) == (decision.op[:128], decision.rule)
    if isinstance(decision, Deny):
        assert (entry.decision, entry.result.status) == ("deny", "denied")
    else:
        assert entry.args_sha256 == sha(decision.args)
        assert entry.provenance == decision.provenance
        assert (entry.result.status == "ok") == (ending.replies[0][1] is None)


# ---- the files


def plain(number: int, *, size: int = 0) -> AuditEntry:
    return AuditEntry(
        time="2026-01-31T09:00:00.000Z",
        session="s1",
        op="mute",
        args_sha256=f"{number:064}",
        args={"pad": "x" * size} if size else None,
        provenance="user",
        source=AuditSource(kind="voice"),
        decision="allow",
        rule="allowed",
        result=AuditResult(status="ok"),
        duration_ms=1.0,
    )


class Files:
    """A directory with a trail."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def names(self) -> list[str]:
        numbers = rotated(path.name for path in self.directory.iterdir())
        names = [*(f"audit.{number}.jsonl" for number in reversed(numbers)), "audit.jsonl"]
        # A crash between two steps of a rotation leaves no last one.
        return [name for name in names if (self.directory / name).exists()]

    def lines(self) -> list[bytes]:
        return [line for name in self.names() for line in (self.directory / name).read_bytes().split(b"\n") if line]

    def check(self) -> tuple[list[AuditEntry], list[Finding]]:
        chain, entries, findings = Chain(), [], []
        for line in self.lines():
            entry, found = chain.take(line)
            findings += found
            entries += [entry] if entry is not None else []
        return entries, [*findings, *chain.end(whole=(self.directory / self.names()[-1]).read_bytes()[-1:] == b"\n")]

    @property
    def size(self) -> int:
        return sum((self.directory / name).stat().st_size for name in self.names())


def write(directory: Path, numbers: Sequence[int], *, limit: int = MIB, size: int = 0) -> None:
    file = AuditFile(directory, limit)
    written, error = file.append([plain(number, size=size) for number in numbers], 0)
    file.close()
    assert (written, error) == (len(numbers), None)


def test_the_files_are_this_user_s_alone(tmp_path: Path) -> None:
    directory = tmp_path / "state" / "utter"
    directory.mkdir(parents=True, mode=0o755)
    (directory / "audit.jsonl").touch(0o644)
    write(directory, [1])
    assert directory.stat().st_mode & 0o777 == 0o700
    assert (directory / "audit.jsonl").stat().st_mode & 0o777 == 0o600


def test_a_chain_goes_on_after_a_restart(tmp_path: Path) -> None:
    for number in range(3):
        write(tmp_path, [2 * number, 2 * number + 1])
    entries, findings = Files(tmp_path).check()
    assert findings == []
    assert [entry.seq for entry in entries] == [1, 2, 3, 4, 5, 6]
    assert [int(entry.args_sha256) for entry in entries] == [0, 1, 2, 3, 4, 5]


def test_it_stays_within_its_bound_and_keeps_the_youngest(tmp_path: Path) -> None:
    files = Files(tmp_path)
    for begin in range(0, 600, 60):
        write(tmp_path, range(begin, begin + 60), size=5_000)
        assert files.size <= MIB
    entries, findings = files.check()
    assert len(files.names()) == FILES
    assert [int(entry.args_sha256) for entry in entries] == list(range(600 - len(entries), 600))
    # All but the file that is being filled is used.
    assert files.size > MIB * (FILES - 2) // FILES
    assert [one for one in findings if one.bad] == []
    assert len(findings) == 1


def test_a_smaller_bound_holds_from_the_next_rotation_on(tmp_path: Path) -> None:
    write(tmp_path, range(700), limit=4 * MIB, size=5_000)
    write(tmp_path, range(40), limit=MIB, size=5_000)
    assert Files(tmp_path).size <= MIB
    assert not any(one.bad for one in Files(tmp_path).check()[1])


@pytest.mark.parametrize("left", [1, 20, 300])
def test_a_line_that_was_cut_off_stays_and_the_next_says_so(tmp_path: Path, left: int) -> None:
    write(tmp_path, [1, 2])
    path = tmp_path / "audit.jsonl"
    first, second, _ = path.read_bytes().split(b"\n")
    path.write_bytes(first + b"\n" + second[:left])
    write(tmp_path, [3, 4])
    entries, findings = Files(tmp_path).check()
    assert [(entry.seq, entry.after_cut) for entry in entries] == [(1, False), (2, True), (3, False)]
    assert findings == [Finding(bad=False, text="The line before line 2 was cut off.")]
    assert path.read_bytes().startswith(first + b"\n" + second[:left] + b"\n")


def test_a_cut_line_before_a_rotation_is_told_in_the_next_file(tmp_path: Path) -> None:
    write(tmp_path, range(25), size=5_000)
    with (tmp_path / "audit.jsonl").open("ab") as file:
        file.write(b'{"seq":')
    write(tmp_path, [25], size=5_000)
    assert Files(tmp_path).names() == ["audit.1.jsonl", "audit.jsonl"]
    entries, findings = Files(tmp_path).check()
    assert [int(entry.args_sha256) for entry in entries] == list(range(26))
    assert findings == [Finding(bad=False, text="The line before line 26 was cut off.")]


def test_a_crash_between_two_steps_of_a_rotation_loses_nothing(tmp_path: Path) -> None:
    write(tmp_path, range(30), size=5_000)
    (tmp_path / "audit.1.jsonl").rename(tmp_path / "audit.2.jsonl")
    (tmp_path / "audit.jsonl").rename(tmp_path / "audit.1.jsonl")
    write(tmp_path, range(30, 60), size=5_000)
    entries, findings = Files(tmp_path).check()
    assert [int(entry.args_sha256) for entry in entries] == list(range(60))
    assert findings == []


def test_a_file_that_was_moved_away_is_made_anew(tmp_path: Path) -> None:
    file = AuditFile(tmp_path, MIB)
    assert file.append([plain(1)], 0) == (1, None)
    (tmp_path / "audit.jsonl").rename(tmp_path / "mine.jsonl")
    assert file.append([plain(2)], 0) == (1, None)
    file.close()
    (entry,), _ = Files(tmp_path).check()
    assert entry.seq == 2


def test_a_disk_that_is_full_cuts_a_line_and_the_next_ones_count_what_was_lost(tmp_path: Path) -> None:
    file = AuditFile(tmp_path, MIB)
    assert file.append([plain(1)], 0) == (1, None)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        # The kernel takes as much as fits, as a disk that is nearly full does, and then nothing.
        resource.setrlimit(resource.RLIMIT_FSIZE, ((tmp_path / "audit.jsonl").stat().st_size + 30, limits[1]))
        written, error = file.append([plain(2)], 0)
        again, too_large = file.append([plain(3)], 1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)
    assert error is not None
    assert too_large is not None
    assert (written, error.errno, again, too_large.errno) == (0, errno.ENOSPC, 0, errno.EFBIG)
    assert file.append([plain(4), plain(5)], 2) == (2, None)
    file.close()
    entries, findings = Files(tmp_path).check()
    assert [(entry.seq, entry.lost) for entry in entries] == [(1, 0), (2, 2), (3, 0)]
    assert not any(one.bad for one in findings)


def test_a_second_runner_does_not_write_into_the_trail_of_the_first(tmp_path: Path) -> None:
    first, second = AuditFile(tmp_path, MIB), AuditFile(tmp_path, MIB)
    first.open()
    written, error = second.append([plain(1)], 0)
    assert error is not None
    assert (written, error.strerror) == (0, "another runner of this user writes to it")
    first.close()
    assert second.append([plain(1)], 0) == (1, None)
    second.close()


@pytest.mark.parametrize("what", ["link", "pipe", "directory"])
def test_what_is_no_plain_file_is_not_written_to(tmp_path: Path, what: str) -> None:
    path = tmp_path / "state" / "audit.jsonl"
    path.parent.mkdir()
    if what == "link":
        path.symlink_to(tmp_path / "elsewhere")
    elif what == "pipe":
        os.mkfifo(path)
    else:
        path.mkdir()
    file = AuditFile(path.parent, MIB)
    written, error = file.append([plain(1)], 0)
    file.close()
    assert written == 0
    assert error is not None
    assert not (tmp_path / "elsewhere").exists()


WRITER = """
import sys
from pathlib import Path
from utter_runner.actions.audit_file import AuditFile
from utter_protocol.audit import AuditEntry, AuditResult, AuditSource
file = AuditFile(Path(sys.argv[1]), 2**20)
entry = AuditEntry(time="", session="", op="mute", args_sha256="", args={"pad": "x" * 3000}, provenance="user",
                   source=AuditSource(kind="voice"), decision="allow", rule="allowed",
                   result=AuditResult(status="ok"), duration_ms=1.0)
while True:
    print(file.append([entry] * 20, 0)[0], flush=True)
"""


def test_a_runner_that_is_killed_while_it_writes_leaves_whole_lines(tmp_path: Path) -> None:
    told = 0
    for lives in range(4):
        with subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            for _ in range(3 + 7 * lives):
                told += int(process.stdout.readline())
            process.kill()
            told += sum(map(int, process.stdout.read().splitlines()))
    entries, findings = Files(tmp_path).check()
    assert not any(one.bad for one in findings), findings
    # What was written when it was told so is there; a batch may have been under way.
    assert told <= entries[-1].seq <= told + 4 * 20


# ---- the trail beside the loop


@asynccontextmanager
async def running(trail: AuditTrail) -> AsyncIterator[None]:
    async with trio.open_nursery() as nursery:
        await nursery.start(trail.run)
        yield
        nursery.cancel_scope.cancel()


def record(number: int = 0) -> Record:
    proposed = step("mute", {"n": number})
    made = Record(proposed, USER, Deny(op="mute", code=-32003, rule="off", detail="", data={}), CLIENT)
    made.end(None, RpcError(ErrorCode.NOT_PERMITTED, "off"))
    return made


class SlowFile:
    """An `AuditFile` that waits until it may write, and may fail."""

    def __init__(self, *, error: OSError | None = None) -> None:
        self.path = Path("/somewhere/audit.jsonl")
        self.error = error
        self.go = threading.Event()
        self.asked = threading.Event()
        self.written: list[AuditEntry] = []
        self.lost: list[int] = []

    def open(self) -> None:
        if self.error is not None:
            raise self.error

    def append(self, entries: Sequence[AuditEntry], lost: int) -> tuple[int, OSError | None]:
        self.asked.set()
        assert self.go.wait(60)
        if self.error is not None:
            return 0, self.error
        self.written += entries
        self.lost.append(lost)
        return len(entries), None

    def close(self) -> None:
        self.error = None


def trail_of(file: Any, warn: Callable[[str], None], *, required: bool = False, content: bool = False) -> AuditTrail:
    return AuditTrail(file, required=required, content=content, warn=warn)


async def test_what_is_taken_is_on_disk_when_the_runner_has_stopped(tmp_path: Path) -> None:
    warnings: list[str] = []
    trail = trail_of(AuditFile(tmp_path, MIB), warnings.append)
    async with running(trail):
        for number in range(10):
            trail.take(record(number))
    entries, findings = Files(tmp_path).check()
    assert [entry.args_sha256 for entry in entries] == [sha({"n": number}) for number in range(10)]
    assert (findings, warnings) == ([], [])


@pytest.mark.parametrize("content", [True, False])
async def test_arguments_stand_in_it_only_where_content_may_be_logged(tmp_path: Path, content: bool) -> None:
    trail = trail_of(AuditFile(tmp_path, MIB), lambda _text: None, content=content)
    async with running(trail):
        trail.take(record(77))
    (entry,), _ = Files(tmp_path).check()
    assert entry.args == ({"n": 77} if content else None)


async def test_long_arguments_never_stand_in_it(tmp_path: Path) -> None:
    long = Record(step("mute", {"n": "x" * 9000}), USER, Deny(op="mute", code=1, rule="", detail="", data={}), CLIENT)
    entry = long.entry(content=True)
    assert entry.args is None
    assert entry.args_sha256 == sha({"n": "x" * 9000})


async def test_a_slow_disk_holds_up_nobody_and_what_is_lost_is_counted() -> None:
    file, warnings = SlowFile(), list[str]()
    trail = trail_of(file, warnings.append)
    async with running(trail):
        trail.take(record())
        await trio.to_thread.run_sync(file.asked.wait, 60)
        # The one on its way counts, too, until it is written.
        for number in range(MAX_WAITING + 6):
            trail.take(record(number))
        (warning,) = warnings
        assert warning == f"The audit trail loses lines: More than max_audit_lines ({MAX_WAITING}) wait for the disk."
        assert trail.status()["lost"] == 7
        file.go.set()
    assert len(file.written) == MAX_WAITING
    assert sum(file.lost) == 7
    assert trail.status() == {"path": "/somewhere/audit.jsonl", "detail": "", "lost": 7}


@pytest.mark.parametrize("required", [True, False])
async def test_a_trail_that_cannot_be_written_warns_once_and_recovers(required: bool) -> None:
    file = SlowFile(error=OSError(errno.ENOSPC, "No space left on device"))
    file.go.set()
    warned, warnings = trio.Event(), list[str]()

    def warn(text: str) -> None:
        warnings.append(text)
        warned.set()

    trail = trail_of(file, warn, required=required)
    async with running(trail):
        assert bool(trail.refusal()) is required
        with trio.fail_after(60):
            await warned.wait()
        assert bool(trail.refusal()) is required
        for number in range(3):
            trail.take(record(number))
        with trio.fail_after(60):
            while trail.status()["lost"] < 3:
                await trio.lowlevel.checkpoint()
        assert warnings == ["The audit trail /somewhere/audit.jsonl cannot be written: No space left on device."]
        file.error = None
        # Whoever is denied for this is written down, too, and that shows whether it can be written again.
        trail.take(record(4))
        with trio.fail_after(60):
            while not file.written:
                await trio.lowlevel.checkpoint()
            while trail.refusal():
                await trio.lowlevel.checkpoint()
    assert file.lost == [3]
    assert trail.status()["detail"] == ""


async def test_a_disk_that_hangs_does_not_keep_the_runner_from_stopping(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_FLUSH_SECONDS", 0.01)
    file = SlowFile()
    trail = trail_of(file, lambda _text: None)
    with trio.fail_after(60):
        async with running(trail):
            trail.take(record())
            await trio.to_thread.run_sync(file.asked.wait, 60)
        assert file.written == []
        file.go.set()
        # Until the thread that was left behind is idle.
        while any("append" in thread.name for thread in threading.enumerate()):
            await trio.lowlevel.checkpoint()


async def test_a_required_trail_lets_steps_pass_once_it_is_open(tmp_path: Path) -> None:
    trail = trail_of(AuditFile(tmp_path, MIB), lambda _text: None, required=True)
    assert trail.refusal() == "Nothing is done before the audit trail is open."
    async with running(trail):
        with trio.fail_after(60):
            while trail.refusal():
                await trio.lowlevel.checkpoint()
    assert json.loads(msgspec.json.encode(trail.status())) == {
        "path": str(tmp_path / "audit.jsonl"),
        "detail": "",
        "lost": 0,
    }
