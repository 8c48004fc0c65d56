"""runner.logs and the stream runner.log."""

from __future__ import annotations

import logging
import sys
from typing import Any

import msgspec
import pytest
import trio

from utter_protocol.methods import LogLine, LogsParams
from utter_runner.clients.logs import MAX_LINE, LogBacklog
from utter_runner.dataplane.hub import Hub, Topic

ROOM = 2**20


@pytest.fixture
def logger() -> logging.Logger:
    made = logging.Logger("utter_runner.test")  # noqa: LOG001 - one that only the test has
    made.setLevel(logging.DEBUG)
    return made


def backlog_of(logger: logging.Logger, **bounds: int) -> LogBacklog:
    backlog = LogBacklog(**bounds)
    logger.addHandler(backlog)
    return backlog


def texts(backlog: LogBacklog, *, room: int = ROOM, **query: Any) -> list[str]:
    return [line.text for line in backlog.answer(LogsParams(**query), room=room).lines]


def test_lines_have_what_records_have(logger: logging.Logger) -> None:
    backlog = backlog_of(logger)
    logger.warning("%s: %s", "whisper", "a\x1b[31m\nb", extra={"plugin": "whisper", "epoch": 3})
    logger.info("said", extra={"session": "s-1"})
    first, second = backlog.answer(LogsParams(), room=ROOM).lines
    assert (first.seq, first.level, first.logger) == (1, "warning", "utter_runner.test")
    assert first.text == r"whisper: a\x1b[31m\nb"
    assert (first.plugin, first.epoch, first.session) == ("whisper", 3, None)
    assert (second.plugin, second.session) == (None, "s-1")
    assert first.time <= second.time
    assert first.time.endswith("Z")
    assert "plugin" not in msgspec.to_builtins(second)


def test_queries(logger: logging.Logger) -> None:
    backlog = backlog_of(logger)
    for number, level in enumerate((logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR, logging.CRITICAL)):
        logger.log(level, "%d", number, extra={"plugin": "even" if number % 2 == 0 else "odd"})
    assert texts(backlog) == ["0", "1", "2", "3", "4"]
    assert texts(backlog, level="warning") == ["2", "3", "4"]
    assert texts(backlog, plugin="odd") == ["1", "3"]
    assert texts(backlog, plugin="even", last=2, level="info") == ["2", "4"]
    assert texts(backlog, plugin="none") == []
    # What does not fit is left out from the oldest on.
    assert texts(backlog, room=2 * 300) == ["3", "4"]


def test_a_traceback_is_lines(logger: logging.Logger) -> None:
    backlog = backlog_of(logger)
    try:
        int("two\nlines")
    except ValueError:
        logger.exception("it failed", extra={"plugin": "x"})
    lines = backlog.answer(LogsParams(plugin="x"), room=ROOM).lines
    assert [lines[0].text, lines[1].text] == ["it failed", "  Traceback (most recent call last):"]
    assert lines[-1].text.startswith("  ValueError: ")
    assert [line.seq for line in lines] == list(range(1, len(lines) + 1))


def test_it_is_bounded(logger: logging.Logger) -> None:
    backlog = backlog_of(logger, max_lines=3, max_bytes=1000)
    for number in range(5):
        logger.info("%d", number)
    assert texts(backlog) == ["2", "3", "4"]
    assert backlog.answer(LogsParams(), room=ROOM).lost == 2
    logger.info("x" * 999)
    assert texts(backlog) == ["4", "x" * 999]
    logger.info("y" * 2 * MAX_LINE)
    assert texts(backlog) == []
    full = backlog_of(logger)
    logger.info("\x1b" * 2 * MAX_LINE)
    assert [len(text) for text in texts(full)] == [MAX_LINE]


def test_what_cannot_be_formatted_harms_nobody(logger: logging.Logger, capsys: pytest.CaptureFixture[str]) -> None:
    backlog = backlog_of(logger)
    logger.info("%d", "no number")
    logger.info("after")
    assert texts(backlog) == ["after"]
    assert "Logging error" in capsys.readouterr().err


class Listening(Topic):
    """A topic whose only subscriber notes what is sent, and logs about it."""

    def __init__(self, logger: logging.Logger) -> None:
        super().__init__(Hub(queue=8, window=8), "runner.log", "lossy")
        self.sent: list[str] = []
        self._logger = logger

    def send(self, item: object) -> int:
        assert isinstance(item, LogLine)
        self.sent.append(item.text)
        self._logger.debug("sent %s", item.text)
        return 1


async def settle() -> None:
    for _ in range(10):
        await trio.lowlevel.checkpoint()


async def test_what_streaming_logs_is_kept_and_not_streamed(logger: logging.Logger) -> None:
    backlog = backlog_of(logger)
    topic = Listening(logger)
    backlog.serve(topic)
    logger.info("before")
    backlog.want(wanted=True)
    logger.info("one")
    await settle()
    await trio.to_thread.run_sync(logger.info, "two")
    await settle()
    backlog.want(wanted=False)
    logger.info("after")
    await settle()
    assert topic.sent == ["one", "two"]
    assert texts(backlog) == ["before", "one", "sent one", "two", "sent two", "after"]


def test_logging_after_the_loop_is_over(logger: logging.Logger) -> None:
    backlog = backlog_of(logger)
    backlog.serve(Listening(logger))

    async def main() -> None:
        await trio.lowlevel.checkpoint()
        backlog.want(wanted=True)

    trio.run(main)
    logger.info("late")
    assert texts(backlog) == ["late"]
    assert sys.exc_info() == (None, None, None)
