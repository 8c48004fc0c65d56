"""One reload after the other, none before the start is over, and nothing half done."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from utter_runner import reload as room
from utter_runner.config import Config, ConfigError, parse_config
from utter_runner.config.changes import changed_keys, keeping, takes_effect
from utter_runner.reload import MAX_TOLD, Found, Reloads
from utter_runner.setup import Setup
from utter_runner.supervision.life import Changes
from utter_runner.supervision.spec import PluginSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

QUIET = "[hotkeys]\nenabled = false\n"


class Disk:
    """What is read, and what is taken over."""

    def __init__(self, *texts: str) -> None:
        self.texts = list(texts)
        self.problems: list[str] = []
        self.specs: list[PluginSpec] = []
        self.reading = 0
        self.taken: list[Found] = []
        self.over = 0
        self.reloads = Reloads(self.setup(parse_config(QUIET)), self.read, take_over=self.take, on_over=self.note)

    def setup(self, config: Config) -> Setup:
        return Setup(config, self.specs, self.problems)

    def read(self, adapt: Callable[[Config], Config]) -> Setup:
        self.reading += 1
        assert self.reading == 1, "two at a time"
        try:
            return self.setup(adapt(parse_config(self.texts.pop(0) + QUIET)))
        finally:
            self.reading -= 1

    def take(self, found: Found) -> Changes:
        self.taken.append(found)
        return Changes(added=("lamp",))

    def note(self) -> None:
        self.over += 1


async def test_they_wait_for_the_start_and_for_each_other() -> None:
    disk = Disk(*[f"[runner]\nmax_clients = {number}\n" for number in range(1, 6)])
    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(disk.reloads.reload)
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert len(disk.texts) == 5
        disk.reloads.begin()
    assert [found.setup.config.runner.max_clients for found in disk.taken] == [1, 2, 3, 4, 5]
    assert disk.over == 5


async def test_what_is_refused_is_told_until_it_is_mended() -> None:
    disk = Disk("[vioce]\n", "[voice\n", "")
    disk.reloads.begin()
    for _ in range(2):
        answer = await disk.reloads.reload()
        assert not answer.ok
        assert len([*disk.reloads.warnings()]) == len(answer.problems) == 1
    assert (await disk.reloads.reload()).ok
    assert [*disk.reloads.warnings()] == []
    assert len(disk.taken) == 1


async def test_not_every_problem_is_told_in_the_status() -> None:
    disk = Disk("".join(f"wrong{number} = 1\n" for number in range(MAX_TOLD + 3)))
    disk.reloads.begin()
    answer = await disk.reloads.reload()
    assert len(answer.problems) == MAX_TOLD + 3
    told = [*disk.reloads.warnings()]
    assert (len(told), "3 more problems" in told[-1]) == (MAX_TOLD + 1, True)


async def test_keys_that_wait_are_told_by_each_reload() -> None:
    disk = Disk(*["[audio]\nring_seconds = 5\n[voice]\nlanguage = 'de'\n"] * 2, "")
    disk.reloads.begin()
    for changed in (["voice.language"], []):
        answer = await disk.reloads.reload()
        assert (answer.changed, answer.needs_restart) == (changed, ["audio.ring_seconds"])
        assert [one for one in disk.reloads.warnings() if "audio.ring_seconds" in one]
    assert disk.taken[-1].setup.config.audio.ring_seconds == Config().audio.ring_seconds
    assert (await disk.reloads.reload()).changed == ["voice.language"]
    assert [*disk.reloads.warnings()] == []


async def test_what_cannot_be_read_in_time_is_given_up_and_the_next_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "READ_SECONDS", 0.05)
    disk, gate = Disk(""), threading.Event()

    def hang(_adapt: object) -> Setup:
        gate.wait()
        raise ConfigError(["too late"])

    disk.reloads.begin()
    try:
        reads, disk.reloads._read = disk.reloads._read, hang
        answer = await disk.reloads.reload()
        assert not answer.ok
        assert "reload_timeout" in answer.problems[0]
        monkeypatch.undo()
        disk.reloads._read = reads
        assert (await disk.reloads.reload()).ok
    finally:
        gate.set()


async def test_a_plugin_that_is_left_out_anew_is_a_reason_and_an_old_one_is_none() -> None:
    one = '[[plugin]]\nid = "one"\n'
    disk = Disk(one, one + '[[plugin]]\nid = "two"\n', "")
    disk.reloads.begin()
    disk.problems = ["Plugin one: it is nowhere"]
    assert not (await disk.reloads.reload()).ok
    disk.reloads._setup = disk.setup(parse_config(one + QUIET))
    disk.specs = [PluginSpec(id="two", argv=("x",))]
    answer = await disk.reloads.reload()
    assert (answer.ok, answer.problems, answer.plugins.added) == (True, disk.problems, ["lamp"])


LINES = st.lists(
    st.sampled_from(
        [
            "[voice]\nlanguage = 'de'\n",
            "[voice]\nlanguage = 'en'\nspeak = 'all'\n",
            "[runner]\nmax_clients = 3\nhandle_root = '/x'\n",
            "[runner]\nhandle_root = '/y'\ncredit_window = 7\n",
            "[audio]\nring_seconds = 9\ncues = false\n",
            "[socket]\n",
            "[policy.ops.mute]\nrate = '1/hour'\n",
            "[policy]\nconfirm_ops = ['mute']\n",
            "[vioce]\n",
            "[voice]\nlanguage = 7\n",
            "[log\n",
        ]
    ),
    max_size=4,
    unique_by=lambda text: text.split("]", maxsplit=1)[0].split(".", maxsplit=1)[0],
).map("".join)


@given(st.lists(LINES, max_size=8))
@settings(max_examples=100, deadline=None)
def test_whatever_is_written_the_last_that_is_good_holds_but_for_what_waits(texts: list[str]) -> None:
    disk = Disk(*texts)
    first = holds = parse_config(QUIET)

    async def reload_all() -> None:
        nonlocal holds
        disk.reloads.begin()
        for text in texts:
            answer = await disk.reloads.reload()
            if not answer.ok:
                with pytest.raises(ConfigError) as refused:
                    parse_config(text + QUIET)
                assert answer.problems == list(refused.value.problems)
                continue
            wanted = parse_config(text + QUIET)
            waits = [key for key in changed_keys(first, wanted) if not takes_effect(key)]
            assert (answer.ok, answer.needs_restart) == (True, waits)
            assert answer.changed == changed_keys(holds, keeping(first, wanted, waits))
            holds = disk.taken[-1].setup.config
            assert changed_keys(holds, keeping(first, wanted, waits)) == []

    trio.run(reload_all)


async def test_whoever_is_told_of_a_reload_is_told_of_its_end() -> None:
    told: list[str] = []

    @contextmanager
    def around() -> Iterator[None]:
        told.append("reloading")
        yield
        told.append("ready")

    disk = Disk("[voice\n", "")
    disk.reloads._around = around
    disk.reloads.begin()
    for _ in range(2):
        await disk.reloads.reload()
    assert told == ["reloading", "ready"] * 2


async def test_whoever_goes_away_leaves_nothing_half_done() -> None:
    disk = Disk("")
    disk.reloads.begin()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(disk.reloads.reload)
        nursery.cancel_scope.cancel()
    assert disk.taken == []
    disk.texts = [""]
    assert (await disk.reloads.reload()).ok
