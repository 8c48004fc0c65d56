from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.daemon import Daemon, hostile
from support.journal import Journal, decode
from utter_runner.config.log_fields import about, in_session
from utter_runner.operate.journal import JournalSocket, StreamSocket, encode, is_journal
from utter_runner.operate.log_handlers import JournalHandler, LineFormatter, log_handler, priority

NAMES = st.from_regex(r"[A-Z][A-Z0-9_]{0,63}", fullmatch=True)
VALUES = st.text(st.characters(exclude_categories=["Cs"])) | st.sampled_from(["", "\n", "a=b", "x\nFORGED=1\n", "é\n"])


@given(fields=st.lists(st.tuples(NAMES, VALUES)))
def test_what_is_encoded_is_what_is_read(fields: list[tuple[str, str]]) -> None:
    assert decode(encode(fields)) == fields


@given(value=st.text())
def test_any_text_is_a_value(value: str) -> None:
    (field,) = decode(encode([("MESSAGE", value)]))
    assert field == ("MESSAGE", value.encode("utf-8", "backslashreplace").decode())


@pytest.mark.parametrize("name", ["", "_PID", "1ST", "lower", "A-B", "A" * 65, "A=B", "A\nB", "É", "A\n"])
def test_a_name_that_the_journal_drops_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="no name of a journal field"):
        encode([(name, "x")])


@pytest.mark.parametrize(
    ("level", "number"),
    [
        (logging.CRITICAL, 2),
        (logging.ERROR, 3),
        (logging.WARNING, 4),
        (25, 6),
        (logging.INFO, 6),
        (logging.DEBUG, 7),
        (1, 7),
    ],
)
def test_levels_are_the_priorities_of_syslog(level: int, number: int) -> None:
    assert priority(level) == number


# ---- is stderr the journal?


def named(fd: int) -> str:
    status = os.fstat(fd)
    return f"{status.st_dev}:{status.st_ino}"


def test_stderr_is_the_journal_only_if_the_variable_names_that_socket(tmp_path: Path) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        fd, right = theirs.fileno(), named(theirs.fileno())
        assert is_journal({"JOURNAL_STREAM": right}, fd)
        for wrong in ({}, {"JOURNAL_STREAM": ""}, {"JOURNAL_STREAM": "x"}, {"JOURNAL_STREAM": f"{right}1"}):
            assert not is_journal(wrong, fd)
        assert not is_journal({"JOURNAL_STREAM": right}, ours.fileno())
    assert not is_journal({"JOURNAL_STREAM": right}, fd)
    with (tmp_path / "file").open("w") as file:
        assert not is_journal({"JOURNAL_STREAM": named(file.fileno())}, file.fileno())


def test_elsewhere_there_are_lines() -> None:
    ours, theirs = os.pipe()
    handler = log_handler({"JOURNAL_STREAM": "1:1"}, theirs)
    assert isinstance(handler, logging.StreamHandler)
    handler.emit(_record("hello\x1b"))
    handler.stream.close()
    os.close(theirs)
    with os.fdopen(ours) as lines:
        assert lines.read() == "WARNING test: hello\\x1b\n"


# ---- the handler against a real socket


def _record(text: str, level: int = logging.WARNING, **extra: object) -> logging.LogRecord:
    record = logging.LogRecord("test", level, "/x/y.py", 7, text, (), None, "work")
    for name, value in extra.items():
        setattr(record, name, value)
    return record


class Stage:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.stream, other = socket.socketpair()
        self.stream.settimeout(0)
        self.handler = JournalHandler(JournalSocket(str(path)), StreamSocket(other.fileno()))
        other.close()


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    made = Stage(tmp_path / "journal")
    yield made
    made.handler.close()
    made.stream.close()


class Plugin:
    id = "whisper"
    epoch = 3


def test_a_record_has_its_fields(stage: Stage) -> None:
    with Journal(stage.path) as journal:
        stage.handler.emit(_record("it \x1b[2J failed", logging.ERROR, **about(Plugin(), "s-1")))
        assert journal.receive() == {
            "MESSAGE": "it \\x1b[2J failed",
            "PRIORITY": "3",
            "SYSLOG_IDENTIFIER": "utter-runner",
            "LOGGER": "test",
            "CODE_FILE": "/x/y.py",
            "CODE_LINE": "7",
            "CODE_FUNC": "work",
            "PLUGIN": "whisper",
            "EPOCH": "3",
            "SESSION": "s-1",
        }
        stage.handler.emit(_record("x", **in_session(""), **about("keys")))
        record = journal.receive()
        assert record["PLUGIN"] == "keys"
        assert not {"EPOCH", "SESSION"} & set(record)


def test_a_traceback_is_below_its_message(stage: Stage) -> None:
    record = _record("it failed")
    error = ValueError("one\nMESSAGE=forged")
    record.exc_info = (ValueError, error, None)
    with Journal(stage.path) as journal:
        stage.handler.emit(record)
        assert journal.receive()["MESSAGE"] == LineFormatter("%(message)s").format(record)
        assert "\n  MESSAGE=forged" in LineFormatter("%(message)s").format(record)


def test_what_is_too_large_for_a_datagram_goes_through_sealed_memory(stage: Stage) -> None:
    text = "x" * 4_000_000
    with Journal(stage.path) as journal:
        stage.handler.emit(_record(text))
        assert journal.receive()["MESSAGE"] == text
        assert journal.passed == 1


def test_without_a_journal_there_are_lines_and_with_a_new_one_records_again(stage: Stage) -> None:
    stage.handler.emit(_record("nobody there"))
    assert stage.stream.recv(1000) == b"<4>WARNING test: nobody there\n"
    with Journal(stage.path) as journal:
        stage.handler.emit(_record("there"))
        assert journal.receive()["MESSAGE"] == "there"
    stage.handler.emit(_record("gone again"))
    assert stage.stream.recv(1000) == b"<4>WARNING test: gone again\n"
    with Journal(stage.path) as journal:
        stage.handler.emit(_record("restarted"))
        assert journal.receive()["MESSAGE"] == "restarted"


def test_a_journal_that_stands_still_holds_nobody_up_and_the_loss_is_told(stage: Stage) -> None:
    with Journal(stage.path) as journal:
        count = 0
        while not stage.handler._lost:
            stage.handler.emit(_record(str(count)))
            count += 1
        stage.handler.emit(_record("lost, too"))
        assert [journal.receive()["MESSAGE"] for _ in range(count - 1)] == [str(number) for number in range(count - 1)]
        stage.handler.emit(_record("after"))
        assert journal.receive()["MESSAGE"] == "2 records were lost, because the journal did not take them"
        assert journal.receive()["MESSAGE"] == "after"


def test_neither_journal_nor_stderr_holds_anybody_up(stage: Stage) -> None:
    # Nobody reads the stream either.
    while not stage.handler._lost:
        stage.handler.emit(_record("x" * 1000))


def test_a_record_that_cannot_be_formatted_reaches_nobody(stage: Stage, capsys: pytest.CaptureFixture[str]) -> None:
    record = _record("%d")
    record.args = ("x",)
    stage.handler.emit(record)
    assert "Logging error" in capsys.readouterr().err


# ---- the real daemon

# What lies at a fixed place on a machine is a journal of the test's here, and stderr a socket to nobody.
UNDER_A_JOURNAL = """
import os, socket, sys
from functools import partial
from utter_runner import main
ours, theirs = socket.socketpair()
os.dup2(theirs.fileno(), 2)
status = os.fstat(2)
os.environ["JOURNAL_STREAM"] = f"{status.st_dev}:{status.st_ino}"
main.log_handler = partial(main.log_handler, journal=sys.argv.pop(1))
sys.exit(main.main())
"""


def test_the_daemon_logs_to_the_journal_with_the_plugin_and_its_epoch(tmp_path: Path) -> None:
    with (
        Journal(tmp_path / "journal") as journal,
        Daemon(
            tmp_path,
            hostile("talker"),
            wait=False,
            program=("-c", UNDER_A_JOURNAL, str(tmp_path / "journal")),
        ) as daemon,
    ):
        record = journal.wait_for("ready on")
        assert (record["LOGGER"], record["PRIORITY"]) == ("utter_runner", "6")
        assert record["SYSLOG_IDENTIFIER"] == "utter-runner"
        assert "PLUGIN" not in record
        with daemon.client() as client:
            client.call("runner.invoke", {"plugin": "talker", "method": "stderr", "params": {}})
        record = journal.wait_for("talker: ")
        assert (record["PLUGIN"], record["EPOCH"], record["PRIORITY"]) == ("talker", "1", "6")
