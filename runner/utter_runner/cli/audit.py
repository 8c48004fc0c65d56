"""`utter audit`: reads the audit trail from its files, whether or not a runner is there.

Rules here: nothing is written; what stands in the files is shown as harmless text; the files may be rotated while they
are read, so they are opened before anything is read of them.
"""

from __future__ import annotations

import os
import time
from collections import deque
from contextlib import ExitStack
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, NamedTuple

import msgspec
import typer

from utter_protocol.audit import AUDIT_NAME, MAX_LINE, Chain, rotated, rotated_name
from utter_protocol.state import state_directory
from utter_runner.cli.connection import UsageError
from utter_runner.cli.exits import Exit
from utter_runner.cli.guard import say
from utter_runner.cli.moments import moment
from utter_runner.cli.options import Json, guarded
from utter_runner.cli.text import document, harmless

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from utter_protocol.audit import AuditEntry

SHOWN = 20
"""How many entries are shown unless the command line says otherwise."""
_POLL_S = 0.2


class Decision(StrEnum):
    """What the policy decided."""

    ALLOW = "allow"
    CONFIRM = "confirm"
    DENY = "deny"


class Wanted(NamedTuple):
    """Which entries are shown."""

    since: str = ""
    op: str = ""
    decision: str = ""

    def takes(self, entry: AuditEntry) -> bool:
        """Whether an entry is one of them."""
        return entry.time >= self.since and self.op in {"", entry.op} and self.decision in {"", entry.decision}


@guarded
def audit(
    last: Annotated[int | None, typer.Option("--last", min=1, metavar="N", help="The last N; 20 by default.")] = None,
    since: Annotated[
        str | None, typer.Option("--since", metavar="TIME", help="From then on: 2h, 30m, or 2026-01-31T09:00.")
    ] = None,
    op: Annotated[str | None, typer.Option("--op", metavar="OP", help="Only this op, such as open_url.")] = None,
    decision: Annotated[Decision | None, typer.Option("--decision", help="Only these.", show_default=False)] = None,
    *,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on with what is being done.")] = False,
    verify: Annotated[bool, typer.Option("--verify", help="Look whether lines were changed or removed.")] = False,
    as_json: Json = False,
) -> Exit:
    """Show what was asked to be done, by whom, what was decided, and what became of it.

    Reads the files of the trail itself, so no runner is needed. With --json each line is the entry as it stands in the
    trail. With --verify, exit code 1: something was changed or removed.
    """
    directory = state_directory(os.environ)
    if verify:
        if any((last, since, op, decision, follow)):
            raise UsageError("--verify looks at the whole trail; it goes with --json only.")
        return _verify(directory, as_json=as_json)
    wanted = Wanted("" if since is None else moment(since, datetime.now(UTC)), op or "", decision or "")
    most = last if last is not None or since is not None else SHOWN
    with ExitStack() as open_files:
        files = _open_all(directory, open_files)
        found = deque((line for line in _lines(files) if _wants(line, wanted)), maxlen=most)
        if not found and not follow:
            say(f"There is no such entry in {directory / AUDIT_NAME}.")
        for line in found:
            _show(line, as_json=as_json)
        if follow:
            _follow(directory, files[-1] if files else None, wanted, as_json=as_json)
    return Exit.DONE


def _open_all(directory: Path, stack: ExitStack) -> list[BinaryIO]:
    """The files of the trail, the oldest first.

    Raises:
        UsageError: they cannot be read.
    """
    try:
        names = os.listdir(directory) if directory.is_dir() else []  # noqa: PTH208 - names are wanted, not paths
        files: list[BinaryIO] = []
        for name in (*map(rotated_name, reversed(rotated(names))), AUDIT_NAME):
            try:
                files.append(stack.enter_context((directory / name).open("rb")))
            except FileNotFoundError:
                # There is none yet, or it was rotated away meanwhile.
                continue
    except OSError as error:
        raise UsageError(f"The audit trail in {directory} cannot be read: {error.strerror}.") from None
    return files


def _lines(files: Iterable[BinaryIO]) -> Iterator[bytes]:
    """The lines, without their ends. The last one of a file may be cut off."""
    seen: set[tuple[int, int]] = set()
    for file in files:
        status = os.fstat(file.fileno())
        if (status.st_dev, status.st_ino) in seen:
            continue
        seen.add((status.st_dev, status.st_ino))
        yield from _lines_of(file)


def _lines_of(file: BinaryIO) -> Iterator[bytes]:
    while line := file.readline(2 * MAX_LINE):
        if line := line.removesuffix(b"\n"):
            yield line


def _entry(line: bytes) -> AuditEntry | None:
    return Chain().take(line)[0]


def _wants(line: bytes, wanted: Wanted) -> bool:
    entry = _entry(line)
    return entry is not None and wanted.takes(entry)


def _show(line: bytes, *, as_json: bool) -> None:
    entry = _entry(line)
    if entry is not None:
        print(document(msgspec.json.decode(line)) if as_json else entry_line(entry), flush=True)


def entry_line(entry: AuditEntry) -> str:
    """One entry for a person."""
    source = entry.source
    who = {"client": f"client {source.pid} {source.program}".rstrip(), "plugin": f"plugin {source.plugin}"}
    words = [
        entry.time,
        entry.result.status if entry.result.code is None else f"{entry.result.status} ({entry.result.code})",
        entry.op,
        "" if entry.args is None else document(entry.args),
        f"by {who.get(source.kind, source.kind)}",
        f"for {entry.plugin}" if entry.plugin else "",
        f"- {entry.decision} by {entry.rule}",
        f"tainted {', '.join(entry.tainted)}" if entry.tainted else entry.provenance,
        "" if entry.confirmation is None else _asked(entry.confirmation.state, entry.confirmation.surface),
        f"{entry.duration_ms:.0f} ms",
    ]
    return harmless(" ".join(filter(None, words)))


def _asked(state: str, surface: str) -> str:
    return f"confirmation {state}" + (f" on {surface}" if surface else "")


def _follow(directory: Path, file: BinaryIO | None, wanted: Wanted, *, as_json: bool) -> None:
    """Show what is added, until Ctrl-C."""
    with ExitStack() as stack:
        rest = b""
        while True:
            if file is not None:
                *lines, rest = (rest + file.read()).split(b"\n")
                for line in lines:
                    if _wants(line, wanted):
                        _show(line, as_json=as_json)
            newer = _newer(directory, file)
            if newer is None:
                time.sleep(_POLL_S)
            elif file is None or not (data := file.read()):
                if file is not None:
                    file.close()
                file, rest = stack.enter_context(newer), b""
            else:
                # It was written to once more before it was rotated.
                newer.close()
                rest += data


def _newer(directory: Path, file: BinaryIO | None) -> BinaryIO | None:
    """The file that is written now, if that is another one."""
    try:
        now = (directory / AUDIT_NAME).open("rb")
    except OSError:
        return None
    if file is not None and os.path.sameopenfile(now.fileno(), file.fileno()):
        now.close()
        return None
    return now


def _verify(directory: Path, *, as_json: bool) -> Exit:
    chain = Chain()
    findings = []
    with ExitStack() as stack:
        files = _open_all(directory, stack)
        for line in _lines(files):
            findings += chain.take(line)[1]
        findings += chain.end(whole=not files or _ends(files[-1]))
    bad = [one.text for one in findings if one.bad]
    if as_json:
        notes = [one.text for one in findings if not one.bad]
        print(document(_report(directory, chain.entries, bad, notes)))
    else:
        for one in findings:
            print(f"{'PROBLEM' if one.bad else 'note'}: {one.text}")
        print(f"{directory / AUDIT_NAME}: {chain.entries} entries; problems: {len(bad)}")
    return Exit.FAILED if bad else Exit.DONE


def _report(directory: Path, entries: int, problems: list[str], notes: list[str]) -> Mapping[str, Any]:
    return {"path": str(directory / AUDIT_NAME), "entries": entries, "problems": problems, "notes": notes}


def _ends(file: BinaryIO) -> bool:
    size = file.seek(0, os.SEEK_END)
    if not size:
        return True
    file.seek(size - 1)
    return file.read(1) == b"\n"
