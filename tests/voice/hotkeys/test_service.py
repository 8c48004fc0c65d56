from __future__ import annotations

import errno
import os
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
import trio
import trio.testing

from utter_runner.voice.hotkeys import (
    INJECTOR_NAME,
    Bindings,
    Cancel,
    HotkeyEvent,
    Hotkeys,
    KernelBackend,
    Press,
    Release,
    Toggle,
)
from utter_runner.voice.hotkeys.events import DOWN, EV_KEY, EV_SYN, SYN_REPORT, UP, encode
from utter_runner.voice.hotkeys.fake import FakeBackend, FakeDevice, FakeKeyboard

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from utter_runner.voice.hotkeys.backend import InputBackend

ESC, SPACE, LEFTCTRL, LEFTMETA, F13, KEY_A = 1, 57, 29, 125, 183, 30
BINDINGS = {"push_to_talk": "LEFTMETA+SPACE", "cancel": "ESC", "toggle": "F13"}
NODE, OTHER = "/dev/input/event0", "/dev/input/event1"


class Watch:
    """A running service, and the events and statuses that it told."""

    def __init__(self, backend: InputBackend, **options: Any) -> None:
        self.backend = backend
        self.slept = 0.0
        self.events, self._next_event = trio.open_memory_channel[HotkeyEvent](1000)
        self.statuses, self._next_status = trio.open_memory_channel[dict[str, Any]](1000)
        chords = options.pop("chords", BINDINGS)
        self.hotkeys = Hotkeys(
            Bindings.parse(**chords),
            backend,
            self.events.send_nowait,
            on_status=self.statuses.send_nowait,
            asleep=lambda: self.slept,
            **options,
        )

    async def next(self) -> type:
        return type(await self._next_event.receive())

    async def next_status(self) -> dict[str, Any]:
        return await self._next_status.receive()

    def told(self) -> list[type]:
        found = []
        while True:
            try:
                found.append(type(self._next_event.receive_nowait()))
            except trio.WouldBlock:
                return found


@asynccontextmanager
async def watching(backend: InputBackend, **options: Any) -> AsyncIterator[Watch]:
    watch = Watch(backend, **options)
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            await nursery.start(watch.hotkeys.run)
            await watch.next_status()
            yield watch
            nursery.cancel_scope.cancel()
    assert watch.hotkeys.status() == {"available": False, "devices": [], "detail": "Hotkeys are stopped."}


async def test_a_chord_on_a_keyboard_is_told_and_repeats_are_not() -> None:
    board = FakeKeyboard("board")
    async with watching(FakeBackend({NODE: board})) as watch:
        assert watch.hotkeys.status() == {"available": True, "devices": ["board"], "detail": ""}
        board.press(LEFTMETA, SPACE)
        assert await watch.next() is Press
        board.repeat(SPACE)
        board.release(SPACE)
        assert await watch.next() is Release
        board.release(LEFTMETA)
        board.press(ESC, F13)
        assert [await watch.next(), await watch.next()] == [Cancel, Toggle]
        assert watch.told() == []


async def test_keys_of_two_keyboards_combine() -> None:
    left, right = FakeKeyboard("left"), FakeKeyboard("right")
    async with watching(FakeBackend({NODE: left, OTHER: right})) as watch:
        left.press(LEFTMETA)
        right.press(SPACE)
        assert await watch.next() is Press
        left.release(LEFTMETA)
        assert await watch.next() is Release


async def test_events_that_arrive_in_pieces_are_whole() -> None:
    board = FakeKeyboard("board")
    async with watching(FakeBackend({NODE: board}), chords={"push_to_talk": "F13"}) as watch:
        report = encode(EV_SYN, SYN_REPORT, 0)
        stream = encode(EV_KEY, F13, DOWN) + report + encode(EV_KEY, F13, UP) + report
        for at in range(0, len(stream), 7):
            board.write(stream[at : at + 7])
            await trio.testing.wait_all_tasks_blocked()
        assert watch.told() == [Press, Release]


async def test_after_lost_events_the_kernels_bitmap_is_believed() -> None:
    board = FakeKeyboard("board")
    async with watching(FakeBackend({NODE: board})) as watch:
        board.press(LEFTMETA, SPACE)
        assert await watch.next() is Press
        board.lose(encode(EV_KEY, SPACE, UP))
        assert await watch.next() is Release
        board.lose(encode(EV_KEY, SPACE, DOWN))
        assert await watch.next() is Press


async def test_a_keyboard_that_is_unplugged_releases() -> None:
    board, other = FakeKeyboard("board"), FakeKeyboard("other")
    backend = FakeBackend({NODE: board, OTHER: other})
    async with watching(backend) as watch:
        board.press(LEFTMETA, SPACE)
        assert await watch.next() is Press
        backend.unplug(NODE)
        assert await watch.next() is Release
        assert (await watch.next_status())["devices"] == ["other"]


async def test_a_keyboard_that_is_gone_while_its_node_stays_is_not_opened_again_and_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    board = FakeKeyboard("board")
    backend = FakeBackend({NODE: board})
    async with watching(backend) as watch:
        board.press(LEFTMETA, SPACE)
        board.vanish()
        assert [await watch.next(), await watch.next()] == [Press, Release]
        status = await watch.next_status()
        assert (status["available"], status["devices"]) == (False, [])
        opened: list[str] = []
        monkeypatch.setattr(backend, "open", opened.append)
        backend.notify()
        await trio.testing.wait_all_tasks_blocked()
        assert opened == []


async def test_a_device_that_fails_to_read_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    board = FakeKeyboard("board")
    async with watching(FakeBackend({NODE: board})) as watch:
        board.press(LEFTMETA, SPACE)
        assert await watch.next() is Press

        def no_such_device(_: FakeDevice) -> bytes:
            raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))

        monkeypatch.setattr(FakeDevice, "read", no_such_device)
        board.press(KEY_A)
        assert await watch.next() is Release


async def test_a_keyboard_that_is_plugged_in_later_is_watched_with_the_keys_that_it_holds() -> None:
    backend = FakeBackend({NODE: FakeKeyboard("first")})
    async with watching(backend) as watch:
        late = FakeKeyboard("late")
        late.down = {LEFTMETA, SPACE}
        backend.plug(OTHER, late)
        assert (await watch.next_status())["devices"] == ["first", "late"]
        assert watch.told() == []
        late.release(SPACE)
        late.press(SPACE)
        assert await watch.next() is Press


async def test_a_node_that_is_made_anew_under_the_same_name_is_opened_anew() -> None:
    backend = FakeBackend({NODE: FakeKeyboard("old")})
    async with watching(backend) as watch:
        fresh = FakeKeyboard("new")
        backend.plug(NODE, fresh)
        assert (await watch.next_status())["devices"] == ["new"]
        fresh.press(ESC)
        assert await watch.next() is Cancel


async def test_a_node_becomes_readable_after_its_permissions_changed() -> None:
    backend = FakeBackend({NODE: PermissionError(errno.EACCES, "Permission denied")})
    async with watching(backend) as watch:
        status = watch.hotkeys.status()
        assert not status["available"]
        assert "sudo usermod -aG input $USER" in status["detail"]
        assert "utter ptt press" in status["detail"]
        board = FakeKeyboard("board")
        backend.plug(NODE, board)
        assert (await watch.next_status()) == {"available": True, "devices": ["board"], "detail": ""}


async def test_suspend_counts_as_release() -> None:
    board = FakeKeyboard("board")
    async with watching(FakeBackend({NODE: board})) as watch:
        board.press(LEFTMETA, SPACE)
        assert await watch.next() is Press
        watch.slept = 3600.0
        board.press(KEY_A)
        assert await watch.next() is Release
        # Still down by the bitmap after waking: that is no new press.
        board.repeat(SPACE)
        board.release(SPACE)
        board.press(SPACE)
        assert await watch.next() is Press
        assert watch.told() == []


async def test_suspend_is_noticed_without_any_event_while_the_key_is_held(mock_clock: trio.testing.MockClock) -> None:
    board = FakeKeyboard("board")
    async with watching(FakeBackend({NODE: board})) as watch:
        board.press(LEFTMETA, SPACE)
        assert await watch.next() is Press
        watch.slept = 3600.0
        # Not from the start: a thread that opens devices is no reason to jump.
        mock_clock.autojump_threshold = 0
        assert await watch.next() is Release


async def test_nothing_held_means_no_wake_up(
    mock_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    board = FakeKeyboard("board")
    async with watching(FakeBackend({NODE: board})) as watch:
        turns = 0

        def counted() -> float:
            nonlocal turns
            turns += 1
            return 0.0

        watch.hotkeys._asleep = counted
        mock_clock.autojump_threshold = 0
        with trio.move_on_after(3):
            await trio.sleep_forever()
        assert turns == 0


async def test_stopping_releases_what_is_held() -> None:
    board = FakeKeyboard("board")
    async with watching(FakeBackend({NODE: board})) as watch:
        board.press(LEFTMETA, SPACE)
        assert await watch.next() is Press
    assert watch.told() == [Release]


@pytest.mark.parametrize(
    "options", [{"ignore": ["Virtual*"]}, {"ignore": [NODE]}, {"only": ["Real*"]}, {"only": [OTHER]}]
)
async def test_devices_are_left_out_by_name_or_path(options: dict[str, Any]) -> None:
    virtual, real = FakeKeyboard("Virtual board"), FakeKeyboard("Real board")
    async with watching(FakeBackend({NODE: virtual, OTHER: real}), **options) as watch:
        assert watch.hotkeys.status()["devices"] == ["Real board"]
        virtual.press(ESC)
        real.press(ESC)
        assert await watch.next() is Cancel
        assert watch.told() == []


async def test_our_own_injector_is_never_watched_and_other_virtual_keyboards_are() -> None:
    backend = FakeBackend({NODE: FakeKeyboard(INJECTOR_NAME), OTHER: FakeKeyboard("kanata", phys="")})
    async with watching(backend) as watch:
        assert watch.hotkeys.status()["devices"] == ["kanata"]


async def test_devices_without_a_bound_key_are_not_watched() -> None:
    backend = FakeBackend(
        {NODE: FakeKeyboard("mouse", keys=[0x110]), OTHER: FakeKeyboard("pad", keys=[LEFTMETA, SPACE])}
    )
    async with watching(backend) as watch:
        status = watch.hotkeys.status()
        assert (status["available"], status["devices"]) == (True, ["pad"])
        assert status["detail"].startswith("No watched keyboard has the keys of F13, ESC: choose other keys")


async def test_no_keyboard_that_can_start_a_session_is_not_available() -> None:
    async with watching(FakeBackend({NODE: FakeKeyboard("buttons", keys=[ESC])})) as watch:
        assert not watch.hotkeys.status()["available"]


async def test_a_machine_without_dev_input_is_a_status_and_not_an_error(tmp_path: Path) -> None:
    missing = tmp_path / "input"
    async with watching(KernelBackend(str(missing))) as watch:
        status = watch.hotkeys.status()
        assert not status["available"]
        assert status["detail"].startswith(f"There is no {missing}, so no key can be watched: bind `utter ptt press`")


async def test_an_empty_dev_input_says_so(tmp_path: Path) -> None:
    async with watching(KernelBackend(str(tmp_path))) as watch:
        assert watch.hotkeys.status()["detail"].startswith(
            f"There is no input device in {tmp_path}: plug a keyboard in"
        )


async def test_the_real_backend_notices_a_new_node(tmp_path: Path) -> None:
    board = FakeKeyboard("board")
    async with watching(KernelBackend(str(tmp_path), lambda _: board.open())) as watch:
        (tmp_path / "event0").touch()
        assert (await watch.next_status())["devices"] == ["board"]
        board.press(ESC)
        assert await watch.next() is Cancel
        (tmp_path / "event0").unlink()
        assert (await watch.next_status())["devices"] == []


async def test_without_inotify_the_devices_that_are_there_work_and_the_status_says_what_does_not() -> None:
    board = FakeKeyboard("board")
    async with watching(FakeBackend({NODE: board}, hot_plug=False)) as watch:
        status = watch.hotkeys.status()
        assert status["available"]
        assert "plugged in later are not noticed (Too many open files)" in status["detail"]
        board.press(ESC)
        assert await watch.next() is Cancel


async def test_one_device_that_cannot_be_opened_does_not_hide_the_others() -> None:
    backend = FakeBackend({NODE: OSError(errno.EIO, "Input/output error"), OTHER: FakeKeyboard("board")})
    async with watching(backend) as watch:
        status = watch.hotkeys.status()
        assert status["available"]
        assert status["detail"] == f"{NODE} cannot be opened (Input/output error)."


async def test_no_bindings_watch_nothing() -> None:
    backend = FakeBackend({NODE: FakeKeyboard("board")})
    watch = Watch(backend, chords={})
    async with trio.open_nursery() as nursery:
        await nursery.start(watch.hotkeys.run)
        assert watch.hotkeys.status()["detail"] == "No hotkey is configured in [hotkeys]."
        assert backend.changes_fd == -1
        nursery.cancel_scope.cancel()
