from __future__ import annotations

import os
import select
from typing import TYPE_CHECKING

import pytest

from utter_runner.voice.hotkeys.fake import FakeDevice, FakeKeyboard
from utter_runner.voice.hotkeys.kernel import KernelBackend, KernelDevice

if TYPE_CHECKING:
    from pathlib import Path


def test_scan_finds_event_nodes_and_tells_a_new_node_from_an_old_one(tmp_path: Path) -> None:
    backend = KernelBackend(str(tmp_path))
    for name in ("event1", "event0", "mouse0", "by-id"):
        (tmp_path / name).touch()
    before = backend.scan()
    assert list(before) == [str(tmp_path / "event0"), str(tmp_path / "event1")]
    assert backend.scan() == before
    # The old inode stays in use, as it does while a reader has it open, so that its number is not given out again.
    with (tmp_path / "event1").open("rb"):
        (tmp_path / "event1").unlink()
        (tmp_path / "event1").touch()
        after = backend.scan()
    assert after[str(tmp_path / "event0")] == before[str(tmp_path / "event0")]
    assert after[str(tmp_path / "event1")] != before[str(tmp_path / "event1")]


def test_scan_of_a_missing_directory_is_file_not_found(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        KernelBackend(str(tmp_path / "input")).scan()


def test_a_node_that_is_no_input_device_is_an_os_error(tmp_path: Path) -> None:
    (tmp_path / "event0").touch()
    with pytest.raises(OSError, match=r"(?i)inappropriate ioctl"):
        KernelBackend(str(tmp_path)).open(str(tmp_path / "event0"))


def test_changes_are_readable_until_drained_and_closing_is_final(tmp_path: Path) -> None:
    backend = KernelBackend(str(tmp_path))
    assert backend.changes_fd == -1
    backend.start()
    (tmp_path / "event0").touch()
    assert select.select([backend.changes_fd], [], [], 0)[0]
    backend.drain_changes()
    with pytest.raises(BlockingIOError):
        os.read(backend.changes_fd, 1024)
    backend.close()
    backend.close()
    assert backend.changes_fd == -1


def test_the_opener_is_given_the_path(tmp_path: Path) -> None:
    keyboard = FakeKeyboard("board")
    opened: list[str] = []

    def opener(path: str) -> FakeDevice:
        opened.append(path)
        return keyboard.open()

    device = KernelBackend(str(tmp_path), opener).open("/dev/input/event7")
    assert opened == ["/dev/input/event7"]
    assert device.name == "board"
    device.close()


class EvdevDevice:
    """What evdev's InputDevice offers, over a pipe."""

    def __init__(self, path: str, readonly: bool = False) -> None:
        assert readonly, "a keyboard must not be opened for writing"
        self.name, self.phys = f"board at {path}", "usb-1"
        self.fd, self.feed = os.pipe2(os.O_NONBLOCK)

    def capabilities(self, *, absinfo: bool) -> dict[int, list[int]]:
        assert not absinfo
        return {0: [0, 1, 4], 1: [30, 57], 17: [0]}

    def active_keys(self) -> list[int]:
        return [57]

    def close(self) -> None:
        for fd in (self.fd, self.feed):
            os.close(fd)


def test_a_kernel_device_is_a_thin_view_of_evdev(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evdev.InputDevice", EvdevDevice)
    device = KernelDevice("/dev/input/event3")
    assert (device.name, device.phys) == ("board at /dev/input/event3", "usb-1")
    assert device.keys == {30, 57}
    assert device.pressed_keys() == {57}
    with pytest.raises(BlockingIOError):
        device.read()
    os.write(device._device.feed, b"x" * 24)
    assert device.read() == b"x" * 24
    device.close()
    device.close()
