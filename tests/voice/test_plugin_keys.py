"""Keys that plugins watch."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from msgspec import Raw

from support.host import fake_plugin
from utter_runner.supervision.fake import FakeInstance
from utter_runner.voice.plugin_keys import PluginKeys


class Controller:
    def __init__(self) -> None:
        self.done: list[str] = []

    def press(self, at: int | None = None) -> None:
        self.done.append("press" if at is None else f"press from {at}")

    def release(self) -> None:
        self.done.append("release")

    def toggle(self, at: int | None = None) -> None:
        self.done.append("toggle" if at is None else f"toggle from {at}")

    def listen(self, at: int | None = None) -> None:
        self.done.append("listen" if at is None else f"listen from {at}")

    def cancel(self) -> None:
        self.done.append("cancel")


class Bed:
    def __init__(self) -> None:
        self.controller = Controller()
        self.keys = PluginKeys(self._open, self.controller)
        self.opened: list[tuple[str, str]] = []
        self.acks: list[int] = []
        self.seq = -1
        self.on_item: Any = None
        self.on_closed: Any = None

    def _open(self, instance: FakeInstance, method: str, params: bytes, *, on_item: Any, on_closed: Any) -> Bed:
        assert params == b"{}"
        self.opened.append((instance.id, method))
        self.on_item, self.on_closed = on_item, on_closed
        return self

    def acknowledge(self, seq: int) -> None:
        self.acks.append(seq)

    def stop(self) -> None: ...

    def key(self, key: str, pressed: str, more: str = "") -> None:
        self.seq += 1
        self.on_item(self.seq, Raw(f'{{"key":"{key}","pressed":{pressed}{more}}}'.encode()))


def keyboard() -> FakeInstance:
    return fake_plugin("keys", streams=["input.keys"], kind="input")


def test_only_plugins_with_keys_are_listened_to() -> None:
    bed = Bed()
    bed.keys.admitted(fake_plugin("other"))
    assert bed.opened == []
    bed.keys.admitted(keyboard())
    assert bed.opened == [("keys", "input.keys")]


def test_each_key_does_what_it_is_for_and_repeats_do_nothing() -> None:
    bed = Bed()
    bed.keys.admitted(keyboard())
    for key, pressed in [
        ("push_to_talk", "false"),
        ("push_to_talk", "true"),
        ("push_to_talk", "true"),
        ("push_to_talk", "false"),
        ("push_to_talk", "false"),
        ("toggle", "true"),
        ("toggle", "false"),
        ("listen", "true"),
        ("listen", "false"),
        ("cancel", "true"),
        ("cancel", "false"),
    ]:
        bed.key(key, pressed)
    assert bed.controller.done == ["press", "release", "toggle", "listen", "cancel"]
    assert bed.acks == list(range(11))


@pytest.mark.parametrize(("key", "does"), [("push_to_talk", "press"), ("toggle", "toggle"), ("listen", "listen")])
def test_a_key_says_where_its_session_begins(key: str, does: str) -> None:
    bed = Bed()
    bed.keys.admitted(keyboard())
    bed.key(key, "true", ',"at":16000')
    assert bed.controller.done == [f"{does} from 16000"]


@pytest.mark.parametrize("at", ["-1", "1.5", '"now"', "1e400"])
def test_a_beginning_that_is_no_frame_is_no_key(at: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    bed = Bed()
    bed.keys.admitted(keyboard())
    bed.key("listen", "true", f',"at":{at}')
    assert (bed.controller.done, bed.acks) == ([], [0])
    assert "keys sent in input.keys what is no key" in caplog.text


@pytest.mark.parametrize("held", [True, False])
def test_a_plugin_that_goes_lets_its_key_go(held: bool) -> None:
    bed = Bed()
    bed.keys.admitted(keyboard())
    if held:
        bed.key("push_to_talk", "true")
    bed.on_closed("keys went away")
    assert bed.controller.done == (["press", "release"] if held else [])
    # Its next epoch begins with the key up.
    bed.keys.admitted(keyboard())
    bed.key("push_to_talk", "true")
    assert bed.controller.done[-1] == "press"


def test_what_is_no_key_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    bed = Bed()
    bed.keys.admitted(keyboard())
    bed.key("self_destruct", "true")
    assert (bed.controller.done, bed.acks) == ([], [0])
    assert "self_destruct" in caplog.text
