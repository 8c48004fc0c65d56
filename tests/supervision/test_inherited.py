"""Descriptors that a plugin's process inherits: each epoch its own, and none is left when it is over."""

from __future__ import annotations

import errno
import os
from typing import Any

import msgspec
import pytest

from support.supervision_tools import House, call, house, plugin
from utter_protocol.errors import RpcError
from utter_runner.supervision.launch import Inherited


class Maker:
    """Makes a pipe for each process, and keeps its writing end."""

    def __init__(self) -> None:
        self.given: list[tuple[int, int]] = []
        self.ended: list[int] = []
        self._writing: dict[int, int] = {}

    def __call__(self) -> Inherited:
        reading, writing = os.pipe2(os.O_CLOEXEC)
        number = len(self.given) + 1
        self.given.append((reading, os.fstat(reading).st_ino))
        self._writing[number] = writing

        def end() -> None:
            self.ended.append(number)
            os.close(self._writing.pop(number))

        return Inherited({"UTTER_TEST_FD": reading}, end)

    @property
    def open(self) -> list[int]:
        """Which epochs are not over."""
        return sorted(self._writing)


def is_open(given: tuple[int, int]) -> bool:
    """Whether the descriptor is open here; its number may be another one's by now."""
    fd, inode = given
    try:
        return os.fstat(fd).st_ino == inode
    except OSError:
        return False


async def test_each_epoch_inherits_its_own_and_the_last_ones_are_let_go() -> None:
    maker = Maker()
    hearing = plugin("hearing", inherits_ring=True)
    async with house(hearing, plugin("other"), inherit=maker) as made:
        assert (maker.open, maker.ended) == ([1], [])
        # The process has it now, and nobody else.
        assert not any(map(is_open, maker.given))
        for epoch in (1, 2):
            with pytest.raises(RpcError):
                await call(made, "hearing", "exit", {"code": 1})
            await _ready(made, epoch + 1)
            assert (maker.open, maker.ended) == ([epoch + 1], [*range(1, epoch + 1)])
    assert (maker.open, maker.ended) == ([], [1, 2, 3])


async def _ready(made: House, epoch: int) -> None:
    instance = made.supervisor.get("hearing")
    await made.until(lambda: (instance.epoch, instance.status) == (epoch, "ready"))


async def test_what_was_made_for_a_process_that_cannot_be_started_is_let_go() -> None:
    maker = Maker()
    hearing = msgspec.structs.replace(plugin("hearing", inherits_ring=True), argv=("/nowhere/at-all",))
    async with house(hearing, inherit=maker) as made:
        assert made.supervisor.get("hearing").status == "failed"
        assert (maker.open, maker.ended) == ([], [1])
        assert not is_open(maker.given[0])


async def test_a_ring_that_cannot_be_opened_fails_the_plugin_and_says_so() -> None:
    def refuse() -> Any:
        raise OSError(errno.EMFILE, "Too many open files")

    async with house(plugin("hearing", inherits_ring=True), plugin("other"), inherit=refuse) as made:
        instance = made.supervisor.get("hearing")
        assert instance.status == "failed"
        assert instance.detail == "the audio ring cannot be opened for it: Too many open files"
        assert made.supervisor.get("other").status == "ready"
