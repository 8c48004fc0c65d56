"""What the gate tells about each step, and the trail that keeps it.

Rules here: the gate never waits for the trail: what cannot be taken is counted, and the next line says so. Files are
only touched on a thread. The arguments of a step are not kept, their hash is, unless content may be logged.
"""

from __future__ import annotations

import hashlib
import logging
from collections import deque
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal, Protocol

import msgspec
import trio

from utter_protocol.audit import (
    MAX_ARGS,
    AuditConfirmation,
    AuditEntry,
    AuditResult,
    AuditSource,
    canonical_json,
)
from utter_protocol.errors import ErrorCode
from utter_runner.config.log_fields import about, in_session
from utter_runner.policy import Confirm, Deny
from utter_runner.policy.builtin import ArgumentError
from utter_runner.policy.json_values import copy_args
from utter_runner.policy.provenance import effective

if TYPE_CHECKING:
    from collections.abc import Callable

    from msgspec import Raw

    from utter_protocol.errors import RpcError
    from utter_protocol.methods import PlannedStep
    from utter_runner.actions.audit_file import AuditFile
    from utter_runner.policy import Decision, Origin

logger = logging.getLogger(__name__)

MAX_WAITING = 1_024
"""How many lines may wait for the disk."""
_FLUSH_SECONDS = 2.0
_RETRY_SECONDS = 5.0
_MAX_TAINTED = 32
_MAX_NAME = 128
_MAX_PATH = 512


class Auditor(Protocol):
    """Who is told of each step that reached the gate."""

    def refusal(self) -> str:
        """Why no step may be done now, as a sentence; empty when steps may."""

    def take(self, record: Record) -> None:
        """Take note of a step that is over. Never waits and never raises."""


class Unaudited:
    """Keeps nothing (`[log] audit = "off"`)."""

    def refusal(self) -> str:
        """Steps may be done."""
        return ""

    def take(self, record: Record) -> None:
        """Let it go."""


class MemoryAudit:
    """A fake that keeps entries in a list; `why` is what `refusal` says."""

    def __init__(self, *, content: bool = False) -> None:
        self.entries: list[AuditEntry] = []
        self.why = ""
        self._content = content

    def refusal(self) -> str:
        """Say what it was told to say."""
        return self.why

    def take(self, record: Record) -> None:
        """Keep it."""
        self.entries.append(record.entry(content=self._content))


class _Done(msgspec.Struct):
    """As much of an ActionResult as counts here."""

    ok: bool


class Record:
    """One step on its way through the gate.

    Args:
        step: what was proposed.
        origin: what the runner knows of it.
        decision: what was decided.
        source: who asked.
    """

    def __init__(self, step: PlannedStep, origin: Origin, decision: Decision, source: AuditSource) -> None:
        self._began = trio.current_time()
        self._time = datetime.now(UTC)
        self._took = 0.0
        self._session = origin.session
        self._decision = decision
        self._args = _proposed(step.args) if isinstance(decision, Deny) else decision.args
        grades = effective(step, origin)
        self._provenance = grades.lowest
        self._tainted = sorted(grades.tainted)[:_MAX_TAINTED]
        self._source = source
        self._confirmation: AuditConfirmation | None = None
        self._result = AuditResult(status="error")
        self._plugin = "" if isinstance(decision, Deny) else decision.plugin
        self._epoch = 0

    @property
    def log_fields(self) -> dict[str, str | int]:
        """`extra` of log records about it."""
        return about(self._plugin, self._session) if self._plugin else in_session(self._session)

    def asked(
        self, state: Literal["approved", "denied", "timed_out", "withdrawn"] = "withdrawn", surface: str = ""
    ) -> None:
        """A person is asked, or has been."""
        self._confirmation = AuditConfirmation(state=state, surface=surface)

    def sent(self, plugin: str, epoch: int) -> None:
        """It goes to a plugin."""
        self._plugin, self._epoch = plugin, epoch

    def end(self, result: Raw | None, error: RpcError | None) -> None:
        """It is over, with what the asker is told."""
        self._took = trio.current_time() - self._began
        if error is None:
            self._result = AuditResult(status="ok" if result is not None and _done(result) else "failed")
        elif error.code == ErrorCode.CANCELLED:
            self._result = AuditResult(status="cancelled", code=error.code)
        elif isinstance(self._decision, Deny) or (self._confirmation is not None and not self._epoch):
            self._result = AuditResult(status="denied", code=error.code)
        elif error.code == ErrorCode.TIMED_OUT:
            self._result = AuditResult(status="late", code=error.code)
        else:
            self._result = AuditResult(status="error", code=error.code)

    def entry(self, *, content: bool) -> AuditEntry:
        """As a line that has no place yet; `content` is whether the arguments may stand in it."""
        canonical = b"" if self._args is None else canonical_json(self._args)
        return AuditEntry(
            time=self._time.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            session=self._session[:_MAX_NAME],
            op=self._decision.op[:_MAX_NAME],
            args_sha256="" if self._args is None else hashlib.sha256(canonical).hexdigest(),
            args=self._args if content and len(canonical) <= MAX_ARGS else None,
            provenance=self._provenance,
            tainted=[name[:_MAX_NAME] for name in self._tainted],
            source=msgspec.structs.replace(self._source, program=self._source.program[:_MAX_PATH]),
            decision=_name(self._decision),
            rule=self._decision.rule,
            confirmation=self._confirmation,
            result=self._result,
            plugin=self._plugin,
            epoch=self._epoch,
            duration_ms=round(self._took * 1000, 3),
        )


def _name(decision: Decision) -> Literal["allow", "confirm", "deny"]:
    if isinstance(decision, Deny):
        return "deny"
    return "confirm" if isinstance(decision, Confirm) else "allow"


def _proposed(args: dict[str, Any]) -> dict[str, Any] | None:
    """Arguments that nobody has checked, or None if they pass the policy's bounds."""
    try:
        return copy_args(args)
    except ArgumentError:
        return None


def _done(result: Raw) -> bool:
    try:
        return msgspec.json.decode(result, type=_Done).ok
    except (msgspec.MsgspecError, RecursionError):
        return False


class AuditTrail:
    """Keeps the trail on disk.

    Args:
        file: writes lines, on a thread.
        required: whether steps are refused while lines cannot be written.
        content: whether arguments stand in the lines.
        warn: told in a sentence when lines cannot be written, once until they can be again.
    """

    def __init__(self, file: AuditFile, *, required: bool, content: bool, warn: Callable[[str], None]) -> None:
        self._file = file
        self._required = required
        self._content = content
        self._warn = warn
        self._waiting: deque[AuditEntry] = deque()
        self._lost = 0
        self._lost_in_all = 0
        self._trouble = ""
        self._opened = False
        self._stopping = False
        self._wake = trio.Event()

    def reconfigure(self, *, required: bool, content: bool, limit: int) -> None:
        """Keep the next lines in another way; `limit` is the bytes of all files together."""
        self._required, self._content = required, content
        self._file.set_limit(limit)

    def refusal(self) -> str:
        """Why no step may be done now: `[log] audit = "required"`, and it cannot be written."""
        if not self._required:
            return ""
        if self._trouble:
            return f'Nothing is done while the audit trail is not kept ([log] audit = "required"): {self._trouble}'
        return "" if self._opened else "Nothing is done before the audit trail is open."

    def take(self, record: Record) -> None:
        """Have a step written, or count it as lost."""
        if len(self._waiting) >= MAX_WAITING:
            self._lose(1, f"More than max_audit_lines ({MAX_WAITING}) wait for the disk.")
            return
        try:
            self._waiting.append(record.entry(content=self._content))
        except Exception:
            logger.exception("a step could not be recorded", extra=record.log_fields)
            self._lose(1, "A step could not be recorded; the log says why.")
        self._wake.set()

    def status(self) -> dict[str, Any]:
        """What `runner.status` says of it."""
        return {"path": str(self._file.path), "detail": self._trouble, "lost": self._lost_in_all}

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Write until cancelled, and then what is left, for as long as `_FLUSH_SECONDS`."""
        # One write may be under way on its thread when this is cancelled; no second one must begin beside it.
        writing = trio.CancelScope(shield=True)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._keep_writing, writing)
            task_status.started()
            try:
                await trio.sleep_forever()
            finally:
                self._stopping = True
                self._wake.set()
                writing.deadline = trio.current_time() + _FLUSH_SECONDS

    async def _keep_writing(self, scope: trio.CancelScope) -> None:
        with scope:
            await self._open()
            while self._waiting or not self._stopping:
                await self._wake.wait()
                if not self._stopping:
                    self._wake = trio.Event()
                await self._write()
            await trio.to_thread.run_sync(self._file.close, abandon_on_cancel=True)

    async def _open(self) -> None:
        """Open it before there is anything to write, so that what is wrong is told at once."""
        while not (self._opened or self._waiting or self._stopping):
            try:
                await trio.to_thread.run_sync(self._file.open, abandon_on_cancel=True)
            except OSError as error:
                self._fail(error)
                with trio.move_on_after(_RETRY_SECONDS):
                    await self._wake.wait()
            else:
                self._opened, self._trouble = True, ""

    async def _write(self) -> None:
        while self._waiting:
            batch = list(self._waiting)
            lost, self._lost = self._lost, 0
            written, error = await trio.to_thread.run_sync(self._file.append, batch, lost, abandon_on_cancel=True)
            for _ in batch:
                self._waiting.popleft()
            if not written:
                self._lost += lost
            if error is None:
                self._opened, self._trouble = True, ""
            else:
                self._lost += len(batch) - written
                self._lost_in_all += len(batch) - written
                self._fail(error)

    def _fail(self, error: OSError) -> None:
        self._report(f"The audit trail {self._file.path} cannot be written: {error.strerror or error}.")

    def _lose(self, count: int, why: str) -> None:
        self._lost += count
        self._lost_in_all += count
        self._report(f"The audit trail loses lines: {why}")

    def _report(self, trouble: str) -> None:
        known, self._trouble = self._trouble, trouble
        if not known:
            self._warn(trouble)
